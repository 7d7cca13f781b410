# SPDX-License-Identifier: GPL-2.0-or-later
"""Delays between attempts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgext.vcsreplicator.words.retry import FAILOVER, RECONNECT, Backoff, read_retry_after


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_delays_grow_up_to_the_longest_and_never_leave_the_jitter(attempt: int, chance: float) -> None:
    backoff = Backoff(first=0.1, longest=30.0, jitter=0.2)
    assert 0.08 <= backoff.delay(attempt, chance) <= 36.0


def test_without_luck_the_delays_double() -> None:
    backoff = Backoff(first=1.0, longest=5.0, jitter=0.0)
    assert [backoff.delay(attempt) for attempt in (1, 2, 3, 4, 5)] == [1.0, 2.0, 4.0, 5.0, 5.0]


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_what_was_away_is_tried_every_two_seconds_at_least(attempt: int, chance: float) -> None:
    assert 0 < RECONNECT.delay(attempt, chance) <= 2.0


def test_where_another_broker_takes_over_no_attempt_comes_too_late() -> None:
    passed = 0.0
    for attempt in range(1, 500):
        delay = FAILOVER.delay(attempt, 0.999)
        assert delay <= max(0.12, 0.05 * passed + 0.12)
        assert delay <= 1.2
        passed += delay
    assert delay > 1


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, 0), ("120", 120), (" 7 ", 7), ("999999999999", 86400), ("-5", 0), ("soon", 0),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 100), ("Fri, 01 Jan 2100 00:00:00 GMT", 86400), ("Thu, 01 Jan 1960 00:00:00 GMT", 0),
        ("99999999999999999999 Jan 1970 00:00:00 GMT", 0), ("Thu, 01 Jan 1970 00:00:00 +99999999999999", 0),
    ],
)  # fmt: skip
def test_retry_after_is_read_as_seconds_or_date(value: str | None, seconds: float) -> None:
    assert read_retry_after(value, 0.0) == seconds

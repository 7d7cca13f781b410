# SPDX-License-Identifier: GPL-2.0-or-later
"""Delays between attempts."""

from hypothesis import given
from hypothesis import strategies as st

from hgext.vcsreplicator.words.retry import RECONNECT, Backoff


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_delays_grow_up_to_the_longest_and_never_leave_the_jitter(attempt: int, chance: float) -> None:
    backoff = Backoff(first=0.1, longest=30.0, jitter=0.2)
    assert 0.08 <= backoff.delay(attempt, chance) <= 36.0


def test_without_luck_the_delays_double() -> None:
    backoff = Backoff(first=1.0, longest=5.0, jitter=0.0)
    assert [backoff.delay(attempt) for attempt in (1, 2, 3, 4, 5)] == [1.0, 2.0, 4.0, 5.0, 5.0]


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_what_was_away_is_tried_at_least_every_two_seconds_after_an_outage_of_any_length(
    attempt: int, chance: float
) -> None:
    assert 0 < RECONNECT.delay(attempt, chance) <= 2.0

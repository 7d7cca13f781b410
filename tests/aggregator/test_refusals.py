# SPDX-License-Identifier: GPL-2.0-or-later
"""When the aggregator tries again what a topic refused for its size; the clock is moved by hand."""

from types import SimpleNamespace
from typing import Any

import pytest

from hgext.vcsreplicator.aggregator.decisions.poison import Poison
from hgext.vcsreplicator.aggregator.refusals import RETRIES, RefusalWatch
from hgext.vcsreplicator.log import NOTICES, LargeRecord
from testing.clock import HandClock

BEAT = 5.0


class Aggregator:
    """Sessions of an aggregator, whose try fails each time; Kafka shows a `limit`, or none."""

    def __init__(self) -> None:
        self.clock, self.poison, self.limit = HandClock(), Poison(), list[int | None]([None])
        self.log: Any = SimpleNamespace(largest=lambda topic: self.limit[0])
        self.begin()

    def begin(self) -> None:
        self.poison.refuse(LargeRecord(topic=NOTICES, key="a" * 32, size=2000, limit=self.limit[0]))
        self.begin_anew()

    def begin_anew(self) -> None:
        """What was refused waits on, since the session ended for another reason."""
        self.watch = RefusalWatch(self.poison, self.log, self.clock, BEAT)

    def tries(self, seconds: float) -> list[float]:
        """The seconds before each try."""
        until, last, found = self.clock.monotonic() + seconds, self.clock.monotonic(), list[float]()
        while self.clock.monotonic() < until:
            self.clock.advance(BEAT)
            if self.watch.is_due():
                found.append(self.clock.monotonic() - last)
                last = self.clock.monotonic()
                self.poison.try_again()
                self.begin()
        return found


@pytest.fixture
def aggregator() -> Aggregator:
    return Aggregator()


def test_while_no_limit_is_seen_to_change_tries_become_rare(aggregator: Aggregator) -> None:
    """Each of them loads the whole log again for each repository that waits."""
    day = aggregator.tries(2 * 86400.0)
    assert day[:4] == [600.0, 1200.0, 2400.0, 4800.0]
    assert day[-1] == RETRIES.longest
    assert len(day) < 20


def test_a_limit_that_changes_is_tried_at_once_and_ends_the_long_pauses(aggregator: Aggregator) -> None:
    aggregator.tries(86400.0)
    aggregator.limit[0] = 1000
    assert aggregator.tries(700.0) == [BEAT, 600.0]


def test_a_record_refused_long_after_another_begins_with_a_short_pause(
    aggregator: Aggregator,
) -> None:
    aggregator.tries(86400.0)
    aggregator.poison.try_again()
    for _ in range(200):
        aggregator.clock.advance(BEAT)
        assert not aggregator.watch.is_due()
    aggregator.begin()
    assert aggregator.tries(700.0) == [600.0]


def test_a_log_that_is_away_now_and_then_puts_no_try_off(aggregator: Aggregator) -> None:
    """Each time a new session begins, and no try with it."""
    aggregator.tries(86400.0)
    found = 0
    for _ in range(12):
        aggregator.begin_anew()
        found += len(aggregator.tries(RETRIES.longest / 4))
    assert found == 3

# SPDX-License-Identifier: GPL-2.0-or-later
"""What the follower of a log knows of the time by the log's clock, and when it knows nothing."""

from typing import NoReturn

import pytest

from hgext.vcsreplicator.log import SERVICES, STATE, NewRecord, topics
from hgext.vcsreplicator.status.follower import FRESH, WATCH, Follower
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.records import AggregatorHeartbeat
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.log.memorylog import MemoryLog
from testing.clock import HandClock

HOUR = 3600.0


class Watched:
    """A log whose clock is ahead of that of its observer, who reads it when told."""

    def __init__(self, ahead: float = 0.0) -> None:
        self.of_log, self.own = HandClock(1_700_000_000.0 + ahead), HandClock(1_700_000_000.0)
        self.log = MemoryLog(clock=self.of_log)
        self.log.create(topics(partitions=1))
        self.follower: Follower | None = None

    def beat(self) -> None:
        beat = AggregatorHeartbeat(time=self.of_log.now(), roster=1, held=0)
        self.log.append([NewRecord(topic=STATE, key="aggregator", value=to_json(beat))])

    def wait(self, seconds: float) -> None:
        for clock in (self.of_log, self.own):
            clock.advance(seconds)

    def look(self) -> float | None:
        self.follower = self.follower or Follower(self.log, self.own)
        self.follower.update()
        return self.follower.now()


@pytest.mark.parametrize("ahead", [0.0, HOUR, -HOUR], ids=["agreeing", "ahead", "behind"])
def test_an_old_record_of_the_first_reading_says_nothing_of_the_time(ahead: float) -> None:
    watched = Watched(ahead)
    watched.beat()
    watched.wait(100.0)
    assert watched.look() is None


def test_a_record_fresh_by_the_own_clock_says_that_the_clocks_agree() -> None:
    watched = Watched()
    watched.beat()
    watched.wait(FRESH)
    assert watched.look() == watched.of_log.now()
    watched.wait(HOUR)
    assert watched.look() == watched.of_log.now()


@pytest.mark.parametrize("ahead", [HOUR, -HOUR], ids=["ahead", "behind"])
def test_a_record_between_two_updates_says_the_time_of_another_clock(ahead: float) -> None:
    watched = Watched(ahead)
    watched.beat()
    watched.wait(20.0)
    assert watched.look() is None
    watched.wait(1.0)
    watched.beat()
    watched.wait(4.0)
    now = watched.look()
    assert now is not None
    assert watched.of_log.now() - 5.0 <= now <= watched.of_log.now()
    watched.wait(HOUR)
    watched.beat()
    assert watched.look() == watched.of_log.now(), "each record makes the time more exact"


def test_a_record_of_a_time_without_reading_says_nothing_of_the_time() -> None:
    watched = Watched(-HOUR)
    watched.beat()
    watched.wait(20.0)
    watched.look()
    watched.beat()
    watched.wait(HOUR / 2)
    assert watched.look() is None


def test_a_time_that_was_known_stays_known_while_the_log_is_not_read() -> None:
    watched = Watched(HOUR)
    watched.look()
    watched.beat()
    watched.wait(1.0)
    known = watched.look()
    watched.beat()
    watched.wait(HOUR / 2)
    assert known is not None
    assert watched.look() in (known + HOUR / 2, known + HOUR / 2 + 1.0), "the record makes the time more exact"


def test_nothing_is_known_after_the_own_clock_was_set_until_a_record() -> None:
    watched = Watched()
    watched.beat()
    assert watched.look() is not None
    watched.own.set_back(HOUR)
    assert watched.look() is None
    watched.wait(1.0)
    watched.beat()
    assert watched.look() == watched.of_log.now()


def test_nothing_is_known_at_once_after_the_own_clock_was_set() -> None:
    watched = Watched()
    watched.beat()
    assert watched.look() is not None
    assert watched.follower is not None
    watched.own.set_back(HOUR)
    assert watched.follower.now() is None


def test_the_clock_of_the_log_may_be_set_back() -> None:
    watched = Watched(HOUR)
    watched.look()
    watched.beat()
    watched.wait(1.0)
    watched.look()
    watched.of_log.set_back(HOUR / 2)
    watched.beat()
    assert watched.look() == watched.of_log.now()


def test_a_record_from_while_this_machine_slept_does_not_tell_the_time() -> None:
    watched = Watched()
    watched.beat()
    assert watched.look() == watched.own.now()
    for clock in (watched.of_log, watched.own):
        clock.set_back(-60.0)  # a clock goes on while the monotonic one stands still
    watched.beat()
    for clock in (watched.of_log, watched.own):
        clock.set_back(-HOUR)
    assert watched.look() is None
    watched.wait(1.0)
    watched.beat()
    assert watched.look() == watched.own.now()


def test_a_topic_that_is_created_later_is_followed() -> None:
    watched = Watched()
    watched.log = MemoryLog(clock=watched.of_log)
    watched.log.create([topic for topic in topics(partitions=1) if topic.name != SERVICES])
    watched.beat()
    watched.look()
    assert watched.follower is not None
    assert not watched.follower.picture.has_services
    watched.log.create(topics(partitions=1))
    watched.look()
    assert watched.follower.picture.has_services
    assert watched.follower.picture.aggregator is not None


def test_a_created_topic_is_followed_though_opening_it_failed_once() -> None:
    watched = Watched()
    watched.log = MemoryLog(clock=watched.of_log)
    watched.log.create([topic for topic in topics(partitions=1) if topic.name != SERVICES])
    watched.beat()
    watched.look()
    assert watched.follower is not None
    watched.log.create(topics(partitions=1))
    watched.log.before["reader"] = refuse
    with pytest.raises(Unavailable):
        watched.look()
    watched.log.before.clear()
    assert not watched.follower.picture.has_services
    watched.look()
    assert watched.follower.picture.has_services
    assert watched.follower.picture.aggregator is not None


def refuse(*_: object) -> NoReturn:
    raise Unavailable("no leader")


def test_without_records_for_a_while_every_service_is_silent() -> None:
    watched = Watched(HOUR)
    watched.beat()
    watched.wait(100.0)
    assert watched.look() is None
    watched.wait(WATCH)
    told = watched.look()
    assert told is not None
    assert watched.follower is not None
    assert watched.follower.picture.silence("aggregator", told) > 60.0


def test_the_time_of_an_empty_log_is_that_of_the_own_clock() -> None:
    watched = Watched()
    assert watched.look() == watched.own.now()
    watched.wait(5.0)
    watched.beat()
    assert watched.look() == watched.of_log.now()


def test_the_present_is_told_in_bounded_time_though_readings_take_long() -> None:
    watched = Watched(HOUR)
    watched.beat()
    watched.wait(100.0)
    follower, pauses = Follower(watched.log, watched.own), []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        watched.beat()
        watched.wait(2 * FRESH)

    assert watched.of_log.now() - 2 * FRESH <= follower.present(pause) <= watched.of_log.now() + 2 * FRESH
    assert len(pauses) < 3


def test_a_first_reading_that_takes_long_makes_no_dead_service_fresh() -> None:
    watched = Watched()
    watched.beat()
    watched.wait(100.0)
    follower = Follower(watched.log, watched.own)

    def read_slowly(*_: object) -> None:
        watched.log.before.clear()
        watched.wait(WATCH - 2.0)

    watched.log.before["ends"] = read_slowly
    assert follower.picture.silence("aggregator", follower.present(watched.wait)) > 60.0

# SPDX-License-Identifier: GPL-2.0-or-later
"""Readers of single repositories: so many at a time, the others in turn."""

from typing import Any

import pytest

from hgext.vcsreplicator.log import EVENTS
from hgext.vcsreplicator.mirror.notes import Detached
from hgext.vcsreplicator.mirror.supervision.catchup import LIMIT, PASSED_OVER, STUCK_AFTER, CatchUpReaders
from hgext.vcsreplicator.mirror.supervision.life import Following
from hgext.vcsreplicator.mirror.supervision.values import Phase
from hgext.vcsreplicator.words.records import Reason
from testing.builders.mirror.lives import following_of, put
from testing.builders.mirror.supervising import Reader
from testing.clock import HandClock


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def readers(played_readers: None, clock: HandClock) -> CatchUpReaders:
    return CatchUpReaders(Any, lambda arrived: None, clock)  # type: ignore[arg-type]


def detached(number: int, partition: int = 1) -> Following:
    name = f"{number:032x}"
    note = Detached(
        repository=name, path=name, partition=partition, offset=number, reason=Reason.LOCKED, note="", since=0.0
    )
    return following_of(name, name, phase=Phase.WAITING, note=note)


def start(readers: CatchUpReaders, count: int, partition: int) -> list[Following]:
    """So many repositories of the partition that catch up from now on."""
    started = [detached(100 * partition + number, partition) for number in range(count)]
    for following in started:
        readers.start(following)
    return started


def reading() -> list[str]:
    """The repositories that have a reader."""
    return [reader.follows for reader in Reader.running]


def bring_nothing(readers: CatchUpReaders, clock: HandClock, seconds: float) -> None:
    """Let a time pass in which the log brings nothing, though it is asked again and again."""
    for reader in Reader.running:
        readers.read_on(following_of(reader.follows, ""))
    clock.advance(seconds)
    readers.pass_over_stuck()


def test_no_more_than_the_limit_read_at_a_time_and_others_follow(readers: CatchUpReaders) -> None:
    waiting = [detached(number) for number in range(LIMIT + 3)]
    for following in waiting:
        readers.start(following)
    assert reading() == [following.id for following in waiting[:LIMIT]]
    readers.stop(waiting[LIMIT])  # which only waits
    readers.stop(waiting[0])
    assert reading() == [following.id for following in (*waiting[1:LIMIT], waiting[LIMIT + 1])]


def test_a_repository_that_starts_again_has_one_reader(readers: CatchUpReaders) -> None:
    following = detached(7)
    readers.start(following)
    put(following, run=2)
    readers.start(following)
    [reader] = Reader.running
    assert (reader.run, reader.start_at) == (2, {("events", 1): 7})
    readers.close()
    assert Reader.running == []


def test_a_partition_that_brings_nothing_delays_no_repository_of_another(
    readers: CatchUpReaders, clock: HandClock
) -> None:
    dead = start(readers, 3 * LIMIT, partition=0)
    [other] = start(readers, 1, partition=1)
    assert other.id not in reading()
    bring_nothing(readers, clock, STUCK_AFTER)
    assert other.id in reading()
    later = start(readers, LIMIT, partition=2)
    bring_nothing(readers, clock, STUCK_AFTER)
    assert {following.id for following in later} <= {*reading(), other.id}
    for following in (other, *later):
        readers.stop(following)
    assert len(reading()) == LIMIT
    assert {*reading()} <= {following.id for following in dead}


def test_a_partition_that_was_passed_over_gets_readers_again(readers: CatchUpReaders, clock: HandClock) -> None:
    dead = start(readers, LIMIT, partition=0)
    start(readers, 2 * LIMIT, partition=1)
    bring_nothing(readers, clock, STUCK_AFTER)
    assert not {*reading()} & {following.id for following in dead}
    clock.advance(PASSED_OVER)
    readers.stop(following_of(reading()[0], ""))
    assert {*reading()} & {following.id for following in dead}


def test_a_reader_that_advances_or_is_not_asked_does_not_make_way(readers: CatchUpReaders, clock: HandClock) -> None:
    advancing, unasked, *_ = first = start(readers, LIMIT, partition=0)
    start(readers, LIMIT, partition=1)
    readers.advance(unasked, 1000)
    for position in (1000, 1001):
        readers.read_on(advancing)
        clock.advance(STUCK_AFTER / 2)
        readers.advance(advancing, position)
        readers.read_on(advancing)
    clock.advance(STUCK_AFTER / 2)
    readers.pass_over_stuck()
    assert {*reading()} & {following.id for following in first} == {advancing.id, unasked.id}


def test_a_reader_without_progress_stays_while_its_partition_waits(readers: CatchUpReaders, clock: HandClock) -> None:
    start(readers, 2 * LIMIT, partition=0)
    before = [*Reader.running]
    bring_nothing(readers, clock, 10 * STUCK_AFTER)
    assert Reader.running == before


def test_a_repository_that_made_way_goes_on_where_its_reader_was(readers: CatchUpReaders, clock: HandClock) -> None:
    first, *_ = start(readers, LIMIT, partition=0)
    others = start(readers, LIMIT, partition=1)
    run = first.work.run
    readers.advance(first, 77)
    bring_nothing(readers, clock, STUCK_AFTER)
    assert first.work.run > run  # what its former reader brings late is not taken
    for following in others:
        readers.stop(following)
    assert next(reader.start_at for reader in Reader.running if reader.follows == first.id) == {(EVENTS, 0): 77}

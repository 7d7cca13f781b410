# SPDX-License-Identifier: GPL-2.0-or-later
"""Which position may be stored while events wait for their repositories."""

from dataclasses import replace

from hgext.vcsreplicator.mirror.supervision.backlog import Backlog
from hgext.vcsreplicator.mirror.task import ReadEvent
from hgext.vcsreplicator.words.wire import Frame, Header


def item(offset: int, *, size: int = 10, partition: int = 0) -> ReadEvent:
    return ReadEvent(frame=Frame(header=Header(), body=b""), partition=partition, offset=offset, size=size)


def test_the_position_stays_at_the_oldest_unfinished_event() -> None:
    backlog = Backlog({0: 5})
    for repository, offset in (("a", 5), ("b", 6), ("a", 7)):
        backlog.add(repository, item(offset))
    backlog.finish("b", 1)
    assert backlog.positions() == {0: 5}
    backlog.finish("a", 1)
    assert backlog.positions() == {0: 7}
    backlog.finish("a", 1)
    assert backlog.positions() == {0: 8}


def test_records_that_need_no_work_are_passed() -> None:
    backlog = Backlog({0: 0, 1: 3})
    backlog.read_to(0, 1)
    assert backlog.positions() == {0: 1, 1: 3}


def test_a_dropped_repository_holds_no_position() -> None:
    backlog = Backlog({0: 0})
    backlog.add("slow", item(0))
    backlog.add("quick", item(1))
    backlog.drop("slow")
    assert backlog.positions() == {0: 1}
    assert not backlog.size("slow")


def test_events_of_a_catch_up_reader_hold_no_position() -> None:
    backlog = Backlog({0: 9})
    backlog.add("a", item(2), tracked=False)
    backlog.add("a", item(9))
    backlog.finish("a", 1)
    assert backlog.positions() == {0: 9}
    assert backlog.is_worked_off("a")


def test_what_catches_up_does_not_count_against_the_stream() -> None:
    backlog = Backlog({0: 9})
    backlog.add("a", item(2, size=1000), tracked=False)
    backlog.add("b", item(9, size=10))
    assert (backlog.bytes, backlog.tracked_bytes) == (1010, 10)
    backlog.finish("a", 1)
    backlog.finish("b", 1)
    assert (backlog.bytes, backlog.tracked_bytes) == (0, 0)


def test_peek_takes_at_least_one_and_then_what_fits() -> None:
    backlog = Backlog({0: 0})
    for offset in range(4):
        backlog.add("a", item(offset, size=100))
    assert [taken.offset for taken in backlog.peek("a", events=10, size=250)] == [0, 1]
    assert [taken.offset for taken in backlog.peek("a", events=10, size=1)] == [0]
    assert [taken.offset for taken in backlog.peek("a", events=3, size=1000)] == [0, 1, 2]
    assert backlog.peek("unknown", events=1, size=1) == ()


def test_bytes_are_counted_in_and_out() -> None:
    backlog = Backlog({0: 0})
    backlog.add("a", item(0, size=70))
    backlog.add("b", item(1, size=30))
    assert (backlog.bytes, backlog.size("a"), backlog.size("b")) == (100, 70, 30)
    backlog.drop("a")
    assert (backlog.bytes, backlog.size("a"), backlog.size("b")) == (30, 0, 30)


def test_the_oldest_event_is_the_first_of_some_queue() -> None:
    backlog = Backlog({0: 0})
    assert backlog.oldest() is None
    for repository, offset, time in (("a", 0, 5.0), ("b", 1, 6.0), ("a", 2, 7.0)):
        backlog.add(repository, replace(item(offset), time=time))
    assert backlog.oldest() == 5.0
    backlog.finish("a", 1)
    assert backlog.oldest() == 6.0
    backlog.drop("b")
    assert backlog.oldest() == 7.0


def test_repositories_whose_events_hold_a_position_are_named() -> None:
    backlog = Backlog({0: 0, 1: 0})
    for repository, each in (
        ("before", item(4)),
        ("at", item(5)),
        ("behind", item(6)),
        ("other", item(7, partition=1)),
    ):
        backlog.add(repository, each)
    backlog.add("catching up", item(8), tracked=False)
    assert backlog.queued_from(0, 5) == ["at", "behind"]


def test_events_that_fit_exactly_are_taken_together() -> None:
    backlog = Backlog({0: 0})
    for offset in range(3):
        backlog.add("a", item(offset))
    assert len(backlog.peek("a", events=9, size=20)) == 2


def test_what_is_finished_makes_room_for_its_repository() -> None:
    backlog = Backlog({0: 0})
    for offset in range(3):
        backlog.add("a", item(offset))
    backlog.finish("a", 2)
    assert backlog.size("a") == 10

# SPDX-License-Identifier: GPL-2.0-or-later
"""The way back to the stream: nothing rejoins before its time, and what catches up is bounded. Workers are played by hand."""

from dataclasses import replace

import pytest

from hgext.vcsreplicator.log import EVENTS, STATE, partition_of
from hgext.vcsreplicator.mirror.notes import Detached
from hgext.vcsreplicator.mirror.pool import Answered
from hgext.vcsreplicator.mirror.sources import ReadRecords
from hgext.vcsreplicator.mirror.supervision import catchup
from hgext.vcsreplicator.mirror.supervision.life import Deed, Following
from hgext.vcsreplicator.mirror.supervision.values import Phase
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.event import Event, Type
from hgext.vcsreplicator.words.records import Reason
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.chains import Chain
from testing.builders.aggregator.states import state_of
from testing.builders.mirror.supervising import Bench, Reader, catching_up, checkpoint, until_given


def catch_up(bench: Bench, monkeypatch: pytest.MonkeyPatch, first: Event) -> tuple[Following, list[str]]:
    """The event's repository, which reads what it missed, and when its reader may read on."""
    read_on: list[str] = []
    monkeypatch.setattr(bench.mirror.readers, "read_on", lambda following: read_on.append(following.id))
    monkeypatch.setitem(bench.mirror.state.deeds, Deed.READ_ON, bench.mirror.readers.read_on)
    bench.read(first)
    bench.applied(first)
    bench.detach(first.repository, Reason.GAP, "lacks one")
    following = bench.mirror.state.table.get(first.repository)
    assert following is not None
    bench.passes(2)
    assert following.phase is Phase.CATCHING_UP
    return following, read_on


def bring(bench: Bench, following: Following, *events: Event, position: int) -> None:
    """What the repository's reader read."""
    records = [bench.record(EVENTS, event.repository, wire.encode(event)) for event in events]
    bench.mirror.receive(
        ReadRecords(records=records, positions={(EVENTS, 0): position}, follows=following.id, run=following.work.run)
    )
    bench.mirror.turn(0)


@pytest.mark.usefixtures("played_readers")
def test_a_note_stays_until_what_was_caught_up_is_applied(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Chain("r").take(2)
    following, _ = catch_up(bench, monkeypatch, first)
    bring(bench, following, second, position=bench.mirror.state.backlog.next(0))
    assert following.work.phase is Phase.JOINING
    assert [note.repository for note in bench.notes.detached()] == [first.repository]
    bench.applied(second)
    assert following.phase is Phase.STREAM
    assert bench.notes.detached() == []


@pytest.mark.usefixtures("played_readers")
def test_a_complete_repository_rejoins_at_the_position_of_the_stream(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Chain("r").next()
    following, read_on = catch_up(bench, monkeypatch, first)
    at = bench.mirror.state.backlog.next(0)
    bring(bench, following, position=at - 1)
    assert (following.phase, read_on) == (Phase.CATCHING_UP, [first.repository])
    bring(bench, following, position=at)
    assert following.phase is Phase.STREAM
    assert bench.notes.detached() == []


@pytest.mark.usefixtures("played_readers")
def test_a_reader_reads_on_once_most_of_what_it_brought_is_applied(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *more = Chain("r").take(9)
    size = len(wire.encode(more[0]))
    bench.settings = replace(bench.settings, repository_buffer_bytes=15 * size // 2, batch_events=1)
    bench.start({0: 0})
    following, read_on = catch_up(bench, monkeypatch, first)
    bring(bench, following, *more, position=0)
    assert read_on == []
    left = len(more)
    for event in more:
        assert bool(read_on) is (left <= 1)
        bench.applied(event)
        bench.mirror.turn(0)
        left -= 1
    assert read_on


@pytest.mark.usefixtures("played_readers")
def test_the_event_that_is_applied_is_not_queued_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Chain("r").take(2)
    following, _ = catch_up(bench, monkeypatch, first)
    bring(bench, following, first, second, position=0)
    assert [item.event.seq for item in bench.mirror.state.backlog.peek(following.id, events=9, size=10**9)] == [2]


@pytest.mark.usefixtures("played_readers")
def test_a_repeat_that_a_catch_up_brings_does_not_undo_a_deletion(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has the events twice, because the relay sent them again."""
    chain = Chain("r")
    created, deleted = chain.next(), chain.next(Type.DELETED)
    following, _ = catch_up(bench, monkeypatch, created)
    bring(bench, following, deleted, position=0)
    gone = checkpoint(deleted, deleted=True)
    bench.answer(bench.pool.given[-1], done=1, checkpoint=None, folder=None, serving=0, gone=gone)
    count = len(bench.pool.given)
    bring(bench, following, created, deleted, position=0)
    assert len(bench.pool.given) == count


@pytest.mark.usefixtures("played_readers")
def test_one_that_joined_is_acked_as_attached(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Chain("r").next()
    following, _ = catch_up(bench, monkeypatch, first)
    assert bench.writer.acks[first.repository].detached == Reason.GAP
    bring(bench, following, position=bench.mirror.state.backlog.next(0))
    assert bench.writer.acks[first.repository].detached is None
    assert following.checkpoint == checkpoint(first)


def test_a_repository_deleted_while_its_worker_died_is_set_aside(bench: Bench) -> None:
    chain = Chain("r")
    created, pushed, deleted = chain.next(), chain.next(), chain.next(Type.DELETED)
    bench.read(created)
    bench.applied(created)
    bench.read(pushed)
    bench.detach(chain.repository, Reason.CORRUPT, "damaged")
    bench.records(bench.record(STATE, chain.repository, to_json(state_of(deleted, deleted=True))))
    worker = bench.pool.given[-1]
    bench.mirror.receive(Answered(worker=worker, answer=None))
    until_given(bench, chain.repository)
    task = bench.pool.given[-1].busy
    assert (task.leave, task.heal) == (True, None)


def test_a_task_under_way_at_the_detaching_is_not_the_repair(bench: Bench) -> None:
    first, second = Chain("r").take(2)
    bench.read(first)
    bench.applied(first)
    bench.read(second)
    bench.detach(first.repository, Reason.CORRUPT, "damaged")
    bench.passes(10)
    assert [note.attempts for note in bench.notes.detached()] == [0]
    bench.applied(second)
    until_given(bench, first.repository)
    assert bench.pool.given[-1].busy.heal is Reason.CORRUPT


def test_events_of_a_detached_repository_hold_no_memory_or_position(bench: Bench) -> None:
    first, *more = Chain("r").take(3)
    bench.read(first)
    bench.applied(first)
    bench.detach(first.repository, Reason.FORK, "two histories")
    bench.read(*more)
    assert bench.mirror.state.backlog.bytes == 0
    assert bench.mirror.state.backlog.positions() == {0: bench.offset}


@pytest.mark.usefixtures("played_readers")
def test_repositories_of_a_silent_partition_make_way(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.start({0: 0, 1: 0})
    monkeypatch.setattr(bench.mirror.state.backlog, "next", lambda partition: 1000)
    events = [Chain(f"r{number}").next() for number in range(100)]
    dead, living = ([each for each in events if partition_of(each.repository, 2) == partition] for partition in (0, 1))
    for event in (*dead[: catchup.LIMIT], living[0]):
        bench.mirror.state.table.get_or_add(event.repository, event.path)
        catching_up(bench, event)
    assert living[0].repository not in [reader.follows for reader in Reader.running]
    first = Reader.running[0]
    for second in range(int(2 * catchup.STUCK_AFTER)):
        if living[0].repository in [reader.follows for reader in Reader.running]:
            break
        positions = {(EVENTS, 0): second}
        bench.mirror.receive(ReadRecords(records=(), positions=positions, follows=first.follows, run=first.run))
        bench.passes(1)
    else:
        raise AssertionError("no reader made way")
    assert first in Reader.running


def test_a_position_passes_no_event_before_its_note_is_durable(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    [event] = Chain("r").take(1)
    bench.read(event)
    state = bench.mirror.state
    held = []

    def is_full(note: Detached) -> None:
        held.append(state.backlog.positions())
        raise Unavailable("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(bench.notes, "detach", is_full)
        bench.detach(event.repository, Reason.GAP, "lost")
    assert held == [{0: 0}]  # a kill during the write reads the event again
    assert state.backlog.positions() == {0: 0}
    bench.passes(2)
    assert [note.offset for note in bench.notes.detached()] == [0]
    assert state.backlog.positions() == {0: 1}

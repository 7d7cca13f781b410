# SPDX-License-Identifier: GPL-2.0-or-later
"""The mirror's supervisor in interleavings that processes hit once a year: workers are played by hand, notes and log are real."""

import queue
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import structlog

from hgext.vcsreplicator.log import EVENTS, ROSTER, STATE, Log, NewRecord, check_message
from hgext.vcsreplicator.mirror import sources
from hgext.vcsreplicator.mirror.notes import DeletedRepository
from hgext.vcsreplicator.mirror.pool import Answered, Lane
from hgext.vcsreplicator.mirror.sources import AHEAD, ExpiredPosition, ReadRecords, SkippedRecords, Source
from hgext.vcsreplicator.mirror.supervision import maintenance
from hgext.vcsreplicator.mirror.supervision.supervisor import BUSY_TURN, IDLE_TURN
from hgext.vcsreplicator.mirror.supervision.values import Phase
from hgext.vcsreplicator.mirror.task import Check, Checked, FoundRepository, Sweep, Task, Trouble
from hgext.vcsreplicator.mirror.writer import AckWriter, Ends
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.errors import Rewound, Unavailable
from hgext.vcsreplicator.words.event import Event, Type
from hgext.vcsreplicator.words.records import AggregatorHeartbeat, Reason
from hgext.vcsreplicator.words.roster import KEY, Mirror, MirrorState, Roster
from hgext.vcsreplicator.words.rules import Rules
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.aggregator.chains import Chain
from testing.builders.aggregator.states import state_of
from testing.builders.mirror.lives import put
from testing.builders.mirror.supervising import Bench, Deletion, catching_up, checkpoint, until_given
from testing.waiting import eventually


def test_a_batch_that_took_too_long_and_then_failed_whole_is_tried_again(bench: Bench) -> None:
    first, *more = Chain("r").take(3)
    bench.read(first)
    bench.applied(first)
    bench.read(*more)
    worker = bench.pool.given[-1]
    bench.passes(6)
    trouble = Trouble(reason=Reason.LOCKED, note="locked", passing=True)
    bench.answer(worker, done=0, checkpoint=checkpoint(first), folder="/x", serving=1, trouble=trouble)
    bench.passes(100)
    assert bench.notes.detached()[0].attempts > 0


def test_what_should_pass_and_does_not_detaches_its_repository(bench: Bench) -> None:
    bench.clock.advance(1.0)
    bench.read(Chain("r").next())
    trouble, began = Trouble(reason=Reason.LOCKED, note="locked", passing=True), bench.clock.monotonic()
    while not bench.notes.detached():
        bench.answer(bench.pool.given[-1], done=0, checkpoint=None, folder=None, serving=0, trouble=trouble)
        waited = bench.clock.monotonic() - began
        assert waited < bench.settings.slow_after + 2
        bench.passes(2)
    assert waited >= bench.settings.slow_after
    assert [note.reason for note in bench.notes.detached()] == [Reason.LOCKED]


def test_what_failed_after_a_part_of_it_was_done_is_taken_together_again(bench: Bench) -> None:
    first, *more = Chain("r").take(4)
    bench.read(first)
    bench.applied(first)
    bench.read(*more)
    worker = bench.pool.given[-1]
    assert len(worker.busy.items) == 3
    trouble = Trouble(reason=Reason.LOCKED, note="locked", passing=True)
    bench.answer(worker, done=1, checkpoint=checkpoint(more[0]), folder="/x", serving=2, trouble=trouble)
    bench.passes(2)
    assert bench.pool.given[-1] is not worker
    assert len(bench.pool.given[-1].busy.items) == 2


@pytest.mark.parametrize("backup", [False, True])
def test_events_of_a_noticed_deletion_are_work_for_a_backup_alone(bench: Bench, backup: bool) -> None:
    bench.settings = replace(bench.settings, backup=backup)
    bench.start({0: 0})
    chain = Chain("r")
    created, deleted = chain.next(), chain.next(Type.DELETED)
    over = replace(state_of(deleted), deleted=True, released=2, noticed=2)
    bench.mirror.control.load(STATE, chain.repository, to_json(over))
    bench.read(created)
    assert bool(bench.pool.given) is backup


def test_more_trouble_does_not_move_where_a_repository_reads_on(bench: Bench) -> None:
    [event] = Chain("r").take(1)
    bench.records(bench.record(EVENTS, event.repository, b"junk"))
    bench.read(event)
    bench.answer(
        bench.pool.given[-1],
        done=0,
        checkpoint=None,
        folder=None,
        serving=0,
        trouble=Trouble(reason=Reason.DIVERGED, note="first"),
    )
    [first] = bench.notes.detached()
    assert first.offset == 1
    others = Chain("other").take(5)
    bench.read(*others)
    for reason in (Reason.CORRUPT, Reason.BLOB_MISSING, Reason.EXPIRED):  # all repaired by a worker
        until_given(bench, event.repository)
        bench.answer(
            bench.pool.given[-1],
            done=0,
            checkpoint=None,
            folder=None,
            serving=0,
            trouble=Trouble(reason=reason, note="more"),
        )
        [note] = [note for note in bench.notes.detached() if note.repository == event.repository]
        assert (note.offset, note.partition, note.since, note.reason) == (1, 0, first.since, reason)
        assert note.attempts > 0


def test_a_repository_detached_in_a_long_task_is_healed_after_it(bench: Bench) -> None:
    [event] = Chain("r").take(1)
    bench.read(event)
    bench.records(bench.record(EVENTS, event.repository, b"junk"))
    bench.passes(5)
    bench.applied(event)
    bench.passes(100)
    assert bench.notes.detached()[0].attempts > 0


@pytest.mark.parametrize("known", ["noted", "aside"])
def test_a_deletion_whose_ack_a_kill_prevented_is_acked_after_the_restart(bench: Bench, known: str) -> None:
    chain = Chain("r")
    created, deleted = chain.next(), chain.next(Type.DELETED)
    bench.read(created)
    bench.applied(created)
    acks = dict(bench.writer.acks)
    gone = checkpoint(deleted, deleted=True)
    if known == "noted":
        bench.read(deleted)
        bench.answer(bench.pool.given[-1], done=1, checkpoint=None, folder=None, serving=0, gone=gone)
    bench.start({0: 1})
    if known == "aside":
        bench.mirror.startup.adopt(FoundRepository(folder="/aside", checkpoint=gone, serving=2, is_aside=True), None)
    bench.mirror.startup.settle(acks)
    bench.read(deleted)
    ack = bench.writer.acks[chain.repository]
    assert (ack.applied, ack.serving, ack.event, ack.digest) == (2, 2, deleted.id, deleted.digest)


def test_a_released_deletion_is_acked_after_a_restart(
    bench: Bench,
) -> None:
    chain = Chain("r")
    created, deleted = chain.next(), chain.next(Type.DELETED)
    bench.read(created)
    bench.applied(created)
    bench.read(deleted)
    gone = checkpoint(deleted, deleted=True)
    bench.answer(bench.pool.given[-1], done=1, checkpoint=gone, folder="/x", serving=1)
    acks = dict(bench.writer.acks)
    assert (acks[chain.repository].applied, acks[chain.repository].serving) == (2, 1)
    bench.start({0: 2})
    bench.mirror.startup.adopt(FoundRepository(folder="/aside", checkpoint=gone, serving=1, is_aside=True), None)
    bench.mirror.startup.settle(acks)
    assert bench.writer.acks[chain.repository].serving == 2


@pytest.mark.parametrize("acked", ["an older level", "nothing"])
def test_a_deletion_swept_before_its_ack_is_acked_when_noticed(bench: Bench, acked: str) -> None:
    chain = Chain("r")
    created, deleted = chain.next(), chain.next(Type.DELETED)
    bench.read(created)
    bench.applied(created)
    acks = dict(bench.writer.acks) if acked == "an older level" else {}
    bench.notes.record_deletion(
        DeletedRepository(repository=chain.repository, path="r", incarnation=chain.incarnation, seq=2, since=1.0)
    )
    bench.start({0: 2})
    bench.mirror.startup.settle(acks)
    assert chain.repository not in bench.writer.acks
    waits = replace(state_of(deleted), deleted=True, released=2, noticed=1)
    bench.records(bench.record(STATE, chain.repository, to_json(waits)))
    ack = bench.writer.acks[chain.repository]
    assert (ack.applied, ack.serving, ack.event, ack.digest) == (2, 2, deleted.id, deleted.digest)
    bench.records(bench.record(STATE, chain.repository, to_json(replace(waits, noticed=2))))
    assert bench.mirror.state.table.get(chain.repository) is None  # with its ack


def test_a_turn_waits_long_only_while_nothing_is_under_way(bench: Bench) -> None:
    bench.passes(1)
    assert bench.mirror.turn_time() == IDLE_TURN
    bench.clock.advance(bench.settings.beat_interval - 0.5)
    assert bench.mirror.turn_time() == 0.5, "until the next beat"
    bench.passes(1)
    bench.read(*Chain("r").take(1))
    assert bench.mirror.turn_time() == BUSY_TURN


def test_the_note_of_a_deletion_goes_once_it_is_noticed(bench: Bench) -> None:
    deletion = Deletion(bench)
    deletion.restart(deletion.acks, deletion.state)  # its ack is withdrawn now, which a kill may prevent
    assert deletion.noted() == [deletion.repository]
    deletion.restart({}, deletion.state)
    assert deletion.noted() == []


def test_events_of_a_deleted_repository_need_no_work_without_its_note(bench: Bench) -> None:
    deletion = Deletion(bench)
    for _ in range(2):
        deletion.restart({}, deletion.state)
        bench.mirror.receive(SkippedRecords(positions={(EVENTS, 0): 0}))  # the log was restored and is read again
        bench.read(*deletion.events)
        assert bench.pool.given == []
        assert bench.mirror.state.table.get(deletion.repository) is None
        assert bench.mirror.state.backlog.positions() == {0: bench.offset}


def test_a_noticed_deletion_is_carried_out_where_it_is_still_here(bench: Bench) -> None:
    chain = Chain("r")
    created, deleted = chain.next(), chain.next(Type.DELETED)
    bench.read(created)
    bench.applied(created)
    noticed = replace(state_of(deleted), deleted=True, released=2, noticed=2)
    bench.records(bench.record(STATE, chain.repository, to_json(noticed)))
    bench.read(deleted)
    assert [item.event.id for item in bench.pool.given[-1].busy.items] == [deleted.id]


@pytest.mark.parametrize("why", ["its notice waits", "another incarnation", "a state of before it", "kept on the disk"])
def test_the_note_of_a_deletion_stays_as_long_as_it_may_be_needed(bench: Bench, why: str) -> None:
    deletion = Deletion(bench)
    members: dict[str, Any] = {
        "its notice waits": {"noticed": 1},
        "another incarnation": {"incarnation": "e" * 32},
        "a state of before it": {"seq": 1, "noticed": 1},
    }.get(why, {})
    deletion.restart({}, replace(deletion.state, **members), aside=why == "kept on the disk")
    assert deletion.noted() == [deletion.repository]


def test_a_log_that_lost_records_moves_no_position_past_waiting_events(bench: Bench) -> None:
    events = Chain("r").take(6)
    bench.read(*events)
    first = bench.pool.given[-1]
    bench.mirror.receive(SkippedRecords(positions={(EVENTS, 0): 0}))
    bench.offset = 0
    bench.read(*events)
    done = len(first.busy.items)
    bench.answer(first, done=done, checkpoint=checkpoint(events[done - 1]), folder="/x", serving=0)
    bench.passes(1)
    assert bench.mirror.state.backlog.positions() == {0: 0}
    second = bench.pool.given[-1]
    bench.answer(second, done=len(second.busy.items), checkpoint=checkpoint(events[-1]), folder="/x", serving=0)
    assert bench.mirror.state.backlog.positions() == {0: 6}
    assert not bench.notes.detached()


def test_acks_that_the_log_lost_are_written_again(bench: Bench) -> None:
    [event] = Chain("r").take(1)
    bench.read(event)
    bench.applied(event)
    bench.writer.acks.clear()
    bench.mirror.receive(SkippedRecords(positions={(EVENTS, 0): 0}))
    assert bench.writer.acks[event.repository].applied == 1


def test_the_deletion_of_a_repository_that_never_was_here_is_acked(bench: Bench) -> None:
    chain = Chain("r")
    _, deleted = chain.next(), chain.next(Type.DELETED)
    bench.read(deleted)
    bench.answer(bench.pool.given[-1], done=1, checkpoint=None, folder=None, serving=0)
    ack = bench.writer.acks[chain.repository]
    assert (ack.applied, ack.serving, ack.event) == (2, 2, deleted.id)


def test_positions_that_do_not_move_are_stored_again_in_time(bench: Bench) -> None:
    bench.start({0: 0})
    for _ in range(50):
        bench.clock.advance(150.0)
        bench.mirror.turn(0)
    assert bench.writer.stored == [{0: 0}, {0: 0}]


def test_a_position_is_stored_after_the_ack_of_its_event_has_had_its_time(bench: Bench) -> None:
    chain = Chain("r")
    for count, event in enumerate(chain.take(3), 1):
        bench.read(event)
        bench.applied(event)
        bench.passes(1)
        assert bench.writer.acks[chain.repository].applied == count
        assert bench.writer.stored == [{0: number} for number in range(1, count)]
        bench.passes(1)
        assert bench.writer.stored[-1] == {0: count}


def test_positions_are_stored_while_events_come_without_a_pause(bench: Bench) -> None:
    for event in Chain("r").take(10):
        bench.read(event)
        bench.applied(event)
        bench.passes(1)
    assert len(bench.writer.stored) == 5


def test_a_mirror_that_ends_stores_what_its_positions_have_passed(bench: Bench) -> None:
    [event] = Chain("r").take(1)
    bench.read(event)
    bench.applied(event)
    bench.mirror.close(0.0)
    assert bench.writer.stored == [{0: 1}]


def test_a_reject_fits_into_the_log_with_any_key(bench: Bench) -> None:
    bench.records(bench.record(EVENTS, "k" * 5_000_000, b"junk"))
    [message] = bench.writer.others
    check_message(message)


def test_rules_that_carry_more_make_the_mirror_look_for_what_it_lacks(bench: Bench) -> None:
    chain = Chain("other/r")
    [event] = chain.take(1)
    narrow = Mirror(name="alpha", state=MirrorState.ACTIVE, rules=Rules(include=("path:this",)))
    bench.records(bench.record(ROSTER, KEY, to_json(Roster(version=1, mirrors=(narrow,)))))
    bench.records(bench.record(STATE, chain.repository, to_json(state_of(event))))
    bench.passes(10)
    assert bench.writer.asked == []
    wide = replace(narrow, rules=Rules())
    bench.records(bench.record(ROSTER, KEY, to_json(Roster(version=2, mirrors=(wide,)))))
    bench.passes(10)
    assert bench.writer.asked


def test_a_worker_that_small_work_holds_too_long_is_replaced(bench: Bench) -> None:
    [event] = Chain("r").take(1)
    bench.read(event)
    [worker] = bench.pool.given
    bench.passes(6)
    assert worker.is_slow
    assert bench.notes.detached()[0].reason is Reason.SLOW
    assert bench.pool.killed == []
    bench.passes(300)
    assert bench.pool.killed == [worker]
    bench.mirror.receive(Answered(worker=worker, answer=None))
    assert bench.notes.detached()[0].note == "its worker hung"


def test_a_worker_that_died_while_it_was_slow_did_not_hang(bench: Bench) -> None:
    [event] = Chain("r").take(1)
    bench.read(event)
    [worker] = bench.pool.given
    bench.passes(6)
    assert worker.is_slow
    bench.mirror.receive(Answered(worker=worker, answer=None))
    assert bench.notes.detached()[0].note == "its worker died"


def test_a_heal_request_for_what_is_at_work_is_kept(bench: Bench) -> None:
    [event] = Chain("r").take(1)
    bench.read(event)
    bench.passes(6)
    bench.notes.request_heal(event.repository, who="dana", now=1.0)
    bench.passes(10)
    following = bench.mirror.state.table.get(event.repository)
    assert following is not None
    [request] = bench.notes.requests.list_open()
    assert following.trouble.heal_requests == ()
    bench.applied(event)
    bench.passes(10)
    assert (following.phase, following.trouble.heal_requests) == (Phase.CATCHING_UP, (request.id,))
    assert bench.notes.requests.list_open() == [request]


def test_a_heal_request_is_answered_once_the_stream_is_followed(bench: Bench) -> None:
    [event] = Chain("r").take(1)
    bench.read(event)
    bench.applied(event)
    following = catching_up(bench, event)
    bench.notes.request_heal(event.repository, who="dana", now=1.0)
    bench.passes(10)
    assert [request.done_at for request in bench.notes.requests.list_open()] == [None]
    bench.mirror.receive(
        ReadRecords(records=[], positions={(EVENTS, 0): 9}, follows=event.repository, run=following.work.run)
    )
    [request] = bench.notes.requests.list_newest(5)
    assert (request.who, request.asked_at, request.result) == ("dana", 1.0, "healed")
    assert request.done_at == bench.clock.now()


def test_a_heal_request_is_answered_with_the_reason_if_the_attempt_fails(bench: Bench) -> None:
    [event] = Chain("r").take(1)
    bench.read(event)
    bench.applied(event)
    catching_up(bench, event)
    bench.notes.request_heal(event.repository, who="dana", now=1.0)
    bench.passes(10)
    bench.detach(event.repository, Reason.DISK, "no space left")
    [request] = bench.notes.requests.list_newest(5)
    assert (request.result, request.has_failed) == ("failed: disk: no space left", True)


def test_a_heal_request_that_a_kill_interrupts_is_taken_up_again(bench: Bench) -> None:
    [event] = Chain("r").take(1)
    bench.read(event)
    bench.applied(event)
    bench.detach(event.repository, Reason.FORK, "two histories")
    bench.notes.request_heal(event.repository, who="dana", now=1.0)
    bench.passes(10)
    assert bench.notes.detached()[0].attempts == 1
    bench.start({0: 0})
    bench.mirror.startup.adopt_all([], {})
    bench.passes(10)
    assert bench.notes.detached()[0].attempts == 2


def test_a_heal_request_of_a_newer_version_is_left_to_it(bench: Bench) -> None:
    bench.notes.requests.ask("a" * 32, "polish", {}, who="dana", now=1.0)
    bench.passes(10)
    assert [request.kind for request in bench.notes.requests.list_open()] == ["polish"]


@pytest.mark.parametrize("end", ["in trouble", "dead"])
@pytest.mark.parametrize("releases", [False, True])
def test_a_requested_copy_is_made_though_the_task_under_way_ends_badly(bench: Bench, end: str, releases: bool) -> None:
    first, second = Chain("r").take(2)
    bench.read(first)
    state = {"done": 0, "checkpoint": checkpoint(first), "folder": "/x", "serving": 0}
    bench.answer(bench.pool.given[-1], **state | {"done": 1})
    if releases:
        bench.records(bench.record(STATE, first.repository, to_json(replace(state_of(first), released=1))))
    else:
        bench.read(second)
    under_way = bench.pool.given[-1]
    assert bool(under_way.busy.items) is not releases
    bench.notes.request_heal(first.repository, who="dana", now=1.0)
    until_detached(bench)
    if end == "dead":
        bench.mirror.receive(Answered(worker=under_way, answer=None))
    else:
        trouble = Trouble(reason=Reason.LOCKED, note="locked", passing=True)
        bench.answer(under_way, **state, trouble=trouble)
    bench.mirror.turn(0)
    assert [request.result for request in bench.notes.requests.list_newest(5)] == [None]
    until_given(bench, first.repository)
    assert bench.pool.given[-1].busy.heal is Reason.DIVERGED


def until_detached(bench: Bench) -> None:
    """Until a repository is detached."""
    for _ in range(10):
        bench.passes(1)
        if bench.notes.detached():
            return
    raise AssertionError("not detached")


def test_a_heal_request_for_what_is_not_here_is_answered(bench: Bench) -> None:
    bench.notes.request_heal("a" * 32, who="dana", now=1.0)
    with structlog.testing.capture_logs() as lines:
        bench.passes(10)
    assert [line["repository"] for line in lines if line["event"].startswith("nothing to heal")] == ["a" * 32]
    assert [request.result for request in bench.notes.requests.list_newest(5)] == [
        "failed: no such repository on this mirror"
    ]


def test_a_worker_that_hangs_at_its_start_is_replaced_and_then_killed(bench: Bench) -> None:
    worker = bench.pool.idle(Lane.LIGHT)
    worker.is_ready = False
    bench.pool.workers.append(worker)
    bench.passes(7)
    assert worker.is_slow
    assert bench.pool.killed == []
    bench.passes(60)
    assert bench.pool.killed == [worker]


def test_the_third_of_three_large_pushes_does_not_wait_for_the_others(bench: Bench) -> None:
    bench.pool.limits[Lane.HEAVY] = 2
    pushed = [bench.push_large() for _ in range(3)]
    assert len(bench.large()) == 2
    bench.passes(6)
    assert [worker.busy.repository for worker in bench.large()] == pushed


def test_large_pushes_leave_room_for_small_work_that_takes_long(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "WARM_AT_LATEST", float("inf"))  # no worker would answer
    bench.pool.limits[Lane.HEAVY] = 2
    for _ in range(20):
        bench.push_large()
    bench.passes(200)
    assert len(bench.large()) == 8
    [event] = Chain("small").take(1)
    bench.read(event)
    bench.passes(6)
    assert bench.pool.given[-1].is_slow


def test_a_large_push_may_take_long_but_is_ended_when_it_hangs(bench: Bench) -> None:
    bench.push_large()
    [worker] = bench.large()
    for second in range(1000):
        bench.pool.used[id(worker)] = float(second)
        bench.passes(1)
    assert bench.pool.killed == []
    bench.passes(302)
    assert bench.pool.killed == [worker]


def test_repairs_and_large_pushes_do_not_wait_for_each_other(bench: Bench) -> None:
    bench.pool.limits.update({Lane.HEAVY: 1, Lane.REPAIR: 1})
    for lane in (Lane.HEAVY, Lane.REPAIR):
        for _ in range(3):
            bench.push_large() if lane is Lane.HEAVY else bench.break_down()
        bench.passes(2)
    lanes = [worker.lane for worker in bench.pool.workers]
    assert lanes == [Lane.HEAVY, Lane.REPAIR]


@pytest.mark.parametrize(("reason", "is_tried"), [(Reason.FORK, False), (Reason.REFUSED, True), (Reason.GAP, True)])
def test_after_a_restart_everything_detached_is_tried_once_but_a_fork(
    bench: Bench, reason: Reason, is_tried: bool
) -> None:
    bench.read(Chain("r").next())
    bench.detach(bench.pool.given[-1].busy.repository, reason, "why")
    bench.start({0: 1})
    bench.mirror.startup.adopt_all([], {})
    bench.passes(200)
    assert (bench.notes.detached()[0].attempts > 0) is is_tried


@pytest.mark.parametrize("is_first", [True, False])
def test_of_two_folders_with_one_repository_the_one_in_place_counts(bench: Bench, *, is_first: bool) -> None:
    [event] = Chain("proj").take(1)
    own, copy = bench.settings.local("proj"), bench.settings.local("proj.bak")
    found = [FoundRepository(folder=folder, checkpoint=checkpoint(event), serving=1) for folder in (own, copy)]
    with structlog.testing.capture_logs() as lines:
        bench.mirror.startup.adopt_all(found if is_first else found[::-1], {})
    following = bench.mirror.state.table.get(event.repository)
    assert following is not None
    assert following.disk.folder == own
    assert [(line["log_level"], line["folder"], line["other"]) for line in lines] == [("error", own, copy)]


def test_a_slow_task_that_ends_well_finishes_nothing_of_a_dropped_queue(bench: Bench) -> None:
    [event] = Chain("r").take(1)
    bench.read(event)
    bench.passes(6)
    bench.applied(event)
    [note] = bench.notes.detached()
    following = bench.mirror.state.table.get(event.repository)
    assert following is not None
    assert (note.reason, following.phase) == (Reason.SLOW, Phase.CATCHING_UP)


def test_a_repository_whose_worker_died_twice_is_detached(bench: Bench) -> None:
    bench.read(Chain("r").next())
    for before in ([], ["its worker died"]):
        bench.mirror.receive(Answered(worker=bench.pool.given[-1], answer=None))
        assert [note.note for note in bench.notes.detached()] == before
        bench.passes(1)


def test_deaths_of_workers_with_a_success_between_them_are_counted_apart(bench: Bench) -> None:
    for event in Chain("r").take(3):
        bench.read(event)
        bench.mirror.receive(Answered(worker=bench.pool.given[-1], answer=None))
        bench.passes(1)
        bench.applied(event)
    assert bench.notes.detached() == []


def test_a_repository_detached_by_its_last_ack_stays_so_without_a_note(bench: Bench) -> None:
    event = Chain("r").next()
    bench.read(event)
    bench.applied(event)
    ack = replace(bench.writer.acks[event.repository], detached=Reason.CORRUPT, note="differs", detached_since=1.0)
    bench.start({0: 1})
    found = FoundRepository(folder="/x", checkpoint=checkpoint(event), serving=1)
    bench.mirror.startup.adopt_all([found], {event.repository: ack})
    assert [note.reason for note in bench.notes.detached()] == [Reason.GAP]


@pytest.mark.usefixtures("played_readers")
def test_what_expired_is_read_on_from_where_the_master_was_asked(bench: Bench) -> None:
    first, other = Chain("r").next(), Chain("other").next()
    bench.read(first)
    bench.applied(first)
    bench.detach(first.repository, Reason.GAP, "lacks one")
    following = bench.mirror.state.table.get(first.repository)
    assert following is not None
    bench.passes(2)
    assert following.phase is Phase.CATCHING_UP
    for run, reason in ((following.work.run - 1, Reason.GAP), (following.work.run, Reason.EXPIRED)):
        bench.mirror.receive(ExpiredPosition(follows=following.id, run=run, reason="expired"))
        assert [note.reason for note in bench.notes.detached()] == [reason]
    bench.read(other)
    until_given(bench, first.repository)
    ended = bench.mirror.state.backlog.next(0)
    bench.answer(bench.pool.given[-1], done=0, checkpoint=checkpoint(first), folder="/x", serving=1)
    assert following.note is not None
    assert (following.phase, following.note.offset) == (Phase.CATCHING_UP, ended)


def test_a_mirror_has_no_trouble_when_an_unwritten_notes_owner_is_gone(bench: Bench) -> None:
    [event], [other] = Chain("one").take(1), Chain("two").take(1)
    bench.read(event, other)
    with bench.full_disk():
        bench.detach(event.repository, Reason.DIVERGED, "differs")
        bench.detach(other.repository, Reason.GAP, "lacks one")
        assert "disk is full" in (bench.mirror.detachments.find_trouble()[0] or "")
        for each in (event, other):
            following = bench.mirror.state.table.get(each.repository)
            assert following is not None
            bench.mirror.departures.abandon(following)
            assert ("two" in (bench.mirror.detachments.find_trouble()[0] or "")) is (each is event)
    assert bench.mirror.detachments.find_trouble()[0] is None


def test_a_repository_without_a_path_is_named_by_its_id(bench: Bench) -> None:
    [event] = Chain("one").take(1)
    bench.read(event)
    following = bench.mirror.state.table.get(event.repository)
    assert following is not None
    put(following, path="")
    with bench.full_disk():
        bench.detach(event.repository, Reason.GAP, "had events up to 6, has 0 now")
    assert f"; {event.repository}: gap had events up to 6" in (bench.mirror.detachments.find_trouble()[0] or "")


def test_a_mirror_has_no_trouble_any_more_when_its_disk_takes_the_note(bench: Bench) -> None:
    [event] = Chain("one").take(1)
    bench.read(event)
    with bench.full_disk():
        began = bench.clock.now()
        bench.detach(event.repository, Reason.GAP, "lacks one")
        bench.passes(3)
        beat = bench.beat()
        assert "disk is full" in (beat.trouble or "")
        assert beat.trouble_since == began, "not since the last attempt"
    bench.passes(2)
    assert [note.note for note in bench.notes.detached()] == ["lacks one"]
    assert (bench.beat().trouble, bench.beat().trouble_since) == (None, None)


def test_an_ack_says_since_when_its_repository_is_detached(
    bench: Bench,
) -> None:
    [event] = Chain("one").take(1)
    bench.read(event)
    assert event.repository not in bench.writer.acks
    since = bench.clock.now()
    bench.detach(event.repository, Reason.LOCKED, "why")
    assert bench.writer.acks[event.repository].detached_since == since
    bench.passes(100)
    bench.detach(event.repository, Reason.LOCKED, "why still")
    assert bench.writer.acks[event.repository].note == "why still"
    assert bench.writer.acks[event.repository].detached_since == since
    bench.start({0: 1})
    bench.mirror.startup.adopt_all([], {})
    assert bench.writer.acks[event.repository].detached_since == since


def test_a_heartbeat_says_how_old_the_oldest_unapplied_event_is(bench: Bench) -> None:
    one, two = Chain("one").next(), Chain("two").next()
    bench.read(one)
    assert bench.beat().oldest == 1.0
    bench.applied(one)
    assert bench.beat().oldest is None
    bench.records(replace(bench.record(EVENTS, two.repository, wire.encode(two)), time=7.0))
    assert bench.beat().oldest == 7.0


def test_a_heal_request_is_kept_while_its_note_cannot_be_written(bench: Bench) -> None:
    [event] = Chain("r").take(1)
    bench.read(event)
    bench.applied(event)
    bench.notes.request_heal(event.repository, who="dana", now=1.0)
    with bench.full_disk():
        bench.passes(10)
        assert bench.notes.detached() == []
    bench.passes(10)
    assert bench.notes.detached()[0].note == "an operator asked for a new copy"


def test_a_backup_lacks_nothing_of_one_renamed_out_of_its_rules(bench: Bench) -> None:
    bench.settings = replace(bench.settings, backup=True)
    bench.start({0: 0})
    narrow = Mirror(name="alpha", state=MirrorState.ACTIVE, rules=Rules(include=("path:r",)))
    bench.records(bench.record(ROSTER, KEY, to_json(Roster(version=1, mirrors=(narrow,)))))
    [event] = Chain("r").take(1)
    bench.read(event)
    bench.applied(event)
    elsewhere = replace(state_of(event), path="other", seq=3)
    bench.records(bench.record(STATE, event.repository, to_json(elsewhere)))
    bench.mirror.receive(
        Ends(ends={0: bench.mirror.state.backlog.next(0)}, expected={event.repository: (event.incarnation, 3)})
    )
    assert bench.notes.detached() == []


@pytest.mark.parametrize("answer", ["master away", "died"])
def test_damage_is_still_damage_if_its_repair_could_not_be_carried_out(bench: Bench, answer: str) -> None:
    bench.break_down()
    bench.passes(2)
    repair = bench.pool.given[-1]
    if answer == "died":
        bench.mirror.receive(Answered(worker=repair, answer=None))
    else:
        trouble = Trouble(reason=Reason.BLOB_MISSING, note=answer, passing=True)
        bench.answer(repair, done=0, checkpoint=None, folder=None, serving=0, trouble=trouble)
    bench.passes(5)
    assert bench.pool.given[-1] is not repair
    assert bench.pool.given[-1].busy.heal is Reason.DIVERGED


def test_a_level_that_went_down_while_the_mirror_runs_is_acked(bench: Bench) -> None:
    events = Chain("r").take(5)
    for event in events[:4]:
        bench.read(event)
        bench.applied(event)
    bench.read(events[4])
    restored = checkpoint(events[1])
    trouble = Trouble(reason=Reason.GAP, note="seq 5 follows, this mirror has 2")
    bench.answer(bench.pool.given[-1], done=0, checkpoint=restored, folder="/x", serving=4, trouble=trouble)
    ack = bench.writer.acks[restored.repository]
    assert (ack.applied, ack.serving, ack.event) == (2, 2, restored.id)


def test_a_store_restored_without_an_event_is_found_by_reading(bench: Bench) -> None:
    bench.settings = replace(bench.settings, check_interval=1.0, check_share=1.0)
    bench.start({0: 0})
    bench.pool.limits[Lane.CHECK] = 1
    events = Chain("r").take(4)
    for event in events:
        bench.read(event)
        bench.applied(event)
    bench.passes(4)
    [worker] = [worker for worker in bench.pool.workers if isinstance(worker.busy, Check)]
    assert worker.busy.seq == 4
    answer = Checked(repository=events[0].repository, problem=None, lower=checkpoint(events[1]))
    bench.mirror.receive(Answered(worker=worker, answer=answer))
    ack = bench.writer.acks[events[0].repository]
    assert (ack.applied, ack.serving, ack.event, ack.detached) == (2, 2, events[1].id, Reason.GAP)


def test_a_release_in_a_strangers_way_is_tried_again(
    bench: Bench,
) -> None:
    chain = Chain("r")
    [event] = chain.take(1)
    bench.read(event)
    bench.answer(bench.pool.given[-1], done=1, checkpoint=checkpoint(event), folder="/x", serving=0)
    bench.detach(event.repository, Reason.FORK, "two histories")
    bench.pool.given.clear()
    bench.records(bench.record(STATE, chain.repository, to_json(replace(state_of(event), released=1))))
    locked = Trouble(reason=Reason.LOCKED, note="locked", passing=True)
    bench.answer(bench.pool.given[-1], done=0, checkpoint=checkpoint(event), folder="/x", serving=0, trouble=locked)
    assert len(bench.pool.given) == 1
    bench.passes(2)
    assert [(worker.busy.released, worker.busy.items) for worker in bench.pool.given[1:]] == [(1, ())]
    assert bench.writer.acks[event.repository].detached == Reason.FORK


def test_a_release_of_another_event_than_here_is_not_carried_out(bench: Bench) -> None:
    chain = Chain("r")
    for event in chain.take(2):
        bench.read(event)
        bench.answer(bench.pool.given[-1], done=1, checkpoint=checkpoint(event), folder="/x", serving=1)
    bench.pool.given.clear()
    told = replace(state_of(chain.events[-1]), released=2)
    bench.records(bench.record(STATE, chain.repository, to_json(replace(told, digest="f" * 64))))
    assert bench.pool.given == []
    bench.records(bench.record(STATE, chain.repository, to_json(told)))
    [worker] = bench.pool.given
    assert (worker.busy.released, worker.busy.newest_known) == (2, (2, told.event, told.digest))


@pytest.mark.parametrize("when", ["while it runs", "at the start"])
def test_a_roster_with_a_bad_rule_is_taken_and_leaves_nothing_out(bench: Bench, when: str) -> None:
    wanted, refused, left_out = (Chain(path).next() for path in ("wanted/r", "refused/r", "private/r"))
    old = r"re:refused/(?=r)"  # RE2 has no lookahead
    rules = Rules(include=("re:wanted/", old), exclude=("re:private/", "re:(.)\\1"))
    value = to_json(Roster(version=2, mirrors=(Mirror(name="alpha", state=MirrorState.ACTIVE, rules=rules),)))
    with structlog.testing.capture_logs() as logs:
        if when == "at the start":
            bench.mirror.control.load(ROSTER, "roster", value)
        else:
            bench.records(bench.record(ROSTER, KEY, value))
    named = [entry["rule"] for entry in logs if entry["log_level"] == "error"]
    assert named == [old, "re:(.)\\1"]
    bench.read(wanted, refused, left_out)
    assert {worker.busy.repository for worker in bench.pool.given} == {wanted.repository, refused.repository}
    [mirror] = from_json(Roster, value).mirrors
    assert mirror.gates(refused.repository, refused.path)
    assert not mirror.gates(left_out.repository, left_out.path)
    mended = replace(rules, include=("re:wanted/",), exclude=("re:private/",))
    value = to_json(Roster(version=3, mirrors=(Mirror(name="alpha", state=MirrorState.ACTIVE, rules=mended),)))
    bench.records(bench.record(ROSTER, KEY, value))
    assert not bench.mirror.state.membership.carries(refused.path)


@pytest.mark.parametrize("skew", [-3600.0, 0.0, 3600.0])
def test_web_servers_learn_when_the_aggregator_was_heard_by_any_clock(bench: Bench, skew: float) -> None:
    file = Path(bench.settings.folder) / "fresh"
    file.parent.mkdir(parents=True, exist_ok=True)

    def said(at: float) -> bytes:
        return to_json(AggregatorHeartbeat(time=at + skew, roster=1, held=0))

    def heard(value: bytes) -> float | None:
        bench.records(bench.record(STATE, "aggregator", value))
        return file.stat().st_mtime

    began = bench.clock.now()
    bench.mirror.control.load(STATE, "aggregator", said(began - 7200.0))  # it may be dead since
    assert not file.exists()
    first = heard(said(began + 1.0))
    assert first == bench.clock.now()
    bench.clock.advance(20.0)
    assert heard(said(began + 1.0)) == first  # read again
    assert heard(said(began + 20.0)) == first + 20.0


@pytest.mark.parametrize("whose", ["another's", "overtaken"])
def test_a_level_that_a_check_read_counts_only_if_it_is_lower(bench: Bench, whose: str) -> None:
    ours, other = Chain("p"), Chain("p", generation=2)
    for event in ours.take(3):
        bench.read(event)
        bench.applied(event)
    told = bench.writer.acks[ours.repository]
    lower = checkpoint(other.next()) if whose == "another's" else checkpoint(ours.events[2])
    bench.mirror.maintenance.take_checked(Checked(repository=ours.repository, problem=None, lower=lower))
    assert bench.writer.acks[ours.repository] == told
    assert (told.applied, told.detached) == (3, None)


def test_a_repository_that_changed_while_read_waits_for_the_others(
    bench: Bench,
) -> None:
    bench.settings = replace(bench.settings, check_interval=1.0, check_share=1.0)
    bench.start({0: 0})
    bench.pool.limits[Lane.CHECK] = 1
    *others, busy = [Chain(f"r{number}").next() for number in range(4)]
    for event in (*others, busy):
        bench.read(event)
        bench.applied(event)
    order = []
    for _ in range(15):
        bench.passes(2)
        for worker in [worker for worker in bench.pool.workers if isinstance(worker.busy, Sweep)]:
            bench.mirror.receive(Answered(worker=worker, answer=worker.busy))
            bench.passes(1)
        [worker] = [worker for worker in bench.pool.workers if isinstance(worker.busy, Check)]
        order.append(worker.busy.repository)
        undecided = worker.busy.repository == busy.repository
        answer = Checked(repository=worker.busy.repository, problem=None, is_undecided=undecided)
        bench.mirror.receive(Answered(worker=worker, answer=answer))
    rounds = [order[start : start + 5] for start in range(0, 15, 5)]
    for one in rounds:
        assert sorted(one) == sorted([busy.repository] * 2 + [event.repository for event in others])
        assert one[-1] == busy.repository
    assert all(ack.detached is None for ack in bench.writer.acks.values())


def test_reading_a_large_repository_through_holds_up_no_repair(bench: Bench) -> None:
    bench.settings = replace(bench.settings, check_interval=1.0, check_share=1.0)
    bench.start({0: 0})
    bench.pool.limits.update({Lane.CHECK: 1, Lane.REPAIR: 1})
    [event] = Chain("large").take(1)
    bench.read(event)
    bench.applied(event)
    bench.passes(10)
    [check] = [worker for worker in bench.pool.workers if isinstance(worker.busy, Check)]
    bench.break_down()
    bench.passes(2)
    assert any(worker.busy.heal for worker in bench.pool.workers if isinstance(worker.busy, Task))
    assert not check.is_slow


@pytest.mark.parametrize(("size", "lane"), [(600_000, Lane.LIGHT), (60_000_000, Lane.HEAVY)])
def test_a_blob_waits_for_large_ones_only_if_it_is_large(bench: Bench, size: int, lane: Lane) -> None:
    chain = Chain("r")
    created, pushed = chain.next(), chain.next()
    bench.read(created)
    bench.applied(created)
    where = wire.Attachment(where=wire.BundlePlace.BLOB, name="0" * 64 + ".hg", size=size, sha256="0" * 64)
    bench.records(bench.record(EVENTS, chain.repository, wire.encode(pushed, where)))
    assert bench.pool.given[-1].lane is lane


def test_a_note_of_a_deletion_that_cannot_go_goes_later(bench: Bench) -> None:
    chain = Chain("r")
    created, deleted = chain.next(), chain.next(Type.DELETED)
    bench.read(created)
    bench.applied(created)
    bench.records(bench.record(EVENTS, chain.repository, b"junk"))
    bench.records(bench.record(STATE, chain.repository, to_json(replace(state_of(deleted), deleted=True))))

    def leave() -> None:
        worker = bench.pool.given[-1]
        assert worker.busy.leave
        if worker in bench.pool.workers:
            bench.answer(worker, done=0, checkpoint=None, folder=None, serving=0)
        bench.passes(2)

    with bench.full_disk():
        for _ in range(3):
            leave()
        assert bench.notes.detached()
    for _ in range(2):
        leave()
    ack = bench.writer.acks[chain.repository]
    assert (ack.applied, ack.serving, ack.event, ack.detached) == (2, 2, deleted.id, None)
    assert bench.notes.detached() == []


def test_a_repository_that_cannot_be_set_aside_rests_first(bench: Bench) -> None:
    chain = Chain("r")
    created, deleted = chain.next(), chain.next(Type.DELETED)
    bench.read(created)
    bench.applied(created)
    bench.records(bench.record(EVENTS, chain.repository, b"junk"))
    bench.records(bench.record(STATE, chain.repository, to_json(replace(state_of(deleted), deleted=True))))
    bench.passes(2)
    first = bench.pool.given[-1]
    assert first.busy.leave
    fail_to_leave(bench, created)
    bench.mirror.turn(0)
    assert bench.pool.given[-1] is first
    bench.passes(5)
    assert bench.pool.given[-1].busy.leave


def fail_to_leave(bench: Bench, created: Event) -> None:
    """The worker that must set the repository aside cannot."""
    trouble = Trouble(reason=Reason.DISK, note="read-only", passing=True)
    here = checkpoint(created)
    bench.answer(bench.pool.given[-1], done=0, checkpoint=here, folder="/x", serving=1, trouble=trouble)


def test_a_repository_that_cannot_be_set_aside_is_tried_ever_more_rarely(bench: Bench) -> None:
    created = Chain("private/r").next()
    bench.read(created)
    bench.applied(created)
    rules = Rules(exclude=("re:private/",))
    roster = Roster(version=1, mirrors=(Mirror(name="alpha", state=MirrorState.ACTIVE, rules=rules),))
    bench.records(bench.record(ROSTER, KEY, to_json(roster)))
    for attempts in range(1, 11):
        assert bench.pool.given[-1].busy.leave
        assert bench.pool.given[-1] in bench.pool.workers
        fail_to_leave(bench, created)
        assert [note.attempts for note in bench.notes.detached()] == [attempts - 1]
        given = len(bench.pool.given)
        bench.passes(40 if attempts == 10 else 0)  # of retry-longest, 60
        assert len(bench.pool.given) == given
        until_given(bench, created.repository)
    bench.answer(bench.pool.given[-1], done=0, checkpoint=None, folder=None, serving=0)
    assert bench.mirror.state.table.get(created.repository) is None
    assert bench.notes.detached() == []


def test_expired_positions_are_passed_and_the_loss_is_looked_for(bench: Bench) -> None:
    first, *_, last = Chain("r").take(40)
    bench.read(first)
    bench.applied(first)
    bench.records(bench.record(STATE, last.repository, to_json(state_of(last))))
    bench.mirror.receive(SkippedRecords(positions={(EVENTS, 0): 40}))
    bench.mirror.receive(Ends(ends={0: 40}, expected={last.repository: (last.incarnation, last.seq)}))
    [note] = bench.notes.detached()
    assert note.reason is Reason.GAP
    bench.passes(2)
    assert bench.writer.stored[-1] == {0: 40}


def test_an_event_that_came_while_the_end_was_asked_is_not_missing(bench: Bench) -> None:
    first, second, third = Chain("r").take(3)
    bench.read(first)
    bench.applied(first)
    bench.records(bench.record(STATE, second.repository, to_json(state_of(second))))
    bench.passes(10)
    asked = bench.writer.asked[-1]
    assert asked == {first.repository: (first.incarnation, 2)}
    ended = bench.mirror.state.backlog.next(0)
    bench.read(second)
    bench.applied(second)
    bench.records(bench.record(STATE, third.repository, to_json(state_of(third))))  # before the event: another topic
    bench.mirror.receive(Ends(ends={0: ended}, expected=asked))
    assert bench.notes.detached() == []


def test_an_event_not_read_yet_or_at_work_is_not_missing(bench: Bench) -> None:
    first, second = Chain("r").take(2)
    bench.read(first)
    bench.applied(first)
    bench.records(bench.record(STATE, second.repository, to_json(state_of(second))))
    following = bench.mirror.state.table.get(first.repository)
    assert following is not None
    for more, is_running, found in ((1, False, []), (0, True, []), (0, False, [Reason.GAP])):
        put(following, is_running=is_running)
        ends = {0: bench.mirror.state.backlog.next(0) + more}
        bench.mirror.receive(Ends(ends=ends, expected={second.repository: (second.incarnation, 2)}))
        assert [note.reason for note in bench.notes.detached()] == found


def test_an_event_the_log_does_not_bring_is_asked_of_the_master_rarely(bench: Bench) -> None:
    first, second = Chain("r").take(2)
    bench.read(first)
    bench.applied(first)
    bench.records(bench.record(STATE, second.repository, to_json(state_of(second))))
    end = bench.mirror.state.backlog.next(0)
    following = bench.mirror.state.table.get(first.repository)
    assert following is not None
    attempts, repairs = [], []
    for _ in range(4):
        bench.mirror.receive(Ends(ends={0: end}, expected={second.repository: (second.incarnation, 2)}))
        attempts.append(bench.notes.detached()[0].attempts)
        bench.passes(100)
        if following.phase is Phase.HEALING:
            task = bench.pool.given[-1].busy
            repairs.append(task.heal)
            bench.answer(bench.pool.given[-1], done=0, checkpoint=checkpoint(first), folder="/x", serving=1)
        read = ReadRecords(records=(), positions={(EVENTS, 0): end}, follows=following.id, run=following.work.run)
        bench.mirror.receive(read)
        assert following.phase is Phase.STREAM
    assert attempts == [0, 1, 2, 3]
    assert repairs == [Reason.GAP] * 3


def adopted(chain: Chain) -> Chain:
    """Another history of the repository, of one event."""
    other = Chain(chain.path, incarnation=2)
    other.repository = chain.repository
    other.next(Type.SYNC, detail={"reason": "adopted"})
    return other


def test_a_mirror_that_adopted_before_the_aggregator_lacks_nothing(bench: Bench) -> None:
    chain = Chain("r")
    *_, last = chain.take(3)
    [first] = adopted(chain).events
    bench.read(first)
    bench.applied(first)
    bench.records(bench.record(STATE, last.repository, to_json(state_of(last))))
    bench.passes(10)
    assert bench.writer.asked == []
    ends = {0: bench.mirror.state.backlog.next(0)}
    bench.mirror.receive(Ends(ends=ends, expected={last.repository: (last.incarnation, 3)}))
    assert bench.notes.detached() == []


@pytest.mark.parametrize("is_told_later", [False, True])
def test_a_mirror_never_shown_an_adoption_takes_the_masters_copy(bench: Bench, *, is_told_later: bool) -> None:
    chain = Chain("r")
    *_, last = chain.take(3)
    [first] = adopted(chain).events
    bench.read(*chain.events)
    bench.answer(bench.pool.given[-1], done=3, checkpoint=checkpoint(last), folder="/x", serving=3)
    state = replace(state_of(first), retired=(last.incarnation,))
    expected = (last.incarnation, 4) if is_told_later else (first.incarnation, 1)
    bench.records(bench.record(STATE, last.repository, to_json(state)))
    bench.passes(10)
    assert bench.writer.asked[-1] == {last.repository: (first.incarnation, 1)}
    ends = {0: bench.mirror.state.backlog.next(0)}
    bench.mirror.receive(Ends(ends=ends, expected={last.repository: expected}))
    reasons = [note.reason for note in bench.notes.detached()]
    assert reasons == ([] if is_told_later else [Reason.DIVERGED])  # what was asked before says nothing of the adoption


class Failing:
    """The log, but that one act of it fails."""

    def __init__(self, log: Log, act: str, *errors: Exception) -> None:
        self._log, self._act, self._errors = log, act, list(errors)

    def __getattr__(self, name: str) -> Any:
        if name == self._act and self._errors:
            raise self._errors.pop(0)
        return getattr(self._log, name)


def test_a_writer_that_cannot_go_on_ends_the_mirror(bench: Bench) -> None:
    arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
    writer = AckWriter(
        cast(Log, Failing(bench.log, "append", Unavailable("away"), ZeroDivisionError())), "g", arrived.put
    )
    writer.start()
    writer.ack("alpha/r", b"{}")
    with pytest.raises(ZeroDivisionError):
        bench.mirror.receive(arrived.get(timeout=60))


def test_a_reader_whose_position_expired_while_the_log_is_away_goes_on(bench: Bench) -> None:
    [event] = Chain("r").take(1)
    bench.log.append([NewRecord(topic=EVENTS, key=event.repository, value=wire.encode(event))])
    log = Failing(bench.log, "beginnings", Unavailable("away"), Unavailable("away"))
    arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
    source = Source(cast(Log, log), {(EVENTS, 0): 1000}, arrived.put).start()
    try:
        assert arrived.get(timeout=60) == SkippedRecords(positions={(EVENTS, 0): 0})
        assert [record.key for record in arrived.get(timeout=60).records] == [event.repository]
    finally:
        source.stop()
        source.join(60)


def test_a_reader_of_a_log_that_lost_records_begins_anew(bench: Bench) -> None:
    [event] = Chain("r").take(1)
    bench.log.append([NewRecord(topic=EVENTS, key=event.repository, value=wire.encode(event))])
    arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
    log = Failing(bench.log, "reader", Rewound("lost"))
    source = Source(cast(Log, log), {(EVENTS, 0): 1}, arrived.put).start()
    try:
        assert arrived.get(timeout=60) == SkippedRecords(positions={(EVENTS, 0): 0})
        assert [record.key for record in arrived.get(timeout=60).records] == [event.repository]
    finally:
        source.stop()
        source.join(60)


def test_a_complete_repository_waits_for_no_event_of_others(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "POLL", 1000.0)
    arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
    source = Source(bench.log, {(EVENTS, 0): 0}, arrived.put, follows="r").start()
    try:
        read = arrived.get(timeout=60)
        assert (read.records, read.positions) == ([], {(EVENTS, 0): 0})
    finally:
        source.stop()
        source.join(60)


def test_a_mirror_follows_the_roster_of_a_log_that_went_back(bench: Bench) -> None:
    path = Chain("private/r").next().path
    for version, rules in ((1, Rules(exclude=("re:private/",))), (2, Rules()), (3, Rules(exclude=("re:private/",)))):
        value = to_json(Roster(version=version, mirrors=(Mirror(name="alpha", state=MirrorState.ACTIVE, rules=rules),)))
        if version == 3:
            bench.records(bench.record(ROSTER, KEY, value))
        else:
            bench.log.append([NewRecord(topic=ROSTER, key=KEY, value=value)])
    assert not bench.mirror.state.membership.carries(path)
    seen: list[bool] = []

    def take(arrived: object) -> None:
        bench.mirror.receive(arrived)
        seen.append(bench.mirror.state.membership.carries(path))

    source = Source(cast(Log, Failing(bench.log, "reader", Rewound("lost"))), {(ROSTER, 0): 1, (STATE, 0): 0}, take)
    source.start()
    try:
        eventually(lambda: True in seen, "the newest roster that the log still has")
        assert seen == sorted(seen)  # and none before it
    finally:
        source.stop()
        source.join(60)


@pytest.mark.more
def test_a_reader_is_never_far_ahead_of_the_supervisor(bench: Bench) -> None:
    chain = Chain("r")
    bench.log.append([NewRecord(topic=EVENTS, key=chain.repository, value=wire.encode(e)) for e in chain.take(3000)])
    arrived: list[ReadRecords] = []
    full = threading.Event()

    def take(read: object) -> None:
        assert isinstance(read, ReadRecords)
        arrived.append(read)
        if len(arrived) > AHEAD:
            full.set()

    source = Source(bench.log, {(EVENTS, 0): 0}, take).start()
    try:
        eventually(lambda: len(arrived) == AHEAD, "as many as it may be ahead")
        assert not full.wait(0.3)
        arrived[0].make_room()
        eventually(full.is_set, "one more")
    finally:
        source.stop()
        source.join(60)


def test_what_a_reader_brought_before_a_new_detaching_is_not_taken(bench: Bench) -> None:
    first, _, third = Chain("r").take(3)
    bench.read(first)
    bench.applied(first)
    run = catching_up(bench, first).work.run
    following = catching_up(bench, first)
    late = bench.record(EVENTS, third.repository, wire.encode(third))
    bench.mirror.receive(ReadRecords(records=[late], positions={(EVENTS, 0): 99}, follows=following.id, run=run))
    assert following.phase is Phase.CATCHING_UP
    assert not bench.mirror.state.backlog.size(following.id)
    bench.mirror.readers.close()


@pytest.mark.parametrize("repaired_to", [0, 99])
def test_an_event_of_an_unknown_version_waits_while_catching_up_too(bench: Bench, repaired_to: int) -> None:
    first, second, third = Chain("r").take(3)
    bench.read(first)
    bench.applied(first)
    following = catching_up(bench, first)
    put(following, repaired_to=repaired_to)
    newer = wire.encode(second).replace(b'"version":1}', b'"version":9}')
    records = (
        bench.record(EVENTS, first.repository, newer),
        bench.record(EVENTS, first.repository, wire.encode(third)),
    )
    read = ReadRecords(records=records, positions={(EVENTS, 0): 99}, follows=following.id, run=following.work.run)
    bench.mirror.receive(read)
    [note] = bench.notes.detached()
    assert (note.reason, following.phase) == (Reason.UNKNOWN_VERSION, Phase.WAITING)
    assert not bench.mirror.state.backlog.size(following.id)


def test_a_release_that_is_stuck_is_tried_again_with_the_next_state(bench: Bench) -> None:
    first, second = Chain("r").take(2)
    bench.read(first)
    bench.applied(first)
    following = bench.mirror.state.table.get(first.repository)
    assert following is not None
    put(following, is_release_stuck=True)
    bench.records(bench.record(STATE, first.repository, to_json(state_of(second))))
    assert not following.trouble.is_release_stuck


def test_a_backup_shows_a_replaced_repository_up_to_its_last_event(bench: Bench) -> None:
    """Its state ended without an event that deletes it, before this mirror read any."""
    bench.settings = replace(bench.settings, backup=True)
    bench.start({0: 0})
    events = Chain("r").take(2)
    over = replace(state_of(events[1]), deleted=True, released=2, noticed=2)
    bench.mirror.control.load(STATE, over.repository, to_json(over))
    bench.read(*events)
    bench.answer(bench.pool.given[-1], done=2, checkpoint=checkpoint(events[1]), folder="/x", serving=0)
    bench.passes(1)
    assert bench.pool.given[-1].busy.released == 2

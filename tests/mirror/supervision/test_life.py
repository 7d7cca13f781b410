# SPDX-License-Identifier: GPL-2.0-or-later
"""A repository's life: every move between phases, when it is retried, what is repaired, and from where it is read."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hgext.vcsreplicator.mirror.checkpoint import before_first
from hgext.vcsreplicator.mirror.notes import Detached
from hgext.vcsreplicator.mirror.supervision.life import (
    MOVES,
    REFUSED,
    AtWork,
    Deed,
    Following,
    InTrouble,
    Moment,
    Move,
    Phase,
    Transition,
    needed_repair,
)
from hgext.vcsreplicator.mirror.task import Task, Trouble
from hgext.vcsreplicator.words.records import Reason
from hgext.vcsreplicator.words.retry import Backoff
from testing.builders.mirror.lives import following_of, put

CHECKPOINT = before_first("1" * 32, "2" * 32, "a", 1)
MOMENT = Moment(now=5.0, time=7.0, chance=0.5)


def note(reason: Reason, *, attempts: int = 1, offset: int = 7) -> Detached:
    return Detached(
        repository="1" * 32, path="a", partition=3, offset=offset, reason=reason, note="", since=0.0, attempts=attempts
    )


@pytest.mark.parametrize("reason", [Reason.SLOW, Reason.LOCKED, Reason.CRASHED, Reason.DISK, Reason.UNKNOWN_VERSION])
def test_what_only_took_time_is_read_again_without_the_master(reason: Reason) -> None:
    assert needed_repair(note(reason, attempts=9)) is None


def test_a_gap_is_read_again_once_before_the_master_is_asked() -> None:
    assert needed_repair(note(Reason.GAP, attempts=1)) is None
    assert needed_repair(note(Reason.GAP, attempts=2)) is Reason.GAP


@pytest.mark.parametrize("reason", [Reason.CORRUPT, Reason.DIVERGED, Reason.BLOB_MISSING, Reason.EXPIRED])
def test_damage_is_repaired_from_the_master_at_once(reason: Reason) -> None:
    assert needed_repair(note(reason)) is reason


@pytest.mark.parametrize("reason", [Reason.FORK, Reason.REFUSED, Reason.UNKNOWN_VERSION])
def test_what_needs_an_operator_is_not_tried_again(reason: Reason) -> None:
    following = following_of("1" * 32, "a", unwritten_note=note(reason))
    assert following.noted(moment=MOMENT, retries=Backoff()).todo == (Deed.STOP_READER, Deed.ACK)


def test_attempts_come_ever_more_slowly() -> None:
    delays = []
    for attempts in range(4):
        following = following_of("1" * 32, "a", unwritten_note=note(Reason.LOCKED, attempts=attempts))
        following.take(following.noted(moment=MOMENT, retries=Backoff(first=1, longest=5)))
        delays.append(following.work.rests_until - MOMENT.now)
    assert delays == [1, 2, 4, 5]


def test_reading_goes_on_behind_the_level_that_came_from_the_log() -> None:
    following = following_of("1" * 32, "a", checkpoint=replace(CHECKPOINT, partition=3, offset=41))
    assert following.find_resume_offset(note(Reason.LOCKED)) == 42


def test_after_a_snapshot_reading_goes_on_where_the_note_says() -> None:
    assert following_of("1" * 32, "a", checkpoint=CHECKPOINT).find_resume_offset(note(Reason.GAP)) == 7
    assert following_of("1" * 32, "a").find_resume_offset(note(Reason.GAP)) == 7


@pytest.mark.parametrize(
    ("members", "may"),
    [
        ({}, True),
        ({"incarnation": "3" * 32}, False),  # of a history that was adopted over, or of one that is to come
        ({"incarnation": None}, False),
        ({"checkpoint": None}, False),
        ({"newest_known": (5, CHECKPOINT.id, CHECKPOINT.digest)}, True),
        ({"newest_known": (5, "f" * 64, CHECKPOINT.digest)}, False),  # the aggregator saw another event in its place
        ({"newest_known": (5, CHECKPOINT.id, "f" * 64)}, False),
        ({"newest_known": (4, "f" * 64, "f" * 64)}, True),
        ({"newest_known": (6, "f" * 64, "f" * 64)}, True),
        ({"is_release_stuck": True}, False),
        ({"released": 4}, False),
        ({"serving": 5}, False),
        ({"floor": 6}, False),
    ],
)
def test_what_is_released_is_served_only_of_the_history_that_is_there(members: dict[str, Any], may: bool) -> None:
    checkpoint = replace(CHECKPOINT, seq=5)
    sound = {"checkpoint": checkpoint, "incarnation": checkpoint.incarnation, "released": 5, "serving": 4}
    assert following_of("1" * 32, "a", **{**sound, **members}).may_release is may


def test_only_what_is_carried_lacks_a_history_that_replaced_the_mirrors_own() -> None:
    own = before_first("r" * 32, "a" * 32, "r", 1)
    following = following_of(own.repository, "r", checkpoint=own, incarnation="b" * 32, retired=("a" * 32,))
    assert [following.lacks(expected) for expected in (0, 1)] == [False, True]
    put(following, retired=())
    assert not following.lacks(1)


PHASES = [*Phase]


@pytest.mark.parametrize("move", Move)
@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_takes_each_move_as_the_table_says_or_no_caller_sends_it(phase: Phase, move: Move) -> None:
    work = AtWork(phase=phase)
    if phase in MOVES[move]:
        assert work.move(move) == replace(work, phase=MOVES[move][phase])
        assert (phase, move) not in REFUSED
    else:
        with pytest.raises(KeyError):
            work.move(move)


STEPS: dict[Move, Callable[[Following], Transition]] = {
    Move.NOTED: lambda following: following.noted(moment=MOMENT, retries=Backoff()),
    Move.REPAIRS: lambda following: following.heal(end=9),
    Move.READS: lambda following: Transition(work=following.work.read()),
    Move.CAUGHT_UP: lambda following: following.catch_up(is_worked_off=False),
    Move.REJOINED: lambda following: following.rejoin(),
    Move.LEAVES: lambda following: following.leave(),
    Move.SET_ASIDE: lambda following: following.set_aside(),
}


@pytest.mark.parametrize("move", Move)
@pytest.mark.parametrize("phase", PHASES)
def test_the_step_of_each_move_goes_where_the_table_says_and_changes_nothing_itself(phase: Phase, move: Move) -> None:
    following = following_of("1" * 32, "a", phase=phase, note=note(Reason.DIVERGED), unwritten_note=note(Reason.GAP))
    before = following.work, following.trouble, following.disk, following.log
    if (phase, move) in REFUSED:
        assert STEPS[move](following) == Transition()
    elif phase in MOVES[move]:
        step = STEPS[move](following)
        assert step.work is not None
        assert step.work.phase is MOVES[move][phase]
    else:
        with pytest.raises(KeyError):
            STEPS[move](following)
    assert (following.work, following.trouble, following.disk, following.log) == before


SUCCEEDED = {
    Phase.STREAM: (),
    Phase.WAITING: (),
    Phase.HEALING: (Deed.START_READER,),
    Phase.CATCHING_UP: (Deed.READ_ON,),
    Phase.JOINING: (Deed.REJOIN,),
    Phase.LEAVING: (Deed.FINISH_LEAVING,),
}


@pytest.mark.parametrize("phase", PHASES)
def test_the_phase_says_what_follows_a_task_without_trouble(phase: Phase) -> None:
    following = following_of("1" * 32, "a", phase=phase, note=note(Reason.DIVERGED), tries=2, troubled_since=1.0)
    step = following.succeed(is_worked_off=True, has_room=True)
    assert step.todo == SUCCEEDED[phase]
    assert step.trouble == InTrouble(note=note(Reason.DIVERGED))


def test_after_a_slow_task_the_repository_reads_without_an_attempt() -> None:
    following = following_of("1" * 32, "a", phase=Phase.WAITING, note=note(Reason.SLOW))
    step = following.succeed(is_worked_off=True, has_room=True)
    assert step.work == AtWork(phase=Phase.CATCHING_UP, run=1)
    assert step.todo == (Deed.START_READER,)


SUFFERED = {
    # Passing trouble, lasting trouble.
    Phase.STREAM: (Deed.SET_ALARM, Deed.WRITE_NOTE),
    Phase.WAITING: (Deed.WRITE_NOTE, Deed.WRITE_NOTE),
    Phase.HEALING: (Deed.WRITE_NOTE, Deed.WRITE_NOTE),
    Phase.CATCHING_UP: (Deed.WRITE_NOTE, Deed.WRITE_NOTE),
    Phase.JOINING: (Deed.SET_ALARM, Deed.WRITE_NOTE),
    Phase.LEAVING: (Deed.WRITE_NOTE, Deed.WRITE_NOTE),
}


@pytest.mark.parametrize("phase", PHASES)
def test_trouble_rests_in_the_stream_if_it_passes_and_is_noted_elsewhere(phase: Phase) -> None:
    following = following_of("1" * 32, "a", phase=phase, note=note(Reason.SLOW))
    todo: list[Deed] = []
    for passing in (True, False):
        found = Trouble(reason=Reason.LOCKED, note="locked", passing=passing)
        task = Task(repository=following.id, path="a", folder=None)
        step = following.suffer(task, found, done=0, place=(3, 8), moment=MOMENT, patience=1.0)
        todo += step.todo
        assert step.work is None or step.work.phase is phase  # the phase changes only after the note is written
    assert tuple(todo) == SUFFERED[phase]


def test_a_repository_stays_in_its_phase_until_its_note_is_durable() -> None:
    following = following_of("1" * 32, "a")
    assert following.take(following.plan_note(Reason.GAP, "lost", place=(3, 8), now=1.0)) == (Deed.WRITE_NOTE,)
    assert (following.phase, following.note) == (Phase.STREAM, None)
    assert following.take(following.noted(moment=MOMENT, retries=Backoff()))[0] is Deed.STOP_READER
    assert (following.work.phase, following.trouble.unwritten_note) == (Phase.WAITING, None)

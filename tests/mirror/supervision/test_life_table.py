# SPDX-License-Identifier: GPL-2.0-or-later
"""Every message in every phase: the phase that follows and what is to do then, refused, or impossible."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import get_type_hints

import pytest

from hgext.vcsreplicator.mirror.checkpoint import before_first
from hgext.vcsreplicator.mirror.notes import Detached
from hgext.vcsreplicator.mirror.supervision.life import NEXT, Deed, Following, Transition
from hgext.vcsreplicator.mirror.supervision.values import Moment, Phase
from hgext.vcsreplicator.mirror.task import Checked, FoundRepository, Task, TaskOutcome, Trouble
from hgext.vcsreplicator.words.records import Ack, Reason, RepositoryState
from hgext.vcsreplicator.words.retry import Backoff
from testing.builders.mirror.lives import following_of

LAST = replace(before_first("1" * 32, "2" * 32, "a", 1), seq=5)
LOWER = replace(LAST, seq=3)
DELETION = replace(LAST, seq=6, deleted=True)
MOMENT = Moment(now=5.0, time=7.0, chance=0.5, partition=3, end=9)
FULL = replace(MOMENT, is_worked_off=False, filled=1.0)
STATE = RepositoryState(repository=LAST.repository, incarnation=LAST.incarnation, path="a", seq=5, event="e", digest="d",
                        generation=1, released=5, noticed=5, roster=1)  # fmt: skip
ACK = Ack(mirror="alpha", repository=LAST.repository, incarnation=LAST.incarnation, applied=9, serving=0, event="e",
          digest="d", applied_at=0.0, served_at=0.0)  # fmt: skip
FOUND = FoundRepository(folder="/x", checkpoint=LAST, serving=5)
OUTCOME = TaskOutcome(repository=LAST.repository, done=0, checkpoint=LAST, folder="/x", serving=5)
TASK = Task(repository=LAST.repository, path="a", folder=None)
LOCKED = Trouble(reason=Reason.LOCKED, note="locked", passing=True)
TORN = Trouble(reason=Reason.CORRUPT, note="torn")


def note(reason: Reason) -> Detached:
    return Detached(repository="1" * 32, path="a", partition=3, offset=7, reason=reason, note="", since=0.0, attempts=1)


class Impossible:
    """No caller sends this: an assertion stops it."""


STREAM, WAITING, HEALING, CATCHING_UP, JOINING, LEAVING = Phase
STAYS: tuple[None, ...] = (None,)
NOTES = (None, Deed.WRITE_NOTE)
REFUSED = None
Row = dict[Phase, tuple[object, ...] | type[Impossible] | None]


def everywhere(*answer: object) -> Row:
    return dict.fromkeys(Phase, answer)


def only(answers: Row, otherwise: type[Impossible] | None = REFUSED) -> Row:
    return dict.fromkeys(Phase, otherwise) | answers


# Method, what the repository has, the call → for each phase: the phase that follows (None: the same), then the deeds.
TABLE: list[tuple[str, dict[str, object], Callable[[Following], Transition], Row]] = [
    ("find", {}, lambda f: f.find(FOUND, ACK, now=1.0), everywhere(*STAYS)),
    ("find_note", {}, lambda f: f.find_note(MOMENT, note(Reason.GAP)), everywhere(WAITING, Deed.SET_ALARM)),
    ("find_note", {}, lambda f: f.find_note(MOMENT, note(Reason.FORK)), everywhere(WAITING)),
    ("find_ack", {}, lambda f: f.find_ack(MOMENT, ACK), everywhere(*STAYS) | {STREAM: NOTES}),
    ("learn", {}, lambda f: f.learn(STATE, is_carried=True, deletion=None), everywhere(*STAYS)),
    ("acknowledge", {}, lambda f: f.acknowledge(ACK), everywhere(*STAYS)),
    ("drop_events", {}, lambda f: f.drop_events(), everywhere(None, Deed.DROP_EVENTS)),
    ("run", {}, lambda f: f.run(is_running=True), everywhere(*STAYS)),
    ("rest", {}, lambda f: f.rest(until=9.0), everywhere(None, Deed.SET_ALARM)),
    ("wake", {}, lambda f: f.wake(MOMENT), only({})),
    ("wake", {"is_resting": True, "rests_until": 6.0}, lambda f: f.wake(MOMENT), only({})),
    (
        "wake",
        {"is_resting": True},
        lambda f: f.wake(MOMENT),
        everywhere(None, Deed.QUEUE)
        | {JOINING: (None, Deed.REJOIN, Deed.QUEUE), WAITING: (None, Deed.ATTEMPT, Deed.QUEUE)},
    ),
    (
        "wake",
        {"is_resting": True, "is_running": True},
        lambda f: f.wake(FULL),
        everywhere(None, Deed.QUEUE) | {WAITING: (None, Deed.SET_ALARM)},
    ),
    (
        "wake",
        {"is_resting": True, "unwritten_note": note(Reason.GAP)},
        lambda f: f.wake(MOMENT),
        everywhere(None, Deed.WRITE_NOTE, Deed.QUEUE),
    ),
    (
        "wake",
        {"is_release_stuck": True},
        lambda f: f.wake(MOMENT),
        everywhere(None, Deed.QUEUE),
    ),
    ("adopt", {}, lambda f: f.adopt(OUTCOME, now=1.0, has_ended=False), everywhere(*STAYS)),
    ("end_at", {}, lambda f: f.end_at(DELETION, now=1.0), everywhere(*STAYS)),
    ("believe", {}, lambda f: f.believe(MOMENT, checked(problem="torn")), only({STREAM: NOTES})),
    ("believe", {}, lambda f: f.believe(MOMENT, checked(lower=LOWER)), only({STREAM: NOTES})),
    ("believe", {}, lambda f: f.believe(MOMENT, checked(lower=LAST)), only({})),
    ("believe", {}, lambda f: f.believe(MOMENT, checked(shown=(5, 2))), only({STREAM: (None, Deed.QUEUE)})),
    ("believe", {"is_running": True}, lambda f: f.believe(MOMENT, checked(lower=LOWER)), only({})),
    (
        "succeed",
        {},
        lambda f: f.succeed(MOMENT, is_carried=True),
        everywhere(*STAYS)
        | {
            HEALING: (CATCHING_UP, Deed.START_READER),
            CATCHING_UP: (None, Deed.READ_ON),
            JOINING: (None, Deed.REJOIN),
            LEAVING: (WAITING, Deed.WRITE_NOTE),
        },
    ),
    (
        "succeed",
        {"deletion": DELETION},
        lambda f: f.succeed(FULL, is_carried=True),
        everywhere(*STAYS)
        | {HEALING: (CATCHING_UP, Deed.START_READER), LEAVING: (WAITING, Deed.RECORD_DELETION, Deed.REJOIN)},
    ),
    (
        "succeed",
        {"deletion": DELETION, "note": None},
        lambda f: f.succeed(FULL, is_carried=False),
        everywhere(*STAYS) | {HEALING: (CATCHING_UP, Deed.START_READER), LEAVING: (STREAM, Deed.FORGET)},
    ),
    (
        "succeed",
        {"note": note(Reason.SLOW)},
        lambda f: f.succeed(FULL, is_carried=False),
        everywhere(*STAYS)
        | {
            WAITING: (CATCHING_UP, Deed.START_READER),
            HEALING: (CATCHING_UP, Deed.START_READER),
            LEAVING: (WAITING, Deed.FORGET),
        },
    ),
    (
        "suffer",
        {},
        lambda f: f.suffer(MOMENT, TASK, LOCKED, done=0, patience=1.0),
        everywhere(*NOTES) | {STREAM: (None, Deed.SET_ALARM), JOINING: (None, Deed.SET_ALARM)},
    ),
    ("suffer", {}, lambda f: f.suffer(MOMENT, TASK, TORN, done=0, patience=1.0), everywhere(*NOTES)),
    (
        "suffer",
        {"note": note(Reason.FORK)},
        lambda f: f.suffer(MOMENT, TASK, LOCKED, done=0, patience=0.0),
        everywhere(*NOTES) | {WAITING: (None, Deed.REMIND)},
    ),
    (
        "suffer",
        {"drops": 1},
        lambda f: f.suffer(MOMENT, TASK, TORN, done=0, patience=0.0),
        everywhere(*NOTES) | {WAITING: STAYS},
    ),
    ("plan_note", {}, lambda f: f.plan_note(MOMENT, Reason.GAP, "lost"), everywhere(*NOTES)),
    ("be_slow", {"is_running": True}, lambda f: f.be_slow(MOMENT, 5.0), only({STREAM: NOTES})),
    ("be_slow", {}, lambda f: f.be_slow(MOMENT, 5.0), only({})),
    ("miss", {}, lambda f: f.miss(MOMENT, LAST.incarnation, 6, {3: 9}), only({STREAM: NOTES})),
    ("miss", {}, lambda f: f.miss(MOMENT, LAST.incarnation, 5, {3: 9}), only({})),
    ("miss", {}, lambda f: f.miss(MOMENT, "e" * 32, 6, {3: 9}), only({})),
    ("miss", {}, lambda f: f.miss(MOMENT, LAST.incarnation, 6, {3: 10}), only({})),
    ("miss", {}, lambda f: f.miss(replace(MOMENT, queued=8), LAST.incarnation, 6, {3: 9}), only({})),
    ("miss", {"is_running": True}, lambda f: f.miss(MOMENT, LAST.incarnation, 6, {3: 9}), only({})),
    ("keep_unwritten", {}, lambda f: f.keep_unwritten(MOMENT, "full"), everywhere(None, Deed.SET_ALARM)),
    (
        "noted",
        {"unwritten_note": note(Reason.GAP)},
        lambda f: f.noted(MOMENT, Backoff()),
        everywhere(WAITING, Deed.STOP_READER, Deed.SET_ALARM, Deed.ACK),
    ),
    ("noted", {}, lambda f: f.noted(MOMENT, Backoff()), only({}, Impossible)),
    (
        "request",
        {},
        lambda f: f.request(MOMENT),
        only({STREAM: NOTES, WAITING: (None, Deed.ATTEMPT)}),
    ),
    ("hold_requests", {}, lambda f: f.hold_requests((1,)), everywhere(*STAYS)),
    ("retry", {"note": note(Reason.REFUSED)}, lambda f: f.retry(MOMENT), only({WAITING: (None, Deed.SET_ALARM)})),
    ("retry", {}, lambda f: f.retry(MOMENT), only({})),
    ("count_attempt", {}, lambda f: f.count_attempt(), everywhere(*STAYS)),
    ("count_attempt", {"note": None}, lambda f: f.count_attempt(), only({}, Impossible)),
    ("heal", {}, lambda f: f.heal(end=9), only({WAITING: (HEALING, Deed.QUEUE)}, Impossible)),
    (
        "heal",
        {"note": note(Reason.GAP)},
        lambda f: f.heal(end=9),
        only(dict.fromkeys((WAITING, HEALING), (CATCHING_UP, Deed.START_READER, Deed.QUEUE)), Impossible),
    ),
    ("read_later", {}, lambda f: f.read_later(), everywhere(*STAYS)),
    (
        "advance",
        {},
        lambda f: f.advance(MOMENT, has_read_all=False),
        only({CATCHING_UP: (None, Deed.READ_ON, Deed.QUEUE)}),
    ),
    (
        "advance",
        {},
        lambda f: f.advance(FULL, has_read_all=True),
        only({CATCHING_UP: (JOINING, Deed.STOP_READER, Deed.QUEUE)}),
    ),
    (
        "advance",
        {},
        lambda f: f.advance(MOMENT, has_read_all=True),
        only({CATCHING_UP: (JOINING, Deed.STOP_READER, Deed.REJOIN, Deed.QUEUE)}),
    ),
    (
        "rejoin",
        {},
        lambda f: f.rejoin(),
        only(dict.fromkeys((JOINING, WAITING), (STREAM, Deed.ACK)), Impossible),
    ),
    (
        "leave",
        {},
        lambda f: f.leave(is_carried=False, is_backup=False),
        everywhere(LEAVING, Deed.STOP_READER, Deed.DROP_EVENTS, Deed.QUEUE) | {LEAVING: REFUSED},
    ),
    (
        "leave",
        {"deletion": DELETION},
        lambda f: f.leave(is_carried=True, is_backup=False),
        only({WAITING: (LEAVING, Deed.STOP_READER, Deed.DROP_EVENTS, Deed.QUEUE)}),
    ),
    ("leave", {}, lambda f: f.leave(is_carried=False, is_backup=True), only({})),
    ("leave", {"is_running": True}, lambda f: f.leave(is_carried=False, is_backup=False), only({})),
]


def checked(**found: object) -> Checked:
    return Checked(repository=LAST.repository, **{"problem": None} | found)  # type: ignore[arg-type]


def follow(phase: Phase, members: dict[str, object]) -> Following:
    sound = {"note": note(Reason.DIVERGED), "checkpoint": LAST, "serving": 5, "expected": 6, "phase": phase}
    return following_of(LAST.repository, "a", **sound | {"incarnation": LAST.incarnation} | members)


def list_messages() -> set[str]:
    methods = {name: each for name, each in vars(Following).items() if callable(each) and not name.startswith("_")}
    return {name for name, each in methods.items() if get_type_hints(each).get("return") is Transition}


def test_the_table_has_every_message_that_changes_a_repository() -> None:
    assert {name for name, *_ in TABLE} == list_messages()


@pytest.mark.parametrize(("members", "call", "row"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_each_phase_answers_each_message_as_the_table_says(
    members: dict[str, object], call: Callable[[Following], Transition], row: Row
) -> None:
    for phase in Phase:
        following, answer = follow(phase, members), row[phase]
        before = following.work, following.trouble, following.disk, following.log
        if isinstance(answer, type):
            with pytest.raises(AssertionError):
                call(following)
        elif answer is REFUSED:
            assert call(following) == Transition(), phase
        else:
            step = call(following)
            assert step != Transition(), phase
            following_phase = phase if step.work is None else step.work.phase
            assert (following_phase, *step.todo) == (answer[0] or phase, *answer[1:]), phase
        assert (following.work, following.trouble, following.disk, following.log) == before, phase


@pytest.mark.parametrize("phase", Phase)
def test_a_repository_listens_to_the_stream_or_its_present_reader(phase: Phase) -> None:
    following = follow(phase, {"run": 2})
    assert following.listens() is (phase in (STREAM, JOINING))
    assert [following.listens(run) for run in (1, 2)] == [False, phase is CATCHING_UP]
    assert not follow(phase, {"run": 2, "unwritten_note": note(Reason.GAP)}).listens(2)


@pytest.mark.parametrize("phase", Phase)
def test_a_request_waits_while_a_hold_a_note_or_a_task_is_in_the_way(phase: Phase) -> None:
    assert follow(phase, {}).can_take_up(4)
    assert not follow(phase, {"heal_requests": (4,)}).can_take_up(4)
    assert not follow(phase, {"unwritten_note": note(Reason.GAP)}).can_take_up(4)
    assert follow(phase, {"is_running": True}).can_take_up(4) is (phase is not WAITING)


def test_each_phase_leads_back_to_the_stream_and_out_of_the_mirror() -> None:
    way = [STREAM, WAITING, HEALING, CATCHING_UP, JOINING, STREAM, LEAVING, WAITING]
    assert all(after in NEXT[before] for before, after in pairwise(way))
    assert all(WAITING in NEXT[phase] and (LEAVING in NEXT[phase] or phase is LEAVING) for phase in Phase)

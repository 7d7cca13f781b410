# SPDX-License-Identifier: GPL-2.0-or-later
"""Repositories that leave a mirror: when, once, and what is left of them. Workers are played by hand."""

from dataclasses import replace

import pytest

from hgext.vcsreplicator.log import EVENTS, ROSTER, STATE
from hgext.vcsreplicator.mirror.supervision.state import DOUBT, AckBook
from hgext.vcsreplicator.mirror.supervision.values import Phase
from hgext.vcsreplicator.mirror.task import Trouble
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.event import Type
from hgext.vcsreplicator.words.records import Ack, Reason
from hgext.vcsreplicator.words.roster import KEY, Mirror, MirrorRole, MirrorState, Roster
from hgext.vcsreplicator.words.rules import Rules
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.aggregator.chains import Chain
from testing.builders.aggregator.states import state_of
from testing.builders.mirror.lives import put
from testing.builders.mirror.supervising import Bench, Deletion, catching_up, checkpoint


@pytest.fixture
def acks(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[Ack | None]:
    """All acks of repositories that are written from now on, tombstones as None."""
    written: list[Ack | None] = []

    def ack(key: str, value: bytes | None) -> None:
        if "/" in key:
            written.append(None if value is None else from_json(Ack, value))

    monkeypatch.setattr(bench.writer, "ack", ack)
    return written


def applied(bench: Bench, chain: Chain, count: int = 1) -> None:
    for event in chain.take(count):
        bench.read(event)
        bench.applied(event)


def carry(bench: Bench, *rules: str, version: int = 1, **members: object) -> None:
    mirror = Mirror(name="alpha", state=MirrorState.ACTIVE, rules=Rules(include=rules), **members)  # type: ignore[arg-type]
    bench.records(bench.record(ROSTER, KEY, to_json(Roster(version=version, mirrors=(mirror,)))))


def say(bench: Bench, event: object, **members: object) -> None:
    """What the aggregator writes about the event's repository."""
    state = state_of(event, **members)  # type: ignore[arg-type]
    bench.records(bench.record(STATE, state.repository, to_json(state)))


def leaves(bench: Bench) -> list[str]:
    """The repositories that a worker was told to set aside."""
    return [worker.busy.repository for worker in bench.pool.given if worker.busy.leave]


def test_a_repository_not_carried_any_more_leaves_after_its_task(bench: Bench, acks: list[Ack | None]) -> None:
    chain = Chain("other/r")
    applied(bench, chain)
    event = chain.next()
    bench.read(event)
    carry(bench, "re:this/.*")
    assert leaves(bench) == []
    bench.applied(event)
    bench.mirror.turn(0)
    assert leaves(bench) == [chain.repository]
    bench.answer(bench.pool.given[-1], done=0, checkpoint=None, folder=None, serving=0)
    assert bench.mirror.state.table.get(chain.repository) is None
    assert acks[-1] is None


def test_no_repository_leaves_because_a_log_lost_its_newest_roster(bench: Bench) -> None:
    chain = Chain("other/r")
    carry(bench, version=2)
    applied(bench, chain)
    carry(bench, "re:this/.*", version=1)
    say(bench, chain.events[0])
    applied(bench, chain)
    assert bench.mirror.state.table.get(chain.repository) is not None
    assert bench.mirror.state.membership.carries("this/other")
    bench.passes(int(DOUBT) - 1)
    carry(bench, version=2)
    bench.passes(2 * int(DOUBT))
    assert leaves(bench) == []
    carry(bench, "re:this/.*", version=3)
    bench.mirror.turn(0)
    assert leaves(bench) == [chain.repository]


def test_an_older_roster_that_stays_the_newest_counts_alone_after_a_while(bench: Bench) -> None:
    chain = Chain("other/r")
    carry(bench, version=3, role=MirrorRole.BACKUP)
    applied(bench, chain)
    for version in (1, 2):
        carry(bench, "re:this/.*", version=version)
        bench.passes(int(DOUBT) // 2 - 1)
    assert leaves(bench) == []
    bench.passes(3)
    assert leaves(bench) == [chain.repository]


def test_repositories_leave_when_a_newer_roster_confirms_the_rules(bench: Bench) -> None:
    chain = Chain("other/r")
    carry(bench, version=2)
    applied(bench, chain)
    carry(bench, "re:this/.*", version=1)
    assert leaves(bench) == []
    carry(bench, "re:this/.*", version=2)
    bench.mirror.turn(0)
    assert leaves(bench) == [chain.repository]


def test_a_repository_leaves_at_the_state_that_moves_it_out_of_the_rules(bench: Bench) -> None:
    chain = Chain("this/r")
    carry(bench, "re:this/.*")
    applied(bench, chain)
    say(bench, chain.next(Type.RENAMED, path="other/r", detail={"from": "this/r"}))
    bench.mirror.turn(0)
    assert leaves(bench) == [chain.repository]


def test_nothing_leaves_a_backup_and_its_new_role_counts_at_once(bench: Bench) -> None:
    chain = Chain("other/r")
    carry(bench, "re:this/.*", role=MirrorRole.BACKUP)
    put(bench.mirror.state.table.get_or_add(chain.repository, chain.path), checkpoint=checkpoint(chain.next()))
    say(bench, chain.events[0])
    assert leaves(bench) == []
    carry(bench, "re:this/.*", version=2)
    bench.mirror.turn(0)
    assert leaves(bench) == [chain.repository]


def test_a_repository_that_leaves_while_it_catches_up_has_no_reader(bench: Bench) -> None:
    chain = Chain("other/r")
    applied(bench, chain)
    following = catching_up(bench, chain.events[0])
    run = following.work.drops
    carry(bench, "re:this/.*")
    assert (following.phase, [*bench.mirror.readers._running]) == (Phase.LEAVING, [])
    assert following.work.drops > run


def test_the_note_of_a_detached_repository_goes_with_it(bench: Bench) -> None:
    chain = Chain("other/r")
    applied(bench, chain)
    bench.detach(chain.repository, Reason.FORK, "two histories")
    carry(bench, "re:this/.*")
    bench.answer(bench.pool.given[-1], done=0, checkpoint=None, folder=None, serving=0)
    assert bench.notes.detached() == []


def test_a_repository_not_deleted_here_stays_when_that_is_noticed(bench: Bench) -> None:
    chain = Chain("r")
    applied(bench, chain)
    deleted = chain.next(Type.DELETED)
    say(bench, deleted, deleted=True, released=2, noticed=2)
    assert bench.mirror.state.table.get(chain.repository) is not None
    assert bench.writer.acks[chain.repository].applied == 1


def test_the_ack_of_a_deletion_is_withdrawn_once_when_it_is_noticed(bench: Bench, acks: list[Ack | None]) -> None:
    chain = Chain("r")
    applied(bench, chain)
    deleted = chain.next(Type.DELETED)
    bench.read(deleted)
    gone = checkpoint(deleted, deleted=True)
    bench.answer(bench.pool.given[-1], done=1, checkpoint=None, folder=None, serving=0, gone=gone)
    for _ in range(3):
        say(bench, deleted, deleted=True, released=2, noticed=2)
    assert acks.count(None) == 1


def test_a_deletion_is_acknowledged_that_follows_one_for_want_of_events(bench: Bench, acks: list[Ack | None]) -> None:
    """The aggregator let a successor have the path; then the master, which was cut off, sent the events and the deletion."""
    chain = Chain("r")
    applied(bench, chain)
    say(bench, chain.events[0], deleted=True, released=1, noticed=1)
    applied(bench, chain)
    deleted = chain.next(Type.DELETED)
    bench.read(deleted)
    say(bench, deleted, deleted=True, released=3, noticed=2)
    gone = checkpoint(deleted, deleted=True)
    bench.answer(bench.pool.given[-1], done=1, checkpoint=None, folder=None, serving=0, gone=gone)
    assert acks[-1] is not None
    assert (acks[-1].applied, acks[-1].serving) == (3, 3)
    say(bench, deleted, deleted=True, released=3, noticed=3)
    assert acks[-1] is None


def test_events_queued_while_a_deletion_is_carried_out_bring_nothing_back(bench: Bench) -> None:
    """A restart reads the events again while the worker sets the repository aside."""
    chain = Chain("r")
    created, deleted = chain.next(), chain.next(Type.DELETED)
    here = checkpoint(deleted, deleted=True)
    put(bench.mirror.state.table.get_or_add(chain.repository, "r"), checkpoint=here)
    say(bench, deleted, deleted=True, released=2, noticed=1)
    [releasing] = bench.pool.given
    bench.read(created, deleted)
    bench.answer(releasing, done=0, checkpoint=None, folder=None, serving=0, gone=here)
    bench.mirror.turn(0)
    assert bench.pool.given == [releasing]
    assert bench.mirror.state.backlog.positions() == {0: bench.offset}


def test_a_repository_restored_after_deletion_is_followed_again(bench: Bench) -> None:
    chain, again = Chain("r"), Chain("r", incarnation=2)
    applied(bench, chain)
    deleted = chain.next(Type.DELETED)
    bench.read(deleted)
    gone = checkpoint(deleted, deleted=True)
    bench.answer(bench.pool.given[-1], done=1, checkpoint=None, folder=None, serving=0, gone=gone)
    say(bench, deleted, deleted=True, released=2, noticed=2)
    bench.records(bench.record(EVENTS, again.repository, wire.encode(again.next())))
    assert [item.event.id for item in bench.pool.given[-1].busy.items] == [again.events[0].id]


@pytest.mark.parametrize("is_told", [True, False])
def test_the_next_life_of_a_deleted_repository_stays_once_it_is_applied(bench: Bench, is_told: bool) -> None:
    """Also if its event comes before the aggregator says anything about it."""
    chain, again = Chain("r"), Chain("r", incarnation=2)
    applied(bench, chain)
    deleted = chain.next(Type.DELETED)
    bench.read(deleted)
    gone = checkpoint(deleted, deleted=True)
    bench.answer(bench.pool.given[-1], done=1, checkpoint=None, folder=None, serving=0, gone=gone)
    say(bench, deleted, deleted=True, released=2, noticed=2)
    first = again.next()
    if is_told:
        say(bench, first)
    bench.read(first)
    bench.applied(first)
    assert bench.mirror.state.table.get(again.repository) is not None
    assert bench.writer.acks[again.repository].incarnation == again.incarnation


@pytest.mark.parametrize("is_rename", [False, True], ids=["creation", "rename"])
def test_a_refused_repository_is_tried_again_once_the_other_left(bench: Bench, *, is_rename: bool) -> None:
    chain, late = Chain("other"), Chain("late")
    applied(bench, chain)
    if is_rename:
        applied(bench, late)
        bench.read(late.next(Type.RENAMED, path="other", detail={"from": "late"}))
    else:
        bench.read(Chain("other", generation=2).next())
    taken = Trouble(reason=Reason.REFUSED, note="path 'other' is taken")
    bench.answer(bench.pool.given[-1], done=0, checkpoint=None, folder=None, serving=0, trouble=taken)
    bench.read(renamed := chain.next(Type.RENAMED, path="this/r", detail={"from": "other"}))
    bench.applied(renamed)
    bench.passes(2)
    assert [note.attempts for note in bench.notes.detached()] == [1]


def test_an_ack_from_before_a_restart_is_withdrawn_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    deletion = Deletion(bench)
    withdrawn: list[str] = []
    monkeypatch.setattr(AckBook, "withdraw", lambda self, repository: withdrawn.append(repository))
    deletion.restart(deletion.acks, deletion.state)
    for _ in range(2):
        bench.records(bench.record(STATE, deletion.repository, to_json(deletion.state)))
    assert withdrawn == [deletion.repository]


def test_a_lost_copy_of_the_next_life_is_missed_at_a_start(bench: Bench) -> None:
    """Its ack is not one of the deleted repository."""
    deletion, again = Deletion(bench), Chain("r", incarnation=2)
    bench.read(first := again.next())
    bench.applied(first)
    assert bench.writer.acks[again.repository].incarnation == again.incarnation
    deletion.restart(dict(bench.writer.acks), state_of(first))
    assert [(note.repository, note.reason) for note in bench.notes.detached()] == [(again.repository, Reason.GAP)]


def test_a_deletion_of_another_history_than_here_is_not_acked(bench: Bench) -> None:
    deletion = Deletion(bench)
    deletion.restart({}, replace(deletion.state, incarnation="e" * 32, seq=5, noticed=1))
    assert bench.writer.acks == {}

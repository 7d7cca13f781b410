# SPDX-License-Identifier: GPL-2.0-or-later
"""The log lost something, or is read again: what the aggregation makes of it, without a log."""

from dataclasses import replace

import pytest

from hgext.vcsreplicator.aggregator.ahead import AheadLevels
from hgext.vcsreplicator.aggregator.decisions.memory import RecordOutcome
from hgext.vcsreplicator.aggregator.rereading import Rereading
from hgext.vcsreplicator.log import EVENTS, PENDING, Topic
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.event import Event, Type
from hgext.vcsreplicator.words.roster import MirrorState, Verb
from testing.builders.chains import Chain
from testing.builders.hands import Hands
from testing.builders.memorylog import MemoryLog


def adopted(chain: Chain) -> Event:
    return chain.next(Type.SYNC, detail={"reason": "adopted"})


def state_of(hands: Hands, mirror: str) -> MirrorState:
    found = hands.aggregation.roster.mirror(mirror)
    assert found is not None
    return found.state


# A joining mirror is ahead of the log


def joining(hands: Hands, chain: Chain) -> Chain:
    """Two events are announced, two more are lost from the log; beta, which may have them, joins. Returns another repository."""
    other = Chain("other")
    hands.event(*chain.take(2), *other.take(1))
    hands.ack(chain.ack("alpha", 2), other.ack("alpha", 1))
    hands.commit()
    chain.take(2)
    hands.ask(Verb.ADD, "beta")
    hands.ack(other.ack("beta", 1))
    return other


@pytest.mark.parametrize("comes", ["in this life", "before a restart"])
def test_a_joining_mirror_that_is_ahead_of_what_the_log_lost_becomes_active(comes: str) -> None:
    hands, chain = Hands("alpha"), Chain("x")
    joining(hands, chain)
    hands.ack(chain.ack("beta", 4, 2))
    if comes == "before a restart":
        hands.restart()
    hands.commit()
    assert state_of(hands, "beta") is MirrorState.ACTIVE


def test_a_mirror_that_is_ahead_of_the_log_and_shows_less_than_was_announced_stays_joining_until_the_log_has_it() -> (
    None
):
    hands, chain = Hands("alpha"), Chain("x")
    joining(hands, chain)
    hands.ack(chain.ack("beta", 4, 0))  # filled from the master: it can show nothing before event 4
    hands.commit()
    assert state_of(hands, "beta") is MirrorState.JOINING
    hands.event(*chain.events[2:])  # the relay sent it again
    hands.ack(chain.ack("alpha", 4), chain.ack("beta", 4, 4))
    hands.commit()
    assert state_of(hands, "beta") is MirrorState.ACTIVE


def test_a_level_ahead_of_the_log_in_another_history_makes_no_mirror_active() -> None:
    hands, chain = Hands("alpha"), Chain("x")
    joining(hands, chain)
    hands.ack(replace(chain.ack("beta", 4, 2), incarnation="f" * 32))
    hands.commit()
    assert state_of(hands, "beta") is MirrorState.JOINING


def test_a_mirror_that_became_active_ahead_of_the_log_lets_nothing_go_by_that() -> None:
    hands, chain = Hands("alpha"), Chain("x")
    joining(hands, chain)
    hands.ack(chain.ack("beta", 4, 2))
    hands.commit()
    hands.event(chain.events[2])
    hands.ack(chain.ack("alpha", 3))
    assert hands.commit() == []  # whether beta has this event 3 is unknown until event 4 is there
    hands.event(chain.events[3])
    hands.ack(chain.ack("alpha", 4), chain.ack("beta", 4))
    assert hands.commit() == [3, 4]


def test_a_mirror_that_was_ahead_of_the_log_can_be_removed_and_added_again() -> None:
    hands, chain = Hands("alpha"), Chain("x")
    joining(hands, chain)
    hands.ack(chain.ack("beta", 4, 1))
    hands.commit()
    hands.ask(Verb.DEACTIVATE, "beta")
    assert hands.ask(Verb.REMOVE, "beta") is RecordOutcome.TAKEN
    assert hands.ask(Verb.ADD, "beta") is RecordOutcome.TAKEN
    hands.commit()
    assert state_of(hands, "beta") is MirrorState.JOINING


# A mirror is behind an adoption


def test_a_level_of_the_history_that_an_adoption_replaced_is_not_ahead_of_the_log() -> None:
    log = MemoryLog()
    log.create([Topic(name=EVENTS)])
    hands, old, new = Hands("alpha", "beta"), Chain("x"), Chain("x", incarnation=2)
    ahead = AheadLevels(hands.aggregation, log, Rereading(log, hands.aggregation, hands.write))
    hands.event(*old.take(3))
    hands.ack(old.ack("alpha", 3), old.ack("beta", 3))
    hands.event(adopted(new))
    hands.ack(new.ack("alpha", 1))
    assert hands.commit() == [1, 2, 3]
    for _ in range(2):
        ahead.check(hands.now)
    assert hands.commit() == []
    assert (ahead.count_missing(), hands.errors) == ({}, [])
    hands.ack(new.ack("beta", 1))
    assert hands.commit() == [1]


# Reading again


def forked_and_adopted(hands: Hands) -> tuple[Chain, Chain]:
    """Two events, one of another history that does not fit, then an adopted history of two events."""
    old, foreign, new = Chain("x"), Chain("x", incarnation=7), Chain("x", incarnation=2)
    foreign.repository = new.repository = old.repository
    hands.event(*old.take(2), foreign.next(), adopted(new), new.next())
    hands.ack(new.ack("alpha", 2))
    hands.commit()
    return old, new


def test_reading_again_marks_no_fork_that_an_adoption_settled() -> None:
    hands = Hands("alpha")
    _, new = forked_and_adopted(hands)
    told = len(hands.errors)
    hands.restart(whole=0)
    hands.read_again()
    hands.commit()
    assert hands.state(new).fork is None
    assert len(hands.errors) == told
    new.next()
    assert hands.event(new.next()) == [RecordOutcome.TAKEN]  # a gap, not a fork


def test_a_fork_behind_the_adoption_is_marked_when_it_is_read_again_or_for_the_first_time() -> None:
    hands = Hands("alpha")
    old, new = forked_and_adopted(hands)
    fork = replace(new.events[1], id="f" * 32)
    hands.skip(fork, *old.events)
    hands.restart(whole=0)
    hands.read_again()
    hands.commit()
    assert hands.state(new).fork == fork.id
    assert [error.reason for error in hands.errors if fork.id in error.reason]
    told = len(hands.errors)
    hands.restart(whole=0)
    hands.read_again()
    hands.commit()
    assert (hands.state(new).fork, len(hands.errors)) == (fork.id, told)


def test_a_gap_behind_a_fork_that_is_read_for_the_first_time_is_not_bridged() -> None:
    hands, chain = Hands("alpha"), Chain("x")
    hands.event(*chain.take(2))
    hands.ack(chain.ack("alpha", 2))
    hands.commit()
    fork = replace(chain.events[1], id="f" * 32)
    chain.next()
    hands.skip(fork, chain.next())
    hands.restart(whole=0)
    hands.read_again()
    hands.commit()
    assert (hands.state(chain).seq, hands.state(chain).fork) == (2, chain.events[3].id)


def test_the_first_record_behind_a_cut_is_read_for_the_first_time() -> None:
    hands, old, new = Hands("alpha"), Chain("x"), Chain("x", incarnation=2)
    hands.event(*old.take(2))
    hands.aggregation.events.cut[0] = 2
    event = new.next(Type.SYNC, detail={"reason": "adopted", "replaces": "e" * 32})
    assert hands.event(event) == [RecordOutcome.TAKEN]


def test_a_cut_ends_with_its_last_record_once_that_is_taken() -> None:
    hands, chain = Hands("alpha"), Chain("x")
    hands.event(*chain.take(2))
    chain.next()
    record = hands.record(EVENTS, chain.repository, wire.encode(chain.next()))
    hands.aggregation.events.cut[0] = record.offset + 1
    assert hands.aggregation.events.take(record, hands.now, is_whole=False) is RecordOutcome.READ_AGAIN
    assert hands.aggregation.events.cut == {0: record.offset + 1}
    assert hands.aggregation.events.take(record, hands.now, is_whole=True) is RecordOutcome.TAKEN
    assert hands.aggregation.events.cut == {}


def test_what_cannot_be_read_is_not_recorded_again_when_it_is_read_again() -> None:
    hands = Hands("alpha")
    record = hands.record(EVENTS, "x", b"rubbish")
    assert hands.take_event(record, hands.now) is RecordOutcome.REJECTED
    assert hands.aggregation.events.take_again(record, hands.now) is RecordOutcome.REJECTED
    hands.commit()
    assert len(hands.errors) == 1


def test_a_fork_that_is_read_again_waits_for_the_end_of_its_own_partition() -> None:
    hands, chain = Hands("alpha"), Chain("x")
    hands.event(*chain.take(2))
    fork = replace(chain.events[1], id="f" * 32)
    record = hands.record(EVENTS, chain.repository, wire.encode(fork))
    hands.aggregation.events.take_again(replace(record, partition=1), hands.now)
    for partition, marked in ((0, None), (1, fork.id)):
        hands.aggregation.events.settle_forks(partition, hands.now)
        hands.commit()
        assert hands.state(chain).fork == marked


def test_events_that_pending_lost_are_announced_at_once_and_leave_nothing_there() -> None:
    hands, chain = Hands("alpha"), Chain("x")
    hands.event(*chain.take(3))
    hands.write()
    hands.ack(chain.ack("alpha", 3))
    hands.topics[PENDING].clear()
    hands.restart()
    hands.read_again()
    assert len(hands.aggregation.events._memory.output.messages) == 3
    hands.write()
    assert hands.commit() == [1, 2, 3]
    assert hands.topics[PENDING] == {}


def test_events_that_are_lost_count_as_announced_in_the_stored_state_at_once() -> None:
    hands, chain = Hands("alpha"), Chain("x")
    hands.event(*chain.take(3))
    hands.commit()
    for seq in (1, 2):
        del hands.topics[PENDING][f"{chain.repository}/{seq}"]
    hands.restart()
    hands.aggregation.events.lose(chain.repository, hands.now)
    hands.write()
    assert (hands.state(chain).noticed, hands.aggregation.lost) == (2, {chain.repository: 2})
    assert [error.reason for error in hands.errors] == [
        "x: 2 events without notice are gone from pending and from events; they get none"
    ]


# Kept for a newer aggregator


def test_an_event_of_a_newer_version_whose_key_is_no_identifier_is_set_aside_and_not_kept() -> None:
    hands, chain = Hands("alpha"), Chain("x")
    record = hands.record(EVENTS, "../x", wire.encode(chain.next(version=2)))
    assert hands.aggregation.events.take_again(record, hands.now) is RecordOutcome.UNKNOWN
    assert hands.take_event(record, hands.now) is RecordOutcome.REJECTED
    hands.commit()
    assert (hands.topics[PENDING], [error.key for error in hands.errors]) == ({}, ["../x"])


def test_what_was_kept_for_a_newer_aggregator_behind_events_that_were_never_read_is_announced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hands, chain = Hands("alpha"), Chain("x")
    hands.event(*chain.take(2))
    hands.ack(chain.ack("alpha", 2))
    hands.commit()
    hands.skip(chain.next())
    assert hands.event(chain.next(version=2), chain.next()) == [RecordOutcome.UNKNOWN, RecordOutcome.HELD]
    hands.commit()
    monkeypatch.setattr(wire, "VERSION", 2)
    hands.restart(whole=0)
    hands.ack(chain.ack("alpha", 5))
    assert hands.commit() == [3, 4, 5]
    assert (hands.topics[PENDING], hands.errors) == ({}, [])


def test_what_was_kept_for_a_newer_aggregator_behind_a_loss_is_announced_and_the_loss_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hands, chain = Hands("alpha"), Chain("x")
    hands.event(*chain.take(2))
    hands.ack(chain.ack("alpha", 2))
    hands.commit()
    chain.next()
    hands.event(chain.next(version=2), chain.next())
    hands.commit()
    monkeypatch.setattr(wire, "VERSION", 2)
    hands.restart(whole=0)
    hands.ack(chain.ack("alpha", 5))
    assert hands.commit() == [4, 5]
    assert hands.topics[PENDING] == {}
    assert [error.reason.partition(" in ")[0] for error in hands.errors] == ["x: events before 4 are missing"]


def test_what_was_passed_unread_behind_events_of_a_newer_version_is_kept_when_it_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hands, chain = Hands("alpha"), Chain("x")
    hands.event(*chain.take(1), chain.next(version=2))
    hands.commit()
    hands.skip(chain.next())
    hands.restart(whole=0)
    hands.read_again()
    hands.commit()
    assert (hands.aggregation.held, len(hands.topics[PENDING])) == (3, 3)
    monkeypatch.setattr(wire, "VERSION", 2)
    hands.restart()
    hands.ack(chain.ack("alpha", 3))
    assert hands.commit() == [1, 2, 3]
    assert (hands.topics[PENDING], hands.errors) == ({}, [])


def test_an_event_of_a_newer_version_at_the_place_of_one_that_the_log_lost_is_kept_too() -> None:
    hands, lost, other = Hands("alpha"), Chain("x"), Chain("y")
    hands.event(lost.next(version=2))
    hands.commit()
    hands.restart()
    record = hands.record(EVENTS, other.repository, wire.encode(other.next(version=2)))
    hands.take(hands.take_event, replace(record, offset=0))
    hands.commit()
    assert sorted(hands.topics[PENDING]) == sorted(f"{chain.repository}/0:0" for chain in (lost, other))  # type: ignore[type-var]


def test_events_of_an_adopted_history_whose_adoption_was_passed_unread_are_no_forks() -> None:
    hands, old, new = Hands("alpha"), Chain("x"), Chain("x", incarnation=2)
    hands.event(*old.take(2))
    hands.ack(old.ack("alpha", 2))
    hands.commit()
    hands.skip(adopted(new))
    hands.restart(whole=0)
    assert hands.event(new.next()) == [RecordOutcome.TAKEN]
    hands.ack(new.ack("alpha", 2))
    assert hands.commit() == [1, 2]
    assert hands.errors == []


def test_events_of_a_replaced_history_that_are_still_held_do_not_bring_it_back() -> None:
    hands, old, new = Hands("alpha"), Chain("x"), Chain("x", incarnation=2)
    hands.event(*old.take(2))
    hands.commit()
    older = dict(hands.topics[PENDING])
    hands.event(adopted(new), *new.take(2))
    hands.commit()
    hands.topics[PENDING] = {key: value for key, value in older.items() if key == f"{old.repository}/2"}
    hands.restart()
    state = hands.aggregation.repositories[new.repository].state
    assert state is not None
    assert (state.incarnation, state.seq) == (new.incarnation, 3)

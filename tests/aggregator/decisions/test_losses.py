# SPDX-License-Identifier: GPL-2.0-or-later
"""The log lost something, or is read again: what the aggregation makes of it, without a log."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from hgext.vcsreplicator.aggregator.ahead import AheadLevels
from hgext.vcsreplicator.aggregator.decisions.deciding import LOST_PATIENCE
from hgext.vcsreplicator.aggregator.decisions.memory import RecordOutcome
from hgext.vcsreplicator.aggregator.rereading import Rereading
from hgext.vcsreplicator.log import EVENTS, PENDING, Topic
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.event import Event, Type
from hgext.vcsreplicator.words.roster import MirrorState, Verb
from testing.builders.aggregator.chains import Chain
from testing.builders.aggregator.fed_aggregation import FedAggregation
from testing.builders.log.memorylog import MemoryLog


def adopted(chain: Chain) -> Event:
    return chain.next(Type.SYNC, detail={"reason": "adopted"})


def state_of(fed: FedAggregation, mirror: str) -> MirrorState:
    found = fed.aggregation.roster.mirror(mirror)
    assert found is not None
    return found.state


# A joining mirror is ahead of the log


def joining(fed: FedAggregation, chain: Chain) -> Chain:
    """Two events are announced, two more are lost from the log; beta, which may have them, joins. Returns another repository."""
    other = Chain("other")
    fed.event(*chain.take(2), *other.take(1))
    fed.ack(chain.ack("alpha", 2), other.ack("alpha", 1))
    fed.commit()
    chain.take(2)
    fed.ask(Verb.ADD, "beta")
    fed.ack(other.ack("beta", 1))
    return other


@pytest.mark.parametrize("comes", ["in this life", "before a restart"])
def test_a_joining_mirror_ahead_of_a_log_with_a_loss_becomes_active(comes: str) -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    joining(fed, chain)
    fed.ack(chain.ack("beta", 4, 2))
    if comes == "before a restart":
        fed.restart()
    fed.commit()
    assert state_of(fed, "beta") is MirrorState.ACTIVE


def test_a_mirror_ahead_of_the_log_that_shows_too_little_stays_joining() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    joining(fed, chain)
    fed.ack(chain.ack("beta", 4, 0))  # filled from the master: it can show nothing before event 4
    fed.commit()
    assert state_of(fed, "beta") is MirrorState.JOINING
    fed.event(*chain.events[2:])  # the relay sent it again
    fed.ack(chain.ack("alpha", 4), chain.ack("beta", 4, 4))
    fed.commit()
    assert state_of(fed, "beta") is MirrorState.ACTIVE


def test_a_level_ahead_of_the_log_in_another_history_activates_no_mirror() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    joining(fed, chain)
    fed.ack(replace(chain.ack("beta", 4, 2), incarnation="f" * 32))
    fed.commit()
    assert state_of(fed, "beta") is MirrorState.JOINING


def test_a_mirror_active_ahead_of_the_log_lets_nothing_go_by_that() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    joining(fed, chain)
    fed.ack(chain.ack("beta", 4, 2))
    fed.commit()
    fed.event(chain.events[2])
    fed.ack(chain.ack("alpha", 3))
    assert fed.commit() == []  # whether beta has this event 3 is unknown until event 4 is there
    fed.event(chain.events[3])
    fed.ack(chain.ack("alpha", 4), chain.ack("beta", 4))
    assert fed.commit() == [3, 4]


def test_a_mirror_that_was_ahead_of_the_log_can_be_removed_and_added() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    joining(fed, chain)
    fed.ack(chain.ack("beta", 4, 1))
    fed.commit()
    fed.ask(Verb.DEACTIVATE, "beta")
    assert fed.ask(Verb.REMOVE, "beta") is RecordOutcome.TAKEN
    assert fed.ask(Verb.ADD, "beta") is RecordOutcome.TAKEN
    fed.commit()
    assert state_of(fed, "beta") is MirrorState.JOINING


# A mirror is behind an adoption


def test_a_level_of_a_replaced_history_is_not_ahead_of_the_log() -> None:
    log = MemoryLog()
    log.create([Topic(name=EVENTS)])
    fed, old, new = FedAggregation("alpha", "beta"), Chain("x"), Chain("x", incarnation=2)
    ahead = AheadLevels(fed.aggregation, log, Rereading(log, fed.aggregation, fed.write))
    fed.event(*old.take(3))
    fed.ack(old.ack("alpha", 3), old.ack("beta", 3))
    fed.event(adopted(new))
    fed.ack(new.ack("alpha", 1))
    assert fed.commit() == [1, 2, 3]
    for _ in range(2):
        ahead.check(fed.now)
    assert fed.commit() == []
    assert (ahead.count_missing(), fed.errors) == ({}, [])
    fed.ack(new.ack("beta", 1))
    assert fed.commit() == [1]


# Reading again


def forked_and_adopted(fed: FedAggregation) -> tuple[Chain, Chain]:
    """Two events, one of another history that does not fit, then an adopted history of two events."""
    old, foreign, new = Chain("x"), Chain("x", incarnation=7), Chain("x", incarnation=2)
    foreign.repository = new.repository = old.repository
    fed.event(*old.take(2), foreign.next(), adopted(new), new.next())
    fed.ack(new.ack("alpha", 2))
    fed.commit()
    return old, new


def test_reading_again_marks_no_fork_that_an_adoption_settled() -> None:
    fed = FedAggregation("alpha")
    _, new = forked_and_adopted(fed)
    told = len(fed.errors)
    fed.restart(whole=0)
    fed.read_again()
    fed.commit()
    assert fed.state(new).fork is None
    assert len(fed.errors) == told
    new.next()
    assert fed.event(new.next()) == [RecordOutcome.TAKEN]  # a gap, not a fork


def test_a_fork_behind_an_adoption_is_marked_whenever_it_is_read() -> None:
    fed = FedAggregation("alpha")
    old, new = forked_and_adopted(fed)
    fork = replace(new.events[1], id="f" * 32)
    fed.skip(fork, *old.events)
    fed.restart(whole=0)
    fed.read_again()
    fed.commit()
    assert fed.state(new).fork == fork.id
    assert [error.reason for error in fed.errors if fork.id in error.reason]
    told = len(fed.errors)
    fed.restart(whole=0)
    fed.read_again()
    fed.commit()
    assert (fed.state(new).fork, len(fed.errors)) == (fork.id, told)


def test_a_gap_behind_a_fork_read_for_the_first_time_is_not_bridged() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(2))
    fed.ack(chain.ack("alpha", 2))
    fed.commit()
    fork = replace(chain.events[1], id="f" * 32)
    chain.next()
    fed.skip(fork, chain.next())
    fed.restart(whole=0)
    fed.read_again()
    fed.commit()
    assert (fed.state(chain).seq, fed.state(chain).fork) == (2, chain.events[3].id)


def test_the_first_record_behind_a_cut_is_read_for_the_first_time() -> None:
    fed, old, new = FedAggregation("alpha"), Chain("x"), Chain("x", incarnation=2)
    fed.event(*old.take(2))
    fed.aggregation.events.cut[0] = 2
    event = new.next(Type.SYNC, detail={"reason": "adopted", "replaces": "e" * 32})
    assert fed.event(event) == [RecordOutcome.TAKEN]


def test_a_cut_ends_with_its_last_record_once_that_is_taken() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(2))
    chain.next()
    record = fed.record(EVENTS, chain.repository, wire.encode(chain.next()))
    fed.aggregation.events.cut[0] = record.offset + 1
    assert fed.aggregation.events.take(record, fed.now, is_whole=False) is RecordOutcome.READ_AGAIN
    assert fed.aggregation.events.cut == {0: record.offset + 1}
    assert fed.aggregation.events.take(record, fed.now, is_whole=True) is RecordOutcome.TAKEN
    assert fed.aggregation.events.cut == {}


def test_what_cannot_be_read_is_not_recorded_again_when_it_is_read_again() -> None:
    fed = FedAggregation("alpha")
    record = fed.record(EVENTS, "x", b"rubbish")
    assert fed.take_event(record, fed.now) is RecordOutcome.REJECTED
    assert fed.aggregation.events.take_again(record, fed.now) is RecordOutcome.REJECTED
    fed.commit()
    assert len(fed.errors) == 1


def test_a_fork_that_is_read_again_waits_for_the_end_of_its_own_partition() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(2))
    fork = replace(chain.events[1], id="f" * 32)
    record = fed.record(EVENTS, chain.repository, wire.encode(fork))
    fed.aggregation.events.take_again(replace(record, partition=1), fed.now)
    for partition, marked in ((0, None), (1, fork.id)):
        fed.aggregation.events.settle_forks(partition, fed.now)
        fed.commit()
        assert fed.state(chain).fork == marked


def test_events_that_pending_lost_are_announced_and_leave_nothing() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(3))
    fed.write()
    fed.ack(chain.ack("alpha", 3))
    fed.topics[PENDING].clear()
    fed.restart()
    fed.read_again()
    assert len(fed.aggregation.output.messages) == 3
    fed.write()
    assert fed.commit() == [1, 2, 3]
    assert fed.topics[PENDING] == {}


def test_a_newer_versions_event_with_a_bad_key_is_set_aside() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    record = fed.record(EVENTS, "../x", wire.encode(chain.next(version=2)))
    assert fed.aggregation.events.take_again(record, fed.now) is RecordOutcome.UNKNOWN
    assert fed.take_event(record, fed.now) is RecordOutcome.REJECTED
    fed.commit()
    assert (fed.topics[PENDING], [error.key for error in fed.errors]) == ({}, ["../x"])


def test_what_was_kept_behind_unread_events_is_announced(
    upgrade: Callable[[], object],
) -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(2))
    fed.ack(chain.ack("alpha", 2))
    fed.commit()
    fed.skip(chain.next())
    assert fed.event(chain.next(version=2), chain.next()) == [RecordOutcome.UNKNOWN, RecordOutcome.HELD]
    fed.commit()
    upgrade()
    fed.restart(whole=0)
    fed.ack(chain.ack("alpha", 5))
    assert fed.commit() == [3, 4, 5]
    assert (fed.topics[PENDING], fed.errors) == ({}, [])


def test_a_loss_before_what_was_kept_for_a_newer_aggregator_is_reported(
    upgrade: Callable[[], object],
) -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(2))
    fed.ack(chain.ack("alpha", 2))
    fed.commit()
    chain.next()
    fed.event(chain.next(version=2), chain.next())
    fed.commit()
    upgrade()
    fed.restart(whole=0)
    fed.ack(chain.ack("alpha", 5))
    fed.now += LOST_PATIENCE
    assert fed.commit() == [4, 5]
    assert fed.topics[PENDING] == {}
    assert [error.reason.partition(" in ")[0] for error in fed.errors] == ["x: events before 4 are missing"]


def test_what_passed_unread_behind_a_newer_version_is_kept_when_reread(
    upgrade: Callable[[], object],
) -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(1), chain.next(version=2))
    fed.commit()
    fed.skip(chain.next())
    fed.restart(whole=0)
    fed.read_again()
    fed.commit()
    assert (fed.aggregation.held, len(fed.topics[PENDING])) == (3, 3)
    upgrade()
    fed.restart()
    fed.ack(chain.ack("alpha", 3))
    assert fed.commit() == [1, 2, 3]
    assert (fed.topics[PENDING], fed.errors) == ({}, [])


def test_a_newer_versions_event_in_place_of_a_lost_one_is_kept_too() -> None:
    fed, lost, other = FedAggregation("alpha"), Chain("x"), Chain("y")
    fed.event(lost.next(version=2))
    fed.commit()
    fed.restart()
    record = fed.record(EVENTS, other.repository, wire.encode(other.next(version=2)))
    fed.take(fed.take_event, replace(record, offset=0))
    fed.commit()
    assert sorted(fed.topics[PENDING]) == sorted(f"{chain.repository}/0:0" for chain in (lost, other))  # type: ignore[type-var]


def test_events_of_a_history_whose_adoption_passed_unread_are_no_forks() -> None:
    fed, old, new = FedAggregation("alpha"), Chain("x"), Chain("x", incarnation=2)
    fed.event(*old.take(2))
    fed.ack(old.ack("alpha", 2))
    fed.commit()
    fed.skip(adopted(new))
    fed.restart(whole=0)
    assert fed.event(new.next()) == [RecordOutcome.TAKEN]
    fed.ack(new.ack("alpha", 2))
    assert fed.commit() == [1, 2]
    assert fed.errors == []


def test_held_events_of_a_replaced_history_do_not_bring_it_back() -> None:
    fed, old, new = FedAggregation("alpha"), Chain("x"), Chain("x", incarnation=2)
    fed.event(*old.take(2))
    fed.commit()
    older = dict(fed.topics[PENDING])
    fed.event(adopted(new), *new.take(2))
    fed.commit()
    fed.topics[PENDING] = {key: value for key, value in older.items() if key == f"{old.repository}/2"}
    fed.restart()
    state = fed.aggregation.repositories[new.repository].state
    assert state is not None
    assert (state.incarnation, state.seq) == (new.incarnation, 3)


def test_an_event_that_comes_behind_its_successor_gets_its_notice() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    chain.take(4)
    fed.event(*chain.events[:2], chain.events[3])  # the log lost the third before the relay saw that
    fed.event(*chain.events[2:])
    assert fed.aggregation.lost == {}
    fed.write()
    fed.restart()
    fed.ack(chain.ack("alpha", 4))
    assert fed.commit() == [1, 2, 3, 4]


def test_an_event_behind_a_released_successor_gets_its_notice_before_it() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    chain.take(5)
    fed.event(*chain.events[:2])
    fed.ack(chain.ack("alpha", 2))
    assert fed.commit() == [1, 2]
    fed.event(*chain.events[3:])
    fed.ack(chain.ack("alpha", 5, serving=2))
    assert fed.commit() == []
    fed.event(chain.events[2])
    assert fed.commit() == []
    fed.restart()
    fed.ack(chain.ack("alpha", 5))
    assert fed.commit() == [3, 4, 5]
    assert fed.topics[PENDING] == {}


def test_lost_first_events_that_come_again_get_their_notices() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    chain.take(4)
    fed.event(chain.events[2])  # the log lost what was before it, and the aggregator never read that
    assert fed.aggregation.lost == {chain.repository: 2}
    fed.event(*chain.events)
    assert fed.aggregation.lost == {}
    fed.ack(chain.ack("alpha", 4))
    assert fed.commit() == [1, 2, 3, 4]


def test_lost_events_that_come_after_a_restart_get_their_notices() -> None:
    fed, first, later = FedAggregation("alpha"), Chain("first"), Chain("later")
    fed.event(*later.take(1))
    fed.ack(later.ack("alpha", 1))
    assert fed.commit() == [1]
    fed.event(first.take(2)[1], later.take(2)[1])
    fed.write()
    for _ in range(2):
        fed.restart()
        for name in fed.aggregation.incomplete():  # as a session does, once the log has no more
            fed.aggregation.events.lose(name, fed.now)
        assert fed.aggregation.lost == {first.repository: 1, later.repository: 1}
        fed.write()
    fed.event(*first.events, *later.events)
    fed.ack(first.ack("alpha", 2), later.ack("alpha", 3))
    assert sorted(fed.commit()) == [1, 2, 2, 3]
    assert fed.aggregation.lost == {}


def test_notices_wait_for_lost_events_that_mirrors_have_already() -> None:
    fed, chain, other = FedAggregation("alpha"), Chain("x"), Chain("y")
    fed.event(chain.next(), *chain.take(2)[1:], *other.take(1))
    fed.ack(chain.ack("alpha", 3), other.ack("alpha", 1))  # alpha has copied them from the master
    assert fed.commit() == [1, 1]
    fed.now += LOST_PATIENCE - 1
    assert fed.commit() == []
    fed.event(chain.events[1])
    assert fed.commit() == [2, 3]


def test_notices_wait_for_lost_events_again_after_a_restart() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(3)[1:])
    fed.write()
    fed.now += LOST_PATIENCE
    fed.restart()
    fed.aggregation.events.lose(chain.repository, fed.now)
    fed.ack(chain.ack("alpha", 3))
    assert fed.commit() == []
    fed.now += LOST_PATIENCE
    assert fed.commit() == [2, 3]


@pytest.mark.parametrize("kept", [2, 0])
def test_the_newest_events_that_the_log_lost_get_their_notices(kept: int) -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(3))
    fed.write()
    for seq in range(kept + 1, 4):
        del fed.topics[PENDING][f"{chain.repository}/{seq}"]
    fed.restart()
    fed.aggregation.events.lose(chain.repository, fed.now)
    fed.ack(chain.ack("alpha", 3))
    assert fed.commit() == [1, 2][:kept]
    fed.event(*chain.events)  # again, from the outbox
    assert fed.commit() == [1, 2, 3][kept:]
    assert fed.aggregation.lost == {}


def test_newest_events_that_stay_lost_count_as_announced_in_the_end() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(2))
    fed.write()
    fed.topics[PENDING].clear()
    fed.restart()
    fed.aggregation.events.lose(chain.repository, fed.now)
    fed.commit()
    assert (fed.state(chain).released, fed.state(chain).noticed) == (0, 0)
    fed.now += LOST_PATIENCE
    assert fed.commit() == []
    assert (fed.state(chain).released, fed.state(chain).noticed) == (2, 2)
    assert fed.aggregation.lost == {chain.repository: 2}
    assert [error.reason for error in fed.errors] == [
        "x: pending and events lost 2 events without notice; no notice is published of what they lost, "
        "unless the relay sends it again"
    ]


def test_an_event_behind_an_announced_successor_stays_lost() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    chain.take(3)
    fed.event(chain.events[0], chain.events[2])
    fed.ack(chain.ack("alpha", 3))
    assert fed.commit() == [1]
    fed.now += LOST_PATIENCE
    assert fed.commit() == [3]
    assert fed.event(chain.events[1]) == [RecordOutcome.REPEAT]
    assert (fed.commit(), fed.aggregation.lost) == ([], {chain.repository: 1})


def test_a_repository_that_lacks_nothing_has_lost_nothing() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(2))
    fed.aggregation.events.lose(chain.repository, fed.now)
    fed.commit()
    assert fed.errors == []
    assert not fed.state(chain).noticed

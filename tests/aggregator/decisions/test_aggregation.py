# SPDX-License-Identifier: GPL-2.0-or-later
"""Levels in, releases and notices out: every outcome that the roster's table and the rules of the aggregation promise."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from hgext.vcsreplicator.aggregator.alarms import alarms, survey
from hgext.vcsreplicator.aggregator.decisions.deciding import LOST_PATIENCE
from hgext.vcsreplicator.aggregator.decisions.memory import RecordOutcome
from hgext.vcsreplicator.log import ACKS, EVENTS, PENDING, ROSTER, ROSTER_REQUESTS, STATE, NewRecord, check_message
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.event import Bookmark, Changes, Event, Heartbeat, Type
from hgext.vcsreplicator.words.records import MirrorHeartbeat, Pending
from hgext.vcsreplicator.words.roster import KEY, Mirror, MirrorRole, MirrorState, Roster, RosterRequest, Verb
from hgext.vcsreplicator.words.rules import Rules
from hgext.vcsreplicator.words.shape import from_json, to_json
from hgext.vcsreplicator.words.unexpected import UnexpectedError
from testing.builders.aggregator.chains import Chain, pushed
from testing.builders.aggregator.fed_aggregation import START, FedAggregation
from testing.seeds import ends


def inactive(name: str) -> Mirror:
    return Mirror(name=name, state=MirrorState.INACTIVE)


# Releases and notices


def test_an_event_is_released_when_the_last_gating_mirror_applied_it() -> None:
    fed, chain = FedAggregation("alpha", "beta"), Chain("x")
    fed.event(*chain.take(2))
    fed.ack(chain.ack("alpha", 2, 0), chain.ack("beta", 1, 0))
    fed.commit()
    assert (fed.state(chain).released, fed.state(chain).seq) == (1, 2)
    fed.ack(chain.ack("beta", 2, 0))
    assert fed.commit() == []
    assert fed.state(chain).released == 2


def test_a_notice_waits_for_the_slowest_mirror_to_serve() -> None:
    fed, chain = FedAggregation("alpha", "beta"), Chain("x")
    fed.event(*chain.take(2))
    fed.ack(chain.ack("alpha", 2, 2), chain.ack("beta", 2, 0))
    assert fed.commit() == []
    fed.ack(chain.ack("beta", 2, 1))
    assert fed.commit() == [1]
    fed.ack(chain.ack("beta", 2, 2))
    assert fed.commit() == [2]
    assert not fed.topics[PENDING]


def test_a_notice_carries_its_proof() -> None:
    fed, chain = FedAggregation("alpha", "beta", inactive("gamma")), Chain("x")
    [event] = hands_events = chain.take(1)
    fed.event(*hands_events)
    fed.ack(chain.ack("alpha", 1, time=3.0), chain.ack("beta", 1, time=4.0), chain.ack("gamma", 1))
    fed.commit()
    [notice] = fed.notices
    assert (notice.event, notice.roster, notice.time) == (event, 1, 1000.0)
    assert [(proof.mirror, proof.applied_at, proof.served_at) for proof in notice.acks] == [
        ("alpha", 3, 3),
        ("beta", 4, 4),
    ]


def test_no_proof_says_that_a_mirror_served_before_it_applied() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(2))
    fed.ack(replace(chain.ack("alpha", 2, 1), applied_at=5.0, served_at=3.0))
    fed.commit()
    [proof] = fed.notices[0].acks
    assert (proof.applied_at, proof.served_at) == (3.0, 3.0)


@pytest.mark.parametrize("at", [2, 3], ids=["in the queue", "the newest"])
@pytest.mark.parametrize("lie", [{"digest": "f" * 64}, {"event": "f" * 32}], ids=["digest", "event"])
def test_an_ack_of_another_event_or_digest_is_set_aside(at: int, lie: dict[str, str]) -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(3))
    fed.ack(replace(chain.ack("alpha", at), **lie))  # type: ignore[arg-type]
    assert fed.commit() == []
    assert fed.state(chain).released == 0
    assert [(error.topic, error.key) for error in fed.errors] == [(ACKS, f"alpha/{chain.repository}")]
    fed.ack(chain.ack("alpha", 2))
    assert fed.commit() == [1, 2]


def test_an_ack_beyond_the_newest_known_event_counts_for_nothing() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(2))
    fed.ack(replace(chain.ack("alpha", 2), applied=10**9, serving=10**9))
    assert fed.commit() == []
    assert fed.state(chain).released == 0
    fed.event(*chain.take(2))
    assert fed.commit() == []
    fed.restart()
    assert fed.commit() == []
    fed.ack(chain.ack("alpha", 4))
    assert fed.commit() == [1, 2, 3, 4]


def test_an_ack_before_its_event_counts_as_soon_as_that_is_known() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    events = chain.take(3)
    fed.ack(chain.ack("alpha", 3))
    assert fed.commit() == []
    for event, expected in zip(events, ([], [], [1, 2, 3]), strict=True):
        fed.event(event)
        assert fed.commit() == expected
    assert fed.errors == []


def test_an_early_ack_that_names_another_event_counts_for_nothing() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    events = chain.take(2)
    fed.ack(replace(chain.ack("alpha", 2), event="f" * 32))
    fed.event(*events)
    assert fed.commit() == []


def test_serving_beyond_what_is_applied_makes_no_mirror_level() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(3))
    fed.ack(replace(chain.ack("alpha", 1), serving=10**9))
    repository = fed.aggregation.repositories[chain.repository]
    assert [repository.is_caught_up("alpha", released) for released in (1, 2, 3)] == [True, False, False]


def test_an_ack_and_a_beat_of_a_newer_mirror_count_by_what_is_known() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(chain.next())
    beat = MirrorHeartbeat(mirror="alpha", time=1.0, positions={}, version="9")
    ack = replace(chain.ack("alpha", 1), detached="a reason of its own")
    for key, level in ((f"alpha/{chain.repository}", ack), ("alpha", beat)):
        value = to_json(level).replace(b"{", b'{"later":{"x":1},', 1)
        assert fed.aggregation.levels.take(fed.record(ACKS, key, value), fed.now) is RecordOutcome.TAKEN
    assert fed.commit() == [1]


def test_a_beat_that_names_another_mirror_than_its_key_is_set_aside() -> None:
    fed, beat = FedAggregation("alpha"), MirrorHeartbeat(mirror="beta", time=1.0, positions={}, version="1", format=2)
    fed.aggregation.levels.take(fed.record(ACKS, "alpha", to_json(beat)), fed.now)
    fed.write()
    assert fed.aggregation.levels.formats == {}
    assert [error.reason for error in fed.errors] == ["key and value name different mirrors"]


def test_an_ack_of_another_incarnation_does_not_count() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(1))
    fed.ack(replace(chain.ack("alpha", 1), incarnation="e" * 32))
    assert fed.commit() == []


def test_a_level_that_goes_down_holds_what_is_not_announced_yet() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(2))
    fed.ack(chain.ack("alpha", 1))
    fed.commit()
    fed.ack(chain.ack("alpha", 2, 1))
    fed.ack(chain.ack("alpha", 1))
    assert fed.commit() == []
    fed.ack(chain.ack("alpha", 2))
    assert fed.commit() == [2]


def test_repositories_do_not_wait_for_each_other() -> None:
    fed, slow, fast = FedAggregation("alpha"), Chain("slow"), Chain("fast")
    fed.event(*slow.take(2), *fast.take(2))
    fed.ack(fast.ack("alpha", 2))
    assert fed.commit() == [1, 2]
    assert {notice.event.path for notice in fed.notices} == {"fast"}


def test_acks_may_come_before_their_events() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    chain.take(2)
    fed.ack(chain.ack("alpha", 2))
    fed.event(*chain.events)
    assert fed.commit() == [1, 2]


def test_what_is_announced_at_once_is_never_stored_as_pending() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(1))
    fed.ack(chain.ack("alpha", 1))
    fed.aggregation.decide(1.0)
    assert PENDING not in {message.topic for message in fed.aggregation.batch().messages}


def test_one_transaction_announces_no_more_than_its_limit() -> None:
    fed, chain = FedAggregation("alpha", limit=3), Chain("x")
    fed.event(*chain.take(7))
    fed.ack(chain.ack("alpha", 7))
    sizes = []
    more = True
    while more:
        more = fed.aggregation.decide(1.0)
        sizes.append(fed.aggregation.batch().notices)
    assert sizes == [3, 3, 1]


def test_repositories_with_many_notices_take_turns() -> None:
    fed, chains = FedAggregation("alpha", limit=1), [Chain("x"), Chain("y")]
    for chain in chains:
        fed.event(*chain.take(3))
        fed.ack(chain.ack("alpha", 3))
    fed.commit()
    assert [notice.event.path for notice in fed.notices] == ["x", "y"] * 3


def test_one_transaction_announces_no_more_bytes_than_a_log_takes_in_time(limit_batch: Callable[..., None]) -> None:
    limit_batch(size=2000)
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(7))
    fed.ack(chain.ack("alpha", 7))
    sizes = []
    more = True
    while more:
        more = fed.aggregation.decide(1.0)
        sizes.append(fed.aggregation.batch().notices)
    assert sum(sizes) == 7
    assert len(sizes) > 1


def test_the_connection_of_an_event_counts_in_the_bytes_of_a_transaction() -> None:
    sizes = []
    for connection in ("", "c" * 500):
        fed = FedAggregation("alpha")
        fed.event(*Chain("x").take(1), headers={wire.CONNECTION: connection})
        sizes.append(fed.aggregation.batch().size)
    assert sizes[1] - sizes[0] == 500


def test_each_stream_names_its_own_notice_before() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    chain.next()
    chain.next(changes=replace(pushed(2), bookmarks=(Bookmark(name="b", node="a" * 40),)))
    chain.next(changes=Changes(added=None, bookmarks=(Bookmark(name="b", node=None),)))
    chain.next(Type.HGRC)
    chain.next()
    fed.event(*chain.events)
    fed.ack(chain.ack("alpha", 5))
    fed.commit()
    ids = [event.id for event in chain.events]
    assert [notice.previous for notice in fed.notices] == [
        {"newrepo.1": None},
        {"changegroup.1": None, "bookmark.1": None},
        {"bookmark.1": ids[1]},
        {},
        {"changegroup.1": ids[1]},
    ]


# What arrives


def test_a_repeat_changes_nothing() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    events = chain.take(3)
    fed.event(*events)
    fed.commit()
    assert fed.event(*events) == [RecordOutcome.REPEAT] * 3
    fed.ack(chain.ack("alpha", 3))
    assert fed.commit() == [1, 2, 3]
    assert fed.event(*events) == [RecordOutcome.REPEAT] * 3
    assert fed.commit() == []
    assert not fed.errors


@pytest.mark.parametrize("seq", [2, 3])
def test_another_event_with_a_known_sequence_is_a_fork_and_moves_nothing(seq: int) -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(3))
    fed.commit()
    before = fed.state(chain)
    fork = replace(chain.events[seq - 1], id="f" * 32)
    assert fed.event(fork) == [RecordOutcome.REJECTED]
    fed.commit()
    assert fed.state(chain) == replace(before, fork=fork.id, forked_at=fed.now)
    assert "is a fork" in fed.errors[0].reason
    fed.event(chain.next())
    fed.ack(chain.ack("alpha", 4))
    assert fed.commit() == [1, 2, 3, 4]


def test_a_successor_of_an_unknown_event_and_all_after_it_are_forks() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(1))
    fork = chain.next(previous="f" * 32)
    assert fed.event(fork, chain.next(), chain.next()) == [RecordOutcome.REJECTED] * 3
    fed.commit()
    assert fed.state(chain).seq == 1
    assert len(fed.errors) == 3


def test_a_gap_is_recorded_and_what_follows_it_goes_on() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    chain.take(5)
    fed.event(chain.events[0], chain.events[3], chain.events[4])
    fed.ack(chain.ack("alpha", 5))
    assert fed.commit() == [1]
    fed.now += LOST_PATIENCE
    assert fed.commit() == [4, 5]
    [error] = fed.errors
    assert "events before 4 are missing" in error.reason
    assert error.repository == chain.repository
    assert fed.aggregation.lost == {chain.repository: 2}


def test_a_repository_first_seen_in_the_middle_starts_there() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    chain.take(5)
    fed.event(chain.events[4])
    fed.commit()
    assert (fed.state(chain).released, fed.state(chain).noticed) == (0, 0)
    fed.ack(chain.ack("alpha", 5))
    fed.now += LOST_PATIENCE
    assert fed.commit() == [5]
    assert (fed.state(chain).released, fed.state(chain).noticed) == (5, 5)


def test_what_cannot_be_read_is_set_aside_with_its_bytes() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    [event] = chain.take(1)
    frame = wire.encode(event)
    assert fed.take_event(fed.record(EVENTS, "x", b"rubbish"), 1.0) is RecordOutcome.REJECTED
    assert fed.take_event(fed.record(EVENTS, "wrong-key", frame), 1.0) is RecordOutcome.REJECTED
    assert fed.take_event(fed.record(EVENTS, None, None), 1.0) is RecordOutcome.REJECTED
    assert fed.aggregation.levels.take(fed.record(ACKS, "alpha/x", b"{}"), 1.0) is RecordOutcome.REJECTED
    assert (
        fed.aggregation.levels.take(fed.record(ACKS, f"beta/{event.repository}", to_json(chain.ack("alpha", 1))), 1.0)
        is RecordOutcome.REJECTED
    )
    assert fed.aggregation.membership.take(fed.record(ROSTER_REQUESTS, "1", b"[]"), 1.0) is RecordOutcome.REJECTED
    fed.commit()
    assert [error.offset for error in fed.errors] == [0, 1, 2, 0, 1, 0]
    assert fed.errors[0].value == "cnViYmlzaA=="
    assert fed.positions == {(EVENTS, 0): 3, (ACKS, 0): 2, (ROSTER_REQUESTS, 0): 1}
    assert fed.aggregation.repositories.get(event.repository) is None or fed.aggregation.held == 0


# Events of a newer version


def test_an_event_of_a_newer_version_holds_back_its_repository_alone() -> None:
    fed, chain, other = FedAggregation("alpha"), Chain("x"), Chain("y")
    chain.take(2)
    fed.event(*chain.events, *other.take(1))
    newer = chain.next(version=2)
    assert fed.event(newer, chain.next(), *other.take(1)) == [
        RecordOutcome.UNKNOWN,
        RecordOutcome.HELD,
        RecordOutcome.TAKEN,
    ]
    fed.ack(chain.ack("alpha", 4), other.ack("alpha", 2))
    assert fed.commit() == [1, 2, 1, 2]
    assert (fed.state(chain).seq, fed.errors) == (2, [])
    assert fed.aggregation.held == 2


def test_a_level_at_an_event_of_a_newer_version_counts_once_it_comes() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(2))
    newer = chain.next(version=2)
    fed.ack(chain.ack("alpha", 3))
    assert fed.commit() == []
    assert fed.event(newer) == [RecordOutcome.UNKNOWN]
    assert fed.commit() == [1, 2]


def test_a_newer_aggregator_goes_on_where_the_older_one_held_back(upgrade: Callable[[], object]) -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(1), chain.next(version=2), *chain.take(2), chain.next(version=2))
    fed.commit()
    fed.restart()
    assert fed.event(chain.next()) == [RecordOutcome.HELD]
    fed.commit()
    upgrade()
    fed.restart()
    assert fed.event(chain.next()) == [RecordOutcome.TAKEN]
    fed.ack(chain.ack("alpha", 7))
    assert fed.commit() == [1, 2, 3, 4, 5, 6, 7]
    assert (fed.topics[PENDING], fed.errors) == ({}, [])


def test_what_a_newer_aggregator_took_is_kept_by_an_older_one(upgrade: Callable[[], Callable[[], None]]) -> None:
    fed, chain, other = FedAggregation("alpha"), Chain("x"), Chain("y")
    go_back = upgrade()
    fed.event(*chain.take(1), chain.next(version=2), *chain.take(1), *other.take(1))
    fed.commit()
    go_back()
    fed.restart()
    fed.ack(chain.ack("alpha", 3), other.ack("alpha", 1))
    assert fed.commit() == [1, 1]
    assert fed.errors == []
    [alarm] = alarms(fed.aggregation, survey(fed.aggregation, fed.silence, fed.now), 60.0)
    assert (alarm.kind, alarm.numbers) == ("events of a newer version", {"held": 2, "repositories": 1})
    upgrade()
    fed.restart()
    assert fed.commit() == [2, 3]


def test_what_was_kept_for_a_newer_aggregator_goes_in_bounded_steps(
    limit_batch: Callable[..., None],
    upgrade: Callable[[], object],
) -> None:
    limit_batch(size=20_000)
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(chain.next(version=2), *chain.take(199))
    fed.commit()
    upgrade()
    fed.transactions.clear()
    fed.restart()
    fed.ack(chain.ack("alpha", 200))
    assert fed.commit() == list(range(1, 201))
    assert max(fed.transactions) < 60
    assert (fed.topics[PENDING], fed.errors) == ({}, [])


def test_what_is_set_aside_fills_a_transaction_too(limit_batch: Callable[..., None]) -> None:
    limit_batch(size=20_000)
    fed = FedAggregation("alpha")
    for _ in range(20):
        fed.take_event(fed.record(EVENTS, "x", b"x" * 1000), fed.now)
    assert fed.aggregation.output.is_full


def test_events_of_a_newer_version_raise_an_alarm() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(chain.next(version=2), *chain.take(2))
    [alarm] = alarms(fed.aggregation, survey(fed.aggregation, fed.silence, fed.now), 60.0)
    assert (alarm.kind, alarm.numbers) == ("events of a newer version", {"held": 3, "repositories": 1})


def test_what_is_set_aside_fits_into_the_log_whatever_its_key() -> None:
    fed = FedAggregation("alpha")
    record = fed.record(EVENTS, "k" * 5_000_000, b"junk")
    check_message(NewRecord(topic=EVENTS, key=record.key, value=record.value))
    fed.take_event(record, fed.now)
    fed.take_event(replace(record, value=wire.encode(Chain("r").next())), fed.now)
    for message in fed.aggregation.batch().messages:
        check_message(message)


def test_a_position_is_stored_with_the_records_it_passes_and_not_again() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.aggregation.batch()
    fed.event(*chain.take(2))
    fed.aggregation.decide(fed.now)
    assert fed.aggregation.batch().positions == {(EVENTS, 0): 2}
    fed.ack(chain.ack("alpha", 2))
    fed.aggregation.decide(fed.now)
    batch = fed.aggregation.batch()
    assert (batch.notices, batch.positions) == (2, {})


def test_the_first_transaction_stores_where_the_reading_began() -> None:
    assert FedAggregation("alpha").aggregation.batch().positions == START


def test_positions_that_rest_are_stored_again_when_asked_for() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(2))
    fed.aggregation.batch()
    assert fed.aggregation.batch().positions == {}
    fed.aggregation.renew()
    assert fed.aggregation.batch().positions == {(EVENTS, 0): 2, (ROSTER_REQUESTS, 0): 0}


def test_a_heartbeat_passes_without_a_trace() -> None:
    fed = FedAggregation("alpha")
    beat = wire.encode_heartbeat(Heartbeat(time=1.0, sender="relay"))
    assert fed.take_event(fed.record(EVENTS, None, beat), 1.0) is RecordOutcome.NOTHING
    assert not fed.aggregation.output.has_output
    assert fed.aggregation.positions[EVENTS, 0] == 1


# Deletion, renaming, replacement


def test_a_deletion_is_announced_when_all_mirrors_have_deleted() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(chain.next(), chain.next(Type.DELETED))
    fed.ack(chain.ack("alpha", 1))
    fed.commit()
    assert fed.state(chain).deleted
    fed.ack(chain.ack("alpha", 2))
    assert fed.commit() == [2]
    fed.bury_ack("alpha", chain.repository)
    assert fed.commit() == []


def test_a_repository_created_again_at_a_path_is_another_one() -> None:
    fed, old, new = FedAggregation("alpha"), Chain("x"), Chain("x", generation=2)
    fed.event(old.next(), old.next(Type.DELETED), new.next())
    fed.ack(old.ack("alpha", 2), new.ack("alpha", 1))
    assert fed.commit() == [1, 2, 1]
    assert [notice.event.generation for notice in fed.notices] == [1, 1, 2]
    assert (fed.state(old).noticed, fed.state(new).noticed) == (2, 1)


def test_mirrors_of_the_new_path_gate_even_what_came_before_a_rename() -> None:
    rules = Rules(include=("path:old",))
    fed, chain = FedAggregation("alpha", Mirror(name="beta", state=MirrorState.ACTIVE, rules=rules)), Chain("old")
    fed.event(chain.next(), chain.next())
    fed.ack(chain.ack("alpha", 2))
    assert fed.commit() == []
    fed.event(chain.next(Type.RENAMED, path="new", detail={"from": "old"}))
    assert fed.commit() == [1, 2]
    assert fed.state(chain).path == "new"
    fed.ack(chain.ack("alpha", 3))
    assert fed.commit() == [3]


# Paths


def renamed(chain: Chain, path: str, *, generation: int = 1) -> Event:
    former, chain.path, chain.generation = chain.path, path, generation
    return chain.next(Type.RENAMED, detail={"from": former})


@pytest.mark.parametrize("act", ["rename", "deletion", "hgrc"])
def test_an_act_is_released_when_everything_before_it_is_announced(act: str) -> None:
    fed, chain = FedAggregation("alpha", "beta"), Chain("x")
    fed.event(*chain.take(2))
    if act == "rename":
        fed.event(renamed(chain, "y"))
    elif act == "deletion":
        fed.event(chain.next(Type.DELETED))
    else:
        fed.event(chain.next(Type.HGRC, hgrc={"web": {"deny_read": "*"}}))
    fed.ack(chain.ack("alpha", 3, 2), chain.ack("beta", 3, 1))
    assert fed.commit() == [1]
    assert fed.state(chain).released == 2
    fed.restart()
    fed.ack(chain.ack("beta", 3, 2))
    assert fed.commit() == [2]
    assert fed.state(chain).released == 3
    fed.ack(chain.ack("alpha", 3), chain.ack("beta", 3))
    assert fed.commit() == [3]


def test_an_act_does_not_wait_for_a_mirror_that_cannot_serve_it_alone() -> None:
    fed, chain = FedAggregation("alpha", "beta"), Chain("x")
    fed.event(*chain.take(2), renamed(chain, "y"), *chain.take(1))
    fed.ack(chain.ack("alpha", 4, 2), replace(chain.ack("beta", 4, 0), floor=2))
    assert fed.commit() == []
    assert fed.state(chain).released == 2
    fed.ack(replace(chain.ack("beta", 4, 0), floor=3))
    assert fed.commit() == []
    assert fed.state(chain).released == 4
    fed.ack(chain.ack("alpha", 4), chain.ack("beta", 4))
    assert fed.commit() == [1, 2, 3, 4]


@pytest.mark.parametrize("leaves", ["deletion", "rename"])
def test_all_notices_of_a_repository_precede_its_successors_release(leaves: str) -> None:
    fed, former, successor = FedAggregation("alpha", "beta"), Chain("x"), Chain("x", generation=2)
    fed.event(*former.take(2))
    fed.event(renamed(former, "y") if leaves == "rename" else former.next(Type.DELETED))
    fed.event(*successor.take(2))
    fed.ack(former.ack("alpha", 3, 2), former.ack("beta", 2))
    fed.ack(successor.ack("alpha", 2, 0), successor.ack("beta", 2, 0))
    assert fed.commit() == [1, 2]
    assert fed.state(successor).released == 0
    fed.restart()
    fed.ack(former.ack("beta", 3, 2))
    fed.commit()
    assert (fed.state(former).released, fed.state(successor).released) == (3, 0)
    fed.ack(former.ack("alpha", 3), former.ack("beta", 3))
    assert fed.commit() == [3]
    assert fed.state(successor).released == 2


def test_a_successor_that_arrives_first_waits_for_the_deletion_a_while() -> None:
    fed, former, successor = FedAggregation("alpha"), Chain("x"), Chain("x", generation=2)
    fed.event(*former.take(1), *successor.take(1))
    fed.ack(former.ack("alpha", 1), successor.ack("alpha", 1, 0))
    fed.commit()
    assert fed.state(successor).released == 0
    fed.now += 59
    fed.commit()
    assert fed.state(successor).released == 0
    fed.now += 1
    fed.commit()
    assert fed.state(successor).released == 1


def test_a_successor_waits_on_while_its_predecessor_has_events() -> None:
    fed, former, successor = FedAggregation("alpha"), Chain("x"), Chain("x", generation=2)
    fed.event(*former.take(1), *successor.take(1))
    fed.ack(former.ack("alpha", 1), successor.ack("alpha", 1, 0))
    fed.commit()
    fed.now += 59
    fed.event(*former.take(1))  # a backlog that is sent at last
    fed.commit()
    fed.now += 61
    fed.commit()
    assert fed.state(successor).released == 0  # its notice waits for a mirror
    fed.ack(former.ack("alpha", 2))
    fed.commit()
    fed.commit()
    assert (fed.state(former).noticed, fed.state(successor).released) == (2, 1)


def test_a_returning_repository_waits_for_the_one_that_took_its_path() -> None:
    fed, first, second = FedAggregation("alpha"), Chain("x"), Chain("x", generation=2)
    fed.event(*first.take(1), renamed(first, "y"))
    fed.event(*second.take(1), second.next(Type.DELETED))
    fed.event(renamed(first, "x", generation=3))
    told: list[tuple[str, int]] = []
    serving = {first: 0, second: 0}
    for _ in range(6):
        for chain in serving:
            serving[chain] = fed.state(chain).released if fed.topics[STATE] else 0
            fed.ack(chain.ack("alpha", len(chain.events), serving[chain]))
        before = len(fed.notices)
        fed.commit()
        told += [(each.event.repository[:4], each.event.seq) for each in fed.notices[before:]]
        fed.restart()
    one, other = first.repository[:4], second.repository[:4]
    assert told == [(one, 1), (one, 2), (other, 1), (other, 2), (one, 3)]


def test_what_an_adopted_history_replaced_holds_no_successor() -> None:
    fed, old, new = FedAggregation("alpha"), Chain("x"), Chain("x", incarnation=2)
    fed.event(old.next(), renamed(old, "y"))
    new.path = "y"
    fed.event(adopted(new))
    successor = Chain("x", generation=2)
    fed.event(successor.next())
    fed.ack(new.ack("alpha", 1), successor.ack("alpha", 1))
    fed.commit()
    assert (fed.state(new).noticed, fed.state(successor).noticed) == (1, 1)


def test_a_successor_adopted_before_its_creation_was_released_waits_too() -> None:
    fed, former = FedAggregation("alpha"), Chain("x")
    old, new = Chain("x", generation=2), Chain("x", generation=2, incarnation=2)
    new.repository = old.repository
    fed.event(*former.take(1), former.next(Type.DELETED), old.next())
    fed.event(adopted(new))
    fed.ack(new.ack("alpha", 1, 0))
    fed.commit()
    assert fed.state(new).released == 0
    fed.ack(former.ack("alpha", 2))
    fed.commit()
    fed.commit()
    assert (fed.state(former).noticed, fed.state(new).released) == (2, 1)


def test_a_repository_that_comes_back_to_a_path_does_not_wait_for_itself() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(1), renamed(chain, "y"), renamed(chain, "x", generation=2))
    fed.ack(replace(chain.ack("alpha", 3, 0), floor=3))
    fed.commit()
    assert fed.state(chain).released == 3


def test_names_that_are_swapped_are_announced_in_the_order_of_the_renames() -> None:
    fed, first, second = FedAggregation("alpha"), Chain("x"), Chain("z")
    fed.event(*first.take(1), *second.take(1))
    fed.event(renamed(first, "y"), renamed(first, "z", generation=2), renamed(second, "x", generation=2))
    for _ in range(6):
        for chain in (first, second):
            fed.ack(chain.ack("alpha", len(chain.events), fed.state(chain).released if fed.topics[STATE] else 0))
        fed.commit()
    told = [(each.event.path, each.event.seq) for each in fed.notices if each.event.type is Type.RENAMED]
    assert told == [("y", 2), ("x", 2), ("z", 3)]


def adopted(chain: Chain) -> Event:
    return chain.next(Type.SYNC, detail={"reason": "adopted"})


def test_an_adoption_starts_over_and_records_what_was_not_announced() -> None:
    fed, old, new = FedAggregation("alpha"), Chain("x"), Chain("x", incarnation=2)
    fed.event(*old.take(3))
    fed.ack(old.ack("alpha", 2, 1))
    assert fed.commit() == [1]
    fed.event(adopted(new))
    assert fed.commit() == []
    state = fed.state(new)
    assert (state.incarnation, state.seq, state.released, state.noticed) == (new.incarnation, 1, 0, 0)
    assert state.retired == (old.incarnation,)
    assert [error.reason.split(" of ")[0] for error in fed.errors] == ["x: event 3", "x: event 2"]
    assert list(fed.topics[PENDING]) == [f"{new.repository}/1"]
    fed.ack(new.ack("alpha", 1))
    assert fed.commit() == [1]


def test_public_sequence_and_previous_go_on_over_adoptions_and_restarts() -> None:
    histories = [Chain("x", incarnation=number) for number in (1, 2, 3)]
    fed = FedAggregation("alpha")
    for chain in histories:
        first = [adopted(chain)] if chain is not histories[0] else chain.take(1)
        fed.event(*first, *chain.take(2))
        fed.ack(chain.ack("alpha", 2 if chain is histories[0] else 3))
        fed.commit()
        fed.restart()
    told = [notice for notice in fed.notices if "changegroup.1" in notice.previous]
    assert [(notice.base or 0) + notice.event.seq for notice in told] == [2, 5, 6, 8, 9]
    assert [notice.previous["changegroup.1"] for notice in told] == [None, *(notice.event.id for notice in told[:-1])]


def test_what_every_mirror_served_is_announced_before_an_adoption() -> None:
    fed, old, new = FedAggregation("alpha"), Chain("x"), Chain("x", incarnation=2)
    fed.event(*old.take(2))
    fed.ack(old.ack("alpha", 2))
    fed.event(adopted(new))
    assert fed.commit() == [1, 2]
    assert not fed.errors


def test_a_level_of_another_digest_lets_nothing_go_when_overtaken(limit_batch: Callable[..., None]) -> None:
    limit_batch(size=4_000)
    fed, old, new = FedAggregation("alpha"), Chain("x"), Chain("x", incarnation=2)
    fed.event(*old.take(20))
    fed.ack(replace(old.ack("alpha", 19), digest="f" * 64))
    fed.commit()
    fed.event(adopted(new))
    assert fed.commit() == []
    assert len([error for error in fed.errors if "overtaken" in error.reason]) == 20


@pytest.mark.parametrize("broken", [1, 2, 3])
def test_an_adopted_history_begins_though_an_event_before_is_unreadable(broken: int) -> None:
    fed, old, new = FedAggregation("alpha"), Chain("x"), Chain("x", incarnation=2)
    fed.event(*old.take(3))
    fed.commit()
    fed.topics[PENDING][f"{old.repository}/{broken}"] = b"rubbish"
    fed.restart()
    assert fed.event(adopted(new)) == [RecordOutcome.TAKEN]
    fed.commit()
    assert (fed.state(new).incarnation, list(fed.topics[PENDING])) == (new.incarnation, [f"{new.repository}/1"])
    assert sorted(error.reason.startswith("x: event") for error in fed.errors) == [False, True, True]


def test_what_all_served_is_announced_before_an_adoption_in_any_steps() -> None:
    fed, old, new = FedAggregation("alpha", limit=2), Chain("x"), Chain("x", incarnation=2)
    fed.event(*old.take(5))
    fed.ack(old.ack("alpha", 5))
    fed.event(adopted(new))
    fed.commit()
    assert [notice.event for notice in fed.notices] == old.events
    assert not fed.errors


def test_an_adoption_behind_a_newer_aggregators_waits_and_drops_nothing(
    upgrade: Callable[[], Callable[[], None]],
) -> None:
    fed, old, new = FedAggregation("alpha"), Chain("x"), Chain("x", incarnation=2)
    go_back = upgrade()
    fed.event(*old.take(1), old.next(version=2))
    fed.commit()
    go_back()
    fed.restart()
    assert fed.event(adopted(new)) == [RecordOutcome.UNKNOWN]
    assert [held.seq for held in fed.aggregation.repositories[old.repository].queue] == [1, 2]
    assert not fed.errors


@pytest.mark.parametrize("served", [0, 30, 100])
def test_an_adoption_replaces_a_long_queue_in_bounded_transactions(
    limit_batch: Callable[..., None], served: int
) -> None:
    limit_batch(size=10_000)
    fed, old, new = FedAggregation("alpha"), Chain("x"), Chain("x", incarnation=2)
    fed.event(*old.take(100))
    fed.commit()
    fed.ack(old.ack("alpha", served))
    fed.transactions.clear()
    fed.event(adopted(new))
    fed.commit()
    assert max(fed.transactions) < 30
    assert [notice.event for notice in fed.notices] == old.events[:served]
    assert sorted(error.offset for error in fed.errors) == list(range(served, 100))
    assert list(fed.topics[PENDING]) == [f"{new.repository}/1"]


@pytest.mark.parametrize("written", ends(range(1, 16)))
def test_a_kill_while_an_adoption_replaces_a_long_queue_repeats_nothing(
    limit_batch: Callable[..., None], written: int
) -> None:
    limit_batch(size=10_000)
    fed, old, new = FedAggregation("alpha"), Chain("x"), Chain("x", incarnation=2)
    fed.event(*old.take(100))
    fed.commit()
    fed.ack(old.ack("alpha", 30))
    event = adopted(new)
    record = fed.record(EVENTS, event.repository, wire.encode(event))
    for _ in range(written):
        if fed.take_event(record, fed.now) is not RecordOutcome.UNFINISHED:
            break
        fed.write()
    assert fed.positions[EVENTS, 0] == record.offset
    fed.restart()
    assert fed.take(fed.take_event, record) is RecordOutcome.TAKEN
    fed.ack(new.ack("alpha", 1))
    fed.commit()
    assert [notice.event for notice in fed.notices] == [*old.events[:30], event]
    assert sorted(error.offset for error in fed.errors) == list(range(30, 100))
    assert fed.topics[PENDING] == {}


def test_what_mirrors_serve_after_a_kill_in_an_adoption_has_no_hole(
    limit_batch: Callable[..., None],
) -> None:
    limit_batch(size=10_000)
    fed, old, new = FedAggregation("alpha"), Chain("x"), Chain("x", incarnation=2)
    fed.event(*old.take(100))
    fed.commit()
    event = adopted(new)
    record = fed.record(EVENTS, event.repository, wire.encode(event))
    assert fed.take_event(record, fed.now) is RecordOutcome.UNFINISHED
    fed.write()
    fed.restart()
    fed.ack(old.ack("alpha", 100))
    assert fed.take(fed.take_event, record) is RecordOutcome.TAKEN
    fed.commit()
    told = [notice.event.seq for notice in fed.notices]
    assert told == list(range(1, len(told) + 1))
    assert sorted(error.offset + 1 for error in fed.errors) == list(range(len(told) + 1, 101))


def test_a_kept_adoption_takes_bounded_transactions_too(
    limit_batch: Callable[..., None],
    upgrade: Callable[[], object],
) -> None:
    limit_batch(size=10_000)
    fed, old, new = FedAggregation("alpha"), Chain("x"), Chain("x", incarnation=2)
    fed.event(*old.take(100))
    fed.commit()
    fed.event(replace(adopted(new), version=2), new.next())
    fed.commit()
    upgrade()
    fed.transactions.clear()
    fed.restart()
    fed.ack(new.ack("alpha", 2))
    assert fed.commit() == [1, 2]
    assert max(fed.transactions) < 30
    assert (fed.topics[PENDING], len(fed.errors)) == ({}, 100)


def test_repeats_of_a_retired_incarnation_are_repeats() -> None:
    fed, old, new = FedAggregation("alpha"), Chain("x"), Chain("x", incarnation=2)
    fed.event(*old.take(2), adopted(new))
    assert fed.event(*old.events) == [RecordOutcome.REPEAT] * 2


def test_a_history_that_was_adopted_and_replaced_is_not_adopted_again() -> None:
    fed, chains = FedAggregation("alpha"), [Chain("x", incarnation=number) for number in (1, 2, 3)]
    fed.event(chains[0].next(), adopted(chains[1]), adopted(chains[2]))
    fed.ack(chains[2].ack("alpha", 1))
    assert fed.commit() == [1]
    assert fed.event(*chains[1].events, *chains[2].events) == [RecordOutcome.REPEAT] * 2
    assert fed.commit() == []


def test_another_incarnation_that_was_not_adopted_is_a_fork() -> None:
    fed, old, new = FedAggregation("alpha"), Chain("x"), Chain("x", incarnation=2)
    fed.event(*old.take(2))
    assert fed.event(new.next(), adopted(new)) == [RecordOutcome.REJECTED] * 2
    fed.commit()
    assert fed.state(old).incarnation == old.incarnation


# The roster


def test_a_joining_mirror_gates_only_what_came_after_its_joining_point() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(2))
    fed.commit()
    assert fed.ask(Verb.ADD, "beta") is RecordOutcome.TAKEN
    fed.event(chain.next())
    fed.ack(chain.ack("alpha", 3))
    assert fed.commit() == [1, 2]
    assert fed.state(chain).released == 2
    fed.ack(chain.ack("beta", 3))
    assert fed.commit() == [3]


def test_a_joining_mirror_is_active_once_it_serves_all_that_was_released() -> None:
    fed, first, second = FedAggregation("alpha"), Chain("first"), Chain("second")
    fed.event(*first.take(2), *second.take(2))
    fed.ack(first.ack("alpha", 2), second.ack("alpha", 1))
    fed.commit()
    fed.ask(Verb.ADD, "beta")
    fed.commit()
    fed.ack(first.ack("beta", 2), second.ack("beta", 1, 0))
    fed.commit()
    assert fed.aggregation.roster.mirrors[1].state is MirrorState.JOINING
    fed.ack(second.ack("beta", 1))
    fed.commit()
    roster = from_json(Roster, fed.topics[ROSTER][KEY])
    beta = roster.mirror("beta")
    assert beta is not None
    assert (beta.state, beta.joined, roster.version) == (MirrorState.ACTIVE, None, 3)
    assert roster.recent[-1].request.who == "aggregator"


def test_what_is_released_after_the_joining_does_not_delay_it() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(1))
    fed.ack(chain.ack("alpha", 1))
    fed.commit()
    fed.ask(Verb.ADD, "beta")
    fed.event(chain.next())
    fed.ack(chain.ack("alpha", 2), chain.ack("beta", 2, 1))
    fed.commit()
    assert fed.state(chain).released == 2
    assert fed.aggregation.roster.mirrors[1].state is MirrorState.ACTIVE


def test_a_repository_deleted_meanwhile_does_not_keep_a_backup_joining() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(2))
    fed.ack(chain.ack("alpha", 2))
    fed.commit()
    fed.ask(Verb.ADD, "beta", role=MirrorRole.BACKUP)
    fed.commit()
    fed.event(chain.next(Type.DELETED))
    fed.ack(chain.ack("alpha", 3))
    assert fed.commit() == [3]
    assert fed.aggregation.roster.mirrors[1].state is MirrorState.ACTIVE


def test_a_deletion_that_waits_elsewhere_does_not_keep_a_mirror_joining() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(2), chain.next(Type.DELETED))
    fed.ack(chain.ack("alpha", 2))
    assert fed.commit() == [1, 2]
    fed.ask(Verb.ADD, "beta")
    fed.commit()
    assert fed.aggregation.roster.mirrors[1].state is MirrorState.ACTIVE
    fed.ack(chain.ack("alpha", 3), chain.ack("beta", 3))
    assert fed.commit() == [3]


def test_a_repository_outside_its_rules_does_not_keep_a_mirror_joining() -> None:
    fed, chain = FedAggregation("alpha"), Chain("kept/x")
    fed.event(*chain.take(2))
    fed.ack(chain.ack("alpha", 2))
    fed.commit()
    fed.ask(Verb.ADD, "beta", rules=Rules(include=("re:kept/",)))
    fed.commit()
    fed.event(chain.next(Type.RENAMED, path="left/x", detail={"from": "kept/x"}))
    fed.ack(chain.ack("alpha", 3))
    assert fed.commit() == [3]
    assert fed.aggregation.roster.mirrors[1].state is MirrorState.ACTIVE


def test_a_shorter_adopted_history_does_not_keep_a_mirror_joining() -> None:
    fed, old, new = FedAggregation("alpha"), Chain("x"), Chain("x", incarnation=2)
    fed.event(*old.take(3))
    fed.ack(old.ack("alpha", 3))
    fed.commit()
    fed.ask(Verb.ADD, "beta")
    fed.event(adopted(new))
    fed.ack(new.ack("alpha", 1), new.ack("beta", 1))
    fed.commit()
    beta = fed.aggregation.roster.mirror("beta")
    assert beta is not None
    assert beta.state is MirrorState.ACTIVE


def test_a_mirror_filled_beyond_the_release_replaces_the_only_other() -> None:
    """It cannot show an earlier event than the one that it was filled at, and nothing is released before it gates."""
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(3))
    fed.ack(chain.ack("alpha", 1))
    assert fed.commit() == [1]
    fed.ask(Verb.DEACTIVATE, "alpha")
    fed.ask(Verb.ADD, "beta")
    fed.commit()
    fed.ack(chain.ack("beta", 3, 0))
    fed.commit()
    assert fed.state(chain).released == 3
    fed.ack(chain.ack("beta", 3))
    assert fed.commit() == [2, 3]


def test_a_mirror_that_joins_an_empty_installation_is_active_at_once() -> None:
    fed = FedAggregation()
    fed.ask(Verb.ADD, "alpha")
    fed.commit()
    assert fed.aggregation.roster.mirrors[0].state is MirrorState.ACTIVE


@pytest.mark.parametrize("verb", [Verb.DEACTIVATE, Verb.RULES])
def test_whatever_waits_for_a_mirror_only_goes_out_when_it_gates_no_more(verb: Verb) -> None:
    fed, chain = FedAggregation("alpha", "beta"), Chain("x")
    fed.event(*chain.take(3))
    fed.ack(chain.ack("alpha", 3), chain.ack("beta", 2, 1))
    assert fed.commit() == [1]
    assert fed.state(chain).released == 2
    fed.ask(verb, "beta", rules=Rules(include=("path:elsewhere",)) if verb is Verb.RULES else None)
    assert fed.commit() == [2, 3]
    assert {notice.roster for notice in fed.notices[1:]} == {2}
    assert [proof.mirror for proof in fed.notices[-1].acks] == ["alpha"]


def test_deactivating_one_repository_lets_only_its_notices_go() -> None:
    fed, first, second = FedAggregation("alpha", "beta"), Chain("first"), Chain("second")
    fed.event(first.next(), second.next())
    fed.ack(first.ack("alpha", 1), second.ack("alpha", 1))
    fed.commit()
    fed.ask(Verb.DEACTIVATE, "beta", repository=first.repository)
    fed.commit()
    assert [notice.event.path for notice in fed.notices] == ["first"]
    fed.ask(Verb.ACTIVATE, "beta", repository=first.repository)
    fed.event(first.next())
    fed.ack(first.ack("alpha", 2))
    assert fed.commit() == []


def test_an_activated_mirror_holds_even_what_was_released_before() -> None:
    fed, chain = FedAggregation("alpha", inactive("beta")), Chain("x")
    fed.event(*chain.take(2))
    fed.ack(chain.ack("alpha", 2, 0))
    fed.commit()
    assert fed.state(chain).released == 2
    fed.ask(Verb.ACTIVATE, "beta")
    fed.ack(chain.ack("alpha", 2))
    assert fed.commit() == []
    fed.ack(chain.ack("beta", 2))
    assert fed.commit() == [1, 2]


def test_rules_that_carry_more_make_its_notices_wait() -> None:
    beta = Mirror(name="beta", state=MirrorState.ACTIVE, rules=Rules(include=("path:elsewhere",)))
    fed, chain = FedAggregation("alpha", beta), Chain("x")
    fed.event(*chain.take(1))
    fed.commit()
    fed.ask(Verb.RULES, "beta", rules=Rules())
    fed.ack(chain.ack("alpha", 1))
    assert fed.commit() == []


def test_the_levels_of_a_removed_mirror_are_forgotten() -> None:
    fed, chain = FedAggregation("alpha", inactive("beta")), Chain("x")
    fed.event(*chain.take(1))
    fed.ack(chain.ack("alpha", 1), chain.ack("beta", 1))
    fed.commit()
    fed.ask(Verb.REMOVE, "beta")
    buried = [
        message.key for message in fed.aggregation.batch().messages if message.topic == ACKS and message.value is None
    ]
    assert buried == [f"beta/{chain.repository}"]
    fed.ask(Verb.ADD, "beta")
    fed.commit()
    assert fed.aggregation.roster.mirrors[1].state is MirrorState.JOINING


def test_what_a_removed_mirror_said_does_not_count_once_it_is_back() -> None:
    fed, chain = FedAggregation("alpha", inactive("beta")), Chain("x")
    fed.event(*chain.take(1))
    fed.ask(Verb.REMOVE, "beta")
    fed.ack(chain.ack("alpha", 1), chain.ack("beta", 1))
    fed.commit()
    fed.ask(Verb.ADD, "beta")
    fed.commit()
    assert fed.aggregation.roster.mirrors[1].state.value == "joining"
    assert f"beta/{chain.repository}" in fed.buried
    fed.ack(chain.ack("beta", 1))
    fed.commit()
    assert fed.aggregation.roster.mirrors[1].state.value == "active"


@pytest.mark.parametrize("written", ends([None, 1, 2, 3]))
def test_the_levels_of_a_removed_mirror_go_in_bounded_transactions(
    limit_batch: Callable[..., None], written: int | None
) -> None:
    """Killed after any of them (`written`), the mirror is not yet removed, and the rest goes when it is."""
    limit_batch(size=7_000)
    fed, chains = FedAggregation("alpha", inactive("beta")), [Chain(f"x{number}") for number in range(100)]
    for chain in chains:
        fed.event(*chain.take(1))
        fed.ack(chain.ack("alpha", 1), chain.ack("beta", 1))
    fed.commit()
    fed.transactions.clear()
    request = RosterRequest(id="1", verb=Verb.REMOVE, mirror="beta", who="dana", time=1.0, reason="")
    record = fed.record(ROSTER_REQUESTS, "1", to_json(request))
    if written is not None:
        for _ in range(written):
            assert fed.aggregation.membership.take(record, fed.now) is RecordOutcome.UNFINISHED
            fed.write()
        assert fed.positions[ROSTER_REQUESTS, 0] == record.offset
        fed.restart()
        assert fed.aggregation.roster.mirrors[1].state is MirrorState.INACTIVE
    assert fed.take(fed.aggregation.membership.take, record) is RecordOutcome.TAKEN
    fed.commit()
    assert max(fed.transactions) < 30
    assert sorted(fed.buried) == sorted(f"beta/{chain.repository}" for chain in chains)
    assert fed.aggregation.roster.mirrors[1].state is MirrorState.REMOVED


def test_what_an_operator_lets_go_is_released_in_bounded_transactions(
    limit_batch: Callable[..., None],
) -> None:
    limit_batch(states=20)
    fed, chains = FedAggregation("alpha", "beta"), [Chain(f"x{number}") for number in range(100)]
    for chain in chains:
        fed.event(*chain.take(1))
        fed.ack(chain.ack("alpha", 1, 0))
        fed.commit()
    fed.transactions.clear()
    fed.ask(Verb.DEACTIVATE, "beta")
    fed.commit()
    assert {fed.state(chain).released for chain in chains} == {1}
    assert max(fed.transactions) < 30


def test_without_a_gating_mirror_everything_is_held_until_it_is_allowed() -> None:
    fed, chain = FedAggregation(), Chain("x")
    fed.event(*chain.take(2))
    assert fed.commit() == []
    assert fed.state(chain).released == 0
    fed.ask(Verb.ALLOW_EMPTY, allow=True)
    assert fed.commit() == [1, 2]
    assert fed.notices[0].acks == ()


def test_a_change_of_the_roster_waits_for_nothing_else() -> None:
    fed = FedAggregation("alpha")
    assert not fed.aggregation.output.is_urgent
    fed.ask(Verb.ADD, "beta")
    assert fed.aggregation.output.is_urgent


def test_a_request_is_decided_once_however_often_it_stands_in_the_log() -> None:
    fed = FedAggregation("alpha")
    assert fed.ask(Verb.DEACTIVATE, "alpha", identifier="once") is RecordOutcome.TAKEN
    assert fed.ask(Verb.DEACTIVATE, "alpha", identifier="once") is RecordOutcome.REPEAT
    fed.commit()
    assert fed.aggregation.roster.version == 2


def test_a_refused_request_leaves_the_version_and_tells_why() -> None:
    fed = FedAggregation("alpha")
    assert fed.ask(Verb.JOIN, "absent", identifier="wrong") is RecordOutcome.REJECTED
    fed.commit()
    roster = from_json(Roster, fed.topics[ROSTER][KEY])
    decision = roster.decision("wrong")
    assert decision is not None
    assert (roster.version, decision.refusal) == (1, "there is no mirror absent; add it first")


# Restarts


def test_a_restart_goes_on_where_the_last_transaction_ended() -> None:
    fed, chain = FedAggregation("alpha", "beta"), Chain("x")
    fed.event(*chain.take(4))
    fed.ack(chain.ack("alpha", 4), chain.ack("beta", 3, 1))
    assert fed.commit() == [1]
    fed.restart()
    assert fed.aggregation.held == 3
    fed.ack(chain.ack("beta", 3, 3))
    assert fed.commit() == [2, 3]
    fed.restart()
    fed.event(chain.next())
    fed.ack(chain.ack("alpha", 5), chain.ack("beta", 5))
    assert fed.commit() == [4, 5]
    assert [notice.previous.get("changegroup.1") for notice in fed.notices[2:]] == [
        event.id for event in chain.events[1:4]
    ]


def test_a_restart_takes_no_release_back() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(3))
    fed.ack(chain.ack("alpha", 3, 0))
    fed.commit()
    fed.ack(chain.ack("alpha", 1, 0))
    fed.restart()
    fed.event(chain.next())
    fed.commit()
    assert (fed.state(chain).released, fed.state(chain).seq) == (3, 4)
    fed.ack(chain.ack("alpha", 4, 4))
    assert fed.commit() == [1, 2, 3, 4]


def test_an_unreadable_pending_record_is_set_aside_and_stops_nothing() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(3))
    fed.commit()
    fed.topics[PENDING][f"{chain.repository}/2"] = b"rubbish"
    fed.restart()
    fed.ack(chain.ack("alpha", 3))
    assert fed.commit() == [1, 3]
    assert fed.errors[0].key == f"{chain.repository}/2"
    assert not fed.topics[PENDING]


def test_unreadable_pending_records_are_set_aside_in_bounded_steps(
    limit_batch: Callable[..., None],
) -> None:
    limit_batch(size=20_000)
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(201))
    fed.commit()
    fed.topics[PENDING].update({f"{chain.repository}/{seq}": b"rubbish" for seq in range(1, 201)})
    fed.restart()
    fed.transactions.clear()
    fed.ack(chain.ack("alpha", 201))
    assert fed.commit() == [201]
    assert max(fed.transactions) < 90
    assert (len(fed.errors), fed.topics[PENDING]) == (200, {})


def test_a_lost_state_record_is_made_anew_from_what_is_pending() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(3))
    fed.commit()
    del fed.topics[STATE][chain.repository]
    fed.restart()
    assert fed.event(chain.next()) == [RecordOutcome.TAKEN]
    fed.ack(chain.ack("alpha", 4))
    assert fed.commit() == [1, 2, 3, 4]


def test_pending_records_hold_the_place_of_their_event() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(2))
    fed.commit()
    stored = from_json(Pending, fed.topics[PENDING][f"{chain.repository}/2"])
    assert (stored.partition, stored.offset, stored.event) == (0, 1, chain.events[1])


# Alarms


def test_a_silent_mirror_is_named_with_its_lag_and_what_it_holds() -> None:
    fed, chain = FedAggregation("alpha", "beta"), Chain("x")
    fed.event(*chain.take(3))
    fed.ack(chain.ack("alpha", 3), chain.ack("beta", 2, 1))
    fed.commit()
    assert alarms(fed.aggregation, survey(fed.aggregation, fed.silence, fed.now), 60.0) == ()
    fed.now += 60
    fed.silence.heard("alpha", "a sign", fed.now)
    [alarm] = alarms(fed.aggregation, survey(fed.aggregation, fed.silence, fed.now), 60.0)
    assert (alarm.kind, alarm.mirror, alarm.numbers) == ("mirror silent", "beta", {"seconds": 60, "lag": 1, "held": 2})
    assert fed.aggregation.roster.mirrors[1].state is MirrorState.ACTIVE, "only an operator's word drops it"


@pytest.mark.parametrize(("path", "quoted"), [("x", "x"), ("x;reboot", "'x;reboot'")])
def test_notices_that_wait_while_pushes_go_on_are_an_alarm_with_names(path: str, quoted: str) -> None:
    fed, chain = FedAggregation("alpha", "beta"), Chain(path)
    for _ in range(7):
        fed.event(*chain.take(1))
        fed.ack(chain.ack("alpha", chain.events[-1].seq, 0))
        fed.commit()
        for mirror in ("alpha", "beta"):
            fed.silence.heard(mirror, fed.now, fed.now)
        found = alarms(fed.aggregation, survey(fed.aggregation, fed.silence, fed.now), 60.0)
        fed.now += 10
    assert [alarm.describe(0.0) for alarm in found] == [
        f"notices held: 7 of {path} wait, for beta, the oldest for 60 s; see: vcsreplicator trace {quoted}"
    ]


def test_an_adopted_history_waits_anew_at_a_number_that_waited_before() -> None:
    fed, old, new = FedAggregation("alpha"), Chain("x"), Chain("x", incarnation=2)
    fed.event(*old.take(1))
    assert alarms(fed.aggregation, survey(fed.aggregation, fed.silence, fed.now), 60.0) == ()
    fed.ack(old.ack("alpha", 1))
    fed.commit()
    fed.now += 1000
    fed.silence.heard("alpha", fed.now, fed.now)
    fed.event(adopted(new))
    assert alarms(fed.aggregation, survey(fed.aggregation, fed.silence, fed.now), 60.0) == ()


def test_what_is_not_released_is_held_by_who_has_not_applied_it_alone() -> None:
    fed, chain = FedAggregation("alpha", "beta"), Chain("x")
    fed.event(*chain.take(2))
    fed.ack(chain.ack("alpha", 2, 0), chain.ack("beta", 1, 0))
    fed.commit()
    assert survey(fed.aggregation, fed.silence, fed.now).unserved == {
        "alpha": 1,
        "beta": 2,
    }
    fed.ack(chain.ack("alpha", 2, 1), chain.ack("beta", 1, 0))
    fed.commit()
    assert survey(fed.aggregation, fed.silence, fed.now).unserved == {
        "alpha": 0,
        "beta": 2,
    }


def test_the_lag_of_a_backup_counts_what_it_lacks_after_the_notices_too() -> None:
    backup = Mirror(name="backup", state=MirrorState.ACTIVE, role=MirrorRole.BACKUP)
    fed, chain = FedAggregation("alpha", backup, inactive("spare")), Chain("x")
    fed.event(*chain.take(3))
    fed.ack(chain.ack("alpha", 3), chain.ack("backup", 1))
    assert fed.commit() == [1, 2, 3]
    found = survey(fed.aggregation, fed.silence, fed.now)
    assert found.lags == {"alpha": 0, "backup": 2, "spare": 3}
    assert found.unserved == {"alpha": 0, "backup": 0, "spare": 0}


def test_no_lag_is_counted_of_what_a_mirror_leaves_out() -> None:
    chain, deleted = Chain("x"), Chain("y")
    fed = FedAggregation(
        Mirror(name="alpha", state=MirrorState.ACTIVE, deactivated=(chain.repository,)),
        Mirror(name="beta", state=MirrorState.ACTIVE, rules=Rules(exclude=("path:x",), include=("path:y",))),
        allow_empty=True,
    )
    fed.event(*chain.take(2), deleted.next(), deleted.next(Type.DELETED))
    fed.commit()
    assert survey(fed.aggregation, fed.silence, fed.now).lags == {
        "alpha": 0,
        "beta": 0,
    }


def test_a_removed_mirror_has_no_figures() -> None:
    fed, chain = FedAggregation("alpha", Mirror(name="gone", state=MirrorState.REMOVED)), Chain("x")
    fed.event(*chain.take(1))
    fed.commit()
    assert list(survey(fed.aggregation, fed.silence, fed.now).lags) == ["alpha"]


def test_held_notices_without_a_gating_mirror_are_an_alarm() -> None:
    fed, chain = FedAggregation(inactive("alpha")), Chain("x")
    fed.event(*chain.take(3))
    fed.commit()
    [alarm] = alarms(fed.aggregation, survey(fed.aggregation, fed.silence, fed.now), 60.0)
    assert (alarm.kind, alarm.numbers) == ("no gating mirror", {"held": 3, "repositories": 1})


# What a mutation of the code got past all others


def replacing(chain: Chain, number: int) -> Chain:
    """The same repository with another history."""
    other = Chain(chain.path, incarnation=number)
    other.next(Type.SYNC, detail={"reason": "adopted"})
    return other


def test_the_release_of_a_history_releases_nothing_of_the_adopted_one() -> None:
    fed, old = FedAggregation("alpha"), Chain("x")
    fed.event(*old.take(5))
    fed.ack(old.ack("alpha", 5))
    assert fed.commit() == [1, 2, 3, 4, 5]
    new = replacing(old, 2)
    fed.event(*new.events, *new.take(2))
    for _ in range(2):
        assert fed.commit() == []
        assert (fed.state(old).seq, fed.state(old).released, fed.state(old).noticed) == (3, 0, 0)
        fed.restart()
    fed.ack(new.ack("alpha", 3, 0))
    fed.commit()
    assert fed.state(old).released == 3


def test_every_history_that_was_replaced_is_known_for_good() -> None:
    fed, first = FedAggregation("alpha"), Chain("x")
    fed.event(*first.take(2))
    second, third = replacing(first, 2), replacing(first, 3)
    fed.event(*second.events, *third.events)
    fed.commit()
    fed.restart()
    assert fed.state(first).retired == (first.incarnation, second.incarnation)
    assert fed.event(first.events[1], second.events[0]) == [RecordOutcome.REPEAT, RecordOutcome.REPEAT]
    assert fed.state(first).fork is None


def test_a_mirror_joins_without_a_repository_it_is_deactivated_for() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(2))
    fed.ack(chain.ack("alpha", 2))
    fed.commit()
    fed.ask(Verb.ADD, "beta")
    fed.commit()
    assert standing(fed, "beta") is MirrorState.JOINING
    fed.ask(Verb.DEACTIVATE, "beta", repository=chain.repository)
    fed.commit()
    assert standing(fed, "beta") is MirrorState.ACTIVE


def standing(fed: FedAggregation, name: str) -> MirrorState:
    mirror = fed.aggregation.roster.mirror(name)
    assert mirror is not None
    return mirror.state


@pytest.mark.parametrize("restarted", [False, True], ids=["in memory", "stored"])
def test_the_mark_of_a_fork_outlasts_good_events_and_restarts(*, restarted: bool) -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(2))
    fork = replace(chain.events[1], id="f" * 32)
    assert fed.event(fork) == [RecordOutcome.REJECTED]
    assert fed.event(chain.next()) == [RecordOutcome.TAKEN]
    fed.commit()
    assert fed.state(chain).fork == fork.id
    if restarted:
        fed.restart()
    chain.next()
    assert fed.event(chain.next()) == [RecordOutcome.REJECTED]
    assert fed.state(chain).seq == 3


def test_a_fork_alone_marks_the_stored_state() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(2))
    fed.commit()
    fed.event(replace(chain.events[1], id="f" * 32))
    fed.commit()
    assert fed.state(chain).fork == "f" * 32


def test_a_notice_restores_a_state_that_is_older_and_no_newer_one() -> None:
    fed, chain, successor = FedAggregation("alpha"), Chain("x"), Chain("x", generation=2)
    fed.event(*chain.take(3))
    fed.ack(chain.ack("alpha", 3))
    fed.commit()
    fed.aggregation = fed.aggregate(fed.aggregation.roster, 1000)
    # Decisions about it failed before: only the notice says that it is at the path.
    fed.aggregation.poison.faults.update({chain.repository: UnexpectedError("KeyError: 'z'", "")})
    assert [fed.aggregation.recover(fed.notices[at]) for at in (1, 0, 1, 2)] == [True, False, False, True]
    assert fed.aggregation.is_undecided
    fed.aggregation.end_loading(fed.now)
    fed.event(successor.next())
    fed.ack(successor.ack("alpha", 1, 0))
    fed.topics[STATE].clear()
    fed.commit()
    assert (fed.state(chain).noticed, fed.state(successor).released) == (3, 0)

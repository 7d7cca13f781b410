# SPDX-License-Identifier: GPL-2.0-or-later
"""Who waits for whom at a path: what holds a successor for ever is named, with what ends it."""

from dataclasses import replace

import pytest

from hgext.vcsreplicator.aggregator.alarms import SUCCESSOR, SUCCESSORS, alarms, survey
from hgext.vcsreplicator.aggregator.decisions.deciding import LOST_PATIENCE
from hgext.vcsreplicator.aggregator.decisions.repository import Repository
from hgext.vcsreplicator.aggregator.decisions.succession import DEPARTURE_PATIENCE, _is_first_there
from hgext.vcsreplicator.aggregator.session import Session
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.log import ACKS, STATE, NewRecord, topics
from hgext.vcsreplicator.words.event import Type
from hgext.vcsreplicator.words.records import AggregatorHeartbeat
from hgext.vcsreplicator.words.roster import MirrorState, Verb
from hgext.vcsreplicator.words.shape import from_json, to_json
from hgext.vcsreplicator.words.unexpected import UnexpectedError
from testing.builders.aggregator.aggregating import ask, send
from testing.builders.aggregator.chains import Chain
from testing.builders.aggregator.fed_aggregation import FedAggregation
from testing.builders.aggregator.states import some_state
from testing.builders.log.memorylog import MemoryLog
from testing.clock import HandClock


def waiting(fed: FedAggregation, *, after: float = 0.0) -> list[str]:
    """What the alarms tell of successors."""
    fed.now += after
    found = alarms(fed.aggregation, survey(fed.aggregation, fed.silence, fed.now), 60.0)
    return [alarm.describe(0.0) for alarm in found if alarm.kind == SUCCESSOR]


def succeeded(fed: FedAggregation, path: str = "x") -> tuple[Chain, Chain]:
    """A repository that was announced, pushed to and deleted, and its successor, which every mirror has applied."""
    former, successor = Chain(path), Chain(path, generation=2)
    fed.event(*former.take(1))
    fed.ack(former.ack("alpha", 1))
    fed.commit()
    fed.event(former.next(), former.next(Type.DELETED), successor.next())
    fed.ack(successor.ack("alpha", 1, 0))
    return former, successor


def test_a_successor_of_an_ungated_repository_goes_when_it_is_let_go() -> None:
    fed = FedAggregation("alpha")
    former, successor = succeeded(fed)
    fed.ask(Verb.DEACTIVATE, "alpha", repository=former.repository)
    fed.commit()
    [text] = waiting(fed)
    assert text.startswith(
        f"successor waits: x ({successor.repository}) waits since 1970-01-01 00:16:40 UTC for all notices of x ("
    )
    assert f"no mirror gates: `vcsreplicator roster activate MIRROR --repository {former.repository}`" in text
    fed.now += 1e6
    fed.commit()
    assert fed.state(successor).released == 0
    fed.ask(Verb.ALLOW_EMPTY, allow=True)
    fed.commit()
    fed.ack(successor.ack("alpha", 1, fed.state(successor).released))
    fed.commit()
    told = [(notice.event.generation, notice.event.seq) for notice in fed.notices]
    assert told == [(1, 1), (1, 2), (1, 3), (2, 1)]
    assert waiting(fed) == []


def test_a_successor_of_a_repository_that_stands_still_is_named() -> None:
    fed = FedAggregation("alpha")
    former, _ = succeeded(fed)
    fed.aggregation.poison.faults.update({former.repository: UnexpectedError("KeyError: 'z'", "")})
    fed.commit()
    [text] = waiting(fed)
    assert "about which decisions failed (KeyError: 'z'): restart the aggregator" in text


def test_a_successor_of_a_repository_with_newer_events_is_named() -> None:
    fed, former, successor = FedAggregation("alpha"), Chain("x"), Chain("x", generation=2)
    fed.event(*former.take(1), former.next(version=2), former.next(Type.DELETED), successor.next())
    fed.ack(former.ack("alpha", 1), successor.ack("alpha", 1, 0))
    fed.commit()
    [text] = waiting(fed)
    assert "which has events of a newer version: upgrade the aggregator" in text


def test_a_successor_that_waits_for_a_slow_mirror_is_named_in_a_minute() -> None:
    fed = FedAggregation("alpha", "beta")
    former, successor = Chain("x"), Chain("x", generation=2)
    fed.event(*former.take(1), former.next(Type.DELETED), successor.next())
    fed.ack(former.ack("alpha", 2), successor.ack("alpha", 1, 0), successor.ack("beta", 1, 0))
    fed.commit()
    assert waiting(fed) == []
    assert waiting(fed, after=59) == []
    [text] = waiting(fed, after=1)
    assert (
        f"mirrors lack (beta): `vcsreplicator roster deactivate MIRROR --repository {former.repository} --yes`" in text
    )
    fed.ack(former.ack("beta", 2))
    fed.commit()
    fed.commit()
    assert fed.state(successor).released == 1
    assert waiting(fed) == []


def test_a_departure_that_comes_by_itself_is_no_alarm() -> None:
    fed, former, successor = FedAggregation("alpha"), Chain("x"), Chain("x", generation=2)
    fed.event(*former.take(1), successor.next())
    fed.ack(former.ack("alpha", 1), successor.ack("alpha", 1, 0))
    fed.commit()
    assert fed.state(successor).released == 0
    assert waiting(fed, after=59) == []


def test_an_event_looks_at_no_repository_that_has_left_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    for generation in range(1, 20):
        chain = Chain("x", generation=generation)
        kinds = (Type.CREATED, Type.DELETED) if generation < 19 else (Type.CREATED,)
        fed.event(*(chain.next(kind) for kind in kinds))
        fed.commit()
        for _ in range(3):
            fed.ack(chain.ack("alpha", len(kinds), fed.state(chain).released))
            fed.commit()
        assert fed.state(chain).noticed == len(kinds)
    looked: list[str] = []
    find = Repository.find_generation
    monkeypatch.setattr(Repository, "find_generation", lambda self, path: looked.append(self.id) or find(self, path))
    fed.event(chain.next())
    fed.ack(chain.ack("alpha", 2))
    fed.commit()
    assert fed.state(chain).released == 2
    assert not looked


@pytest.mark.parametrize("more", [0, 3])
def test_many_successors_that_wait_are_named_up_to_a_limit(more: int) -> None:
    fed = FedAggregation("alpha")
    for number in range(SUCCESSORS + more):
        former, _ = succeeded(fed, f"x{number}")
        fed.ask(Verb.DEACTIVATE, "alpha", repository=former.repository)
    fed.commit()
    texts = waiting(fed)
    assert texts[SUCCESSORS:] == (["successor waits: 3 more"] if more else [])
    assert len(texts[:SUCCESSORS]) == SUCCESSORS


def test_the_heartbeat_tells_of_a_successor_of_one_without_mirrors() -> None:
    clock = HandClock()
    log = MemoryLog(clock)
    log.create(topics(partitions=1))
    former, successor = Chain("x"), Chain("x", generation=2)
    ask(log, Verb.ADD, "alpha")
    ask(log, Verb.DEACTIVATE, "alpha", repository=former.repository)
    send(log, [*former.take(1), former.next(Type.DELETED), successor.next()])
    acked = to_json(successor.ack("alpha", 1, 0))
    log.append([NewRecord(topic=ACKS, key=f"alpha/{successor.repository}", value=acked)])
    with Session(AggregatorSettings(beat=1.0), log, log.transactor("aggregator"), clock) as session:
        for _ in range(3):
            session.step(0.0)
            clock.advance(1.0)
    [beat] = [record.value for record in log.records(STATE) if record.key == "aggregator"]
    gating, text = from_json(AggregatorHeartbeat, beat or b"").alarms
    since = "(since 2023-11-14 22:13:20 UTC)"
    assert gating.startswith(f"no gating mirror: 2 held, 1 repository {since}; activate or add a mirror")
    assert text.startswith(f"successor waits: x ({successor.repository})")


def test_a_successor_waits_a_minute_after_the_last_event_before_it() -> None:
    fed, old, new = FedAggregation("alpha"), Chain("x"), Chain("x", generation=2)
    fed.event(*old.take(2))
    fed.ack(old.ack("alpha", 2))
    assert fed.commit() == [1, 2]
    fed.event(*new.take(2))
    fed.ack(new.ack("alpha", 2))
    assert fed.commit() == []
    fed.now += 50.0
    fed.event(old.next())
    fed.ack(old.ack("alpha", 3))
    assert fed.commit() == [3]
    fed.now += 20.0
    assert fed.commit() == []
    fed.now += 41.0
    assert fed.commit() == [1, 2]


def test_the_adopted_history_of_a_successor_waits_as_its_creation_did() -> None:
    fed = FedAggregation("alpha")
    former, successor = succeeded(fed)
    adopted = Chain("x", generation=2, incarnation=2)
    adopted.next(Type.SYNC, detail={"reason": "adopted", "replaces": successor.incarnation})
    fed.event(*adopted.events)
    fed.ack(adopted.ack("alpha", 1, 0))
    fed.commit()
    assert fed.state(adopted).released == 0
    fed.ack(former.ack("alpha", 3))
    fed.commit()
    fed.ack(adopted.ack("alpha", 1))
    fed.commit()
    told = [(notice.event.generation, notice.event.seq) for notice in fed.notices]
    assert told == [(1, 1), (1, 2), (1, 3), (2, 1)]


def replaced(fed: FedAggregation, *, pushes: int = 1) -> tuple[Chain, Chain]:
    """A repository that was removed without a word, and another one made at its path, which every mirror shows."""
    old, new = Chain("x"), Chain("x", generation=2)
    fed.event(*old.take(1 + pushes), *new.take(1))
    fed.ack(old.ack("alpha", 1 + pushes), new.ack("alpha", 1))
    fed.commit()
    fed.now += DEPARTURE_PATIENCE
    assert fed.commit() == [1]
    return old, new


def test_a_joining_mirror_need_not_have_a_repository_that_vanished() -> None:
    fed = FedAggregation("alpha")
    _, new = replaced(fed)
    fed.ask(Verb.ADD, "beta")
    fed.ack(new.ack("beta", 1))
    fed.commit()
    assert fed.aggregation.roster.mirrors[1].state is MirrorState.ACTIVE


def test_a_joining_mirror_waits_no_more_for_a_repository_that_vanished() -> None:
    fed, old, new = FedAggregation("alpha"), Chain("x"), Chain("x", generation=2)
    fed.event(*old.take(2))
    fed.ack(old.ack("alpha", 2))
    fed.commit()
    fed.ask(Verb.ADD, "beta")
    fed.event(*new.take(1))
    fed.ack(new.ack("alpha", 1), new.ack("beta", 1))
    fed.commit()
    assert fed.aggregation.roster.mirrors[1].state is MirrorState.JOINING
    fed.now += DEPARTURE_PATIENCE
    fed.commit()
    assert fed.aggregation.roster.mirrors[1].state is MirrorState.ACTIVE


def test_a_vanished_repository_ends_with_the_release_of_its_successor() -> None:
    fed, old, new = FedAggregation("alpha"), Chain("x"), Chain("x", generation=2)
    fed.event(*old.take(2), *new.take(1))
    fed.ack(old.ack("alpha", 2), new.ack("alpha", 1, 0))
    fed.commit()
    assert not fed.state(old).deleted
    fed.now += DEPARTURE_PATIENCE
    fed.aggregation.decide(fed.now)
    fed.write()
    assert (fed.state(old).deleted, fed.state(old).noticed, fed.state(new).released) == (True, 2, 1)


def test_a_repository_left_living_by_an_older_aggregator_ends_at_start() -> None:
    fed = FedAggregation("alpha")
    old, _ = replaced(fed)
    fed.topics[STATE][old.repository] = to_json(replace(fed.state(old), deleted=False))
    fed.restart()
    fed.write()
    assert fed.state(old).deleted


def test_repositories_that_replaced_one_another_end_after_their_notices() -> None:
    fed, chains = FedAggregation("alpha"), [Chain("x", generation=number) for number in (1, 2, 3)]
    for chain in chains:
        fed.event(*chain.take(2))
    living = []
    for _ in range(6):
        for chain in chains:
            fed.ack(chain.ack("alpha", 2, fed.state(chain).released if fed.topics[STATE] else 0))
        fed.commit()
        living.append([not fed.state(chain).deleted for chain in chains])
        fed.now += DEPARTURE_PATIENCE
    told = [(notice.event.generation, notice.event.seq) for notice in fed.notices]
    assert told == [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)]
    assert (living[0], living[-1]) == ([True] * 3, [False, False, True])


def test_a_late_event_of_a_repository_whose_path_is_taken_is_announced() -> None:
    fed = FedAggregation("alpha")
    old, new = replaced(fed)
    fed.event(old.next())
    fed.commit()
    assert (fed.state(old).seq, fed.state(old).deleted) == (3, True)
    third = Chain("x", generation=3)
    fed.event(new.next(Type.DELETED), third.next())
    fed.ack(new.ack("alpha", 2), third.ack("alpha", 1))
    fed.commit()
    assert fed.state(third).released == 0
    fed.ack(old.ack("alpha", 3))
    assert fed.commit() == [3]
    fed.commit()
    assert [fed.state(chain).deleted for chain in (old, new, third)] == [True, True, False]


def test_a_creation_at_a_path_that_is_taken_begins_no_life() -> None:
    fed, new, newest = FedAggregation("alpha"), Chain("x", generation=2), Chain("x", generation=3)
    fed.event(*newest.take(1))
    fed.ack(newest.ack("alpha", 1))
    assert fed.commit() == [1]
    fed.event(*new.take(2))
    fed.ack(new.ack("alpha", 2))
    assert fed.commit() == [1, 2]
    assert [fed.state(chain).deleted for chain in (new, newest)] == [True, False]


@pytest.mark.parametrize("leaves", ["moves on itself", "its successor moves on", "its successor is deleted"])
def test_a_repository_that_was_not_lost_lives_on(leaves: str) -> None:
    """It was moved by hand, and is put back or renamed with its next event."""
    fed = FedAggregation("alpha")
    old, new = replaced(fed)
    if leaves == "moves on itself":
        old.path = "y"
        fed.event(old.next(Type.RENAMED, detail={"from": "x"}))
    else:
        if leaves == "its successor is deleted":
            fed.event(new.next(Type.DELETED))
        else:
            new.path = "y"
            fed.event(new.next(Type.RENAMED, detail={"from": "x"}))
        fed.ack(new.ack("alpha", 2))
        fed.commit()
        fed.event(old.next())
    fed.ack(old.ack("alpha", 3))
    fed.commit()
    fed.restart()
    fed.write()
    assert (fed.state(old).noticed, fed.state(old).deleted) == (3, False)


def test_a_restored_master_back_at_a_former_path_ends_no_repository() -> None:
    """Its generation there is lower than that of the path that it left again."""
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(1))
    chain.path = "y"
    fed.event(chain.next(Type.RENAMED, detail={"from": "x"}))
    chain.path = "x"
    fed.event(chain.next(Type.RENAMED, detail={"from": "y"}, generation=3))
    fed.ack(replace(chain.ack("alpha", 3), floor=3))
    fed.commit()
    restored = Chain("x", incarnation=2)
    fed.event(restored.next(Type.SYNC, detail={"reason": "adopted", "replaces": chain.incarnation}))
    fed.ack(restored.ack("alpha", 1))
    fed.commit()
    fed.restart()
    fed.write()
    assert (fed.state(restored).generation, fed.state(restored).deleted) == (1, False)


def announced_places(fed: FedAggregation) -> list[tuple[str, int, int]]:
    return [(notice.event.path, notice.event.generation, notice.event.seq) for notice in fed.notices]


@pytest.mark.parametrize("kind", [Type.CHANGED, Type.DELETED])
def test_a_successor_waits_with_its_first_event_that_the_log_still_has(kind: Type) -> None:
    fed, former, successor = FedAggregation("alpha"), Chain("x"), Chain("x", generation=2)
    successor.take(1)
    fed.event(*former.take(2), former.next(Type.DELETED), successor.next(kind))
    fed.ack(successor.ack("alpha", 2))
    assert fed.commit() == []
    assert fed.state(successor).released == 0
    fed.restart()
    assert fed.commit() == []
    fed.ack(former.ack("alpha", 3))
    fed.commit()
    assert announced_places(fed) == [("x", 1, 1), ("x", 1, 2), ("x", 1, 3), ("x", 2, 2)]


def test_a_successor_waits_whose_rename_to_the_path_the_log_has_lost() -> None:
    fed, former, successor = FedAggregation("alpha"), Chain("x"), Chain("y", generation=2)
    fed.event(*former.take(2), former.next(Type.DELETED), *successor.take(1))
    fed.ack(successor.ack("alpha", 1))
    assert fed.commit() == [1]
    successor.path = "x"
    successor.next(Type.RENAMED, detail={"from": "y"})
    fed.event(successor.next())
    fed.ack(successor.ack("alpha", 3, 1))
    fed.commit()
    assert fed.state(successor).released == 1
    fed.ack(former.ack("alpha", 3))
    fed.commit()
    fed.ack(successor.ack("alpha", 3))
    fed.now += LOST_PATIENCE
    fed.commit()
    assert announced_places(fed) == [("y", 2, 1), ("x", 1, 1), ("x", 1, 2), ("x", 1, 3), ("x", 2, 3)]


def test_a_push_waits_for_no_other_repository_after_the_first_notice() -> None:
    fed = FedAggregation("alpha")
    old, new = replaced(fed)
    fed.event(old.next(), new.next())
    fed.ack(new.ack("alpha", 2))
    assert fed.commit() == [2]


def test_a_successor_of_an_unread_predecessor_asks_for_a_look() -> None:
    fed, successor = FedAggregation("alpha"), Chain("x", generation=2)
    assert fed.aggregation.succession.is_unproven is False
    fed.aggregation.succession.has_untaken = True
    fed.event(successor.next())
    fed.ack(successor.ack("alpha", 1, 0))
    fed.commit()
    assert fed.state(successor).released == 0
    assert fed.aggregation.succession.is_unproven is True


@pytest.mark.parametrize(
    ("seq", "kind", "is_first"),
    [
        (1, Type.SYNC, True),
        (2, Type.SYNC, False),
        (2, Type.CHANGED, False),
        (2, Type.CREATED, True),
        (2, Type.RENAMED, True),
    ],
)
def test_only_the_first_event_at_a_path_may_wait_for_others(seq: int, kind: Type, *, is_first: bool) -> None:
    event = replace(Chain("x").next(), seq=seq, type=kind)
    assert _is_first_there(some_state(seq=1, noticed=0), event) is is_first


def test_a_successor_whose_predecessor_left_is_not_named_while_unproven() -> None:
    fed, former, successor = FedAggregation("alpha"), Chain("x"), Chain("x", generation=3)
    fed.aggregation.succession.has_untaken = True
    fed.event(former.next(), successor.next())
    fed.ack(former.ack("alpha", 1), successor.ack("alpha", 1, 0))
    fed.commit()
    assert [wait.predecessors[0].id for wait in fed.aggregation.succession.waits()] == [former.repository]
    fed.event(former.next(Type.DELETED))
    fed.ack(former.ack("alpha", 2))
    fed.commit()
    assert fed.state(successor).released == 0
    assert fed.aggregation.succession.waits() == []
    assert fed.aggregation.succession.is_unproven is True


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_successor_of_a_repository_that_left_waits_for_nothing_after_a_restart(*, is_deleted: bool) -> None:
    fed, former, successor = FedAggregation("alpha"), Chain("x"), Chain("x", generation=2)
    fed.event(*former.take(2))
    former.path = "y"
    fed.event(former.next(Type.RENAMED, detail={"from": "x"}))
    if is_deleted:
        fed.event(former.next(Type.DELETED))
    for seq in range(2, len(former.events) + 1):
        fed.ack(former.ack("alpha", seq))
        fed.commit()
    fed.restart()
    fed.aggregation.succession.read_at = float("-inf")  # the log does not answer yet
    fed.event(successor.next())
    fed.ack(successor.ack("alpha", 1, 0))
    fed.commit()
    assert fed.state(successor).released == 1


def test_a_state_keeps_the_newest_paths_that_its_repository_left() -> None:
    fed, chain = FedAggregation("alpha"), Chain("0")
    fed.event(*chain.take(1))
    for number in range(1, 30):
        was, chain.path = chain.path, str(number)
        fed.event(chain.next(Type.RENAMED, detail={"from": was}))
        fed.ack(replace(chain.ack("alpha", number + 1), floor=number + 1))
        fed.commit()
    assert [each.path for each in fed.state(chain).left] == [str(number) for number in range(13, 29)]

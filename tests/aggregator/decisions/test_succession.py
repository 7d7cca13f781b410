# SPDX-License-Identifier: GPL-2.0-or-later
"""Who waits for whom at a path: what holds a successor for ever is named, with what ends it."""

import pytest

from hgext.vcsreplicator.aggregator.alarms import SUCCESSOR, SUCCESSORS, alarms, survey
from hgext.vcsreplicator.aggregator.loop import AggregatorSettings, Session
from hgext.vcsreplicator.log import ACKS, STATE, NewRecord, topics
from hgext.vcsreplicator.words.event import Type
from hgext.vcsreplicator.words.records import AggregatorHeartbeat
from hgext.vcsreplicator.words.roster import Verb
from hgext.vcsreplicator.words.shape import from_json, to_json
from hgext.vcsreplicator.words.unexpected import Fault
from testing.builders.aggregating import ask, send
from testing.builders.chains import Chain
from testing.builders.hands import Hands
from testing.builders.memorylog import MemoryLog
from testing.clock import HandClock


def waiting(hands: Hands, *, after: float = 0.0) -> list[str]:
    """What the alarms tell of successors."""
    hands.now += after
    found = alarms(hands.aggregation, survey(hands.aggregation, hands.silence, hands.now), 60.0)
    return [alarm.text for alarm in found if alarm.kind == SUCCESSOR]


def succeeded(hands: Hands, path: str = "x") -> tuple[Chain, Chain]:
    """A repository that was announced, pushed to and deleted, and its successor, which every mirror has applied."""
    former, successor = Chain(path), Chain(path, generation=2)
    hands.event(*former.take(1))
    hands.ack(former.ack("alpha", 1))
    hands.commit()
    hands.event(former.next(), former.next(Type.DELETED), successor.next())
    hands.ack(successor.ack("alpha", 1, 0))
    return former, successor


def test_a_successor_of_a_repository_that_no_mirror_gates_is_named_and_goes_when_the_operator_says_so() -> None:
    hands = Hands("alpha")
    former, successor = succeeded(hands)
    hands.ask(Verb.DEACTIVATE, "alpha", repository=former.repository)
    hands.commit()
    [text] = waiting(hands)
    assert text.startswith(
        f"successor waits: x ({successor.repository}) waits since 1970-01-01 00:16:40 UTC for all notices of x ("
    )
    assert f"no mirror gates: `vcsreplicator roster activate MIRROR --repository {former.repository}`" in text
    hands.now += 1e6
    hands.commit()
    assert hands.state(successor).released == 0
    hands.ask(Verb.ALLOW_EMPTY, allow=True)
    hands.commit()
    hands.ack(successor.ack("alpha", 1, hands.state(successor).released))
    hands.commit()
    told = [(notice.event.generation, notice.event.seq) for notice in hands.notices]
    assert told == [(1, 1), (1, 2), (1, 3), (2, 1)]
    assert waiting(hands) == []


def test_a_successor_of_a_repository_that_stands_still_is_named_with_the_reason() -> None:
    hands = Hands("alpha")
    former, _ = succeeded(hands)
    hands.aggregation.poison.repositories.update({former.repository: Fault(reason="KeyError: 'z'", traceback="")})
    hands.commit()
    [text] = waiting(hands)
    assert "about which decisions failed (KeyError: 'z'): restart the aggregator" in text


def test_a_successor_of_a_repository_with_events_of_a_newer_version_is_named() -> None:
    hands, former, successor = Hands("alpha"), Chain("x"), Chain("x", generation=2)
    hands.event(*former.take(1), former.next(version=2), former.next(Type.DELETED), successor.next())
    hands.ack(former.ack("alpha", 1), successor.ack("alpha", 1, 0))
    hands.commit()
    [text] = waiting(hands)
    assert "which has events of a newer version: upgrade the aggregator" in text


def test_a_successor_that_waits_for_a_slow_mirror_is_named_after_a_minute_and_no_more_once_it_goes() -> None:
    hands = Hands("alpha", "beta")
    former, successor = Chain("x"), Chain("x", generation=2)
    hands.event(*former.take(1), former.next(Type.DELETED), successor.next())
    hands.ack(former.ack("alpha", 2), successor.ack("alpha", 1, 0), successor.ack("beta", 1, 0))
    hands.commit()
    assert waiting(hands) == []
    assert waiting(hands, after=59) == []
    [text] = waiting(hands, after=1)
    assert (
        f"mirrors lack (beta): `vcsreplicator roster deactivate MIRROR --repository {former.repository} --yes`" in text
    )
    hands.ack(former.ack("beta", 2))
    hands.commit()
    hands.commit()
    assert hands.state(successor).released == 1
    assert waiting(hands) == []


def test_a_departure_that_comes_by_itself_is_no_alarm() -> None:
    hands, former, successor = Hands("alpha"), Chain("x"), Chain("x", generation=2)
    hands.event(*former.take(1), successor.next())
    hands.ack(former.ack("alpha", 1), successor.ack("alpha", 1, 0))
    hands.commit()
    assert hands.state(successor).released == 0
    assert waiting(hands, after=59) == []


@pytest.mark.parametrize("more", [0, 3])
def test_many_successors_that_wait_are_named_up_to_a_limit(more: int) -> None:
    hands = Hands("alpha")
    for number in range(SUCCESSORS + more):
        former, _ = succeeded(hands, f"x{number}")
        hands.ask(Verb.DEACTIVATE, "alpha", repository=former.repository)
    hands.commit()
    texts = waiting(hands)
    assert texts[SUCCESSORS:] == (["successor waits: 3 more"] if more else [])
    assert len(texts[:SUCCESSORS]) == SUCCESSORS


def test_the_sign_of_life_tells_of_a_successor_that_waits_for_a_repository_without_mirrors() -> None:
    clock = HandClock()
    log = MemoryLog(clock)
    log.create(topics(partitions=1))
    former, successor = Chain("x"), Chain("x", generation=2)
    ask(log, Verb.ADD, "alpha")
    ask(log, Verb.DEACTIVATE, "alpha", repository=former.repository)
    send(log, [*former.take(1), former.next(Type.DELETED), successor.next()])
    acked = to_json(successor.ack("alpha", 1, 0))
    log.append([NewRecord(topic=ACKS, key=f"alpha/{successor.repository}", value=acked)])
    with Session.load(AggregatorSettings(beat=1.0), log, log.transactor("aggregator"), clock) as session:
        for _ in range(3):
            session.step(0.0)
            clock.advance(1.0)
    [beat] = [record.value for record in log.records(STATE) if record.key == "aggregator"]
    gating, text = from_json(AggregatorHeartbeat, beat or b"").alarms
    since = "(since 2023-11-14 22:13:20 UTC)"
    assert gating.startswith(f"no gating mirror: 2 held, 1 repositories {since}; activate or add a mirror")
    assert text.startswith(f"successor waits: x ({successor.repository})")


def test_a_successor_waits_a_minute_after_the_last_event_of_a_repository_that_went_without_a_word() -> None:
    hands, old, new = Hands("alpha"), Chain("x"), Chain("x", generation=2)
    hands.event(*old.take(2))
    hands.ack(old.ack("alpha", 2))
    assert hands.commit() == [1, 2]
    hands.event(*new.take(2))
    hands.ack(new.ack("alpha", 2))
    assert hands.commit() == []
    hands.now += 50.0
    hands.event(old.next())
    hands.ack(old.ack("alpha", 3))
    assert hands.commit() == [3]
    hands.now += 20.0
    assert hands.commit() == []
    hands.now += 41.0
    assert hands.commit() == [1, 2]


def test_the_adopted_history_of_a_successor_waits_as_its_creation_did() -> None:
    hands = Hands("alpha")
    former, successor = succeeded(hands)
    adopted = Chain("x", generation=2, incarnation=2)
    adopted.next(Type.SYNC, detail={"reason": "adopted", "replaces": successor.incarnation})
    hands.event(*adopted.events)
    hands.ack(adopted.ack("alpha", 1, 0))
    hands.commit()
    assert hands.state(adopted).released == 0
    hands.ack(former.ack("alpha", 3))
    hands.commit()
    hands.ack(adopted.ack("alpha", 1))
    hands.commit()
    told = [(notice.event.generation, notice.event.seq) for notice in hands.notices]
    assert told == [(1, 1), (1, 2), (1, 3), (2, 1)]

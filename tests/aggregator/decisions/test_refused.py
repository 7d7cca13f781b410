# SPDX-License-Identifier: GPL-2.0-or-later
"""Repositories about which a topic refuses a record for its size: they wait, and leave everything in the log as it is."""

import pytest

from hgext.vcsreplicator.aggregator.alarms import alarms, survey
from hgext.vcsreplicator.aggregator.decisions.memory import RecordOutcome
from hgext.vcsreplicator.aggregator.decisions.poison import Poison
from hgext.vcsreplicator.aggregator.refusals import RETRIES, RefusalWatch
from hgext.vcsreplicator.log import ERRORS, EVENTS, NOTICES, PENDING, ROSTER, STATE, LargeRecord
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.event import Event, Type
from testing.builders.aggregator.chains import Chain
from testing.builders.aggregator.fed_aggregation import FedAggregation
from testing.builders.log.memorylog import MemoryLog
from testing.clock import HandClock


def large(key: str | None, *, topic: str = NOTICES, limit: int | None = 1000) -> LargeRecord:
    return LargeRecord(topic=topic, key=key, size=2000, limit=limit)


def refuse(fed: FedAggregation, chain: Chain, *, topic: str = NOTICES) -> None:
    """As a session does that loads everything after the refusal."""
    fed.aggregation.poison.refuse(large(chain.repository, topic=topic))
    for repository in fed.aggregation.repositories.values():
        repository.is_refused |= repository.id == chain.repository


def test_no_stored_position_passes_an_event_that_waits() -> None:
    fed, waiting, other = FedAggregation("alpha"), Chain("a"), Chain("b")
    refuse(fed, waiting)
    assert fed.event(other.next(), waiting.next(), other.next(), waiting.next()) == [
        RecordOutcome.TAKEN,
        RecordOutcome.WAITING,
        RecordOutcome.TAKEN,
        RecordOutcome.WAITING,
    ]
    fed.commit()
    fed.write()
    assert fed.aggregation.positions[EVENTS, 0] == 4
    assert fed.positions[EVENTS, 0] == 1
    assert list(fed.topics[STATE]) == [other.repository]


def read_again_from_the_stored_position(fed: FedAggregation) -> None:
    """As the next session does once the topic takes the message."""
    fed.restart()
    fed.aggregation.events.ends[0] = len(fed.events)
    for record in fed.events[fed.positions[EVENTS, 0] :]:
        fed.take(fed.take_event, record)
    fed.commit()


def adopt(chain: Chain) -> tuple[Chain, Event]:
    """The history that replaces the chain's, and its first event."""
    adopted = Chain(chain.path, incarnation=3)
    return adopted, adopted.next(Type.SYNC, detail={"history": "adopted", "replaces": chain.incarnation})


def fork_of(chain: Chain) -> Event:
    """An event of another history, which no adoption names."""
    foreign = Chain(chain.path, incarnation=2)
    return foreign.take(len(chain.events) + 1)[-1]


def test_a_settled_fork_does_not_return_with_events_of_one_that_waits() -> None:
    fed, waiting, other = FedAggregation("alpha"), Chain("a"), Chain("b")
    refuse(fed, waiting)
    fed.event(other.next(), waiting.next(), fork_of(other))
    fed.commit()
    adopted, event = adopt(other)
    fed.event(event)
    fed.commit()
    assert fed.positions[EVENTS, 0] == 1
    assert not fed.state(adopted).fork
    read_again_from_the_stored_position(fed)
    assert not fed.state(adopted).fork
    assert fed.positions[EVENTS, 0] == 4


def test_a_fork_behind_an_adoption_stays_one_when_it_is_read_again() -> None:
    fed, waiting, other = FedAggregation("alpha"), Chain("a"), Chain("b")
    refuse(fed, waiting)
    fed.event(other.next(), waiting.next())
    adopted, event = adopt(other)
    fork = fork_of(other)
    fed.event(event, fork)
    fed.commit()
    read_again_from_the_stored_position(fed)
    assert fed.state(adopted).fork == fork.id
    assert [each.reason for each in fed.errors if "is a fork" in each.reason] == [
        f"b: event 2 ({fork.id}) is a fork: the log continued from 1 ({event.id}); "
        "find out which history is true, then adopt it"
    ]


def test_no_stored_position_passes_a_fork_that_waits() -> None:
    fed, other = FedAggregation("alpha"), Chain("b")
    fed.aggregation.events.ends[0] = 3
    fork = fork_of(other)
    fed.event(other.next(), fork)
    fed.commit()
    assert fed.positions[EVENTS, 0] == 1
    assert not fed.state(other).fork
    fed.event(other.next())
    fed.commit()
    assert fed.positions[EVENTS, 0] == 3
    assert fed.state(other).fork == fork.id


def test_a_successor_waits_for_a_repository_that_waits_itself() -> None:
    fed, former = FedAggregation("alpha"), Chain("x")
    fed.event(former.next())
    fed.ack(former.ack("alpha", 1))
    fed.commit()
    assert fed.state(former).noticed == 1
    refuse(fed, former)
    fed.event(former.next(Type.DELETED))
    successor = Chain("x", generation=2)
    fed.event(successor.next())
    fed.ack(successor.ack("alpha", 1, 0))
    fed.commit()
    fed.now += 1e6
    fed.commit()
    assert fed.state(successor).released == 0
    found = alarms(fed.aggregation, survey(fed.aggregation, fed.silence, fed.now), 1e9)
    texts = [alarm.describe(0.0) for alarm in found]
    assert any("of which a topic refuses a message for its size: raise the topic's" in text for text in texts)
    assert (
        f"message too large: x waits, for topic {NOTICES} refuses a message of 2000 bytes (it takes 1000); "
        in "".join(texts)
    )


@pytest.mark.parametrize(("topic", "is_written"), [(NOTICES, True), (STATE, False)])
def test_rewritten_states_leave_out_one_that_their_topic_refuses(topic: str, *, is_written: bool) -> None:
    fed, waiting, other = FedAggregation("alpha"), Chain("a"), Chain("b")
    fed.event(waiting.next(), other.next())
    fed.commit()
    refuse(fed, waiting, topic=topic)
    fed.topics[STATE].clear()
    fed.aggregation.write_again([waiting.repository, other.repository])
    fed.write()
    assert (waiting.repository in fed.topics[STATE]) is is_written
    assert other.repository in fed.topics[STATE]


@pytest.mark.parametrize("key", [f"{'a' * 32}/7", f"{'a' * 32}/0:7", "a" * 32])
def test_a_record_stands_for_its_repository_once(key: str) -> None:
    poison = Poison()
    assert poison.refuse(large(key, topic=PENDING))
    assert list(poison.refused) == ["a" * 32]
    assert not poison.refuse(large(key, topic=PENDING))


@pytest.mark.parametrize(("topic", "key"), [(STATE, "aggregator"), (ROSTER, "roster"), (NOTICES, None)])
def test_a_record_about_no_repository_makes_none_wait(topic: str, key: str | None) -> None:
    poison = Poison()
    assert not poison.refuse(large(key, topic=topic))
    assert not poison.refusals


def test_leaving_out_values_does_not_help_a_second_refusal_of_rejects() -> None:
    poison = Poison()
    assert poison.refuse(large("x", topic=ERRORS))
    assert not poison.refuse(large("x", topic=ERRORS))


class Limits(MemoryLog):
    limit: int | None = 1000

    def largest(self, topic: str) -> int | None:
        if self.limit == 0:
            raise Unavailable("away")
        return self.limit


@pytest.mark.parametrize(
    ("now", "is_due"), [(1000, False), (2000, True), (500, True), (None, True), (0, False)], ids=str
)
def test_refused_records_are_tried_again_once_the_limit_has_changed(now: int | None, *, is_due: bool) -> None:
    poison, log, clock = Poison(), Limits(), HandClock()
    watch = RefusalWatch(poison, log, clock, 5.0)
    clock.advance(10)
    assert not watch.is_due()
    poison.refuse(large("a" * 32))
    log.limit = now
    assert watch.is_due() is is_due
    poison.try_again()
    assert not poison.refusals


def test_refused_records_are_tried_again_where_no_limit_is_shown() -> None:
    poison, log, clock = Poison(), Limits(), HandClock()
    poison.refuse(large("a" * 32, limit=None))
    log.limit = None
    watch = RefusalWatch(poison, log, clock, 5.0)
    clock.advance(RETRIES.first / 2)
    assert not watch.is_due()
    clock.advance(RETRIES.first / 2)
    assert watch.is_due()

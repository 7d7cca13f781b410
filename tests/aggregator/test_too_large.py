# SPDX-License-Identifier: GPL-2.0-or-later
"""Topics whose `max.message.bytes` is too small: the repository waits whose record Kafka refuses, and no other one."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import ACKS, ERRORS, NOTICES, PENDING, STATE, Log, NewRecord, partition_of, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.table import find_beginnings, read_records, read_table
from hgext.vcsreplicator.words.event import Type
from hgext.vcsreplicator.words.records import AggregatorHeartbeat, ErrorRecord, Notice, RepositoryState
from hgext.vcsreplicator.words.roster import Verb
from hgext.vcsreplicator.words.shape import from_json
from testing.builders.aggregator.aggregating import Aggregator, ask, mirrors, send
from testing.builders.aggregator.chains import Chain, pushed
from testing.services.kafka import Kafka
from testing.waiting import eventually

pytestmark = pytest.mark.processes

SOON = 60.0
LIMIT = 100_000
PARTITIONS = 4


@pytest.fixture
def url(kafka: Kafka, unique_name: str) -> str:
    return f"{kafka.url}?topic-prefix={unique_name}-"


@pytest.fixture
def log(url: str) -> Iterator[Log]:
    with open_log(url, creates=True) as log:
        log.create(topics(partitions=PARTITIONS))
        ask(log, Verb.ADD, "alpha")
        yield log


@pytest.fixture
def set_largest(kafka: Kafka, unique_name: str) -> Callable[[str, int], None]:
    return lambda topic, limit: kafka.set_largest(f"{unique_name}-{topic}", limit)


def pair() -> tuple[Chain, Chain]:
    """Two repositories whose events share a partition."""
    found = Chain("group/0")
    place = partition_of(found.repository, PARTITIONS)
    return found, next(
        chain
        for chain in map(Chain, (f"group/{at}" for at in range(1, 99)))
        if partition_of(chain.repository, PARTITIONS) == place
    )


def grow(chain: Chain) -> None:
    """A push whose event has 200 kB."""
    changes = pushed(len(chain.events) + 1)
    nodes = tuple(f"{at:040x}" for at in range(5000))
    chain.next(changes=type(changes)(added=changes.added, heads_added=nodes, push=changes.push))


def noticed(log: Log, chain: Chain) -> list[int]:
    notices = [from_json(Notice, each.value or b"") for each in read_records(log, find_beginnings(log, NOTICES))]
    return [notice.event.seq for notice in notices if notice.event.repository == chain.repository]


def state_of(log: Log, chain: Chain) -> RepositoryState:
    return from_json(RepositoryState, read_table(log, STATE).value(STATE, chain.repository) or b"")


def alarms(log: Log) -> str:
    beat = read_table(log, STATE).value(STATE, "aggregator")
    return "\n".join(from_json(AggregatorHeartbeat, beat).alarms) if beat else ""


@pytest.mark.sample(1)
@pytest.mark.parametrize("topic", [NOTICES, PENDING])
def test_only_a_refused_records_repository_waits_for_the_limit(
    url: str, log: Log, tmp_path: Path, set_largest: Callable[[str, int], None], topic: str
) -> None:
    waiting, other = pair()
    send(log, [waiting.next(), other.next()])
    with mirrors(url, "alpha"), Aggregator(url, tmp_path) as aggregator:
        eventually(lambda: noticed(log, waiting) == [1] and noticed(log, other) == [1], timeout=SOON)
        set_largest(topic, LIMIT)
        grow(waiting)
        send(log, waiting.events[1:])
        send(log, [waiting.next(), *other.take(2)])
        eventually(lambda: noticed(log, other) == [1, 2, 3], timeout=SOON)
        told = f"message too large: group/0 waits, for topic {topic} refuses a message of"
        eventually(lambda: told in alarms(log), timeout=SOON)
        assert f"bytes (it takes {LIMIT - 128}); correct max.message.bytes" in alarms(log)
        said = [line for line in aggregator.lines() if line["event"] == "message too large, its repository waits"]
        assert [(line["repository"], line["topic"], line["limit"]) for line in said] == [
            (waiting.repository, topic, LIMIT - 128)
        ]
        aggregator.kill()
        with Aggregator(url, tmp_path) as again:
            again.ready()
            send(log, [waiting.next(), other.next()])
            eventually(lambda: noticed(log, other) == [1, 2, 3, 4] and told in alarms(log), timeout=SOON)
            assert noticed(log, waiting) == [1]
            set_largest(topic, 1_000_000)
            eventually(lambda: noticed(log, waiting) == [1, 2, 3, 4], timeout=SOON)
            eventually(lambda: not alarms(log), timeout=SOON)
            assert noticed(log, other) == [1, 2, 3, 4]
    assert not [*read_records(log, find_beginnings(log, ERRORS))]


def test_a_settled_fork_does_not_return_when_the_topic_takes_its_message(
    url: str, log: Log, tmp_path: Path, set_largest: Callable[[str, int], None]
) -> None:
    waiting, other = pair()
    send(log, [waiting.next(), other.next()])
    with mirrors(url, "alpha"), Aggregator(url, tmp_path):
        eventually(lambda: noticed(log, waiting) == [1] and noticed(log, other) == [1], timeout=SOON)
        set_largest(NOTICES, LIMIT)
        grow(waiting)
        send(log, waiting.events[1:])
        eventually(lambda: "message too large" in alarms(log), timeout=SOON)
        foreign = Chain(other.path, incarnation=2)
        send(log, foreign.take(2)[1:])
        eventually(lambda: state_of(log, other).fork == foreign.events[1].id, timeout=SOON)
        adopted = Chain(other.path, incarnation=3)
        send(log, [adopted.next(Type.SYNC, detail={"history": "adopted", "replaces": other.incarnation})])
        eventually(lambda: state_of(log, other).incarnation == adopted.incarnation, timeout=SOON)
        assert not state_of(log, other).fork
        set_largest(NOTICES, 1_000_000)
        eventually(lambda: noticed(log, waiting) == [1, 2], timeout=SOON)
        send(log, [adopted.next()])
        eventually(lambda: state_of(log, other).seq == 2, timeout=SOON)
        assert not state_of(log, other).fork


def test_a_reject_that_its_topic_refuses_is_kept_without_its_value(
    url: str, log: Log, tmp_path: Path, set_largest: Callable[[str, int], None]
) -> None:
    chain = Chain("group/0")
    set_largest(ERRORS, 20_000)
    log.append([NewRecord(topic=ACKS, key="alpha/x", value=b"?" * 50_000)])
    send(log, [chain.next()])
    with mirrors(url, "alpha"), Aggregator(url, tmp_path):
        eventually(lambda: noticed(log, chain) == [1], timeout=SOON)
    [kept] = [from_json(ErrorRecord, each.value or b"") for each in read_records(log, find_beginnings(log, ERRORS))]
    assert (kept.topic, kept.offset, kept.value) == (ACKS, 0, "")


def test_an_aggregator_waits_for_a_topic_that_refuses_its_heartbeat(
    url: str, log: Log, tmp_path: Path, set_largest: Callable[[str, int], None]
) -> None:
    chain = Chain("group/0")
    set_largest(STATE, 150)
    send(log, [chain.next()])
    with mirrors(url, "alpha"), Aggregator(url, tmp_path) as aggregator:
        told = "message too large, all repositories wait"
        eventually(lambda: sum(line["event"] == told for line in aggregator.lines()) > 2, timeout=SOON)
        set_largest(STATE, 1_000_000)
        eventually(lambda: noticed(log, chain) == [1], timeout=SOON)

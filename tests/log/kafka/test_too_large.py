# SPDX-License-Identifier: GPL-2.0-or-later
"""Topics whose `max.message.bytes` is too small: the log names the records that Kafka refuses, and writes none behind them."""

from collections.abc import Iterator, Sequence

import pytest

from hgext.vcsreplicator.log import EVENTS, NOTICES, PENDING, STATE, NewRecord, TooLarge, topics
from hgext.vcsreplicator.log.kafka.adapter import KafkaLog, ProducerKind
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.table import find_beginnings, read_records
from testing.services.kafka import Kafka
from testing.waiting import eventually

LIMIT = 100_000


@pytest.fixture
def log(kafka: Kafka, unique_name: str) -> Iterator[KafkaLog]:
    with open_log(f"{kafka.url}?topic-prefix={unique_name}-") as log:
        assert isinstance(log, KafkaLog)
        log.create(topics(partitions=2))
        for topic in (EVENTS, NOTICES):
            kafka.set_largest(f"{unique_name}-{topic}", LIMIT)
        yield log


def sized(topic: str, sizes: Sequence[int]) -> list[NewRecord]:
    """Records of one partition, of these sizes."""
    partition = 0 if topic == EVENTS else None
    return [
        NewRecord(topic=topic, key=f"n{at}", value=b"." * size, partition=partition) for at, size in enumerate(sizes)
    ]


def keys(log: KafkaLog, topic: str) -> list[str | None]:
    return [record.key for record in read_records(log, find_beginnings(log, topic))]


def test_no_record_behind_a_refused_one_is_written(log: KafkaLog) -> None:
    with pytest.raises(
        TooLarge, match=f"topic events, key n1: message of 200002 bytes, expected at most {LIMIT - 128}"
    ):
        log.append(sized(EVENTS, [20_000, 200_000, *[20_000] * 8]))
    assert set(keys(log, EVENTS)) <= {"n0"}


def test_an_append_is_not_refused_with_the_larger_one_of_another_thread(log: KafkaLog) -> None:
    log.append(sized(EVENTS, [1]))
    producer = log._open_producer(ProducerKind.OTHERS)
    [large] = [producer.send(**log.broker.plan(message)) for message in sized(EVENTS, [200_000])]
    eventually(lambda: large.is_done, "Kafka refuses what the other thread sent")
    log.append([NewRecord(topic=EVENTS, key="small", value=b"1", partition=0)])
    assert keys(log, EVENTS) == ["n0", "small"]


def test_small_records_that_share_a_batch_are_not_refused_with_it(log: KafkaLog) -> None:
    with pytest.raises(TooLarge) as caught:
        log.append(sized(NOTICES, [*[3000] * 4, 200_000]))
    assert [(each.topic, each.key) for each in caught.value.records] == [(NOTICES, "n4")]


@pytest.mark.parametrize("has_positions", [False, True])
def test_a_transaction_names_what_is_refused_and_writes_nothing(log: KafkaLog, *, has_positions: bool) -> None:
    transactor = log.transactor("one")
    transactor.expect([NOTICES, PENDING, STATE])
    wanted = [*sized(NOTICES, [10, 200_000, 10]), *sized(STATE, [10])]
    positions = {(EVENTS, 0): 0} if has_positions else None
    with pytest.raises(TooLarge) as caught:
        transactor.commit(wanted, group="one", positions=positions)
    [refused] = caught.value.records
    assert (refused.topic, refused.key, refused.size, refused.limit) == (NOTICES, "n1", 200_002, LIMIT - 128)
    transactor.renew()
    transactor.commit(sized(NOTICES, [20]))
    transactor.close()
    assert keys(log, NOTICES) == ["n0"]
    assert keys(log, STATE) == []


def test_a_transaction_names_all_that_is_refused_at_once(log: KafkaLog) -> None:
    transactor = log.transactor("one")
    wanted = [*sized(NOTICES, [10, 200_000] * 8), *sized(EVENTS, [10, 200_000])]
    with pytest.raises(TooLarge) as caught:
        transactor.commit(wanted)
    transactor.close()
    expected = [*((NOTICES, f"n{at}") for at in range(1, 16, 2)), (EVENTS, "n1")]
    assert [(each.topic, each.key) for each in caught.value.records] == expected


def test_the_limit_of_a_topic_is_what_it_takes_now(log: KafkaLog, kafka: Kafka, unique_name: str) -> None:
    assert log.largest(NOTICES) == LIMIT - 128
    kafka.set_largest(f"{unique_name}-{NOTICES}", 2 * LIMIT)
    assert log.largest(NOTICES) == 2 * LIMIT - 128
    log.append(sized(NOTICES, [2 * LIMIT - 130]))

# SPDX-License-Identifier: GPL-2.0-or-later
"""What a reader costs while nothing happens: fetches that wait at the broker, and no polling."""

from contextlib import closing
from urllib.parse import urlsplit

import pytest
from kafka import TopicPartition
from kafka.consumer import fetcher as library
from kafka.protocol.data_container import DataContainer

from hgext.vcsreplicator.log import NOTICES, NewRecord, topics
from hgext.vcsreplicator.log.kafka import connections
from hgext.vcsreplicator.log.kafka import reader as readers
from hgext.vcsreplicator.log.kafka.records import remember_partitions
from hgext.vcsreplicator.log.opening import open_log
from testing.services.kafka import Kafka
from testing.waiting import eventually

pytestmark = [pytest.mark.processes, pytest.mark.services]


def test_a_fetch_looks_closely_only_at_partitions_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    remember_partitions()
    remember_partitions()  # once for each reader
    compared: list[object] = []
    ordinary = DataContainer.__eq__
    monkeypatch.setattr(DataContainer, "__eq__", lambda one, other: compared.append(one) or ordinary(one, other))

    def partitions(offset: int) -> dict[TopicPartition, object]:
        at = {number: offset if number == 3 else 7 for number in range(16)}
        make = library._FetchPartition
        return {TopicPartition("t", number): make(partition=number, fetch_offset=at[number]) for number in at}

    session = library.FetchSessionHandler(1)
    assert len(session.build_next(partitions(1)).to_send) == 1, "one topic, with all partitions"
    session.next_metadata = library.FetchMetadata.new_incremental(5)
    [topic] = session.build_next(partitions(2)).to_send
    assert [(each.partition, each.fetch_offset) for each in topic.partitions] == [(3, 2)]
    assert len(compared) == 1


def test_a_reader_without_records_asks_rarely(kafka: Kafka, unique_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "TROUBLE", 0.0)
    with open_log(f"{kafka.url}?topic-prefix={unique_name}.") as log:
        log.create(topics(partitions=1))
        with closing(log.reader({(NOTICES, 0): 0})) as reader:
            assert isinstance(reader, readers.KafkaReader)
            reader.poll(0.5)
            assert reader._consumer is not None
            fetcher, sent = reader._consumer._fetcher, []
            send = fetcher.send_fetches
            monkeypatch.setattr(fetcher, "send_fetches", lambda: sent.append(1) or send())
            assert reader.poll(2 * readers.QUIET_FETCH[True]) == []
            assert 1 <= len(sent) <= 4, "each waits at the broker"
            log.append([NewRecord(topic=NOTICES, key="x", value=b"1")])
            assert [record.value for record in reader.poll(30)] == [b"1"]


def test_a_broker_asked_after_again_is_asked_on_the_same_connection(
    kafka: Kafka, unique_name: str, suspicious: connections.HangingBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "PROBE_EVERY", 0.1)
    with open_log(f"{kafka.url}?topic-prefix={unique_name}.") as log:
        log.create(topics(partitions=1))
        log.close()  # the administration has a client too, which could be the one that asks
        with closing(log.reader({(NOTICES, 0): 0})) as reader:
            assert isinstance(reader, readers.KafkaReader)
            reader.poll(0)
            log.close()
            consumer, asked = reader._consumer, []
            assert consumer is not None

            def probes() -> list[object]:
                reader.poll(0.1)
                return [each for name, each in list(consumer._manager._conns.items()) if str(name).startswith("probe-")]

            [connection] = eventually(probes, "a probe")
            send = connection.send_request
            monkeypatch.setattr(
                connection, "send_request", lambda *given, **named: asked.append(1) or send(*given, **named)
            )
            eventually(lambda: probes() == [connection] and len(asked) > 1, "asked twice more")
    assert ("127.0.0.1", urlsplit(kafka.url).port) not in suspicious


def test_a_reader_looks_for_more_now_and_then_though_records_come(
    kafka: Kafka, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "QUIET_LOOK_AROUND", 60.0)
    monkeypatch.setattr(readers, "RARE_LOOK_AROUND", 1.0)
    looks: list[float] = []
    look = readers.KafkaReader._look_around
    monkeypatch.setattr(
        readers.KafkaReader, "_look_around", lambda self, consumer: (looks.append(1.0), look(self, consumer))[1]
    )
    with open_log(f"{kafka.url}?topic-prefix={unique_name}.") as log:
        log.create(topics(partitions=1))
        with closing(log.reader({(NOTICES, 0): 0})) as reader:

            def has_looked() -> bool:
                log.append([NewRecord(topic=NOTICES, key="x", value=b"1")])
                assert eventually(lambda: reader.poll(1.0), "the record")
                return bool(looks)

            eventually(has_looked, "a look")


def test_a_new_reader_finds_its_brokers_and_its_records_in_short_turns(
    kafka: Kafka, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "SLICE", 1000.0)  # what waits for such a turn has no record when the poll ends
    with open_log(f"{kafka.url}?topic-prefix={unique_name}.") as log:
        log.create(topics(partitions=1))
        log.append([NewRecord(topic=NOTICES, key="x", value=b"1")])
        with closing(log.reader({(NOTICES, 0): 0})) as reader:
            assert [record.value for record in reader.poll(20)] == [b"1"]

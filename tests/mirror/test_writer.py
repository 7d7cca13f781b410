# SPDX-License-Identifier: GPL-2.0-or-later
"""The thread that writes for a mirror: acks before positions, the newest of each key, over outages of the log too."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from hgext.vcsreplicator.log import ACKS, ERRORS, EVENTS, Log, NewRecord, partition_of, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.table import find_beginnings, read_records
from hgext.vcsreplicator.mirror import writer as writing
from hgext.vcsreplicator.mirror.sources import SkippedRecords
from hgext.vcsreplicator.mirror.writer import AckWriter, Ends
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.records import ErrorRecord
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.log.memorylog import MemoryLog
from testing.services.kafka import Kafka
from testing.waiting import eventually

KEY = "alpha/" + "a" * 32


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with open_log(f"sqlite:///{str(tmp_path / 'log.db').lstrip('/')}", creates=True) as log:
        log.create(topics(partitions=1))
        yield log


class Away:
    """A log that is away for the first call of `act`; meanwhile something happens. Keeps what was called."""

    def __init__(self, log: Log, act: str, meanwhile: Callable[[], None]) -> None:
        self._log, self._act, self._meanwhile = log, act, meanwhile
        self._is_away = True
        self.calls: list[tuple[str, Any]] = []

    def _called(self, name: str, what: Any) -> None:
        self.calls.append((name, what))
        if name == self._act and self._is_away:
            self._is_away = False
            self._meanwhile()
            raise Unavailable("away")

    def append(self, messages: Sequence[NewRecord]) -> Any:
        self._called("append", [(message.key, message.value) for message in messages])
        return self._log.append(messages)

    def acknowledge(self, group: str, topic: str, positions: dict[int, int]) -> None:
        self._called("acknowledge", dict(positions))
        self._log.acknowledge(group, topic, positions)


def sent(log: Log, act: str, before: Callable[[AckWriter], None], meanwhile: Callable[[AckWriter], None]) -> list[Any]:
    """Return what a writer calls that has `before` to write, fails at `act`, and has more to write by then."""
    done = threading.Event()

    def happen() -> None:
        meanwhile(writer)
        done.set()

    away = Away(log, act, happen)
    writer = AckWriter(cast(Log, away), "mirror-alpha", lambda arrived: None)
    before(writer)
    writer.start()
    assert done.wait(60)
    writer.close(60)
    return away.calls


def test_positions_are_stored_only_after_the_acks_before_them_are_written(log: Log) -> None:
    def write(writer: AckWriter) -> None:
        writer.ack(KEY, b"1")
        writer.positions({0: 5})

    calls = sent(log, "append", write, lambda writer: None)
    assert [name for name, _ in calls] == ["append", "append", "acknowledge"]
    assert log.stored("mirror-alpha", EVENTS) == {0: 5}


def test_after_an_outage_the_newest_ack_and_position_are_written_alone(log: Log) -> None:
    def write(number: int) -> Callable[[AckWriter], None]:
        def act(writer: AckWriter) -> None:
            writer.ack(KEY, b"%d" % number)
            writer.ack(f"other{number}", b"x")
            writer.positions({0: number})

        return act

    calls = sent(log, "append", write(1), write(2))
    appended = [pair for name, pairs in calls[1:] if name == "append" for pair in pairs]
    assert [value for key, value in appended if key == KEY] == [b"2"]
    assert {key for key, _ in appended} == {KEY, "other1", "other2"}
    assert [positions for name, positions in calls if name == "acknowledge"] == [{0: 2}]


class DelayingLog(MemoryLog):
    """A network delivers the first append only behind the second, when its writer has given it up."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self.create(topics())
        self._meanwhile, self._held = meanwhile, list[NewRecord]()

    def append(self, messages: Sequence[NewRecord], *, timeout: float = 30.0) -> list[tuple[int, int]]:
        if not self.records(ACKS) and not self._held:
            self._held = [*messages]
            self._meanwhile()
            raise Unavailable("no answer")
        places = super().append(messages)
        if self._held:
            super().append(self._held)
            self._held = []
        return places


def test_an_ack_that_is_delivered_late_does_not_stay_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "LATE", 0.5)
    log = DelayingLog(lambda: writer.ack(KEY, b"2"))
    writer = AckWriter(log, "mirror-alpha", lambda arrived: None)
    writer.ack(KEY, b"1")
    writer.start()
    eventually(lambda: [record.value for record in log.records(ACKS)] == [b"1"])
    eventually(lambda: [record.value for record in log.records(ACKS)] == [b"2"])
    assert log.ends(ACKS) == {0: 3}
    writer.close(60)


def test_positions_that_could_not_be_stored_are_stored_later(log: Log) -> None:
    calls = sent(log, "acknowledge", lambda writer: writer.positions({0: 5}), lambda writer: writer.ack(KEY, b"1"))
    assert [name for name, _ in calls] == ["acknowledge", "append", "acknowledge"]
    assert log.stored("mirror-alpha", EVENTS) == {0: 5}


def test_rejects_are_written_in_their_order_and_none_is_lost_in_an_outage(log: Log) -> None:
    def reject(number: int) -> Callable[[AckWriter], None]:
        return lambda writer: writer.append(NewRecord(topic=ERRORS, key=None, value=b"%d" % number))

    sent(log, "append", reject(1), reject(2))
    reader = log.reader({(ERRORS, 0): 0})
    found: list[bytes | None] = []
    eventually(lambda: found.extend(record.value for record in reader.poll(0.1)) or len(found) == 2)
    reader.close()
    assert found == [b"1", b"2"]
    assert log.ends(ACKS) == {0: 0}


def test_a_log_that_lost_acks_is_reported_by_the_offset_of_the_next() -> None:
    log, found = MemoryLog(), list[Any]()
    log.create(topics(partitions=1))
    writer = AckWriter(log, "mirror-alpha", found.append).start()

    def write(number: int) -> None:
        writer.ack(KEY, b"%d" % number)
        eventually(lambda: any(record.value == b"%d" % number for record in log.records(ACKS)))

    write(1)
    write(2)
    former = log.copied(ACKS)
    write(3)
    assert found == []
    log.restore(ACKS, former)
    write(4)
    writer.close(60)
    assert found == [SkippedRecords(positions={})]


def test_a_silent_partition_keeps_neither_acks_nor_the_ends_of_others() -> None:
    log, found = MemoryLog(), list[Any]()
    log.create(topics(partitions=2))
    names = {partition_of(name, 2): name for name in "abcd"}
    log.append([NewRecord(topic=EVENTS, key="x", value=b"", partition=1)])
    log.leaderless.add((EVENTS, 0))
    writer = AckWriter(log, "mirror-alpha", found.append).start()
    writer.ask_ends(dict.fromkeys(names.values(), (None, 3)))
    eventually(lambda: found)
    writer.ack(KEY, b"1")
    writer.close(60)
    assert found == [Ends(ends={1: 1}, expected={names[1]: (None, 3)})]
    assert [record.value for record in log.records(ACKS)] == [b"1"]


def test_written_acks_are_not_written_again_for_unstored_positions(log: Log) -> None:
    def write(writer: AckWriter) -> None:
        writer.ack(KEY, b"1")
        writer.append(NewRecord(topic=ERRORS, key=None, value=b"wrong"))
        writer.positions({0: 5})

    calls = sent(log, "acknowledge", write, lambda writer: None)
    assert [name for name, _ in calls] == ["append", "acknowledge", "acknowledge"]


# -- topics whose `max.message.bytes` is too small


@pytest.fixture
def kafka_log(kafka: Kafka, unique_name: str) -> Iterator[Log]:
    with open_log(f"{kafka.url}?topic-prefix={unique_name}-") as log:
        log.create(topics(partitions=1))
        yield log


def test_an_ack_that_its_topic_refuses_waits_and_delays_no_other(
    kafka_log: Log, kafka: Kafka, unique_name: str
) -> None:
    kafka.set_largest(f"{unique_name}-{ACKS}", 20_000)
    writer = AckWriter(kafka_log, "alpha", lambda report: None)
    writer.ack("alpha/large", b"." * 50_000)
    writer.ack("alpha/small", b"1")
    writer.positions({0: 0})
    writer.start()
    eventually(lambda: keys_of(kafka_log) == {"alpha/small"}, timeout=30)
    writer.ack("alpha/later", b"1")
    eventually(lambda: keys_of(kafka_log) == {"alpha/small", "alpha/later"}, timeout=30)
    assert kafka_log.stored("alpha", EVENTS) == {}
    kafka.set_largest(f"{unique_name}-{ACKS}", 100_000)
    eventually(lambda: keys_of(kafka_log) == {"alpha/small", "alpha/later", "alpha/large"}, timeout=30)
    eventually(lambda: kafka_log.stored("alpha", EVENTS) == {0: 0}, timeout=30)
    writer.close(30)


def test_the_ends_of_partitions_are_reported_while_a_topic_refuses_an_ack(
    kafka_log: Log, kafka: Kafka, unique_name: str
) -> None:
    kafka.set_largest(f"{unique_name}-{ACKS}", 20_000)
    found: list[Any] = []
    writer = AckWriter(kafka_log, "alpha", found.append)
    writer.ack("alpha/large", b"." * 50_000)
    writer.positions({0: 0})
    writer.ask_ends({"a": (None, 3)})
    writer.start()
    eventually(lambda: found == [Ends(ends={0: 0}, expected={"a": (None, 3)})], timeout=30)
    assert kafka_log.stored("alpha", EVENTS) == {}
    kafka.set_largest(f"{unique_name}-{ACKS}", 100_000)
    writer.close(30)
    assert kafka_log.stored("alpha", EVENTS) == {0: 0}


def test_a_reject_that_its_topic_refuses_is_written_without_its_value(
    kafka_log: Log, kafka: Kafka, unique_name: str
) -> None:
    kafka.set_largest(f"{unique_name}-{ERRORS}", 20_000)
    reject = ErrorRecord(
        time=1.0, service="alpha", reason="no", topic=EVENTS, partition=0, offset=7, key="k", value="A" * 50_000
    )
    writer = AckWriter(kafka_log, "alpha", lambda report: None)
    writer.append(NewRecord(topic=ERRORS, key="k", value=to_json(reject)))
    writer.ack("alpha/small", b"1")
    writer.start()
    eventually(lambda: keys_of(kafka_log) == {"alpha/small"}, timeout=30)
    writer.close(30)
    [kept] = read_records(kafka_log, find_beginnings(kafka_log, ERRORS))
    assert from_json(ErrorRecord, kept.value or b"") == reject.without_value()


def keys_of(log: Log) -> set[str | None]:
    return {record.key for record in read_records(log, find_beginnings(log, ACKS))}

# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads the log on Kafka: a consumer without a group, watched by its owner."""

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from kafka import KafkaConsumer, TopicPartition
from kafka import errors as kafka_errors
from kafka.consumer.fetcher import ConsumerRecord

from ...words.errors import Expired, ReplicationError, Rewound
from .. import Record
from .broker import Broker
from .clients import connect, rim
from .records import Unpacked, record_of

# Seconds a poll may stay in the client, which cannot be woken; shorter ones cost an idle service 3 % of a core.
SLICE = 0.2

# Seconds without a record after which a reader asks the broker whether there are any.
LOOK_AROUND = 3.0

TopicPartitionKey = tuple[str, int]


class KafkaReader:
    """A consumer without a group.

    Its positions are ours, so a new consumer continues exactly where the old one stopped.
    """

    def __init__(self, broker: Broker, positions: Mapping[TopicPartitionKey, int]) -> None:
        self._broker = broker
        self._names = {broker.partition(*key): key for key in positions}
        self._next = {broker.partition(*key): at for key, at in positions.items()}
        self._paused: set[TopicPartition] = set()
        self._consumer: KafkaConsumer | None = None
        self._marks: dict[TopicPartition, ConsumerRecord] = {}
        self._unsure: set[TopicPartition] = set()
        self._lost = 0
        self._topics: dict[str, object] = {}
        self._rewound: Rewound | None = None
        self._woken = threading.Event()
        self._looked = 0.0
        self._behind: dict[TopicPartition, int] = {}
        self._unanswered = False

    def poll(self, timeout: float, *, limit: int = 500) -> list[Record]:
        deadline = time.monotonic() + timeout
        while True:
            if self._rewound is not None:
                raise self._rewound
            woken = self._woken.is_set()
            self._woken.clear()
            left = deadline - time.monotonic()
            try:
                records = self._read(0 if woken else max(0.0, min(left, SLICE)), limit)
            except ReplicationError as error:
                self._rewound = error if isinstance(error, Rewound) else None
                self._drop()
                raise
            if records or woken or left <= 0:
                return records

    def positions(self) -> dict[TopicPartitionKey, int]:
        return {key: self._position(partition) for partition, key in self._names.items()}

    def pause(self, partitions: Sequence[TopicPartitionKey]) -> None:
        changed = [self._broker.partition(*key) for key in partitions]
        self._paused.update(changed)
        if self._consumer is not None:
            self._consumer.pause(*changed)

    def resume(self, partitions: Sequence[TopicPartitionKey]) -> None:
        changed = [self._broker.partition(*key) for key in partitions]
        self._paused.difference_update(changed)
        if self._consumer is not None:
            self._consumer.resume(*changed)

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        self._drop()

    def _read(self, seconds: float, limit: int) -> list[Record]:
        with rim(self._broker.options, "read"):
            try:
                return self._fetch(seconds, limit)
            except kafka_errors.LogTruncationError as error:
                raise Rewound(f"{self._broker.options.url}: the log lost records: {error}") from error
            except kafka_errors.OffsetOutOfRangeError as error:
                if self._consumer is None:
                    raise
                beginnings = self._consumer.beginning_offsets(list(self._names), timeout_ms=2_000)
                if self._forget_marks(self._consumer, beginnings):
                    return []
                early = [partition for partition, at in self._next.items() if at < beginnings[partition]]
                kind = Expired if early else Rewound
                raise kind(f"{self._broker.options.url}: the position is gone: {error}") from error

    def _forget_marks(self, consumer: KafkaConsumer, beginnings: Mapping[TopicPartition, int]) -> bool:
        """Forget the marks that retention removed; return whether there were any."""
        gone = [partition for partition in self._unsure if self._marks[partition].offset < beginnings[partition]]
        for partition in gone:
            del self._marks[partition]
            self._unsure.discard(partition)
            consumer.seek(partition, self._next[partition])
        return bool(gone)

    def _fetch(self, seconds: float, limit: int) -> list[Record]:
        consumer = self._consumer or self._connect()
        if not self._names:
            time.sleep(seconds)
            return []
        if consumer._manager.lost != self._lost:
            self._read_marks_again(consumer)
        batches = consumer.poll(timeout_ms=round(seconds * 1000), max_records=limit)
        self._check_topics(consumer)
        records: list[Record] = []
        for partition, batch in batches.items():
            topic, number = self._names[partition]
            records.extend(record_of(topic, number, record) for record in self._unread(partition, batch))
            self._next[partition] = max(self._next[partition], batch[-1].offset + 1)
            self._marks[partition] = batch[-1]
        now = time.monotonic()
        if records:
            self._looked, self._behind = now, {}
        elif now - self._looked > LOOK_AROUND:
            self._look_around(consumer)
            self._looked = time.monotonic()
        return records

    def _check_topics(self, consumer: KafkaConsumer) -> None:
        """Raise Rewound for a topic that was deleted and created again.

        Positions in the old topic mean nothing in the new one.
        """
        for topic in {partition.topic for partition in self._names}:
            id_ = consumer._manager.cluster.topic_id(topic)
            if id_ is not None and self._topics.setdefault(topic, id_) != id_:
                raise Rewound(f"{self._broker.options.url}: topic {topic} was made anew")

    def _unread(self, partition: TopicPartition, batch: Sequence[ConsumerRecord]) -> Sequence[ConsumerRecord]:
        """Return the batch without the mark that was only read again.

        Raises Rewound if another record stands there now.
        """
        if partition not in self._unsure:
            return batch
        self._unsure.discard(partition)
        mark, first = self._marks[partition], batch[0]
        if first.offset > mark.offset:
            return batch
        if (first.offset, first.timestamp, first.key) != (mark.offset, mark.timestamp, mark.key):
            raise Rewound(
                f"{self._broker.options.url}: topic {partition.topic}, partition {partition.partition}: another record than "
                f"before is at {mark.offset}: the log lost records and has new ones"
            )
        return batch[1:]

    def _look_around(self, consumer: KafkaConsumer) -> None:
        """Ask the brokers for the ends while no records come.

        A consumer that has nothing to read and a consumer that is dead look the same.
        """
        every = [partition for partition in self._names if partition not in self._paused]
        led = [partition for partition in every if _is_led(consumer, partition)]
        active = led or every  # what has no leader now waits for one, while the others go on
        try:
            ends = consumer.end_offsets(active, timeout_ms=2_000) if active else {}
        except kafka_errors.KafkaTimeoutError:
            if self._unanswered or not led:
                raise
            self._unanswered = True  # until the next look it is known which broker hangs
            return
        self._unanswered = False
        positions = {partition: self._position(partition) for partition in active}
        behind = {partition: at for partition, at in positions.items() if at < ends[partition]}
        stuck = behind.items() & self._behind.items()
        self._behind = behind
        if stuck:
            raise kafka_errors.KafkaError(
                f"nothing came of {stuck.pop()[0].topic}, though there is more; connecting anew"
            )

    def _position(self, partition: TopicPartition) -> int:
        """Return the next offset to read.

        Beyond the last record returned there may be markers and aborted records, which the consumer has passed.
        """
        at = self._next[partition]
        if self._consumer is not None:
            with suppress(Exception):
                at = max(at, self._consumer.position(partition, timeout_ms=0) or 0)
        return at

    def _connect(self) -> KafkaConsumer:
        consumer: KafkaConsumer = connect(
            self._broker.options,
            KafkaConsumer,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
            allow_auto_create_topics=False,
            metrics_enabled=False,
        )
        consumer._fetcher.PartitionRecords = Unpacked
        self._consumer = consumer
        self._looked, self._behind, self._unanswered = time.monotonic(), {}, False
        if self._names:
            consumer.assign(list(self._names))
            for partition, at in self._next.items():
                consumer.seek(partition, at)
            self._read_marks_again(consumer)
            consumer.pause(*self._paused)
        return consumer

    def _read_marks_again(self, consumer: KafkaConsumer) -> None:
        """Seek to the last record that was read of each partition.

        A broker that comes back may have older data: that record is read again, and must be the same.
        """
        self._lost = consumer._manager.lost
        self._next = {partition: self._position(partition) for partition in self._names}
        self._unsure = set(self._marks)
        for partition, mark in self._marks.items():
            consumer.seek(partition, mark.offset)

    def _drop(self) -> None:
        if self._consumer is not None:
            self._next = {partition: self._position(partition) for partition in self._names}
            consumer, self._consumer = self._consumer, None
            with suppress(Exception):
                consumer.close(autocommit=False, timeout_ms=500)


def _is_led(consumer: KafkaConsumer, partition: TopicPartition) -> bool:
    """Return whether a reachable broker leads this partition.

    A broker is reachable unless it is known to be away.
    """
    leader = consumer._manager.cluster.leader_for_partition(partition)
    return leader not in (None, -1) and not consumer._manager.connection_delay(leader)

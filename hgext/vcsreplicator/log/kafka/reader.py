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
from .. import PartitionKey, Record, topics
from .broker import Broker
from .clients import connect, rim
from .records import Unpacked, record_of, remember_partitions

# Seconds until the client is asked again, while it may not fetch a partition yet: the first time after it
# connected, and the longest, up to which they double. Metadata and connections need a few turns of a millisecond each.
FIRST_SLICE, SLICE = 0.002, 0.05

# Seconds that a broker may keep a fetch while it has no records, by whether it is the only one. It answers at once when there are
# some; but a partition that moves to another broker waits for the end of the fetch, so after trouble it is shorter for a while.
# Must be shorter than the suspicion of `connections`, or each fetch would cause a probe.
QUIET_FETCH = {True: 3.0, False: 0.85}
# Seconds after trouble for which fetches are short.
TROUBLE = 10.0

# Seconds without a record after which a reader asks the broker for the ends: after trouble.
LOOK_AROUND = 3.0
# The same after a record: longer than the pauses between heartbeats.
QUIET_LOOK_AROUND = 6.0
# The longest, up to which the pauses double while no records come.
RARE_LOOK_AROUND = 15.0

# Topics of the log that lose no record but by retention. Of any other topic nothing is known.
_KEPT = frozenset(topic.name for topic in topics() if not topic.compacted)

_FetchedRecords = Mapping[TopicPartition, Sequence[ConsumerRecord]]


class KafkaReader:
    """A reader by a consumer without a group.

    The reader itself keeps the positions, so a new consumer continues exactly where the old one stopped.
    """

    def __init__(self, broker: Broker, positions: Mapping[PartitionKey, int], *, is_committed: bool = True) -> None:
        """Unless `is_committed`, it also returns records of transactions that are open or were aborted."""
        self._broker, self._isolation = broker, "read_committed" if is_committed else "read_uncommitted"
        self._names = {broker.partition(*key): key for key in positions}
        self._next = {broker.partition(*key): at for key, at in positions.items()}
        self._paused: set[TopicPartition] = set()
        self._consumer: KafkaConsumer | None = None
        self._marks: dict[TopicPartition, ConsumerRecord] = {}
        self._unverified: set[TopicPartition] = set()
        self._lost = 0
        self._topics: dict[str, object] = {}
        self._rewound: Rewound | None = None
        self._woken = threading.Event()
        # Set when there may be something to do: an answer, or `wake`.
        self._has_work = threading.Event()
        self._slice = FIRST_SLICE
        self._looked, self._asked, self._look_every = 0.0, 0.0, LOOK_AROUND
        self._troubled = 0.0
        self._behind: dict[TopicPartition, int] = {}
        self._unanswered = False

    def poll(self, timeout: float, *, limit: int = 500) -> list[Record]:
        deadline = time.monotonic() + timeout
        while True:
            if self._rewound is not None:
                raise self._rewound
            self._has_work.clear()
            woken = self._woken.is_set()
            self._woken.clear()
            left = deadline - time.monotonic()
            try:
                records = self._read_batch(0 if woken else max(0.0, left), limit)
            except ReplicationError as error:
                self._rewound = error if isinstance(error, Rewound) else None
                consumer = self._consumer
                self._drop()
                if consumer is not None:
                    names = {partition.topic for partition in self._names}
                    self._broker.refuse_missing(error, names, consumer._manager.cluster)
                raise
            if records or woken or left <= 0:
                return records

    def positions(self) -> dict[PartitionKey, int]:
        return {key: self._find_position(partition) for partition, key in self._names.items()}

    def pause(self, partitions: Sequence[PartitionKey]) -> None:
        changed = [self._broker.partition(*key) for key in partitions]
        self._paused.update(changed)
        if self._consumer is not None:
            self._consumer.pause(*changed)

    def resume(self, partitions: Sequence[PartitionKey]) -> None:
        changed = [self._broker.partition(*key) for key in partitions]
        self._paused.difference_update(changed)
        if self._consumer is not None:
            self._consumer.resume(*changed)

    def wake(self) -> None:
        self._woken.set()
        self._has_work.set()

    def close(self) -> None:
        self._drop()

    def _read_batch(self, seconds: float, limit: int) -> list[Record]:
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
        gone = [partition for partition in self._unverified if self._marks[partition].offset < beginnings[partition]]
        for partition in gone:
            del self._marks[partition]
            self._unverified.discard(partition)
            consumer.seek(partition, self._next[partition])
        return bool(gone)

    def _fetch(self, seconds: float, limit: int) -> list[Record]:
        consumer = self._consumer or self._connect()
        if not self._names:
            self._has_work.wait(seconds)
            return []
        if consumer._manager.lost != self._lost:
            self._read_marks_again(consumer)
            self._look_every, self._troubled = LOOK_AROUND, time.monotonic()
        batches = self._fetch_round(consumer, seconds, limit)
        self._check_topics(consumer)
        records: list[Record] = []
        for partition, batch in batches.items():
            topic, number = self._names[partition]
            records.extend(record_of(topic, number, record) for record in self._drop_mark(partition, batch))
            self._next[partition] = max(self._next[partition], batch[-1].offset + 1)
            self._marks[partition] = batch[-1]
        if records:
            self._looked, self._look_every, self._behind = time.monotonic(), QUIET_LOOK_AROUND, {}
        return records

    def _fetch_round(self, consumer: KafkaConsumer, seconds: float, limit: int) -> _FetchedRecords:
        """Do one round of `KafkaConsumer.poll`; return after each answer.

        `wake` could not end the wait of `KafkaConsumer.poll` itself.
        """
        fetcher = consumer._fetcher
        consumer._refresh_committed_offsets(timeout_ms=0)
        fetcher.reset_offsets_if_needed()
        fetcher.maybe_validate_positions()
        fetcher.validate_offsets_if_needed()
        batches: _FetchedRecords
        batches, is_partial = fetcher.fetched_records(limit)
        if not batches:
            self._look_around_if_due(consumer)
        is_quiet = self._is_quiet(consumer)
        if not is_partial and not is_quiet:
            fetcher.config["fetch_max_wait_ms"] = self._fetch_wait(consumer)
            for future in fetcher.send_fetches():
                future.add_both(lambda _: self._has_work.set())
            is_quiet = self._is_quiet(consumer)
        if batches or seconds <= 0:
            return batches
        self._has_work.wait(seconds if is_quiet else min(seconds, self._slice))
        self._slice = min(2 * self._slice, SLICE)
        batches, _ = fetcher.fetched_records(limit)
        return batches

    def _is_quiet(self, consumer: KafkaConsumer) -> bool:
        """Return whether there is nothing to do until a broker answers.

        That is so if no partition is paused, and a fetch to the leader of each is under way.
        """
        subscription, fetched = consumer._subscription, consumer._fetcher._nodes_with_pending_fetch_requests
        return not self._paused and all(
            subscription.is_fetchable(partition)
            and consumer._manager.cluster.leader_for_partition(partition) in fetched
            for partition in self._names
        )

    def _fetch_wait(self, consumer: KafkaConsumer) -> int:
        """Return the milliseconds that the next fetches may wait for records."""
        shortest = int(consumer.config["fetch_max_wait_ms"])
        is_troubled = self._paused or self._unverified or self._behind or self._unanswered
        if is_troubled or time.monotonic() - self._troubled < TROUBLE:
            return shortest
        return max(shortest, round(1000 * QUIET_FETCH[len(consumer._manager.cluster.brokers()) == 1]))

    def _check_topics(self, consumer: KafkaConsumer) -> None:
        """Raise Rewound for a topic that was deleted and created again.

        Positions in the old topic mean nothing in the new one.
        """
        for topic in {partition.topic for partition in self._names}:
            id_ = consumer._manager.cluster.topic_id(topic)
            if id_ is not None and self._topics.setdefault(topic, id_) != id_:
                raise Rewound(f"{self._broker.options.url}: topic {topic} was re-created")

    def _drop_mark(self, partition: TopicPartition, batch: Sequence[ConsumerRecord]) -> Sequence[ConsumerRecord]:
        """Return the batch without its mark, the last record that was read before.

        Raises Rewound if another record stands there now, or none: otherwise only compaction removes a record, and retention moves
        the beginning beyond it. The end of a transaction has an offset too.
        """
        if partition not in self._unverified:
            return batch
        self._unverified.discard(partition)
        mark, first = self._marks[partition], batch[0]
        if first.offset > mark.offset and self._names[partition][0] not in _KEPT:
            return batch
        if (first.offset, first.timestamp, first.key) != (mark.offset, mark.timestamp, mark.key):
            raise Rewound(
                f"{self._broker.options.url}: topic {partition.topic}, partition {partition.partition}: another record than "
                f"before is at {mark.offset}: the log lost records and has new ones"
            )
        return batch[1:]

    def _look_around_if_due(self, consumer: KafkaConsumer) -> None:
        """Ask whether there are records if none came for a while.

        Also if it did not ask for RARE_LOOK_AROUND, though records came: they may be of other partitions.

        It asks between two fetches, because the question would wait for their end; during a fetch only if the question is overdue
        by the longest time of a fetch.
        """
        now = time.monotonic()
        late = max(now - self._looked - self._look_every, now - self._asked - RARE_LOOK_AROUND)
        if late <= 0 or (late < max(QUIET_FETCH.values()) and self._is_quiet(consumer)):
            return
        self._look_around(consumer)
        self._looked = self._asked = time.monotonic()
        is_well = not (self._behind or self._unanswered)
        self._look_every = min(2 * self._look_every, RARE_LOOK_AROUND) if is_well else LOOK_AROUND

    def _look_around(self, consumer: KafkaConsumer) -> None:
        """Ask the brokers for the ends while no records come.

        A consumer that has nothing to read and a consumer that is dead look the same. Raises KafkaError if a partition stands
        where it already stood at the last look, before its end, and Rewound if its end is before what was read.
        """
        every = [partition for partition in self._names if partition not in self._paused]
        led = [partition for partition in every if _is_led(consumer, partition)]
        active = led or every  # partitions without a leader wait for one, while the others go on
        try:
            ends = consumer.end_offsets(active, timeout_ms=2_000) if active else {}
        except kafka_errors.KafkaTimeoutError:
            if self._unanswered or not led:
                raise
            self._unanswered = True  # until the next look it is known which broker hangs
            return
        self._unanswered = False
        for partition in self._unverified & ends.keys():
            if ends[partition] < self._next[partition]:  # the last record is lost, and no other came in its place
                raise Rewound(
                    f"{self._broker.options.url}: topic {partition.topic}, partition {partition.partition}: the end "
                    f"is {ends[partition]} now and was {self._next[partition]} or later: the log lost records"
                )
        positions = {partition: self._find_position(partition) for partition in active}
        behind = {partition: at for partition, at in positions.items() if at < ends[partition]}
        stuck = behind.items() & self._behind.items()
        self._behind = behind
        if stuck:
            raise kafka_errors.KafkaError(
                f"nothing came of {stuck.pop()[0].topic}, though there is more; connecting again"
            )

    def _find_position(self, partition: TopicPartition) -> int:
        """Return the next offset to read.

        Beyond the last record returned there may be markers and aborted records, which the consumer has passed.
        """
        at = self._next[partition]
        if self._consumer is not None:
            state = self._consumer._subscription.assignment.get(partition)
            if state is not None and state.position is not None:
                at = max(at, state.position.offset)
        return at

    def _connect(self) -> KafkaConsumer:
        remember_partitions()
        consumer: KafkaConsumer = connect(
            self._broker.options,
            KafkaConsumer,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level=self._isolation,
            allow_auto_create_topics=False,
            metrics_enabled=False,
        )
        consumer._fetcher.PartitionRecords = Unpacked
        self._consumer = consumer
        self._looked = self._asked = self._troubled = time.monotonic()
        self._look_every, self._slice = LOOK_AROUND, FIRST_SLICE
        self._behind, self._unanswered = {}, False
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
        self._next = {partition: self._find_position(partition) for partition in self._names}
        self._unverified = set(self._marks)
        for partition, mark in self._marks.items():
            consumer.seek(partition, mark.offset)

    def _drop(self) -> None:
        if self._consumer is not None:
            self._next = {partition: self._find_position(partition) for partition in self._names}
            consumer, self._consumer = self._consumer, None
            with suppress(Exception):
                consumer.close(autocommit=False, timeout_ms=500)


def _is_led(consumer: KafkaConsumer, partition: TopicPartition) -> bool:
    """Return whether a broker that is not known to be away leads this partition."""
    leader = consumer._manager.cluster.leader_for_partition(partition)
    return leader not in (None, -1) and not consumer._manager.connection_delay(leader)

# SPDX-License-Identifier: GPL-2.0-or-later
"""The log on Kafka, for more than one machine.

Rules of this file and of `kafka_*.py`, because the clients of kafka-python have each their own thread and their own way to fail:

- One *admin* client (topics, offsets, positions), used under `_admin_lock`, by whichever thread holds it.
- One *producer* for all `append`s, used by all threads at once. Who sees it fail drops it for all; the others fail too, and all
  come back with a new one. It sends one batch a partition at a time, so a lost batch never lets a later one overtake it.
- A *reader's consumer* and a *transactor's producer* belong to the one thread that uses them. `wake` only sets an event.
- After any unclear error a client is closed and built anew; nothing is retried inside, except by the client itself, and a
  question to a coordinator that is just starting or to a client older than an outage.
- Foreign exceptions end in `rim`; nothing outside it calls a client.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar

from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka import errors as kafka_errors
from kafka.admin import OffsetSpec
from kafka.protocol.consumer.offsets import IsolationLevel
from kafka.structs import OffsetAndMetadata

from ..errors import BadConfig, Expired, ReplicationError, Unavailable
from . import DAY, LARGEST, Message, Positions, Reader, Record, Topic, Transactor, check_message, partition_of
from .kafka_clients import Admin, close_producer, connect, rim, warm
from .kafka_options import Options
from .kafka_reader import KafkaReader
from .kafka_transactor import OWNERS, KafkaTransactor

T = TypeVar("T")
TopicPartitionKey = tuple[str, int]

ADMIN_PATIENCE = 30.0  # seconds to wait for other threads' use of the admin client
COORDINATOR_PATIENCE = 10.0  # seconds that coordinators may take to start, once the broker answers
RECORD_PATIENCE = 10.0  # seconds to wait for a record that must be there
EXTRA = 64 * 1024  # bytes of framing that Kafka adds to the largest message

STARTING = (
    kafka_errors.CoordinatorNotAvailableError,
    kafka_errors.CoordinatorLoadInProgressError,
    kafka_errors.NotCoordinatorError,
    kafka_errors.UnstableOffsetCommitError,  # a transaction that was just committed
)


class KafkaLog:
    """The log on these brokers. Nothing is contacted before it is needed."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._admin: KafkaAdminClient | None = None
        self._admin_lock = threading.Lock()
        self._producer: KafkaProducer | None = None
        self._producer_lock = threading.Lock()
        self._partitions: dict[str, int] = {}

    # Topics

    def create(self, wanted: Sequence[Topic]) -> list[str]:
        existing = self._describe()
        for topic in wanted:
            if existing.get(topic.name, topic.partitions) != topic.partitions:
                raise BadConfig(
                    f"topic {self.full(topic.name)}: has {existing[topic.name]} partitions, expected {topic.partitions}; "
                    "the number is fixed for life"
                )
        missing = [topic for topic in wanted if topic.name not in existing]
        created = [topic.name for topic in missing if self._create_one(topic)]
        if len(created) < len(missing):  # others were faster: look again at what they made
            self.create(missing)
        return created

    def partitions(self, topic: str) -> int:
        if topic not in self._partitions:
            existing = self._describe()
            if topic not in existing:
                raise BadConfig(
                    f"topic {self.full(topic)}: not in {self.options.url}; run `vcsreplicator topics create`"
                )
            self._partitions[topic] = existing[topic]
        return self._partitions[topic]

    def beginnings(self, topic: str) -> dict[int, int]:
        return self._offsets(topic, OffsetSpec.EARLIEST)

    def ends(self, topic: str) -> dict[int, int]:
        return self._offsets(topic, OffsetSpec.LATEST)

    # Records

    def append(self, messages: Sequence[Message], *, timeout: float = 30.0) -> list[tuple[int, int]]:
        for message in messages:
            check_message(message)
        if not messages:
            return []
        deadline = time.monotonic() + timeout
        plan = [self.plan(message) for message in messages]
        producer = self._appender()
        try:
            with rim(self.options, "append"):
                warm(producer, [arguments["topic"] for arguments in plan])
                futures = [producer.send(**arguments) for arguments in plan]
                results = [future.get(timeout=max(0.001, deadline - time.monotonic())) for future in futures]
        except ReplicationError:
            self._drop_appender(producer)
            raise
        return [(result.partition, result.offset) for result in results]

    def reader(self, positions: Mapping[TopicPartitionKey, int]) -> Reader:
        for key in positions:
            self.check_partition(*key)
        return KafkaReader(self, positions)

    def record_at(self, topic: str, partition: int, offset: int) -> Record | None:
        self.check_partition(topic, partition)
        if not self.beginnings(topic)[partition] <= offset < self.ends(topic)[partition]:
            return None
        reader, deadline = self.reader({(topic, partition): offset}), time.monotonic() + RECORD_PATIENCE
        try:
            while reader.positions()[topic, partition] <= offset:
                for record in reader.poll(1, limit=1):
                    return record if record.offset == offset else None
                if time.monotonic() > deadline:
                    raise Unavailable(f"{self.options.url}: topic {self.full(topic)}: offset {offset} is not readable")
        except Expired:
            pass
        finally:
            reader.close()
        return None

    def transactor(self, identity: str) -> Transactor:
        return KafkaTransactor(self, identity)

    # Positions

    def acknowledge(self, group: str, topic: str, positions: Positions) -> None:
        for partition in positions:
            self.check_partition(topic, partition)
        self.store(group, {(topic, partition): OffsetAndMetadata(at, "", -1) for partition, at in positions.items()})

    def store(self, group: str, positions: Mapping[TopicPartitionKey, OffsetAndMetadata]) -> None:
        """Store positions with their metadata, of a group without members."""
        stored = {self.partition(*key): position for key, position in positions.items()}

        def alter(admin: KafkaAdminClient) -> None:
            for partition, error in admin.alter_group_offsets(self.full(group), stored).items():
                if error is not kafka_errors.NoError:
                    raise error(f"{partition.topic}, partition {partition.partition}")

        self.ask(f"acknowledge for {group}", alter)

    def stored(self, group: str, topic: str) -> dict[int, int]:
        self.partitions(topic)
        return self._stored([self.full(group)], topic).get(self.full(group), {})

    def groups(self, topic: str) -> dict[str, dict[int, int]]:
        self.partitions(topic)
        listed = self.ask("list the groups", lambda admin: admin.list_groups())
        names = sorted({group["group_id"] for group in listed if group["group_id"].startswith(self.options.prefix)})
        found = self._stored(names, topic) if names else {}
        return {name.removeprefix(self.options.prefix): at for name, at in found.items() if at}

    def close(self) -> None:
        self.drop_admin()
        self._drop_appender(self._producer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # For readers and transactors

    def full(self, name: str) -> str:
        """The name in Kafka of a topic, a group or a transactor."""
        return self.options.prefix + name

    def partition(self, topic: str, partition: int) -> TopicPartition:
        return TopicPartition(self.full(topic), partition)

    def check_partition(self, topic: str, partition: int) -> None:
        """Raise BadConfig for a partition that is not there."""
        if not 0 <= partition < self.partitions(topic):
            raise BadConfig(
                f"topic {self.full(topic)}: no partition {partition}, expected 0 to {self.partitions(topic) - 1}"
            )

    def plan(self, message: Message) -> dict[str, Any]:
        """The arguments of `send`."""
        partition = message.partition
        if partition is None:
            partition = partition_of(message.key or "", self.partitions(message.topic))
        self.check_partition(message.topic, partition)
        return {
            "topic": self.full(message.topic),
            "partition": partition,
            "key": None if message.key is None else _encode(message.key),
            "value": message.value,
            "headers": [(name, _encode(text)) for name, text in message.headers.items()],
        }

    def new_producer(self, **ours: Any) -> KafkaProducer:
        """A producer that keeps order, loses nothing, and knows the topics used so far."""
        with rim(self.options, "connect"):
            producer = connect(
                self.options,
                KafkaProducer,
                acks="all",
                enable_idempotence=True,
                allow_auto_create_topics=False,
                linger_ms=0,
                max_request_size=LARGEST + EXTRA,
                delivery_timeout_ms=3_600_000,  # who waits decides when to give up, and drops the producer whole
                metrics_enabled=False,
                **ours,
            )
            warm(producer, [self.full(topic) for topic in list(self._partitions)])
            return producer

    def ask(self, doing: str, question: Callable[[KafkaAdminClient], T]) -> T:
        """One question to the brokers; an error costs the client, which else remembers coordinators for ever."""
        if not self._admin_lock.acquire(timeout=ADMIN_PATIENCE):
            raise Unavailable(f"{self.options.url}: {doing}: other threads of this process keep waiting for an answer")
        try:
            started, reused = time.monotonic(), self._admin is not None
            while True:
                try:
                    return self._ask_once(doing, question)
                except Unavailable as error:
                    waited = time.monotonic() - started
                    starting = isinstance(error.__cause__, STARTING) and waited < COORDINATOR_PATIENCE
                    stale = reused and waited < 1  # its connections may be from before an outage
                    if not (starting or stale):
                        raise
                    reused = False
                time.sleep(0.02)
        finally:
            self._admin_lock.release()

    def _ask_once(self, doing: str, question: Callable[[KafkaAdminClient], T]) -> T:
        try:
            with rim(self.options, doing):
                if self._admin is None:
                    self._admin = connect(self.options, Admin)
                return question(self._admin)
        except ReplicationError as error:
            if not isinstance(error.__cause__, kafka_errors.UnstableOffsetCommitError):
                self._close_admin()
            raise

    def drop_admin(self) -> None:
        with self._admin_lock:
            self._close_admin()

    def create_owners(self) -> None:
        """The topic whose positions tell which transactor came last."""
        if OWNERS not in self._partitions and OWNERS not in self._describe():
            self.create([Topic(name=OWNERS)])
        self._partitions[OWNERS] = 1

    # Inside

    def _describe(self) -> dict[str, int]:
        """Name → partitions of all topics of ours. All are asked for, because asking for one may create it."""
        topics = self.ask("list the topics", lambda admin: admin.describe_topics())
        names = {topic["name"]: len(topic["partitions"]) for topic in topics if not topic["error_code"]}
        prefix = self.options.prefix
        return {name.removeprefix(prefix): number for name, number in names.items() if name.startswith(prefix)}

    def _create_one(self, topic: Topic) -> bool:
        """False if another process was faster."""
        settings = {
            "num_partitions": topic.partitions,
            "replication_factor": self.options.replication or -1,
            "configs": topic_settings(topic, self.options.in_sync),
        }
        try:
            self.ask(
                f"create {self.full(topic.name)}",
                lambda admin: admin.create_topics({self.full(topic.name): settings}, wait_for_metadata=True),
            )
        except Unavailable as error:
            if isinstance(error.__cause__, kafka_errors.TopicAlreadyExistsError):
                return False
            if isinstance(error.__cause__, kafka_errors.InvalidReplicationFactorError):
                raise BadConfig(f"log: option replication-factor: {error}") from error
            raise
        return True

    def _offsets(self, topic: str, spec: OffsetSpec) -> dict[int, int]:
        wanted = {self.partition(topic, number): spec for number in range(self.partitions(topic))}
        found = self.ask(
            f"offsets of {self.full(topic)}",
            lambda admin: admin.list_partition_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED),
        )
        return {partition.partition: at.offset for partition, at in sorted(found.items())}

    def _stored(self, groups: Sequence[str], topic: str) -> dict[str, dict[int, int]]:
        wanted = [self.partition(topic, number) for number in range(self.partitions(topic))]
        found = self.ask(
            f"positions on {self.full(topic)}",
            lambda admin: admin.list_group_offsets(dict.fromkeys(groups, wanted)),
        )
        return {
            group: {partition.partition: at.offset for partition, at in sorted(positions.items()) if at.offset >= 0}
            for group, positions in found.items()
        }

    def _appender(self) -> KafkaProducer:
        with self._producer_lock:
            if self._producer is None:
                self._producer = self.new_producer()
            return self._producer

    def _drop_appender(self, producer: KafkaProducer | None) -> None:
        with self._producer_lock:
            if self._producer is producer:
                self._producer = None
        if producer is not None:
            close_producer(producer)

    def _close_admin(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            with suppress(Exception):
                admin.close()


def topic_settings(topic: Topic, in_sync: int | None) -> dict[str, str]:
    """How a new topic is kept. Small segments: Kafka neither compacts nor expires the one being written."""
    settings = {
        "max.message.bytes": str(LARGEST + EXTRA),
        "message.timestamp.type": "LogAppendTime",
        "unclean.leader.election.enable": "false",
        "compression.type": "uncompressed",  # what a client packed is unpacked, and measured, by the broker
        "retention.ms": "-1" if topic.retention is None else str(round(topic.retention * 1000)),
        "retention.bytes": "-1",
    }
    if topic.compacted:
        settings |= {
            "cleanup.policy": "compact",
            "segment.bytes": str(16 * 1024 * 1024),
            "segment.ms": str(round(DAY * 1000 / 24)),
            "min.cleanable.dirty.ratio": "0.2",
            "delete.retention.ms": str(round(DAY * 1000)),
        }
    else:
        longest = DAY if topic.retention is None else min(DAY, max(topic.retention / 4, 60))
        settings |= {
            "cleanup.policy": "delete",
            "segment.bytes": str(128 * 1024 * 1024),
            "segment.ms": str(round(longest * 1000)),
        }
    if in_sync is not None:
        settings["min.insync.replicas"] = str(in_sync)
    return settings


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")

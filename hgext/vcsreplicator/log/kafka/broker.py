# SPDX-License-Identifier: GPL-2.0-or-later
"""The brokers of Kafka: administration, names, topics, new producers."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, OffsetSpec, TransactionDescription
from kafka.cluster import ClusterMetadata
from kafka.protocol.consumer.offsets import IsolationLevel
from kafka.structs import OffsetAndMetadata

from ...words.clock import DAY
from ...words.errors import BadConfig, HeldUp, NotAuthorized, ReplicationError, TopicMissing, Unavailable, counted
from .. import EVENTS, LARGEST, OPEN, SINGLE, NewRecord, PartitionKey, Topic, partition_of
from .clients import Admin, close_producer, connect, describe_missing, rim, warm
from .options import KafkaOptions

T = TypeVar("T")

# Seconds to wait until another thread has connected the admin client.
ADMIN_PATIENCE = 30.0

# Questions to one broker at once, more than a process has threads. Beyond the library's five, a question would fail.
AT_ONCE = 1000

# Seconds that coordinators may take to start, once the broker answers.
COORDINATOR_PATIENCE = 10.0

# Seconds that one question waits for the end of others' transactions, which takes milliseconds while their processes live.
OPEN_PATIENCE = 2.0

# A topic without records, whose positions say which transactor came last.
OWNERS = "transactors"

# The brokers' own topics with transactions.
_INTERNAL = {"__consumer_offsets", "__transaction_state"}

# The topics of which only partition 0 is used.
_SINGLE = SINGLE | {OWNERS}

# Bytes of framing that Kafka adds to the largest message.
EXTRA = 64 * 1024

# Bytes of framing that Kafka adds to a message that is alone in its batch.
FRAMING = 128

STARTING = (
    kafka_errors.CoordinatorNotAvailableError,
    kafka_errors.CoordinatorLoadInProgressError,
    kafka_errors.NotCoordinatorError,
    kafka_errors.UnstableOffsetCommitError,  # a transaction that was just committed
)

# What a broker answers about one partition, or for one moment: the client to which it says so is well.
OF_PARTITIONS = (
    kafka_errors.LeaderNotAvailableError,
    kafka_errors.NotLeaderForPartitionError,
    kafka_errors.ReplicaNotAvailableError,
    kafka_errors.OffsetNotAvailableError,
    kafka_errors.KafkaStorageError,
    kafka_errors.UnstableOffsetCommitError,
)


# Seconds after which a client that hears such an answer is replaced all the same: its broker may be cut off from the others, and
# and no other broker lacks the leader.
OLD = 10.0


class Broker:
    """The part of a log that readers and transactors share; connects when needed."""

    def __init__(self, options: KafkaOptions) -> None:
        self.options = options
        self._admin: KafkaAdminClient | None = None
        self._connected_at = 0.0
        # How many threads use each admin client; a dropped client is closed once no thread uses it.
        self._users = Counter[KafkaAdminClient]()
        self._admin_lock = threading.Lock()
        self._partitions: dict[str, int] = {}

    # Names

    def full(self, name: str) -> str:
        """Return the name in Kafka of a topic, a group or a transactor."""
        return self.options.prefix + name

    def partition(self, topic: str, partition: int) -> TopicPartition:
        return TopicPartition(self.full(topic), partition)

    def check_partition(self, topic: str, partition: int) -> None:
        if partition >= self.partitions(topic):
            self._partitions.pop(topic)  # an administrator may have added some
        if not 0 <= partition < self.partitions(topic):
            raise BadConfig(
                f"topic {self.full(topic)}: no partition {partition}, expected 0 to {self.partitions(topic) - 1}"
            )

    def plan(self, message: NewRecord) -> dict[str, Any]:
        """Return the arguments of `KafkaProducer.send` for a message."""
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

    # Topics

    def create(self, wanted: Sequence[Topic]) -> list[str]:
        existing = self._describe()
        for topic in wanted:
            if not topic.is_made_with(existing.get(topic.name, topic.partitions)):
                raise BadConfig(
                    f"topic {self.full(topic.name)}: has {counted(existing[topic.name], 'partition')}, "
                    f"expected {topic.partitions}; the number is fixed for life"
                )
        missing = [topic for topic in wanted if topic.name not in existing]
        created = [topic.name for topic in missing if self._create_one(topic)]
        if len(created) < len(missing):  # others were faster: look again at what they made
            self.create(missing)
        return created

    def create_owners(self) -> None:
        """Create the topic whose positions show which transactor came last.

        Raises Unavailable if it needs more replicas than there are brokers now: some may be starting.
        """
        if OWNERS not in self._partitions and OWNERS not in self._describe():
            try:
                self.create([Topic(name=OWNERS)])
            except BadConfig as error:
                raise Unavailable(str(error)) from error
        self._partitions[OWNERS] = 1

    def describe(self) -> dict[str, dict[str, Any]]:
        """Return what Kafka says of each topic with our prefix, by name without it.

        The request is for all topics, because a request for one may create it.
        """
        topics = self.ask("list the topics", lambda admin: admin.describe_topics())
        ours = [topic for topic in topics if not topic["error_code"] and topic["name"].startswith(self.options.prefix)]
        return {topic["name"].removeprefix(self.options.prefix): topic for topic in ours}

    def find_hidden(self, names: Sequence[str]) -> set[str]:
        """Return the names that the brokers do not show to this user.

        Whether there are such topics is not known. The request creates none.
        """
        full = [self.full(name) for name in names]
        topics = self.ask("look for topics", lambda admin: admin.describe_topics(full))
        hidden = kafka_errors.TopicAuthorizationFailedError.errno
        return {topic["name"].removeprefix(self.options.prefix) for topic in topics if topic["error_code"] == hidden}

    def partitions(self, topic: str) -> int:
        if topic not in self._partitions:
            existing = self._describe()
            if topic not in existing:
                raise TopicMissing(
                    f"topic {self.full(topic)}: not in {self.options.url}, or hidden from this user by its ACLs; "
                    "run `vcsreplicator topics create`"
                )
            self._partitions[topic] = existing[topic]
        return self._partitions[topic]

    def refuse_missing(self, error: ReplicationError, names: Iterable[str], cluster: ClusterMetadata) -> None:
        """Raise an error that names the topics that the brokers lack, if any.

        It is raised in place of `error`. `names` are those in Kafka, `cluster` what the client heard that failed: the brokers are
        asked only if it does not know one.
        """
        unknown = {name for name in names if cluster.partitions_for_topic(name) is None} - cluster.unauthorized_topics
        if not unknown or not isinstance(error, Unavailable):
            return
        try:
            unknown -= {self.full(name) for name in self.describe()}
        except ReplicationError:
            return
        if unknown:
            raise Unavailable(f"{self.options.url}: {describe_missing(unknown)}") from error

    def largest(self, topic: str) -> int | None:
        """Return `max.message.bytes` less the framing, at most LARGEST.

        Returns None if the broker shows no number.
        """
        resource = ConfigResource("TOPIC", self.full(topic), ["max.message.bytes"])
        found = self.ask(
            f"settings of {self.full(topic)}", lambda admin: admin.describe_configs([resource], config_filter="all")
        )
        setting = found.get("topic", {}).get(self.full(topic), {}).get("max.message.bytes", {})
        try:
            return min(LARGEST, max(0, int(setting.get("value") or "") - FRAMING))
        except ValueError:
            return None

    def wait_for_transactions(self, topic: str) -> None:
        """Wait for the end of the transactions that are open in a topic; raises HeldUp after OPEN_PATIENCE."""
        newest = self.offsets(topic, OffsetSpec.LATEST, isolation=IsolationLevel.READ_UNCOMMITTED)
        deadline = time.monotonic() + OPEN_PATIENCE
        while any(end < newest[partition] for partition, end in self.offsets(topic, OffsetSpec.LATEST).items()):
            if time.monotonic() > deadline:
                open_ = "a transaction of another process is open, which the broker ends after its time-out"
                raise HeldUp(f"{self.options.url}: topic {self.full(topic)}: {open_}")
            time.sleep(0.02)

    def find_transaction(self, identity: str) -> TransactionDescription | None:
        """Return the last transaction of a transactional id; None if the brokers know none."""
        try:
            found = self.ask(f"transactions of {identity}", lambda admin: admin.describe_transactions([identity]))
        except Unavailable as error:
            if isinstance(error.__cause__, kafka_errors.TransactionalIdNotFoundError):
                return None
            raise
        return found[identity]

    def find_open(self, producer: int) -> list[TopicPartition]:
        """Find the partitions in which a transaction of the producer with this number is open.

        Where this user may not read, it is not known, nor in other programs' partitions without a leader. No transaction writes to
        `events` and OPEN. Raises Unavailable if any other of our partitions has no leader.
        """
        ends = {
            self.partition(name, number): OffsetSpec.LATEST
            for name, topic in self.describe().items()
            if name not in {EVENTS, *OPEN, *_INTERNAL}
            for number in ([0] if name in _SINGLE else _find_led(topic))
        }
        written, decided = (
            self.ask(
                "ends of the topics",
                partial(Admin.list_partition_offsets, topic_partition_specs=ends, isolation_level=each),
            )
            for each in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED)
        )
        found = list[TopicPartition]()
        for partition in (each for each in ends if decided[each].offset < written[each].offset):
            with suppress(NotAuthorized):
                writers = self.ask("open transactions", partial(Admin.describe_producers, partitions=[partition]))
                found += [
                    partition
                    for each in writers[partition].active_producers
                    if each.producer_id == producer and each.current_transaction_start_offset >= 0
                ]
        return found

    def offsets(
        self,
        topic: str,
        spec: OffsetSpec,
        partitions: Collection[int] | None = None,
        *,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[int, int]:
        numbers = range(self.partitions(topic)) if partitions is None else partitions
        for number in numbers:
            self.check_partition(topic, number)
        wanted = {self.partition(topic, number): spec for number in numbers}
        found = self.ask(
            f"offsets of {self.full(topic)}",
            lambda admin: admin.list_partition_offsets(wanted, isolation_level=isolation),
        )
        return {partition.partition: at.offset for partition, at in sorted(found.items())}

    # Clients

    def ask(self, doing: str, call_admin: Callable[[KafkaAdminClient], T]) -> T:
        """Ask the brokers one question with the admin client.

        Other threads ask meanwhile: a broker that hangs delays only the question that needs it. After an error the client is
        replaced, because it caches coordinators; after one of `OF_PARTITIONS` only if it is old. The method asks again while a
        coordinator starts or a transaction was just committed, for up to COORDINATOR_PATIENCE; and once if the client may be older
        than an outage.
        """
        started, reused = time.monotonic(), self._admin is not None
        while True:
            try:
                with rim(self.options, doing), self._use_admin(doing) as admin:
                    return call_admin(admin)
            except Unavailable as error:
                waited = time.monotonic() - started
                starting = isinstance(error.__cause__, STARTING) and waited < COORDINATOR_PATIENCE
                # Its connections may be from before an outage.
                stale = reused and waited < 1 and not isinstance(error.__cause__, OF_PARTITIONS)
                if not (starting or stale):
                    raise
                reused = False
            time.sleep(0.02)

    @contextmanager
    def _use_admin(self, doing: str) -> Iterator[KafkaAdminClient]:
        """Use the admin client, which other threads may use meanwhile.

        After an error in the block the next use connects another client; after one of `OF_PARTITIONS` only if this one is old.
        """
        if not self._admin_lock.acquire(timeout=ADMIN_PATIENCE):
            raise Unavailable(f"{self.options.url}: {doing}: other threads of this process keep connecting")
        try:
            if self._admin is None:
                self._admin = connect(self.options, Admin, max_in_flight_requests_per_connection=AT_ONCE)
                self._connected_at = time.monotonic()
            admin = self._admin
            self._users[admin] += 1
        finally:
            self._admin_lock.release()
        is_well = False
        try:
            yield admin
            is_well = True
        except OF_PARTITIONS:
            is_well = time.monotonic() - self._connected_at <= OLD
            raise
        finally:
            with self._admin_lock:
                self._users[admin] -= 1
                if self._admin is admin and not is_well:
                    self._admin = None
            self._close_unused()

    def _close_unused(self) -> None:
        """Close the clients that were dropped and have no user left."""
        with self._admin_lock:
            unused = [admin for admin, users in self._users.items() if not users and admin is not self._admin]
            for admin in unused:
                del self._users[admin]
        for admin in unused:
            with suppress(Exception):
                admin.close()

    def drop_admin(self) -> None:
        """Close the admin client, once no thread uses it."""
        with self._admin_lock:
            self._admin = None
        self._close_unused()

    def new_producer(self, *, is_numbered: bool = True, **ours: Any) -> KafkaProducer:
        """Open a producer that keeps order and loses nothing.

        It knows the topics that were used so far. Without a number, which any other writer of the topic could use, it repeats a
        record whose confirmation was lost.
        """
        with rim(self.options, "connect"):
            producer: KafkaProducer = connect(
                self.options,
                KafkaProducer,
                acks="all",
                enable_idempotence=is_numbered,
                max_in_flight_requests_per_connection=5 if is_numbered else 1,
                allow_auto_create_topics=False,
                linger_ms=0,
                max_request_size=LARGEST + EXTRA,
                delivery_timeout_ms=3_600_000,  # the caller decides when to give up, and drops the producer
                metrics_enabled=False,
                **ours,
            )
        names = [self.full(topic) for topic in list(self._partitions)]
        try:
            with rim(self.options, "connect"):
                warm(producer, names)
        except ReplicationError as error:
            close_producer(producer)
            self.refuse_missing(error, names, producer._metadata)
            raise
        return producer

    def store(self, group: str, positions: Mapping[PartitionKey, OffsetAndMetadata]) -> None:
        """Store positions with their metadata for a group without members."""
        stored = {self.partition(*key): position for key, position in positions.items()}

        def alter(admin: KafkaAdminClient) -> None:
            for partition, error in admin.alter_group_offsets(self.full(group), stored).items():
                if error is not kafka_errors.NoError:
                    raise error(f"{partition.topic}, partition {partition.partition}")

        self.ask(f"acknowledge for {group}", alter)

    # Inside

    def _describe(self) -> dict[str, int]:
        """Return name → partitions in use of all topics with our prefix."""
        found = self.describe()
        return {name: 1 if name in _SINGLE else len(topic["partitions"]) for name, topic in found.items()}

    def _create_one(self, topic: Topic) -> bool:
        """Create a topic; return False if another process was faster."""
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


def topic_settings(topic: Topic, in_sync: int | None) -> dict[str, str]:
    """Return the settings of a new topic.

    Segments are small, because Kafka neither compacts nor expires the newest one.
    """
    settings = {
        "max.message.bytes": str(LARGEST + EXTRA),
        "message.timestamp.type": "LogAppendTime",
        "unclean.leader.election.enable": "false",
        "compression.type": "uncompressed",  # the broker unpacks and measures what clients packed
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


def _find_led(topic: Mapping[str, Any]) -> list[int]:
    """Return the partitions of a topic that have a leader, by what Kafka says of it."""
    return [each["partition_index"] for each in topic["partitions"] if each["leader_id"] >= 0]


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")

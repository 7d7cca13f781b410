# SPDX-License-Identifier: GPL-2.0-or-later
"""The log on Kafka, for more than one machine.

Rules of this package, because each client of kafka-python has its own thread and its own ways to fail:

- One *admin* client (topics, offsets, positions), used by all threads at once; after an error, but for that of a partition, it
  is closed after its last use.
- One *producer* for all `append`s, used by all threads at once, one for reports, whose failure thus ends no other append, and one
  for topics of `OPEN`. A thread that sees its producer fail drops it for all; the others fail too, and the next call of each uses
  a new one. It sends one batch a partition at a time, so a lost batch never lets a later one overtake it.
- A *reader's consumer* and a *transactor's producer* belong to the one thread that uses them. `wake` only sets an event.
- After any unclear error the adapter closes the client and builds a new one. It retries nothing, except a question to a
  coordinator that is just starting or by a client older than an outage; the client itself retries too.
- Foreign exceptions end in `rim`; nothing outside it calls a client.
"""

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from enum import Enum, auto
from typing import Any

from kafka import KafkaProducer
from kafka.admin import OffsetSpec
from kafka.structs import OffsetAndMetadata

from ...words.errors import ReplicationError
from .. import (
    EVENTS,
    OPEN,
    SERVICES,
    GroupMember,
    Log,
    NewRecord,
    PartitionKey,
    Positions,
    Reader,
    Record,
    TooLarge,
    Topic,
    TopicComparison,
    Transactor,
    check_message,
)
from ..table import read_on, read_records
from .broker import Broker
from .clients import close_producer, rim, together, warm
from .member import KafkaMember, read_share
from .options import KafkaOptions
from .reader import KafkaReader
from .too_large import describe_refused
from .transactor import KafkaTransactor


class ProducerKind(Enum):
    """What a producer appends. The producer for topics of `OPEN` has no number."""

    REPORTS = auto()
    OPEN = auto()
    OTHERS = auto()


def find_kind(messages: Sequence[NewRecord]) -> ProducerKind:
    """Return which producer appends these messages."""
    if any(message.topic in OPEN for message in messages):
        return ProducerKind.OPEN
    return ProducerKind.REPORTS if all(message.topic == SERVICES for message in messages) else ProducerKind.OTHERS


class KafkaLog(Log):
    """The log on these brokers; it contacts none before it is needed."""

    def __init__(self, options: KafkaOptions) -> None:
        self.options = options
        self.broker = Broker(options)
        # By what they write: a report that the log does not take must not end the appends under way.
        self._producers: dict[ProducerKind, KafkaProducer] = {}
        self._producer_lock, self._sending = threading.Lock(), threading.Lock()

    # Topics

    def create(self, wanted: Sequence[Topic]) -> list[str]:
        created = self.broker.create(wanted)
        if any(topic.name == EVENTS for topic in wanted):  # of an administrator: the others may see only their own
            self.broker.create_owners()
        return created

    def compare(self, wanted: Sequence[Topic]) -> list[TopicComparison]:
        # Only one verb needs it, and no push.
        from .comparison import compare_topics

        return compare_topics(self.broker, wanted)

    def partitions(self, topic: str) -> int:
        return self.broker.partitions(topic)

    def beginnings(self, topic: str, partitions: Collection[int] | None = None) -> dict[int, int]:
        return self.broker.offsets(topic, OffsetSpec.EARLIEST, partitions)

    def ends(self, topic: str, partitions: Collection[int] | None = None) -> dict[int, int]:
        return self.broker.offsets(topic, OffsetSpec.LATEST, partitions)

    def wait_for_transactions(self, topic: str) -> None:
        self.broker.wait_for_transactions(topic)

    def largest(self, topic: str) -> int | None:
        return self.broker.largest(topic)

    # Records

    def append(self, messages: Sequence[NewRecord], *, timeout: float = 30.0) -> list[tuple[int, int]]:
        for message in messages:
            check_message(message)
        if not messages:
            return []
        deadline = time.monotonic() + timeout
        kind = find_kind(messages)
        producer = self._open_producer(kind)
        try:
            return self._append(producer, messages, deadline)
        except TooLarge:  # a producer refuses all records behind a too large one, which may be another thread's
            pass
        own = self.broker.new_producer(is_numbered=kind is not ProducerKind.OPEN)
        try:
            return self._append(own, messages, deadline)
        finally:
            close_producer(own)

    def reader(self, positions: Mapping[PartitionKey, int]) -> Reader:
        for key in positions:
            self.broker.check_partition(*key)
        return KafkaReader(self.broker, positions)

    def undone(self, topic: str, position: int, *, stop: threading.Event | None = None) -> list[Record]:
        [end], positions = self.ends(topic).values(), {(topic, 0): position}
        known = {record.offset for record in read_records(self, positions, stop=stop)}
        with closing(KafkaReader(self.broker, positions, is_committed=False)) as reader:
            # Behind the end are transactions that are not decided yet.
            return [
                record
                for record in read_on(self, reader, stop=stop)
                if record.offset < end and record.offset not in known
            ]

    def transactor(self, identity: str, *, group: str | None = None) -> Transactor:
        return KafkaTransactor(self.broker, identity, group=group or identity, append=self.append)

    def member(self, group: str, topic: str) -> GroupMember:
        return KafkaMember(self.broker, group, topic)

    def shares(self, beginning: str) -> dict[str, list[PartitionKey]]:
        names, prefix = self._list_groups(beginning), self.options.prefix
        found = self.broker.ask("members of groups", lambda admin: admin.describe_groups(names)) if names else {}
        shares: dict[str, list[PartitionKey]] = {}
        for member in (member for group in found.values() for member in group["members"]):
            shares.setdefault(member["client_id"], []).extend(read_share(member["member_assignment"], prefix))
        return shares

    # Positions

    def acknowledge(
        self, group: str, topic: str, positions: Positions, *, metadata: Mapping[int, str] | None = None
    ) -> None:
        for partition in positions:
            self.broker.check_partition(topic, partition)
        metadata = metadata or {}
        stored = {
            (topic, number): OffsetAndMetadata(at, metadata.get(number, ""), -1) for number, at in positions.items()
        }
        self.broker.store(group, stored)

    def stored(self, group: str, topic: str) -> dict[int, int]:
        return {number: at.offset for number, at in self._stored_of(group, topic).items()}

    def metadata(self, group: str, topic: str) -> dict[int, str]:
        return {number: at.metadata for number, at in self._stored_of(group, topic).items() if at.metadata}

    def groups(self, topic: str) -> dict[str, dict[int, int]]:
        self.partitions(topic)
        names = self._list_groups("")
        found = self._read_stored(names, topic) if names else {}
        return {
            name.removeprefix(self.options.prefix): {number: at.offset for number, at in positions.items()}
            for name, positions in found.items()
            if positions
        }

    def close(self) -> None:
        self.broker.drop_admin()
        for producer in list(self._producers.values()):
            self._drop_appender(producer)

    # Inside

    def _list_groups(self, beginning: str) -> list[str]:
        """Return the full names of the groups whose names begin so."""
        listed = self.broker.ask("list the groups", lambda admin: admin.list_groups())
        return sorted(
            {group["group_id"] for group in listed if group["group_id"].startswith(self.broker.full(beginning))}
        )

    def _stored_of(self, group: str, topic: str) -> dict[int, OffsetAndMetadata]:
        return self._read_stored([self.broker.full(group)], topic).get(self.broker.full(group), {})

    def _read_stored(self, groups: Sequence[str], topic: str) -> dict[str, dict[int, OffsetAndMetadata]]:
        wanted = [self.broker.partition(topic, number) for number in range(self.partitions(topic))]
        found = self.broker.ask(
            f"positions on {self.broker.full(topic)}",
            lambda admin: admin.list_group_offsets(dict.fromkeys(groups, wanted)),
        )
        return {
            group: {partition.partition: at for partition, at in sorted(positions.items()) if at.offset >= 0}
            for group, positions in found.items()
        }

    def _append(self, producer: KafkaProducer, messages: Sequence[NewRecord], deadline: float) -> list[tuple[int, int]]:
        plan = [self.broker.plan(message) for message in messages]
        futures: list[Any] = []
        try:
            with rim(self.options, "append"):
                warm(producer, [arguments["topic"] for arguments in plan])
                with self._sending, together(producer):
                    futures += [producer.send(**arguments) for arguments in plan]
                results = [future.get(timeout=max(0.001, deadline - time.monotonic())) for future in futures]
        except ReplicationError as error:
            self._drop_appender(producer)
            if refused := describe_refused(messages, futures, self.broker.largest):
                raise refused from error
            self.broker.refuse_missing(error, {each["topic"] for each in plan}, producer._metadata)
            raise
        return [(result.partition, result.offset) for result in results]

    def _open_producer(self, kind: ProducerKind) -> KafkaProducer:
        with self._producer_lock:
            if kind not in self._producers:
                self._producers[kind] = self.broker.new_producer(is_numbered=kind is not ProducerKind.OPEN)
            return self._producers[kind]

    def _drop_appender(self, producer: KafkaProducer) -> None:
        with self._producer_lock:
            self._producers = {kind: each for kind, each in self._producers.items() if each is not producer}
        close_producer(producer)

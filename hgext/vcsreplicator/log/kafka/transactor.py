# SPDX-License-Identifier: GPL-2.0-or-later
"""Appends and acknowledges in one transaction of Kafka."""

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from kafka import KafkaProducer, TopicPartition
from kafka import errors as kafka_errors
from kafka.admin import TransactionDescription, TransactionState
from kafka.producer.transaction_manager import TransactionalRequestResult
from kafka.structs import OffsetAndMetadata

from ...words.errors import Fenced, ReplicationError, Unavailable
from .. import EXPECTED_WITHIN, OPEN, NewRecord, PartitionKey, check_message, check_places
from .broker import OWNERS, Broker
from .clients import add_partitions, close_producer, commit_when_written, rim, together, wait, wait_for, warm
from .too_large import describe_refused

# Seconds until the end of a transaction counts as unclear; a service must stop within ten.
COMMIT_PATIENCE = 8.0

# Appends messages outside a transaction, within `timeout` seconds.
Append = Callable[..., list[tuple[int, int]]]

# States of an identity's last transaction in which it is, or counts as, committed.
COMMITTED = (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT, TransactionState.EMPTY)

# States in which not all partitions know of the end.
DECIDED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

# A broker's answers to a producer of an earlier epoch.
FENCED = (kafka_errors.ProducerFencedError, kafka_errors.InvalidProducerEpochError)


class KafkaTransactor:
    """A transactor that Kafka fences, and a record of its identity's owner: the transactor that came last.

    The broker also fences a transactor whose transaction took too long, and which only has to begin again: the record of the owner
    tells the two cases apart. A new transactor writes it first, so none is fenced without it.

    Messages to topics of `OPEN` are appended outside the transaction. A client may write there under this producer's number, with a
    later epoch: the broker then takes no record and no end of a transaction from the producer there, after any restart, and the
    transactor could neither end its transaction nor begin another.
    """

    def __init__(self, broker: Broker, identity: str, *, group: str, append: Append) -> None:
        self._broker, self._identity, self._group, self._append = broker, identity, group, append
        self._owners_group, self._instance = f"transactor-{identity}", uuid.uuid4().hex
        broker.create_owners()
        epoch, _ = self._last_owner()
        # Not the next number alone: a week after the owner began, Kafka forgets the record of it, and it may still be at work. By
        # milliseconds: no two begin in the same one.
        self._epoch = max(epoch + 1, time.time_ns() // 1_000_000)
        self._write_owner()
        self._producer: KafkaProducer | None = None
        self._is_open, self._lost = False, 0
        self._open_producer()

    def renew(self) -> None:
        self.close()
        if self._refuse_newer() != self._instance:  # a broker lost the newest owner, and brought back an older one
            self._write_owner()
        self._open_producer()

    def expect(self, topics: Sequence[str]) -> None:
        producer = self._producer
        if producer is None or producer.config["transaction_timeout_ms"] < 2000 * EXPECTED_WITHIN:
            return
        if count_lost(producer) != self._lost:
            return  # the commit renews it first
        with suppress(kafka_errors.KafkaError), together(producer):  # the commit meets the error too
            self._open_transaction(producer, {self._broker.partition(topic, 0) for topic in topics})

    def commit(
        self,
        messages: Sequence[NewRecord],
        *,
        group: str | None = None,
        positions: Mapping[PartitionKey, int] | None = None,
        metadata: Mapping[PartitionKey, str] | None = None,
        newest: Mapping[PartitionKey, int] | None = None,
    ) -> list[tuple[int, int]]:
        for message in messages:
            check_message(message)
        deadline = time.monotonic() + COMMIT_PATIENCE
        places = iter(self._append_apart([message for message in messages if message.topic in OPEN]))
        rest = [message for message in messages if message.topic not in OPEN]
        committed = iter(self._commit(rest, group, positions, metadata, newest, deadline))
        return [next(places if message.topic in OPEN else committed) for message in messages]

    def _commit(
        self,
        messages: Sequence[NewRecord],
        group: str | None,
        positions: Mapping[PartitionKey, int] | None,
        metadata: Mapping[PartitionKey, str] | None,
        newest: Mapping[PartitionKey, int] | None,
        deadline: float,
    ) -> list[tuple[int, int]]:
        plan = [self._broker.plan(message) for message in messages]
        for key in positions or {}:
            self._broker.check_partition(*key)
        offsets = {
            self._broker.partition(*key): OffsetAndMetadata(at, (metadata or {}).get(key, ""), -1)
            for key, at in (positions or {}).items()
        }
        if self._producer is None:
            raise self._find_unclear()
        if not plan and not offsets:
            self._refuse_newer()
            return []
        if count_lost(self._producer) != self._lost:
            # A killed broker may have left the last transaction open, which an abort of this one would abort, too.
            self._end_expected(self._producer, deadline)
            self.renew()
        futures: list[Any] = []

        def check() -> None:
            check_places(messages, list_places(futures), newest or {})

        try:
            with rim(self._broker.options, f"commit as {self._identity}"):
                self._run_transaction(self._producer, plan, offsets, group, futures, check, deadline)
                return list_places(futures)
        except ReplicationError as error:
            producer, failures = self._producer, (error.__cause__, self._producer._transaction_manager.last_error)
            self.close()
            if any(isinstance(each, FENCED) for each in failures):
                self._refuse_newer()
            if refused := describe_refused(messages, futures, self._broker.largest):
                raise refused from error
            self._broker.refuse_missing(error, {each["topic"] for each in plan}, producer._metadata)
            raise

    def _append_apart(self, messages: Sequence[NewRecord]) -> list[tuple[int, int]]:
        """Append messages to topics of `OPEN`; raise Fenced if a newer instance took over."""
        if not messages:
            return []
        if self._producer is None:
            raise self._find_unclear()
        try:
            self._refuse_newer()
            return self._append(messages, timeout=COMMIT_PATIENCE)
        except ReplicationError:
            self.close()
            raise

    def _find_unclear(self) -> Unavailable:
        """Return the error of a transactor that must be renewed; raise Fenced if a newer instance took over."""
        self._refuse_newer()
        return Unavailable(f"{self._broker.options.url}: {self._identity}: its last transaction is unclear; renew it")

    def close(self) -> None:
        producer, self._producer, self._is_open = self._producer, None, False
        if producer is not None:
            close_producer(producer)

    def _open_producer(self) -> None:
        identity = self._broker.full(self._identity)
        before = self._broker.find_transaction(identity)
        self._producer = self._broker.new_producer(transactional_id=identity)
        try:
            with rim(self._broker.options, f"become {self._identity}"):
                self._producer.init_transactions()
                self._lost = count_lost(self._producer)
                self._end_hanging(self._producer, before)
            # A newer transactor, which came meanwhile, is the owner, and may have read already what its predecessors wrote.
            self._refuse_newer()
        except ReplicationError:
            self.close()
            raise

    def _end_hanging(self, producer: KafkaProducer, before: TransactionDescription | None) -> None:
        """End what brokers left open of a transaction that is decided.

        A broker that is killed before all partitions know the end of a transaction may, once it runs again, count the transaction
        as ended without telling them. Their readers then stop in front of it, and positions of the group are neither committed nor
        aborted. All belong to this producer, so the end of its next transaction in the same partitions ends them too. It must end
        as the last one, which other partitions may know: `before` is what the brokers knew before this producer came. If they do
        not know how the last one ended, it is a commit, because hardly any transaction is aborted.
        """
        deadline = time.monotonic() + COMMIT_PATIENCE
        is_commit = before is not None and before.state in COMMITTED
        # Aborted, this position never counts; to commit none at all is enough.
        any_position = {} if is_commit else {self._broker.partition(OWNERS, 0): OffsetAndMetadata(0, "", -1)}
        group = self._broker.full(self._group)
        hanging = [] if before is None else self._broker.find_open(before.producer_id)
        producer.begin_transaction()
        add_partitions(producer, hanging)
        wait(producer, lambda manager: manager.send_offsets_to_transaction(any_position, group), deadline)
        wait(producer, lambda manager: manager.begin_commit() if is_commit else manager.begin_abort(), deadline)
        if hanging:
            self._wait_for_partitions(deadline)

    def _wait_for_partitions(self, deadline: float) -> None:
        """Wait until the partitions know the end of the transaction that the broker has decided."""
        identity = self._broker.full(self._identity)
        while (found := self._broker.find_transaction(identity)) is not None and found.state in DECIDED:
            if time.monotonic() > deadline:
                raise Unavailable(f"{self._broker.options.url}: {self._identity}: partitions do not learn how it ended")
            time.sleep(0.01)

    def _run_transaction(
        self,
        producer: KafkaProducer,
        plan: Sequence[Mapping[str, Any]],
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: str | None,
        futures: list[Any],
        check: Callable[[], None],
        deadline: float,
    ) -> None:
        """Write and end a transaction, unless `check` raises; add the futures of its records to `futures`."""
        warm(producer, [arguments["topic"] for arguments in plan])
        ended: TransactionalRequestResult | None = None
        with together(producer):
            self._open_transaction(producer, {TopicPartition(each["topic"], each["partition"]) for each in plan})
            futures += [producer.send(**arguments) for arguments in plan]
            if group is None or not offsets:
                ended = commit_when_written(producer, futures, check)
        if ended is not None:
            wait_for(ended, deadline)
        elif group is not None:
            full = self._broker.full(group)
            wait(producer, lambda manager: manager.send_offsets_to_transaction(offsets, full), deadline)
            wait(producer, lambda _: commit_when_written(producer, futures, check), deadline)
        self._is_open = False

    def _open_transaction(self, producer: KafkaProducer, partitions: Iterable[TopicPartition]) -> None:
        """Begin a transaction unless one is open, and add these partitions to it."""
        if not self._is_open:
            producer.begin_transaction()
            self._is_open = True
        add_partitions(producer, partitions)

    def _end_expected(self, producer: KafkaProducer, deadline: float) -> None:
        """Commit a transaction that is only expected and has no records: to renew the producer would abort it."""
        if not self._is_open:
            return
        try:
            with rim(self._broker.options, f"end what was expected as {self._identity}"):
                wait(producer, lambda manager: manager.begin_commit(), deadline)
        except ReplicationError:
            self.close()  # what was committed before may be undone: the caller begins again
            raise

    def _last_owner(self) -> tuple[int, str]:
        group, partition = self._broker.full(self._owners_group), self._broker.partition(OWNERS, 0)
        found = self._broker.ask("who came last", lambda admin: admin.list_group_offsets({group: [partition]}))
        owner = found.get(group, {}).get(partition)
        return (0, "") if owner is None or owner.offset < 0 else (owner.offset, owner.metadata or "")

    def _write_owner(self) -> None:
        owner = OffsetAndMetadata(self._epoch, self._instance, -1)
        self._broker.store(self._owners_group, {(OWNERS, 0): owner})

    def _refuse_newer(self) -> str:
        """Return the instance of the owner, "" if the record of it expired.

        Raises Fenced if that instance came after this one. If the record expired, none did.
        """
        epoch, owner = self._last_owner()
        if owner not in ("", self._instance) and epoch >= self._epoch:
            self.close()
            raise Fenced(f"{self._identity}: a newer instance took over")
        return owner


def list_places(written: Sequence[Any]) -> list[tuple[int, int]]:
    """Return the partition and the offset of each record, by its future."""
    return [(future.value.partition, future.value.offset) for future in written]


def count_lost(producer: KafkaProducer) -> int:
    """Return how many connections to brokers a producer has lost."""
    lost: int = producer._sender._client._manager.lost
    return lost

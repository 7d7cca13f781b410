# SPDX-License-Identifier: GPL-2.0-or-later
"""The clients of kafka-python, with a deadline on every wait.

Foreign exceptions become this project's errors (`rim`).

The library's public interface has no deadline (`wait`), no end (`close_producer`, `connect`), a slow start (`warm`), too many
round trips and changes of thread (`add_partitions`, `together`, `commit_when_written`) or an answer from before a commit (`Admin`).
For these, this file and `connections` use what is not public.
"""

import functools
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka import errors as kafka_errors
from kafka.producer.transaction_manager import TransactionalRequestResult

from ...words.errors import BadConfig, Expired, NotAuthorized, Rejected, ReplicationError, Unavailable
from .connections import Network, Selector
from .options import KafkaOptions, check_certificates

T = TypeVar("T")

# During an outage the client writes dozens of lines, even to a pusher's terminal; our exceptions say what matters.
if logging.getLogger("kafka").level == logging.NOTSET:
    logging.getLogger("kafka").setLevel(logging.CRITICAL)

# Seconds for which the client's thread waits for the rest of a group of records.
HELD_BACK = 1.0

# A broker's answer to a client without the certificate that it demands, or with a wrong one.
_OWN_CERTIFICATE = re.compile("ALERT_(BAD_|NO_|UNSUPPORTED_)?CERTIFICATE|CERTIFICATE_REQUIRED|ALERT_UNKNOWN_CA")

# On a slow machine the patience may end during the last attempt of many: the same failure under another name.
TIMEOUTS = (kafka_errors.KafkaTimeoutError, kafka_errors.RequestTimedOutError)

# A broker's answers to a record that exceeds the `max.message.bytes` of its topic.
TOO_LARGE = (kafka_errors.MessageSizeTooLargeError, kafka_errors.RecordListTooLargeError)


class Admin(KafkaAdminClient):  # type: ignore[misc]  # the client comes without types
    """An admin client that waits for the positions of a committed transaction.

    It does not miss positions of a transaction that was committed a moment ago. For offsets it asks the leaders that answered last
    time, while it is connected to them. Several threads may ask: its own thread alone does the work.
    """

    def __init__(self, **settings: Any) -> None:
        self._leaders: dict[TopicPartition, int] = {}
        self._asked: dict[TopicPartition, int] = {}
        super().__init__(**settings)

    def _list_group_offsets_requests(self, group_specs: Any) -> Iterator[Any]:
        for group, request in super()._list_group_offsets_requests(group_specs):
            request.require_stable = True
            yield group, request

    async def _async_list_partition_offsets(self, wanted: Any, *question: Any) -> Any:
        answer = await super()._async_list_partition_offsets(wanted, *question)
        self._leaders |= {partition: self._asked[partition] for partition in answer}
        return answer

    async def _async_get_leader_for_partitions(self, partitions: Iterable[TopicPartition]) -> Any:
        """Return leader → partitions; raise LeaderNotAvailableError if one has no leader.

        A leader that is known is forgotten until it answers, so the library's next attempt asks who leads now.
        """
        wanted = set(partitions)
        found = {partition: self._leaders.pop(partition) for partition in wanted & self._leaders.keys()}
        if found.keys() != wanted or not all(map(self._manager.is_connected, set(found.values()))):
            leaders = await super()._async_get_leader_for_partitions(wanted)
            found = {partition: leader for leader, led in leaders.items() for partition in led}
        if alone := [f"{name}, partition {number}" for (name, number), leader in sorted(found.items()) if leader < 0]:
            raise kafka_errors.LeaderNotAvailableError(f"no broker leads {'; '.join(alone)}")
        self._asked |= found
        return {
            leader: {partition for partition in found if found[partition] == leader} for leader in set(found.values())
        }


def connect(options: KafkaOptions, kind: type[T], **ours: Any) -> T:
    """Open a client that has found its brokers.

    A client that has not found them leaves neither thread nor socket behind, and the error says why.
    """
    try:
        options = options.renew()
        check_certificates(options.properties)
    except BadConfig as error:  # good once: perhaps a file is being replaced
        raise Unavailable(str(error)) from error
    networks: list[Network] = []

    def network(**settings: Any) -> Network:
        networks.append(Network(**settings))
        return networks[-1]

    try:
        return kind(**options.of(kind, kafka_client=network, selector=Selector, **ours))
    except BaseException as error:
        failures = [failed._manager.failure for failed in networks]
        for failed in networks:
            with suppress(Exception):
                failed.close()
        if isinstance(error, TIMEOUTS) and any(failures):
            raise failures[-1] from error
        raise
    finally:
        networks.clear()


def warm(producer: KafkaProducer, topics: Sequence[str]) -> None:
    """Fetch these topics' metadata in one request; `send` takes 100 ms for each."""
    missing = [topic for topic in topics if producer._metadata.partitions_for_topic(topic) is None]
    for topic in missing:
        producer._sender.add_topic(topic)
    for topic in missing:
        producer.partitions_for(topic)


def add_partitions(producer: KafkaProducer, partitions: Iterable[TopicPartition]) -> None:
    """Add all partitions of a transaction to it in one request.

    `send` adds them one by one, while the client's thread may already ask for the first ones: a round trip each.
    """
    manager = producer._transaction_manager
    with manager._lock:
        for partition in partitions:
            manager.maybe_add_partition_to_transaction(partition)


@contextmanager
def together(producer: KafkaProducer) -> Iterator[None]:
    """Hold the client's thread back until the end of the block.

    So the block's records are sent together. Otherwise the first record would be sent alone, and the rest of its partition a round
    trip later. Used by one thread at a time. After `HELD_BACK` the client's thread goes on, because the block may be waiting for
    it.
    """
    sender = producer._sender
    turn, is_over = sender.run_once, threading.Event()

    def run_once() -> None:
        is_over.wait(HELD_BACK)
        turn()

    sender.run_once, sender.wakeup = run_once, _sleep_on
    try:
        yield
    finally:
        del sender.run_once, sender.wakeup
        is_over.set()
        sender.wakeup()


def _sleep_on() -> None:
    """Do nothing, in place of waking the client's thread."""


def wait(producer: KafkaProducer, begin: Callable[[Any], Any], deadline: float) -> None:
    """Begin a step of a transaction and wait for its end, at most until `deadline`.

    `begin` calls the step on the client's transaction manager. Raises KafkaTimeoutError at the deadline.
    """
    result = begin(producer._transaction_manager)
    producer._sender.wakeup()
    wait_for(result, deadline)


def wait_for(result: TransactionalRequestResult, deadline: float) -> None:
    """Wait for the outcome of a step of a transaction, as `wait` does."""
    if not result.wait(timeout_ms=max(1, (deadline - time.monotonic()) * 1000)):
        raise kafka_errors.KafkaTimeoutError("the transaction coordinator does not answer")


def commit_when_written(
    producer: KafkaProducer, written: Sequence[Any], check: Callable[[], None]
) -> TransactionalRequestResult:
    """Have the client's thread end a transaction as soon as its records are written.

    `written` are the futures of all its records. If one fails, or `check` then raises, nothing is committed. Returns the outcome,
    to wait for. A caller that began the commit itself would have to wake up between two answers of the broker, and to wake the
    client's thread.
    """
    ended, lock, left = TransactionalRequestResult(), threading.Lock(), set(range(len(written)))
    manager = producer._transaction_manager

    def begin_commit() -> None:
        try:
            check()
            with manager._lock:  # otherwise the client's thread may end the request before `done` is ours
                manager.begin_commit().done = ended.done
        except Exception as error:  # the library would log it, and nothing else
            ended.done(error)

    def note_written(number: int, _: object) -> None:
        with lock:
            left.discard(number)
            is_last = not left
        if is_last:
            begin_commit()

    if not written:
        begin_commit()
    for number, future in enumerate(written):
        future.add_callback(functools.partial(note_written, number))
        future.add_errback(ended.done)
    return ended


def close_producer(producer: KafkaProducer) -> None:
    """Close a producer and drop unsent records.

    The caller of `append` got an error for them. `close` alone would wait for them, and leave a thread behind.
    """
    with suppress(Exception):
        producer._sender.force_close()
        producer.close(timeout=5)


@contextmanager
def rim(options: KafkaOptions, doing: str) -> Iterator[None]:
    """Raise our errors in place of the client's; `doing` says what was attempted."""
    where = f"{options.url}: {doing}"
    try:
        yield
    except ReplicationError:
        raise
    except (kafka_errors.OffsetOutOfRangeError, kafka_errors.LogTruncationError) as error:
        raise Expired(f"{where}: the position is gone: {error}") from error
    except TOO_LARGE as error:
        raise Rejected(f"{where}: message too large for the broker: {error}") from error
    except kafka_errors.InvalidRecordError as error:
        raise Rejected(f"{where}: the broker refuses the record; a compacted topic needs a key: {error}") from error
    except kafka_errors.AuthorizationError as error:
        raise NotAuthorized(f"{where}: {_describe_error(error, options)}") from error
    except kafka_errors.KafkaConfigurationError as error:
        raise BadConfig(f"{where}: {error}") from error
    except Exception as error:
        raise Unavailable(f"{where}: {_describe_error(error, options)}") from error


def describe_missing(topics: Iterable[str]) -> str:
    """Say that the brokers do not know these topics, and the operator's next step."""
    names = ", ".join(sorted(set(topics))) or "or partition"
    return f"topic {names} is missing, or hidden from this user by its ACLs; if that lasts, run: vcsreplicator topics create"


def _describe_error(error: Exception, options: KafkaOptions) -> str:
    """Return what happened, and the operator's next step if one is known."""
    if isinstance(error, kafka_errors.AuthorizationError):
        return f"not authorized; check the ACLs of this user: {error}"
    if isinstance(error, kafka_errors.UnknownTopicOrPartitionError):
        return describe_missing(re.findall(r"topic='([^']*)'", str(error)))
    if "Authentication" in type(error).__name__:
        return f"authentication failed; check user and password: {error}"
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return f"the broker's certificate is not accepted; check its dates and names, and ssl_cafile: {error}"
    if _OWN_CERTIFICATE.search(str(error)):
        return f"the broker does not accept this client's certificate; check ssl_certfile: {error}"
    if isinstance(error, (*TIMEOUTS, kafka_errors.KafkaConnectionError)):
        guarded = options.properties.get("security_protocol", "PLAINTEXT") != "PLAINTEXT"
        expected = " (brokers also hang up on a wrong user, password or certificate)" if guarded else ""
        return f"no answer; are the brokers up and reachable?{expected} {error}"
    return str(error) if isinstance(error, kafka_errors.KafkaError) else f"{type(error).__name__}: {error}"

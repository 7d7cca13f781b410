# SPDX-License-Identifier: GPL-2.0-or-later
"""The clients of kafka-python as the log needs them: foreign exceptions become ours, and everything waits with a deadline.

This file alone reaches behind the public face of the library, where that has no deadline (`wait`), no end (`close_producer`,
`new_admin`), a slow start (`warm`) or an answer from before a commit (`Admin`).
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from kafka import KafkaAdminClient, KafkaProducer
from kafka import errors as kafka_errors
from kafka.net.compat import KafkaNetClient

from ..errors import BadConfig, Expired, Rejected, ReplicationError, Unavailable
from .kafka_options import Options

# During an outage the client writes lines by the dozen, even to a pusher's terminal; what matters is in our exceptions.
if logging.getLogger("kafka").level == logging.NOTSET:
    logging.getLogger("kafka").setLevel(logging.CRITICAL)

# On a slow machine the patience may end during the last attempt of many: the same mistake, another name.
TIMEOUTS = (kafka_errors.KafkaTimeoutError, kafka_errors.RequestTimedOutError)


class Admin(KafkaAdminClient):  # type: ignore[misc]  # the client comes without types
    """Positions of a transaction that was committed a moment ago are waited for, not passed over."""

    def _list_group_offsets_requests(self, group_specs: Any) -> Iterator[Any]:
        for group, request in super()._list_group_offsets_requests(group_specs):
            request.require_stable = True
            yield group, request


def new_admin(options: Options) -> KafkaAdminClient:
    """An admin client. One that does not get through would leave its thread behind, and keep the reason to itself."""
    networks: list[KafkaNetClient] = []
    reasons: list[Exception] = []

    def network(**settings: Any) -> KafkaNetClient:
        client = KafkaNetClient(**settings)
        networks.append(client)
        connect = client._manager.get_connection

        def watched(*arguments: Any, **named: Any) -> Any:
            connection = connect(*arguments, **named)
            connection.init_future.add_errback(reasons.append)
            return connection

        client._manager.get_connection = watched
        return client

    try:
        return Admin(**options.of(KafkaAdminClient, kafka_client=network))
    except BaseException as error:
        for failed in networks:
            with suppress(Exception):
                failed.close()
            failed._manager._net.stop()
        if isinstance(error, TIMEOUTS) and reasons:
            raise reasons[-1] from error
        raise
    finally:
        reasons.clear()
        for opened in networks:
            with suppress(AttributeError):
                del opened._manager.get_connection


def warm(producer: KafkaProducer, topics: Sequence[str]) -> None:
    """Fetch what the producer does not know of these topics, in one request: each costs 100 ms when `send` does it."""
    missing = [topic for topic in topics if producer._metadata.partitions_for_topic(topic) is None]
    for topic in missing:
        producer._sender.add_topic(topic)
    for topic in missing:
        producer.partitions_for(topic)


def wait(producer: KafkaProducer, begin: Callable[[Any], Any], deadline: float) -> None:
    """What `send_offsets_to_transaction` and `commit_transaction` do, but not for ever."""
    result = begin(producer._transaction_manager)
    producer._sender.wakeup()
    if not result.wait(timeout_ms=max(1, (deadline - time.monotonic()) * 1000)):
        raise kafka_errors.KafkaTimeoutError("the transaction coordinator does not answer")


def close_producer(producer: KafkaProducer) -> None:
    """Drop what was not sent: whoever appended it was told so. (`close` alone waits for it, and leaves a thread behind.)"""
    with suppress(Exception):
        producer._sender.force_close()
        producer.close(timeout=5)


@contextmanager
def rim(options: Options, doing: str) -> Iterator[None]:
    """Foreign exceptions become ours here."""
    where = f"{options.url}: {doing}"
    try:
        yield
    except ReplicationError:
        raise
    except (kafka_errors.OffsetOutOfRangeError, kafka_errors.LogTruncationError) as error:
        raise Expired(f"{where}: the position is gone: {error}") from error
    except (kafka_errors.MessageSizeTooLargeError, kafka_errors.RecordListTooLargeError) as error:
        raise Rejected(f"{where}: message too large for the broker (max.message.bytes): {error}") from error
    except kafka_errors.InvalidRecordError as error:
        raise Rejected(f"{where}: the broker refuses the record; a compacted topic needs a key: {error}") from error
    except (kafka_errors.KafkaConfigurationError, FileNotFoundError, PermissionError) as error:
        raise BadConfig(f"{where}: {error}") from error
    except Exception as error:
        raise Unavailable(f"{where}: {_reason(error, options)}") from error


def _reason(error: Exception, options: Options) -> str:
    """What happened, and the operator's next step."""
    if isinstance(error, kafka_errors.AuthorizationError):
        return f"not authorized; check the ACLs of this user: {error}"
    if "Authentication" in type(error).__name__:
        return f"authentication failed; check user and password: {error}"
    if isinstance(error, (*TIMEOUTS, kafka_errors.KafkaConnectionError)):
        guarded = options.properties.get("security_protocol", "PLAINTEXT") != "PLAINTEXT"
        expected = " (brokers also hang up on a wrong user, password or certificate)" if guarded else ""
        return f"no answer; are the brokers up and reachable?{expected} {error}"
    return str(error) if isinstance(error, kafka_errors.KafkaError) else f"{type(error).__name__}: {error}"

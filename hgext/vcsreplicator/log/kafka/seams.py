# SPDX-License-Identifier: GPL-2.0-or-later
"""Everything of kafka-python that this folder uses and that is not documented.

The library changes such names without notice. `check` looks for all of them before the first client is made, so that one line
refuses a version that lacks a name. Otherwise such a version would look like a broker that does not answer. Why each is needed:
docs/decisions/private-names-of-kafka-python.md.

Rule of this file: the folder uses no private name and no inner module of the library that is not here
(`tests/log/kafka/test_seams.py`).
"""

import functools
import importlib.metadata
import pkgutil
from collections.abc import Iterator
from typing import Any

from ...words.errors import BadConfig

# Module or class → its names. A method has parentheses, with its parameters where this folder overrides it.
SEAMS = {
    # A deadline for every wait, and brokers that hang (`connections`).
    "kafka.net.compat:KafkaNetClient": "_manager _net await_ready(self,node_id,timeout_ms) close(self,node_id)",
    "kafka.net.connection:KafkaConnection": (
        "close() close_future connected in_flight_requests init_future initializing node_id send_request()"
    ),
    "kafka.net.manager:KafkaConnectionManager": (
        "_backoff _build_transport(self,node,timeout_at) _connect(self,node,conn,reset_backoff_on_connect,timeout_at) "
        "_conns _net bootstrap(self,timeout_ms,refresh) broker_version_data call_soon() closed cluster config "
        "connection_delay(self,node_id) "
        "get_connection(self,node_id,timeout_ms,pop_on_close,refresh_metadata_on_err,reset_backoff_on_connect) "
        "run() send(self,request,node_id,request_timeout_ms) ssl_enabled"
    ),
    "kafka.net.selector:NetworkSelector": "call_at() call_later() call_soon() stop() wait_read() wait_write()",
    "kafka.cluster:ClusterMetadata": (
        "_bootstrap_brokers bootstrap_brokers() broker_metadata() brokers() is_bootstrap() leader_for_partition() "
        "partitions_for_topic() request_update() topic_id()"
    ),
    "kafka.protocol.metadata": "ApiVersionsRequest MetadataResponse",
    # Sockets that are closed, requests that leave at once, the last answer of a broker that hangs up (`transports`).
    "kafka.net.inet": "create_connection",
    "kafka.net.transport:KafkaTCPTransport": (
        "_closed _net _sock _sock_recv(self) _sock_send() _write _write_buffer _write_task _write_to_sock() _writing "
        "abort() last_write write(self,data)"
    ),
    "kafka.net.transport:KafkaSSLTransport": "_sock _sock_recv(self)",
    # Positions of transactions, leaders without a lookup (`clients.Admin`).
    "kafka:KafkaAdminClient": (
        "_async_get_leader_for_partitions(self,partitions) "
        "_async_list_partition_offsets(self,topic_partition_specs,isolation_level,timeout_ms) "
        "_list_group_offsets_requests(self,group_specs) _manager"
    ),
    "kafka.protocol.consumer.offsets": "IsolationLevel",
    # Transactions of one round trip, and their end (`clients`, `transactor`).
    "kafka:KafkaProducer": "_metadata _sender _transaction_manager",
    "kafka.producer.sender:Sender": "_client add_topic() force_close() run_once() wakeup()",
    "kafka.producer.transaction_manager:TransactionManager": (
        "_lock begin_abort() begin_commit() last_error maybe_add_partition_to_transaction() "
        "send_offsets_to_transaction()"
    ),
    "kafka.producer.transaction_manager:TransactionalRequestResult": "done() wait()",
    # A reader that `wake` wakes, and that no record stops (`reader`, `records`).
    "kafka:KafkaConsumer": "_coordinator _fetcher _manager _refresh_committed_offsets() _subscription",
    "kafka.consumer.fetcher": "ConsumerRecord Fetcher _FetchPartition",
    "kafka.consumer.fetcher:Fetcher": (
        "PartitionRecords _nodes_with_pending_fetch_requests fetched_records() maybe_validate_positions() "
        "reset_offsets_if_needed() send_fetches() validate_offsets_if_needed()"
    ),
    "kafka.consumer.fetcher:Fetcher.PartitionRecords": (
        "_unpack_records(self,tp,records,key_deserializer,value_deserializer)"
    ),
    # The share of a member without reading (`member`).
    "kafka.coordinator.consumer:ConsumerCoordinator": "poll(self,timeout_ms)",
    "kafka.consumer.subscription_state:SubscriptionState": "assignment is_fetchable()",
    "kafka.record.default_records": "DefaultRecord DefaultRecordBatch",
    "kafka.record.default_records:DefaultRecordBatch": "_maybe_uncompress() _read_msg()",
}

# What `pyproject.toml` installs: the versions that passed the tests of the log (`tests/log`).
TESTED = "kafka-python>=3.0.12,<3.1"


@functools.cache
def check() -> None:
    """Raise BadConfig naming what kafka-python lacks, and what to install."""
    if lacking := next(_find_lacking(), None):
        version = importlib.metadata.version("kafka-python")
        raise BadConfig(f"log: kafka-python {version} cannot be used, {lacking}; install '{TESTED}'")


def _find_lacking() -> Iterator[str]:
    """Yield what is missing or takes other parameters."""
    for place, names in SEAMS.items():
        for name, separator, rest in (text.partition("(") for text in names.split()):
            where, expected = f"{place.replace(':', '.')}.{name}", rest.rstrip(")")
            try:
                owner = pkgutil.resolve_name(place)
            except (ImportError, AttributeError):
                owner = None
            if not (hasattr(owner, name) if separator else _has_attribute(owner, name)):
                yield f"{where} is missing"
            elif expected and (found := _list_parameters(getattr(owner, name))) != expected:
                yield f"{where} takes ({found}), expected ({expected})"


def _has_attribute(owner: Any, name: str) -> bool:
    """Return whether a module or class has the name, or a method uses it."""
    if hasattr(owner, name):
        return True
    members = [member for each in getattr(owner, "__mro__", ()) for member in vars(each).values()]
    codes = [getattr(getattr(member, "fget", member), "__code__", None) for member in members]
    return any(name in code.co_names for code in codes if code)


def _list_parameters(function: Any) -> str:
    code = function.__code__
    return ",".join(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])

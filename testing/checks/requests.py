# SPDX-License-Identifier: GPL-2.0-or-later
"""The requests that clients of this process send to Kafka: what waits for a broker is counted, not timed."""

from typing import Any

import pytest
from kafka.net.connection import KafkaConnection

# What only a transactor sends.
TRANSACTIONAL = ("AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "Produce in transaction", "EndTxn")


def watch_requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows with the name of each request, such as `Produce`; `Produce in transaction` is a transactor's."""
    found: list[str] = []
    ordinary = KafkaConnection.send_request

    def send_request(connection: KafkaConnection, request: Any, *given: Any, **named: Any) -> Any:
        name = type(request).__name__.removesuffix("Request")
        is_in_transaction = name == "Produce" and request.transactional_id is not None
        found.append("Produce in transaction" if is_in_transaction else name)
        return ordinary(connection, request, *given, **named)

    monkeypatch.setattr(KafkaConnection, "send_request", send_request)
    return found

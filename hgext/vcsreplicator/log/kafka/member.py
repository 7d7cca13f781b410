# SPDX-License-Identifier: GPL-2.0-or-later
"""The members of a consumer group of Kafka, which divide the partitions of a topic."""

import os
import socket
from contextlib import suppress
from typing import Any

from kafka import KafkaConsumer

from .. import PartitionKey
from .broker import Broker
from .clients import connect, rim

# Seconds for which one call waits for the other members of the group.
JOIN_PATIENCE = 1.0


class KafkaMember:
    """A member of the group; it reads nothing, and stores no position.

    A thread of the client sends heartbeats: after `session_timeout_ms` without one, and after `max_poll_interval_ms` without a
    call of `share`, the others get the share. While members join, each keeps the share that it had.
    """

    def __init__(self, broker: Broker, group: str, topic: str) -> None:
        self._broker, self._topic = broker, topic
        self._share = frozenset[int]()
        with rim(broker.options, "connect"):
            self._consumer: KafkaConsumer = connect(
                broker.options,
                KafkaConsumer,
                group_id=broker.full(group),
                client_id=f"{socket.gethostname()}/{os.getpid()}",
                enable_auto_commit=False,
                allow_auto_create_topics=False,
                metrics_enabled=False,
            )
        self._consumer.subscribe([broker.full(topic)])

    def share(self) -> frozenset[int]:
        with rim(self._broker.options, f"divide {self._topic}"):
            if self._consumer._coordinator.poll(timeout_ms=1000 * JOIN_PATIENCE):
                self._share = frozenset(partition.partition for partition in self._consumer.assignment())
        return self._share

    def close(self) -> None:
        with suppress(Exception):
            self._consumer.close(autocommit=False, timeout_ms=1000 * JOIN_PATIENCE)


def read_share(assignment: Any, prefix: str) -> list[PartitionKey]:
    """Return the partitions of a member as brokers describe it.

    Returns none of a member that is just joining, or that is the client of another program.
    """
    if not isinstance(assignment, dict):
        return []
    topics = assignment["assigned_partitions"]
    return [(topic["topic"].removeprefix(prefix), number) for topic in topics for number in topic["partitions"]]

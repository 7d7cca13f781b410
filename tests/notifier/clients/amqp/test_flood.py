# SPDX-License-Identifier: GPL-2.0-or-later
"""A broker that delivers more messages than it was asked for."""

import socket
import threading
from contextlib import closing
from typing import Any

import pytest

from hgext.vcsreplicator.words.errors import Unavailable
from notifier.clients.amqp.connection import client
from notifier.clients.amqp.consumer import QueueConsumer
from testing.faults.broker import CONSUMING, FakeBroker, body, content
from testing.waiting import eventually

pytestmark = pytest.mark.processes

PREFETCH = 3


def open_consumer(broker: FakeBroker) -> QueueConsumer:
    known = client(broker.url, heartbeat=20.0, properties={})
    return QueueConsumer(known, "broker q", "q", declare=lambda channel: None, prefetch=PREFETCH)


def receive(consumer: QueueConsumer, count: int) -> list[Any]:
    """Return this many messages, once they came."""
    found: list[Any] = []
    eventually(lambda: found.extend(consumer.receive(0.1)) or len(found) >= count)
    return found


@pytest.mark.parametrize("size", [0, 3], ids=["empty", "with bodies"])
def test_a_broker_delivers_no_more_than_it_was_asked_for(size: int) -> None:
    """Else it fills the memory of a receiver that is busy with the first ones."""

    def deliver(connection: socket.socket, over: threading.Event) -> None:
        for tag in range(1, PREFETCH + 2):
            connection.sendall(content(size, tag=tag) + (body(bytes(size)) if size else b""))
        over.wait()

    with (
        FakeBroker(CONSUMING, deliver) as broker,
        closing(open_consumer(broker)) as consumer,
        pytest.raises(Unavailable, match=r"more than 3 messages without an acknowledgement"),
    ):
        receive(consumer, PREFETCH + 1)


def test_a_tag_that_comes_twice_ends_the_connection() -> None:
    """Else one acknowledgement would make room for many messages."""

    def deliver(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(content(0, tag=1) + content(0, tag=1))
        over.wait()

    with (
        FakeBroker(CONSUMING, deliver) as broker,
        closing(open_consumer(broker)) as consumer,
        pytest.raises(Unavailable, match="the tag of a message is not above the one before"),
    ):
        receive(consumer, 2)


def test_what_is_acknowledged_or_given_back_makes_room() -> None:
    asked = threading.Event()

    def deliver(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(content(0, tag=1) + content(0, tag=2) + content(0, tag=3))
        asked.wait()
        connection.sendall(content(0, tag=4) + content(0, tag=5) + content(0, tag=6))
        over.wait()

    with FakeBroker(CONSUMING, deliver) as broker, closing(open_consumer(broker)) as consumer:
        receive(consumer, 3)
        consumer.acknowledge(2, multiple=True)
        consumer.give_back(3)
        asked.set()
        for each in receive(consumer, 3):
            consumer.acknowledge(each.delivery_tag)

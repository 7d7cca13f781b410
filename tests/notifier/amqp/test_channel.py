# SPDX-License-Identifier: GPL-2.0-or-later
"""Messages of a channel go to the broker together, and none is kept for long."""

import contextlib
import queue
import socket
import threading
from collections.abc import Iterator

import pytest

from hgext.vcsreplicator.words.clock import SystemClock
from notifier.amqp.channel import ConfirmedChannel, OutgoingMessage, Target
from notifier.amqp.settings import BrokerSettings
from testing.faults.broker import CONFIRMING, FakeBroker

pytestmark = pytest.mark.processes


@pytest.fixture
def received() -> "queue.Queue[bytes]":
    """What the broker read at once, in order."""
    return queue.Queue()


@pytest.fixture
def channel(received: "queue.Queue[bytes]") -> Iterator[ConfirmedChannel]:
    def read_on(connection: socket.socket, over: threading.Event) -> None:
        while part := connection.recv(1024 * 1024):
            received.put(part)

    with FakeBroker(CONFIRMING, read_on) as broker:
        settings = BrokerSettings(url=broker.url)
        opened = ConfirmedChannel("it", settings, Target(name="x", declare=lambda channel: None), SystemClock())
        with contextlib.closing(opened):
            opened.start()
            yield opened


def send(channel: ConfirmedChannel, number: int, text: str) -> None:
    channel.send(number, OutgoingMessage(routing_key="q", body=text, id=str(number)))


def test_messages_go_together_once_their_outcomes_are_asked_for(
    channel: ConfirmedChannel, received: "queue.Queue[bytes]"
) -> None:
    for number in range(3):
        send(channel, number, f"message-{number}")
    channel.outcomes(0)
    together = received.get(timeout=10)
    assert [together.count(b"message-%d" % number) for number in range(3)] == [1, 1, 1]
    assert together.index(b"message-0") < together.index(b"message-1") < together.index(b"message-2")


def test_many_bytes_go_before_the_outcomes_are_asked_for(
    channel: ConfirmedChannel, received: "queue.Queue[bytes]"
) -> None:
    send(channel, 1, "x" * 64 * 1024)
    assert b"x" in received.get(timeout=10)

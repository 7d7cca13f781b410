# SPDX-License-Identifier: GPL-2.0-or-later
"""Messages of a channel go to the broker together, and none is held for long."""

import contextlib
import functools
import queue
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.errors import Unavailable
from notifier.clients.amqp.channel import ConfirmedChannel, Target
from notifier.clients.amqp.outgoing import OutgoingMessage
from notifier.clients.amqp.settings import BrokerSettings
from testing.faults.broker import CONFIRMING, START, FakeBroker, frame, low_on_memory
from testing.waiting import PATIENCE, eventually

pytestmark = pytest.mark.processes

NO_TEXT = b"\3\xff\xfe\xfd"
# Tables within each other.
DEEP = functools.reduce(lambda inner, _: b"\1tF" + struct.pack(">I", len(inner)) + inner, range(3000), b"")


@pytest.fixture
def received() -> "queue.Queue[bytes]":
    """What the broker read at once, in order."""
    return queue.Queue()


@pytest.fixture
def channel(received: "queue.Queue[bytes]") -> Iterator[ConfirmedChannel]:
    def read_on(connection: socket.socket, over: threading.Event) -> None:
        while part := connection.recv(1024 * 1024):
            received.put(part)

    with FakeBroker(CONFIRMING, read_on) as broker, opened(broker) as channel:
        yield channel


@pytest.mark.parametrize(
    "wrong", [{"routing_key": "é" * 128}, {"id": "x" * 256}, {"headers": {"n": 2**63}}, {"timestamp": -1}]
)
def test_message_that_amqp_cannot_carry_is_refused_alone(
    channel: ConfirmedChannel, received: "queue.Queue[bytes]", wrong: dict[str, Any]
) -> None:
    send(channel, 1, "message-1")
    with pytest.raises(struct.error):
        channel.send(2, OutgoingMessage(**{"routing_key": "q", "id": "m", "body": "{}", **wrong}))
    assert channel.outcomes(0) == []
    assert b"message-1" in received.get(timeout=PATIENCE)


@pytest.mark.parametrize(
    ("channel_number", "method", "arguments"),
    [
        (0, (10, 50), struct.pack(">H", 320) + NO_TEXT + bytes(4)),  # the connection is closed
        (1, (20, 40), struct.pack(">H", 404) + NO_TEXT + bytes(4)),  # the channel is closed
    ],
    ids=["close", "close-channel"],
)
def test_a_broker_that_cannot_be_understood_loses_its_connection_alone(
    channel_number: int, method: tuple[int, int], arguments: bytes
) -> None:
    def say(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(1)
        connection.sendall(frame(channel_number, method, arguments))
        over.wait()

    with FakeBroker(CONFIRMING, say) as broker, opened(broker) as channel:
        send(channel, 1, "message-1")
        outcomes = eventually(lambda: channel.outcomes(0.05))
        assert [(each.number, type(each.error)) for each in outcomes] == [(1, Unavailable)]


@pytest.mark.parametrize("table", [b"\1tT" + b"\xff" * 8, DEEP], ids=["time", "depth"])
def test_a_broker_that_cannot_be_understood_at_its_start_is_unavailable(table: bytes) -> None:
    def say(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(8)
        first = struct.pack(">BBI", 0, 9, len(table)) + table + b"\0\0\0\5PLAIN" + b"\0\0\0\5en_US"
        connection.sendall(frame(0, START, first))
        over.wait()

    with FakeBroker(None, say) as broker, pytest.raises(Unavailable), opened(broker):
        pass


@contextlib.contextmanager
def opened(broker: FakeBroker) -> Iterator[ConfirmedChannel]:
    settings = BrokerSettings(url=broker.url)
    made = ConfirmedChannel("it", settings, Target(name="x", declare=lambda channel: None), SystemClock())
    with contextlib.closing(made):
        made.start()
        yield made


def send(channel: ConfirmedChannel, number: int, text: str) -> None:
    channel.send(number, OutgoingMessage(routing_key="q", body=text, id=str(number)))


def test_messages_go_together_once_their_outcomes_are_asked_for(
    channel: ConfirmedChannel, received: "queue.Queue[bytes]"
) -> None:
    for number in range(3):
        send(channel, number, f"message-{number}")
    time.sleep(0.1)
    assert received.empty()
    channel.outcomes(0)
    together = b""
    while b"message-2" not in together:
        together += received.get(timeout=PATIENCE)
    assert [together.count(b"message-%d" % number) for number in range(3)] == [1, 1, 1]
    assert together.index(b"message-0") < together.index(b"message-1") < together.index(b"message-2")


def test_many_bytes_go_before_the_outcomes_are_asked_for(
    channel: ConfirmedChannel, received: "queue.Queue[bytes]"
) -> None:
    send(channel, 1, "x" * 64 * 1024)
    assert b"x" in received.get(timeout=PATIENCE)


@pytest.mark.parametrize("size", [2_000, 20_000])
def test_no_message_follows_once_the_broker_says_that_it_takes_none(size: int) -> None:
    """Until it does it reads nothing: what is written fills the buffers, and the system gives the connection up after a second."""
    with FakeBroker(CONFIRMING, low_on_memory) as broker, opened(broker) as channel:
        assert select.select([channel._connection.sock], [], [], 60)[0], "it has said so"
        taken = 0
        while taken < 1000 and not channel.is_blocked:
            send(channel, taken, "x" * size)
            taken += 1
        assert taken < 40
        ends = time.monotonic() + 3
        while time.monotonic() < ends:
            assert channel.outcomes(0.2) == []
        assert broker.connections == 1
        with pytest.raises(Unavailable, match="blocks publishers"):
            send(channel, taken, "x")

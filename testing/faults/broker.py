# SPDX-License-Identifier: GPL-2.0-or-later
"""A broker that speaks just enough AMQP 0-9-1 to be connected to, and falls silent or babbles where a test says."""

import socket
import struct
import threading
from collections.abc import Callable
from typing import Self

START, TUNE, OPEN_OK, CHANNEL_OK = (10, 10), (10, 30), (10, 41), (20, 11)
QOS_OK, DECLARED, QUEUE_DECLARED, BOUND, CONSUMING, CONFIRMING = (
    (60, 11),
    (40, 11),
    (50, 11),
    (50, 21),
    (60, 21),
    (85, 11),
)

_ANSWERS = {
    (10, 11): (TUNE, struct.pack(">HIH", 2047, 131072, 0)),
    (10, 40): (OPEN_OK, b"\0"),
    (20, 10): (CHANNEL_OK, b"\0\0\0\0"),
    (40, 10): (DECLARED, b""),
    (50, 10): (QUEUE_DECLARED, b"\1q" + bytes(8)),
    (50, 20): (BOUND, b""),
    (60, 10): (QOS_OK, b""),
    (60, 20): (CONSUMING, b"\1c"),
    (85, 10): (CONFIRMING, b"\0"),
}
# It says that it tells when it takes no messages, as brokers do.
_CAPABILITIES = b"\x12connection.blockedt\1"
_PROPERTIES = b"\x0ccapabilitiesF" + struct.pack(">I", len(_CAPABILITIES)) + _CAPABILITIES
_FIRST = struct.pack(">BBI", 0, 9, len(_PROPERTIES)) + _PROPERTIES + b"\0\0\0\5PLAIN" + b"\0\0\0\5en_US"

HEARTBEAT = struct.pack(">BHI", 8, 0, 0) + b"\xce"

# What the broker does from then on, until the event.
Trouble = Callable[[socket.socket, threading.Event], None]


def frame(channel: int, method: tuple[int, int], arguments: bytes) -> bytes:
    payload = struct.pack(">HH", *method) + arguments
    return struct.pack(">BHI", 1, channel, len(payload)) + payload + b"\xce"


def content(size: int, *, channel: int = 1, tag: int = 0) -> bytes:
    """The beginning of a message for the consumer, its body of `size` bytes to come."""
    header = struct.pack(">HHQH", 60, 0, size, 0)
    delivery = frame(channel, (60, 60), b"\1c" + struct.pack(">Q", tag) + b"\0\1e\1k")
    return delivery + struct.pack(">BHI", 2, channel, len(header)) + header + b"\xce"


def body(part: bytes, *, channel: int = 1) -> bytes:
    """A part of the message's body."""
    return struct.pack(">BHI", 3, channel, len(part)) + part + b"\xce"


def endless_message(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(content(2**62))
    while not over.is_set():
        connection.sendall(body(bytes(100_000)))


def many_messages_at_once(connection: socket.socket, over: threading.Event) -> None:
    for channel in range(1, 60_000):
        connection.sendall(content(1_000_000, channel=channel) + body(bytes(100_000), channel=channel))
    over.wait()


def many_deliveries_without_a_message(connection: socket.socket, over: threading.Event) -> None:
    for channel in range(1, 60_000):
        connection.sendall(frame(channel, (60, 60), b"\1c" + bytes(100_000)))
    over.wait()


def silence(connection: socket.socket, over: threading.Event) -> None:
    over.wait()


def hang_up_at_the_farewell(connection: socket.socket, over: threading.Event) -> None:
    """No trouble: the client leaves when it wants to, and waits for no answer."""
    received = b""
    while not any(struct.pack(">HH", *method) in received for method in ((10, 50), (20, 40))):
        piece = connection.recv(1000)
        if not piece:
            return
        received = received[-3:] + piece


def low_on_memory(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(frame(0, (10, 60), b"\x0dlow on memory"))
    over.wait()


def half_a_frame(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(frame(1, (60, 80), bytes(9))[:9])
    over.wait()


def endless_frame(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(struct.pack(">BHI", 1, 1, 100_000))
    while not over.wait(0.005):
        connection.sendall(b"x")


def huge_frame(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(struct.pack(">BHI", 1, 1, 2**32 - 1))
    over.wait()


def only_heartbeats(connection: socket.socket, over: threading.Event) -> None:
    while not over.wait(0.005):
        connection.sendall(HEARTBEAT)


class FakeBroker:
    """Answers as a broker would up to and including the method `until`, then gets into `trouble`; `connections` counts."""

    def __init__(self, until: tuple[int, int] | None, trouble: Trouble) -> None:
        self.until, self.trouble = until, trouble
        self.connections = 0
        self._over = threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept)]

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self._server.getsockname()[1]}//"

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(60)
        with connection, connection.makefile("rb") as stream:
            try:
                self._answer(connection, stream.read)
                self.trouble(connection, self._over)
            except OSError:
                pass  # the client left

    def _answer(self, connection: socket.socket, read: Callable[[int], bytes]) -> None:
        if self.until is None:
            return
        assert read(8) == b"AMQP\0\0\x09\1"
        said, arguments, channel = START, _FIRST, 0
        while True:
            connection.sendall(frame(channel, said, arguments))
            if said == self.until:
                return
            while True:
                header = read(7)
                if not header:
                    return
                kind, channel, size = struct.unpack(">BHI", header)
                method = struct.unpack(">HH", read(size + 1)[:4]) if kind == 1 else read(size + 1)
                if kind == 1 and method in _ANSWERS:
                    break
            said, arguments = _ANSWERS[method]

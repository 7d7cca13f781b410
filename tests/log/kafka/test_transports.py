# SPDX-License-Identifier: GPL-2.0-or-later
"""What is written to a broker leaves at once and in order, or not at all; its last answer is read."""

import errno
import gc
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace

import pytest
from kafka.errors import KafkaConnectionError
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaTCPTransport

from hgext.vcsreplicator.log.kafka.transports import TCPTransport, open_transport

pytestmark = pytest.mark.processes

Given = tuple[TCPTransport, NetworkSelector, socket.socket]


@pytest.fixture
def transport() -> Iterator[Given]:
    """A transport that nothing reads from, its event loop, and the other end."""
    near, far = socket.socketpair()
    with far:
        near.setblocking(False)
        loop = NetworkSelector()
        yield TCPTransport(loop, near), loop, far
        near.close()
        loop.close()


def test_a_request_leaves_without_a_turn_of_the_event_loop(transport: Given) -> None:
    written, _, far = transport
    for request in (b"one", b"two"):
        written.write(request)
        assert far.recv(100, socket.MSG_DONTWAIT) == request


def test_what_the_socket_does_not_take_follows_in_order(transport: Given) -> None:
    written, loop, far = transport
    sent = [bytes([number]) * 400_000 for number in range(3)]
    for request in sent:
        written.write(request)
    received = b""
    while len(received) < sum(map(len, sent)):
        loop.poll(timeout_ms=10)
        received += far.recv(1_000_000, socket.MSG_DONTWAIT)
    assert received == b"".join(sent)
    written.write(b"more")
    assert far.recv(100) == b"more"


def test_a_request_to_an_end_that_is_closed_ends_the_connection(transport: Given) -> None:
    written, loop, far = transport
    far.close()
    written.write(b"one")
    loop.poll(timeout_ms=0)
    assert written.is_closing()


class Answers:
    """A protocol that keeps what it is given."""

    _sensors = None

    def __init__(self) -> None:
        self.received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, _error: Exception | None) -> None:
        """Do nothing."""


def test_the_last_answer_of_a_broker_that_hangs_up_is_read(transport: Given) -> None:
    read, loop, far = transport
    answers = Answers()
    read._protocol = answers
    far.send(b"wrong password")
    far.close()
    read.resume_reading()
    while not read.is_closing():
        loop.poll(timeout_ms=10)
    assert answers.received == b"wrong password"


@pytest.mark.timeout(20)
def test_an_end_that_closes_tls_alone_ends_the_connection_too(
    transport: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy may close TLS and wait for the same before it closes the socket: then nothing more is there to read."""
    read, loop, far = transport
    answers = Answers()
    read._protocol = answers
    end = KafkaConnectionError("closed")
    monkeypatch.setattr(KafkaTCPTransport, "_sock_recv", lambda self: (self._sock.recv(100), end))
    far.send(b"wrong password")
    read.resume_reading()
    while not read.is_closing():
        loop.poll(timeout_ms=10)
    assert answers.received == b"wrong password"


class Short:
    """A socket with room for a part of the first request: the second attempt fails, the others succeed."""

    def __init__(self) -> None:
        self.attempts = 0
        self.sent = b""

    def send(self, data: bytes) -> int:
        self.attempts += 1
        if self.attempts == 2:
            raise OSError(errno.ENOBUFS, "No buffer space available")
        taken = bytes(data[:4] if self.attempts == 1 else data)
        self.sent += taken
        return len(taken)

    def getpeername(self) -> tuple[str, int]:
        """Return an end of the connection; a log line of the library names both."""
        return "127.0.0.1", 9092

    getsockname = getpeername

    def shutdown(self, _how: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def test_nothing_follows_a_request_of_which_only_a_part_left() -> None:
    with closing(NetworkSelector()) as loop:
        near = Short()
        written = TCPTransport(loop, near)
        written.write(b"first request")
        written.write(b"second request")
        loop.poll(timeout_ms=0)
    assert near.sent == b"firs"
    assert written.is_closing()


def test_an_attempt_whose_time_was_over_at_once_leaves_no_socket() -> None:
    with closing(NetworkSelector()) as loop:
        node, config = SimpleNamespace(host="127.0.0.1", port=1), {"socket_options": [], "proxy_url": None}
        before = len(os.listdir("/proc/self/fd"))
        gc.disable()  # nothing waits for a collection
        try:
            with pytest.raises(KafkaConnectionError, match="timed out") as failed:
                loop.run(lambda: open_transport(loop, node, config, has_tls=False, timeout_at=0.0))
            assert len(os.listdir("/proc/self/fd")) == before, failed
        finally:
            gc.enable()

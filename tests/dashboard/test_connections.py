# SPDX-License-Identifier: GPL-2.0-or-later
"""The dashboard's server against clients that open connections and send nothing, or not enough."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from hgext.vcsreplicator.dashboard import server
from hgext.vcsreplicator.dashboard.settings import DashboardRole
from hgext.vcsreplicator.demo.ports import free_port
from hgext.vcsreplicator.service import asgi
from testing.waiting import eventually
from tests.dashboard.conftest import Installation, fill, settings

pytestmark = pytest.mark.processes

PATIENCE = 60

# What a client sends that goes no further: nothing, a part of a head, a part of a body.
UNFINISHED = (
    b"",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n",
    b"POST /acts HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx",
)


@contextmanager
def serving(folder: Path, installation: Installation) -> Iterator[int]:
    """The port of a server that all may read."""
    port, stop, ready = free_port(), threading.Event(), threading.Event()
    made, address = settings(folder, anonymous=DashboardRole.READER), ("127.0.0.1", port)
    thread = threading.Thread(
        target=lambda: server.run(made, installation.sources, address=address, stop=stop, ready=ready.set)
    )
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        yield port
    finally:
        stop.set()
        thread.join(PATIENCE)
    assert not thread.is_alive()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def ask(port: int) -> bytes:
    """Return the first line of an answer."""
    with connect(port) as client:
        client.sendall(b"GET /static/style.css HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return client.makefile("rb").readline()


@pytest.mark.parametrize("unfinished", UNFINISHED, ids=["nothing", "head", "body"])
def test_many_connections_that_send_nothing_more_keep_no_reader_out(tmp_path: Path, unfinished: bytes) -> None:
    with serving(tmp_path, fill()) as port, ExitStack() as opened:
        for _ in range(server.CONNECTIONS + 10):
            opened.enter_context(connect(port)).sendall(unfinished)
        # A reader may still be refused while the last of them make room.
        eventually(lambda: ask(port).startswith(b"HTTP/1.1 200 "))


def test_readers_that_take_nothing_give_way_to_new_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "_SPARE", server.CONNECTIONS - 2)
    accepted = list[asgi.PatientConnection]()

    class NotedConnection(asgi.PatientConnection):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            accepted.append(self)

    def bind_with_small_buffers(host: str, port: int, key: str) -> socket.socket:
        listener = bind(host, port, key)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # of each connection, too
        return listener

    bind = asgi.bind
    monkeypatch.setattr(asgi, "bind", bind_with_small_buffers)
    monkeypatch.setattr(asgi, "PatientConnection", NotedConnection)
    request = b"GET /static/style.css HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving(tmp_path, fill()) as port, ExitStack() as opened:
        for _ in range(2):
            stalled = opened.enter_context(socket.socket())
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stalled.connect(("127.0.0.1", port))
            stalled.sendall(40 * request)
        eventually(lambda: [each.flow.write_paused for each in accepted] == [True, True])
        assert ask(port).startswith(b"HTTP/1.1 200 ")
        assert any(each.transport.is_closing() for each in accepted[:2])


def test_a_feed_is_not_what_gives_way_to_new_connections(tmp_path: Path) -> None:
    installation = fill()
    with serving(tmp_path, installation) as port, ExitStack() as opened:
        feed = opened.enter_context(connect(port))
        feed.sendall(b"GET /pushes/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        lines = feed.makefile("rb")
        assert any(line.startswith(b"retry:") for line in lines)
        for _ in range(2 * server.CONNECTIONS):
            opened.enter_context(connect(port))
        installation.push("public/tools")
        assert any(line.startswith(b"data:") for line in lines)


@pytest.mark.parametrize("length", ["3".zfill(5001), "9" * 5001], ids=["zeros", "nines"])
def test_a_length_of_thousands_of_digits_is_refused(tmp_path: Path, length: str) -> None:
    with serving(tmp_path, fill()) as port, connect(port) as client:
        client.sendall(f"POST /acts HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\nabc".encode())
        assert client.makefile("rb").readline().startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("unfinished", UNFINISHED, ids=["nothing", "head", "body"])
def test_a_client_that_sends_too_little_for_too_long_is_left(
    tmp_path: Path, unfinished: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "IDLE", 0.5)

    with serving(tmp_path, fill()) as port, connect(port) as client:
        client.sendall(unfinished)

        def is_left() -> bool:
            try:
                client.sendall(b"" if not unfinished or unfinished.endswith(b"x") else b"X: y\r\n")
                client.setblocking(False)
                return client.recv(65536) == b""
            except BlockingIOError:
                return False
            except ConnectionError:
                return True

        eventually(is_left, every=0.1)
        assert ask(port).startswith(b"HTTP/1.1 200 ")

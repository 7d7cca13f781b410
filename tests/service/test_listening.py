# SPDX-License-Identifier: GPL-2.0-or-later
"""The HTTP server against silent clients and ambiguous requests."""

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from hgext.vcsreplicator.service import listening
from testing.services.cache import CHECKOUT
from testing.waiting import eventually

pytestmark = pytest.mark.processes

PATIENCE = 60
# Bytes of the largest body that the servers here take.
LARGEST = 100_000


@pytest.fixture
def port() -> Iterator[int]:
    """A server that answers with path, server name and length of the body."""

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        body = environ["wsgi.input"].read()
        text = f"{environ['PATH_INFO']} {environ['SERVER_NAME']} {len(body)}\n".encode()
        start_response("200 OK", [("Content-Length", str(len(text)))])
        return [text]

    server = listening.create_server(application, host="127.0.0.1", port=0, threads=2, largest_body=LARGEST)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield server.effective_port
    server.close()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def answers(port: int, request: bytes) -> bytes:
    """Return all that the server sends until the connection is closed."""
    with connect(port) as client:
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        said = b""
        while more := client.recv(65536):
            said += more
        return said


@pytest.mark.parametrize(
    "silent", [b"", b"GET / HTTP/1.1\r\nHost: a\r\n", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx"]
)
def test_many_silent_connections_keep_no_one_out(port: int, silent: bytes) -> None:
    with ExitStack() as open_connections:
        for _ in range(2 * listening.CONNECTIONS):
            connection = open_connections.enter_context(connect(port))
            connection.sendall(silent)
        assert answers(port, b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 200 ")


def test_a_request_under_way_is_not_what_gives_way() -> None:
    goes_on = threading.Event()

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        if environ["PATH_INFO"] == "/long":
            assert goes_on.wait(PATIENCE)
        start_response("200 OK", [("Content-Length", "2")])
        return [b"ok"]

    server = listening.create_server(application, host="127.0.0.1", port=0, threads=2, largest_body=LARGEST)
    threading.Thread(target=server.run, daemon=True).start()
    try:
        with ExitStack() as open_connections:
            long = open_connections.enter_context(connect(server.effective_port))
            long.sendall(b"GET /long HTTP/1.0\r\n\r\n")
            for _ in range(listening.CONNECTIONS + 10):
                open_connections.enter_context(connect(server.effective_port))
            assert answers(server.effective_port, b"GET / HTTP/1.0\r\n\r\n").endswith(b"ok")
            goes_on.set()
            assert long.makefile("rb").read().endswith(b"ok")
    finally:
        server.close()


# More than the system takes for a client that does not read, less than makes waitress hold back the thread that answers.
UNREAD = 12 * 1024 * 1024


@contextmanager
def serving() -> Iterator[Any]:
    """A running server, whose answer at `/unread` is that large."""

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        size = UNREAD if environ["PATH_INFO"] == "/unread" else 2
        start_response("200 OK", [("Content-Length", str(size))])
        return [b"x" * size]

    server = listening.create_server(application, host="127.0.0.1", port=0, threads=2, largest_body=LARGEST)
    threading.Thread(target=server.run, daemon=True).start()
    try:
        yield server
    finally:
        server.close()


def ask(client: socket.socket, path: str) -> None:
    client.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())


def read_body(client: socket.socket) -> bytes:
    return client.makefile("rb").read().partition(b"\r\n\r\n")[2]


def test_the_oldest_silent_connection_gives_way_but_no_unread_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listening, "CONNECTIONS", listening._SPARE + 2 + 3)  # the server has two sockets of its own
    with serving() as server, ExitStack() as open_connections:
        unread, oldest, middle, newest = (open_connections.enter_context(socket.socket()) for _ in range(4))
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        for taken, client in enumerate((unread, oldest, middle, newest), 1):
            client.settimeout(PATIENCE)
            client.connect(("127.0.0.1", int(server.effective_port)))
            eventually(lambda taken=taken: len(server.active_channels) == min(taken, 3), "taken")
            if client is unread:
                ask(unread, "/unread")
                [channel] = server.active_channels.values()
                eventually(lambda channel=channel: channel.total_outbufs_len and not channel.requests, "answered")
        assert oldest.recv(1) == b""
        for client in (middle, newest):
            ask(client, "/")
            assert read_body(client) == b"xx"
        assert len(read_body(unread)) == UNREAD


def test_a_connection_that_was_silent_for_a_minute_is_closed() -> None:
    with serving() as server:
        port = int(server.effective_port)
        with connect(port) as shorter, connect(port) as longer:
            eventually(lambda: len(server.active_channels) == 2, "taken")
            for channel in server.active_channels.values():
                channel.last_activity -= 70 if channel.addr == longer.getsockname() else 30
            server.next_channel_cleanup = 0.0  # now, not within five seconds
            assert longer.recv(1) == b""
            ask(shorter, "/")
            assert read_body(shorter) == b"xx"


def test_the_limits_are_those_that_the_page_names() -> None:
    page = (CHECKOUT / "docs" / "serving.md").read_text()
    for limit in (
        f"| connections at a time | {listening.CONNECTIONS}, ",
        f"From {listening.CONNECTIONS - listening._SPARE} on, a new connection replaces",
        f"without an open request | {listening._SILENCE} s, ",
        f"of an answer that waits for it | {listening._STALLED} s, ",
    ):
        assert limit in page


LARGE = 60 * 1024 * 1024


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server of two threads, whose answer at `/large` fits into no buffer; it looks at its connections each second."""
    monkeypatch.setattr(listening, "_LOOK_EVERY", 1)

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
        size = LARGE if environ["PATH_INFO"] == "/large" else 2
        start_response("200 OK", [("Content-Length", str(size))])
        for begin in range(0, size, 1024 * 1024):
            yield b"x" * min(1024 * 1024, size - begin)

    server = listening.create_server(application, host="127.0.0.1", port=0, threads=2, largest_body=LARGEST)
    threading.Thread(target=server.run, daemon=True).start()
    yield server.effective_port
    server.close()


def test_readers_that_stopped_reading_keep_no_one_out(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "_STALLED", 2)
    with ExitStack() as open_connections:
        for _ in range(2):
            stalled = open_connections.enter_context(connect(large))
            stalled.sendall(b"GET /large HTTP/1.0\r\n\r\n")
            assert stalled.recv(1)
        assert answers(large, b"GET / HTTP/1.0\r\n\r\n").endswith(b"xx")


def test_an_answer_that_took_long_to_make_is_not_one_left_unread() -> None:
    channel = object.__new__(listening._Channel)
    channel.will_close = channel.close_when_flushed = False
    channel.last_activity, channel.total_outbufs_len = time.time() - 1000, 0
    assert not channel.writable()
    channel.total_outbufs_len = 5
    assert channel.writable()


@pytest.mark.slow
def test_a_slow_reader_gets_the_whole_answer(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "_STALLED", 4)
    with connect(large) as slow:
        slow.sendall(b"GET /large HTTP/1.0\r\n\r\n")
        said = 0
        for _ in range(60):
            said += len(slow.recv(LARGE // 100))
            time.sleep(0.1)
        while more := slow.recv(65536):
            said += len(more)
    assert said > LARGE


@pytest.mark.parametrize(
    ("refused", "status"),
    [
        (b"GET /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n", b"HTTP/1.1 200 OK"),
        (
            b"POST a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n",
            b"HTTP/1.1 400 Bad Request",
        ),
        (b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % 2**60, b"HTTP/1.1 413"),
    ],
    ids=["no body", "refused", "too large"],
)
def test_no_client_is_told_to_go_on_when_nothing_is_to_come(port: int, refused: bytes, status: bytes) -> None:
    with connect(port) as client:
        client.sendall(refused)
        assert client.recv(4096).startswith(status)


def test_a_client_that_asks_is_told_to_send_its_body(port: int) -> None:
    with connect(port) as client:
        client.sendall(b"POST /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        assert client.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"xyz")
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert answer.read().endswith(b" 3\n")


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize(
    "request_of_two_lengths",
    [
        b"POST /first HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n%s"
        % (len(SMUGGLED) + 5, SMUGGLED),
        b"POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n%s"
        % SMUGGLED,
        b"POST /first HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n%s" % SMUGGLED,
        b"POST /first HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n%s" % SMUGGLED,
    ],
)
def test_a_request_of_two_lengths_is_refused_with_all_that_follows(port: int, request_of_two_lengths: bytes) -> None:
    said = answers(port, request_of_two_lengths)
    assert said.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 "))
    assert said.count(b"Content-Type:") == 1
    assert b"smuggled" not in said


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a:port\r\n\r\n",
        b'GET / HTTP/1.1\r\nHost: "><script>\r\n\r\n',
        b"GET /a%00b HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /a%0db HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /a%0ab HTTP/1.1\r\nHost: a\r\n\r\n",
        *(b"GET /a%cb HTTP/1.1\r\nHost: a\r\n\r\n" % control for control in b"\0\1\t\n\x0b\r\x1b\x7f"),
        b"GET * HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET nowhere HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %s\r\n\r\nabc" % (b"3".zfill(5001)),
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %s\r\n\r\nabc" % (b"9" * 5001),
        b"\x16\x03\x01\r\n\r\n",
    ],
)
def test_a_malformed_request_is_answered_with_400(port: int, request_: bytes) -> None:
    assert answers(port, request_).split(b" ")[1] == b"400"


REFUSED = b"HTTP/1.1 413 Request Entity Too Large\r\n"


@pytest.mark.parametrize("header", [b"Content-Length: 100001", b"Content-Length: 99999999999"])
def test_a_body_that_is_too_large_is_refused_before_it_comes(port: int, header: bytes) -> None:
    with connect(port) as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: a\r\n" + header + b"\r\n\r\n")
        said = client.makefile("rb").read()
    assert said.startswith(REFUSED), "and the connection is closed"


def test_a_body_in_chunks_is_refused_once_it_is_too_large(port: int) -> None:
    chunk = b"1000\r\n" + b"x" * 0x1000 + b"\r\n"
    with connect(port) as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk * 25)
        assert client.makefile("rb").read().startswith(REFUSED)


def test_an_answer_to_head_has_no_body_that_could_be_the_next_answer(port: int) -> None:
    said = answers(
        port, b"HEAD /one HTTP/1.1\r\nHost: a\r\n\r\nGET /two HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    )
    assert b"/one" not in said
    assert said.startswith(b"HTTP/1.1 200 OK\r\nContent-Length: 17\r\n")
    assert said.count(b"HTTP/1.1 200 OK\r\n") == 2
    assert said.endswith(b"\r\n\r\n/two 127.0.0.1 0\n")


@pytest.mark.parametrize("begin", ["", "1;", "0\r\nX: "])
def test_a_line_of_a_chunk_without_an_end_is_refused(port: int, begin: str) -> None:
    head = f"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{begin}".encode()
    assert answers(port, head + b"1" * 8_200).startswith(b"HTTP/1.1 400 ")


def test_a_body_of_the_largest_size_is_taken(port: int) -> None:
    request = b"POST /all HTTP/1.0\r\nContent-Length: 100000\r\n\r\n" + b"x" * LARGEST
    assert answers(port, request).endswith(f" {LARGEST}\n".encode())


@pytest.mark.parametrize("host", [b"hg.example", b"hg.example:8080", b"[::1]:80", b"127.0.0.1"])
def test_a_sound_request_is_answered(port: int, host: bytes) -> None:
    said = answers(
        port, b"POST /a%%20b?x=1 HTTP/1.1\r\nHost: %s\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n" % host
    )
    assert said.startswith(b"HTTP/1.1 200 ")
    assert b"/a b " in said
    assert said.endswith(b" 3\n")


def test_without_a_host_the_address_is_the_name(port: int) -> None:
    assert b" 127.0.0.1 " in answers(port, b"GET / HTTP/1.0\r\n\r\n")


@pytest.mark.parametrize("host", ["nohost.invalid", "a..b", "x" * 300])
def test_a_host_that_cannot_be_found_is_an_error_of_the_system(host: str) -> None:
    with pytest.raises(OSError, match=r".") as caught:
        listening.create_server(lambda *_: [], host=host, port=0, threads=1, largest_body=0)
    assert caught.value.strerror


def test_a_server_that_stops_waits_for_the_threads_that_answer() -> None:
    """A client has its whole answer before the thread has ended with it."""
    release, ended = threading.Event(), threading.Event()

    class Answer:
        def __iter__(self) -> Iterator[bytes]:
            yield b"ok"

        def close(self) -> None:
            release.wait(PATIENCE)
            ended.set()

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Answer:
        start_response("200 OK", [("Content-Length", "2")])
        return Answer()

    server = listening.start_server(application, "test", host="127.0.0.1", port=0, threads=2, largest_body=LARGEST)
    with connect(server.effective_port) as client:
        ask(client, "/")
        answer = b""
        while not answer.endswith(b"ok") and (more := client.recv(100)):
            answer += more
        assert answer.endswith(b"ok")
        threading.Timer(0.2, release.set).start()
        listening.stop_server(server)
        assert ended.is_set()


@pytest.mark.parametrize("target", ["http://[/", "http://a]/", "http://[x]/"])
def test_an_address_that_is_none_is_answered(port: int, target: str) -> None:
    assert answers(port, f"GET {target} HTTP/1.0\r\n\r\n".encode()).startswith(b"HTTP/1.0 400 ")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("end", [" x y", " HTTP/x", "\t HTTP/1.1 "])
def test_a_long_first_line_is_refused_at_once(port: int, end: str) -> None:
    said = answers(port, f"GET http://{'9' * 100_000}{end}\r\n\r\n".encode())
    assert said.startswith(b"HTTP/1.0 400 ")

# SPDX-License-Identifier: GPL-2.0-or-later
"""Answers of any form, in any pieces; a connection is used again only if it is at the beginning of an answer."""

import itertools
import socket
import threading
from collections.abc import Iterator, Sequence

import pytest
import urllib3
from botocore.exceptions import HTTPClientError

from notifier.destinations.sns.exchange import HttpAnswer, exchange

pytestmark = pytest.mark.processes

SIMPLE = b"HTTP/1.1 200 OK\r\nServer: any\r\ncontent-length: 4\r\n\r\nbody"


class Server:
    """Gives the scripted answer, in its pieces, to each request, and to the first of a connection `SIMPLE`."""

    def __init__(self) -> None:
        self.pieces: Sequence[bytes] = ()
        self.ends = False
        self.requests: list[tuple[int, bytes]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.pool = urllib3.HTTPConnectionPool("127.0.0.1", self._listener.getsockname()[1], timeout=5.0)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        for number in itertools.count():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection:
                for place in itertools.count():
                    received = b""
                    while not received.endswith(b"request"):
                        more = connection.recv(1000)
                        if not more:
                            break
                        received += more
                    else:
                        self.requests.append((number, received))
                        for piece in self.pieces if place else (SIMPLE,):
                            connection.sendall(piece)
                        if not (place and self.ends):
                            continue
                    break

    def ask(self) -> HttpAnswer:
        return exchange(self.pool, "POST", "/a", {"Host": "h", "Content-Length": "7"}, b"request")

    def close(self) -> None:
        self.pool.close()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n"
CLOSING = b"HTTP/1.1 503 Busy\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbody"
KEPT = b"HTTP/1.1 404 No\r\nConnection: Keep-Alive\r\nContent-Length: 4\r\n\r\nbody"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + SIMPLE
HINTED = b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + SIMPLE
OLD = b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\nbody"
EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize("size", [1000, 7, 1], ids=["whole", "in pieces", "by bytes"])
@pytest.mark.parametrize(
    ("answer", "status", "is_kept"),
    [
        (SIMPLE, 200, True),
        (KEPT, 404, True),
        (EMPTY, 200, True),
        (CHUNKED, 200, True),
        (CONTINUED, 200, True),
        (HINTED, 200, True),
        (CLOSING, 503, False),
        (OLD, 200, False),
    ],
    ids=["simple", "kept", "empty", "chunked", "continued", "hinted", "closing", "old"],
)
def test_answer_is_read_whole_and_its_connection_used_again_if_it_stays_open(
    server: Server, answer: bytes, status: int, size: int, *, is_kept: bool
) -> None:
    server.pieces = [answer[at : at + size] for at in range(0, len(answer), size)]
    server.ask()
    found = server.ask()
    assert found == HttpAnswer(status=status, content=b"" if answer is EMPTY else b"body")
    server.ask()
    assert [number for number, _ in server.requests] == [0, 0, 0 if is_kept else 1]


def test_request_is_written_as_it_is_given(server: Server) -> None:
    server.pieces = (SIMPLE,)
    for _ in range(2):
        server.ask()
    assert server.requests[1] == (0, b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 7\r\n\r\nrequest")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        SIMPLE[:-1],
        SIMPLE + b"HTTP/1.1 200",
        b"220 mail.example ESMTP\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n" * 200 + SIMPLE,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 200 + SIMPLE,
    ],
    ids=[
        "nothing",
        "cut headers",
        "cut content",
        "too long",
        "not HTTP",
        "interim",
        "many interim",
        "many continued",
    ],
)
def test_answer_that_is_none_costs_the_connection(server: Server, answer: bytes) -> None:
    server.pieces, server.ends = (answer,), True
    server.ask()
    with pytest.raises(HTTPClientError):
        server.ask()
    assert server.ask().content == b"body"
    assert [number for number, _ in server.requests] == [0, 0, 1]


def test_answer_that_does_not_come_ends_the_wait(server: Server) -> None:
    server.pool.timeout = urllib3.Timeout(connect=5.0, read=0.1)
    server.ask()
    with pytest.raises(HTTPClientError, match="timed out"):
        server.ask()


def test_connection_that_the_server_closed_is_made_again(server: Server) -> None:
    server.pieces, server.ends = (SIMPLE,), True
    for _ in range(3):
        assert server.ask().content == b"body"
    assert [number for number, _ in server.requests] == [0, 0, 1]


def test_pool_that_is_closed_has_no_answer(server: Server) -> None:
    server.pool.close()
    with pytest.raises(HTTPClientError):
        server.ask()

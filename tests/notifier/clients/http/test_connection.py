# SPDX-License-Identifier: GPL-2.0-or-later
"""Answers of HTTP end in time and within their size, although the other side has no limits."""

import socket
import threading
from contextlib import suppress

import pytest
import urllib3

from notifier.clients.http.connection import INTERIM_ANSWERS, ConnectionPool, RunningAnswers, read_in_time
from testing.faults.broker import FakeBroker, Trouble

pytestmark = pytest.mark.processes

FINAL = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nanswer"
INTERIM = b"HTTP/1.1 103 Early Hints\r\nlink: </>\r\n\r\n"
UNBOUNDED = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"


def send(*pieces: bytes) -> Trouble:
    """Answer with these bytes, and close."""

    def answer(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(65536)
        connection.sendall(b"".join(pieces))

    return answer


def drip(begin: bytes) -> Trouble:
    """Answer with these bytes, and then byte by byte without end."""

    def answer(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(65536)
        connection.sendall(begin)
        while not over.wait(0.02):
            connection.sendall(b" ")

    return answer


def ask(server: FakeBroker, *, seconds: float = 60.0, most: int = 100, running: RunningAnswers | None = None) -> bytes:
    """Ask once, and return at most so many bytes of the body."""
    port = int(server.url.rpartition(":")[2].strip("/"))
    with ConnectionPool("127.0.0.1", port, running=running) as pool:
        timeout = urllib3.Timeout(connect=60.0, read=seconds)
        response = pool.urlopen("GET", "/", retries=False, preload_content=False, timeout=timeout)
        return read_in_time(response, most)


def test_an_answer_is_read_up_to_a_number_of_bytes() -> None:
    with FakeBroker(None, send(FINAL)) as server:
        assert ask(server) == b"answer"
    with FakeBroker(None, send(FINAL)) as server:
        assert ask(server, most=3) == b"ans"


@pytest.mark.parametrize(
    "begin", [b"", b"HTTP/1.1 200 OK\r\nx-long: ", UNBOUNDED], ids=["first line", "headers", "body without a length"]
)
def test_an_answer_that_drips_without_end_is_an_error_in_time(begin: bytes) -> None:
    with FakeBroker(None, drip(begin)) as server, pytest.raises((OSError, urllib3.exceptions.HTTPError)):
        ask(server, seconds=0.3)


def test_a_body_without_a_length_that_is_cut_is_not_taken_for_whole() -> None:
    def pause(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(65536)
        connection.sendall(UNBOUNDED + b"half")
        over.wait()

    # By our clock, or by that of the socket if it is read again just before.
    with FakeBroker(None, pause) as server, pytest.raises((TimeoutError, urllib3.exceptions.ReadTimeoutError)):
        ask(server, seconds=0.3)


@pytest.mark.parametrize("length", [b"6".zfill(5001), b"9" * 5001], ids=["zeros", "nines"])
def test_a_length_of_thousands_of_digits_is_none(length: bytes) -> None:
    with FakeBroker(None, send(b"HTTP/1.1 200 OK\r\ncontent-length: %s\r\n\r\nanswer" % length)) as server:
        assert ask(server) == b"answer"


def test_the_answer_after_interim_ones_counts() -> None:
    with FakeBroker(None, send(INTERIM * INTERIM_ANSWERS, FINAL)) as server:
        assert ask(server) == b"answer"


def test_too_many_interim_answers_are_an_error() -> None:
    too_many = pytest.raises(urllib3.exceptions.HTTPError, match=f"more than {INTERIM_ANSWERS} interim answers")
    with FakeBroker(None, send(INTERIM * (INTERIM_ANSWERS + 1), FINAL)) as server, too_many:
        ask(server)


@pytest.mark.parametrize("when", ["before it is asked for", "meanwhile"])
def test_an_answer_that_is_cut_counts_for_nothing(when: str) -> None:
    running = RunningAnswers()
    if when != "meanwhile":
        running.cut()

    def answer(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(65536)
        if when == "meanwhile":
            running.cut()
        with suppress(OSError):
            connection.sendall(FINAL)

    with FakeBroker(None, answer) as server, pytest.raises((OSError, urllib3.exceptions.HTTPError)):
        ask(server, running=running)


@pytest.mark.parametrize("size", [b"-1", b"-" + b"f" * 5000])
def test_a_chunk_of_a_negative_size_is_an_error_and_not_read(size: bytes) -> None:
    is_read = threading.Event()

    def flood(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(65536)
        with suppress(ConnectionError):
            connection.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + size + b"\r\n")
            connection.sendall(bytes(64 * 1024 * 1024))
            is_read.set()

    with FakeBroker(None, flood) as server, pytest.raises((OSError, urllib3.exceptions.HTTPError)):
        ask(server)
    assert not is_read.is_set()

# SPDX-License-Identifier: GPL-2.0-or-later
"""HTTP connections whose answers are limited in time and size.

The time limit holds even if their bytes come slowly.
"""

import http.client
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import urllib3

# Seconds to connect.
CONNECT_PATIENCE = 5.0
# Bytes of an answer that are read.
ANSWER_BYTES = 16 * 1024
# Most interim answers before the final one.
INTERIM_ANSWERS = 32


class _DeadlineTimer(threading.Timer):
    """A timer that shuts down a socket that another thread reads.

    It leaves the TLS objects alone: they belong to that thread.
    """

    def __init__(self, sock: socket.socket, seconds: float, running: "RunningAnswers") -> None:
        super().__init__(seconds, self.shut_socket)
        self.daemon = True
        self.over, self._sock, self._running = False, sock, running
        running.add(self)

    def cancel(self) -> None:
        super().cancel()
        self._running.discard(self)

    def shut_socket(self) -> None:
        self.over = True
        try:
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        except OSError:
            pass  # it ended by itself


class RunningAnswers:
    """The answers that the threads of one sender wait for now.

    Any thread may call it. Python waits at its exit for the threads of a pool, and so for these answers.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: set[_DeadlineTimer] = set()
        self._is_cut = False

    def add(self, watch: _DeadlineTimer) -> None:
        """Keep an answer that is waited for."""
        with self._lock:
            self._watches.add(watch)
            is_cut = self._is_cut
        if is_cut:
            watch.shut_socket()

    def discard(self, watch: _DeadlineTimer) -> None:
        with self._lock:
            self._watches.discard(watch)

    def cut(self) -> None:
        """Cut these answers, and all later ones."""
        with self._lock:
            watches, self._is_cut = list(self._watches), True
        for watch in watches:
            watch.shut_socket()


class FinalAnswer(http.client.HTTPResponse):
    """The final answer to a request: interim answers before it do not count.

    Python skips interim answers with status 100 alone, and any number of them. After another interim answer it would take the
    final answer for the answer to the next request. More than `INTERIM_ANSWERS` raise HTTPException here.
    """

    _begun = 0

    def _read_status(self) -> tuple[str, int, str]:
        self._begun += 1
        if self._begun > INTERIM_ANSWERS + 1:
            raise http.client.HTTPException(f"more than {INTERIM_ANSWERS} interim answers")
        return super()._read_status()  # type: ignore[misc,no-any-return]

    def _safe_read(self, amt: int) -> bytes:
        """Read so many bytes of a chunk, whose size the other side chose.

        Python takes a negative size for all bytes to the end of the connection.
        """
        if not 0 <= amt <= sys.maxsize:
            raise http.client.IncompleteRead(b"")
        return super()._safe_read(amt)  # type: ignore[misc,no-any-return]

    def begin(self) -> None:
        super().begin()
        while 100 <= self.status < 200:
            self.headers = None  # type: ignore[assignment]
            super().begin()


class _TimedConnection:
    """A connection whose answers end in time, unlike with a socket's own timeout."""

    response_class: Any = FinalAnswer
    sock: socket.socket
    timeout: float | None

    def __init__(self, *arguments: Any, running: RunningAnswers | None = None, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._running = running or RunningAnswers()

    def getresponse(self) -> Any:
        """Return the answer, which a watch cuts at the read timeout.

        The socket still has the timeout of the connection. The caller cancels the watch once it has read everything.
        """
        watch = _DeadlineTimer(self.sock, self.timeout or CONNECT_PATIENCE, self._running)
        watch.start()
        try:
            response = super().getresponse()  # type: ignore[misc]
        except BaseException as problem:
            watch.cancel()
            if not watch.over or not isinstance(problem, Exception):
                raise
        if watch.over:  # a cut answer may look complete, because headers end where the connection does, or be no HTTP
            watch.cancel()
            raise TimeoutError("the answer did not end in time")
        response.watch = watch
        return response


class _PlainConnection(_TimedConnection, urllib3.connection.HTTPConnection):
    pass


class _TlsConnection(_TimedConnection, urllib3.connection.HTTPSConnection):
    pass


class ConnectionPool(urllib3.HTTPConnectionPool):
    """Connections over HTTP with a deadline for the whole answer."""

    ConnectionCls = _PlainConnection


class TlsPool(urllib3.HTTPSConnectionPool):
    """The same over TLS."""

    ConnectionCls = _TlsConnection


@contextmanager
def watching(response: urllib3.BaseHTTPResponse) -> Iterator[_DeadlineTimer]:
    """Yield the watch over an answer of these pools.

    The watch ends with the block, as does the use of the connection.
    """
    watch: _DeadlineTimer = response.watch  # type: ignore[attr-defined]
    try:
        yield watch
    finally:
        watch.cancel()
        response.release_conn()


def read_in_time(response: urllib3.BaseHTTPResponse, most: int) -> bytes:
    """Return the body of an answer of these pools, at most `most` bytes.

    Raises HTTPError or OSError once the time of the answer is over.
    """
    with watching(response) as watch:
        content = response.read(most)
        if watch.over:  # where no length is known, a cut body looks whole
            raise TimeoutError("the answer did not end in time")
    return content


def finish(response: urllib3.BaseHTTPResponse, keep: int) -> bytes:
    """Read the rest of an answer, so that the connection can be used again; return its first `keep` bytes.

    A rest that is long or slow closes the connection instead, and what came of it is returned.
    """
    kept, size = b"", 0
    try:
        for chunk in response.stream(4096, decode_content=False):
            kept += chunk[: keep - len(kept)]
            size += len(chunk)
            if size > ANSWER_BYTES:
                response.close()
                break
    except (urllib3.exceptions.HTTPError, OSError, ValueError):
        response.close()
    return kept

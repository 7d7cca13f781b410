# SPDX-License-Identifier: GPL-2.0-or-later
"""A request and its answer on a connection of urllib3's that is open.

urllib3 and `http.client` spend 150 µs on a request and its answer, mostly to parse headers that we do not look at. Here an answer
that says its length is read at once; `http.client` reads every other one. urllib3 makes the connections, and keeps them.
"""

import http.client
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import HTTPClientError
from urllib3.exceptions import HTTPError

from ...clients.http.connection import FinalAnswer

# Bytes of an answer, and of its headers, that are read here; more is left to `http.client`.
_AT_ONCE = 64 * 1024
# An answer that ends where its length says, on a connection that stays open.
_SIMPLE = re.compile(rb"HTTP/1\.1 ([2-5]\d\d)[ \r]")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,6})[ \t]*\r\n", re.IGNORECASE)
_OTHER = re.compile(rb"\r\n(?:transfer-encoding|connection):", re.IGNORECASE)
_ENDED_EARLY = "the connection ended within an answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """The status of an answer and its whole content."""

    status: int
    content: bytes


def exchange(connections: Any, method: str, target: str, headers: Mapping[str, str], content: bytes) -> HttpAnswer:
    """Send a request through a pool of urllib3's; return its answer.

    The headers include Host and Content-Length. Raises HTTPClientError, after which the request may have arrived or not.
    """
    try:
        connection = connections._get_conn()
        if connection.sock is None:  # urllib3 opens it
            connections._put_conn(connection)
            first = connections.urlopen(method, target, content, headers, False, False, False, decode_content=False)
            return HttpAnswer(status=first.status, content=first.data)
    except HTTPError as error:
        raise HTTPClientError(error=error) from error
    is_open = False
    try:
        lines = [f"{method} {target} HTTP/1.1", *[f"{name}: {value}" for name, value in headers.items()]]
        connection.sock.sendall("\r\n".join((*lines, "\r\n")).encode("latin-1") + content)
        answer, is_open = _read_answer(connection.sock, method)
    except (OSError, http.client.HTTPException) as error:
        raise HTTPClientError(error=error) from error
    finally:
        if not is_open:
            connection.close()
        connections._put_conn(connection)
    return answer


def _read_answer(sock: Any, method: str) -> tuple[HttpAnswer, bool]:
    """Return the next answer, and whether the connection can have another."""
    received = sock.recv(_AT_ONCE)
    while (end := received.find(b"\r\n\r\n") + 4) == 3 and received and len(received) < _AT_ONCE:
        more = sock.recv(_AT_ONCE)
        if not more:
            raise ConnectionResetError(_ENDED_EARLY)
        received += more
    status, length = _SIMPLE.match(received), _LENGTH.search(received, 0, end)
    if end == 3 or status is None or length is None or status[1] in (b"204", b"304") or _OTHER.search(received, 0, end):
        return _read_other(sock, received, method)
    missing = int(length[1]) + end - len(received)
    if missing < 0:
        raise http.client.HTTPException("an answer is longer than it says")
    parts = [received[end:]]
    while missing > 0:
        parts.append(sock.recv(missing))
        if not parts[-1]:
            raise ConnectionResetError(_ENDED_EARLY)
        missing -= len(parts[-1])
    return HttpAnswer(status=int(status[1]), content=b"".join(parts)), True


def _read_other(sock: Any, received: bytes, method: str) -> tuple[HttpAnswer, bool]:
    """Return an answer of any form, of which some bytes have come."""
    answer = FinalAnswer(_Received(sock, received), method=method)  # type: ignore[arg-type]
    answer.begin()
    content = answer.read()
    return HttpAnswer(status=answer.status, content=content), not answer.will_close


class _Received(io.RawIOBase):
    """What a socket has given and will give, as `http.client` reads it."""

    def __init__(self, sock: Any, received: bytes) -> None:
        self._sock, self._received = sock, received

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        if not self._received:
            count: int = self._sock.recv_into(view)
            return count
        found, self._received = self._received[: len(view)], self._received[len(view) :]
        view[: len(found)] = found
        return len(found)

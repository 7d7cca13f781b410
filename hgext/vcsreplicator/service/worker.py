# SPDX-License-Identifier: GPL-2.0-or-later
"""A worker process of a web server: answers one WSGI request after the other.

The server's end is `workers`. Through a socket comes a request: the length of JSON (4 bytes, big endian), the JSON, then the body,
whose length is in the JSON, or a descriptor of it. The answer is frames of a kind (1 byte), a length (4 bytes) and content.
"""

import contextlib
import io
import json
import os
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import IO, Any

# Kinds of frames: status and headers; a piece of the body; the end; the end of the worker too; why it failed; and the wish to open
# a transaction. The server answers that with a byte, and then leaves the worker alone.
HEAD, PIECE, END, LAST, FAILED, WRITES = b"h", b"p", b"e", b"l", b"f", b"w"
LENGTH, FRAME = struct.Struct(">I"), struct.Struct(">cI")
# Bytes of an answer that are sent at once.
_AT_ONCE = 65536
# Bytes of an answer for which a request gets its budget again, and of the largest piece.
_PART = 1024**2


def answer_requests(
    connection: socket.socket,
    application: Callable[[dict[str, Any], Any], Iterable[bytes]],
    begin: Callable[[], None],
    renew: Callable[[], bool],
) -> None:
    """Answer requests until the server closes the connection.

    Calls `begin` before each request and `renew` after each MiB that the server took of an answer. After the answer `renew` says
    whether the worker is as good as new; else it ends.
    """
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the server is gone, or its client
        while (environ := _receive(connection)) is not None:
            begin()
            answer = _AnswerFrames(connection, renew)
            try:
                body = application(environ, answer.start)
                for piece in body:
                    answer.write(piece)
                if close := getattr(body, "close", None):
                    close()
                answer.flush()
            except (BrokenPipeError, ConnectionResetError):
                raise
            except MemoryError:
                body = None
                answer.fail(b"the request took more memory than a request may")
                return
            except Exception:
                traceback.print_exc()
                answer.fail(b"")
                return
            finally:
                environ["wsgi.input"].close()
            is_new = renew()
            connection.sendall(FRAME.pack(END if is_new else LAST, 0))
            if not is_new:
                return


def ask_to_write(connection: socket.socket) -> None:
    """Return once the server leaves this worker alone, which it may kill until then.

    Raises ConnectionResetError if the server has given it up.
    """
    connection.sendall(FRAME.pack(WRITES, 0))
    if not connection.recv(1):
        raise ConnectionResetError


def _receive(connection: socket.socket) -> dict[str, Any] | None:
    """Return the environment of the next request; None if the server has closed."""
    head, descriptors, _, _ = socket.recv_fds(connection, LENGTH.size, 1)
    if len(head) < LENGTH.size:
        return None
    environ: dict[str, Any] = json.loads(_read_bytes(connection, LENGTH.unpack(head)[0]))
    length = environ.pop("length")
    source: IO[bytes] = (
        io.BytesIO(_read_bytes(connection, length)) if not descriptors else os.fdopen(descriptors[0], "rb")
    )
    source.seek(0)
    more = {"wsgi.version": (1, 0), "wsgi.multithread": False, "wsgi.multiprocess": True, "wsgi.run_once": False}
    return {**environ, **more, "wsgi.errors": sys.stderr, "wsgi.input": source}


def _read_bytes(connection: socket.socket, length: int) -> bytes:
    read = bytearray()
    while len(read) < length:
        piece = connection.recv(min(length - len(read), 1024**2))
        if not piece:
            raise ConnectionResetError
        read += piece
    return bytes(read)


class _AnswerFrames:
    """An answer on its way to the server."""

    def __init__(self, connection: socket.socket, renew: Callable[[], bool]) -> None:
        self._connection, self._renew = connection, renew
        self._head: bytes | None = None
        self._is_begun = False
        self._pieces = bytearray()
        self._sent = 0

    def start(self, status: str, headers: list[tuple[str, str]], _problem: Any = None) -> Callable[[bytes], None]:
        """Take status and headers, as WSGI has it.

        They are sent with the first piece; until then others replace them.
        """
        if not self._is_begun:
            self._head = json.dumps([status, headers]).encode()
        return self.write

    def write(self, piece: bytes) -> None:
        """Send a piece, once there is enough."""
        self._pieces += piece
        if len(self._pieces) >= _AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Send what is not sent yet."""
        if not self._is_begun and self._head is not None:
            self._is_begun = True
            self._connection.sendall(FRAME.pack(HEAD, len(self._head)) + self._head)
        for start in range(0, len(self._pieces), _PART):
            piece = self._pieces[start : start + _PART]
            self._connection.sendall(FRAME.pack(PIECE, len(piece)) + piece)
            self._sent += len(piece)
            if self._sent >= _PART:
                self._sent = 0
                self._renew()
        self._pieces.clear()

    def fail(self, reason: bytes) -> None:
        """Report why there is no answer; empty: standard error has the reason."""
        self._connection.sendall(FRAME.pack(FAILED, len(reason)) + reason)

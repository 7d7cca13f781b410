# SPDX-License-Identifier: GPL-2.0-or-later
"""A push's line to the relay: opened with the transaction, so the relay notices if the pusher dies in it; told of the commit.

The conversation, one JSON object a line, over a Unix stream socket:

    push  → relay   {"repository": "/repos/name"}     a transaction is about to run there: is its history what the log has?
    push  → relay   {"seq": 12}                       committed up to 12: send it, tell me when the log has it
    relay → push    {"sent": 12}                      the log has it

The end of the connection is a message too: whoever dies in a transaction leaves one behind, which the relay then recovers.
Standard library only, because a push imports it; nothing here raises but a programming error.
"""

import contextlib
import json
import socket
import time
from typing import Self


class RelayLine:
    """One connection; useless once anything went wrong, which `hears` answers with False."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._told = 0

    @classmethod
    def open(cls, path: str, folder: str, *, patience: float = 0.5) -> Self | None:
        """A line about the repository in `folder`; None if no relay answers at `path`."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        connection.settimeout(patience)
        try:
            connection.connect(path)
            connection.sendall(_line({"repository": folder}))
        except OSError:
            connection.close()
            return None
        return cls(connection)

    def tell(self, seq: int) -> None:
        """Says that `seq` is committed; does not wait for an answer."""
        with contextlib.suppress(OSError):
            self._connection.sendall(_line({"seq": seq}))
            self._told = seq

    def hears(self, *, patience: float) -> bool:
        """Whether the relay says, within `patience` seconds, that the log has everything up to what it was told."""
        if not self._told:
            return False
        deadline = time.monotonic() + patience
        received = b""
        try:
            while b"\n" not in received:
                self._connection.settimeout(max(deadline - time.monotonic(), 0.001))
                piece = self._connection.recv(4096)
                if not piece:
                    return False
                received += piece
            return bool(json.loads(received)["sent"] >= self._told)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def close(self) -> None:
        """Ends the conversation."""
        self._connection.close()


def _line(message: dict[str, object]) -> bytes:
    return json.dumps(message).encode() + b"\n"

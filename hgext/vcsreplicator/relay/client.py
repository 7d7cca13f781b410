# SPDX-License-Identifier: GPL-2.0-or-later
"""A push's connection to the relay, opened with the transaction.

So the relay notices if the pushing process dies in the transaction. The conversation, one JSON object a line, over a Unix stream
socket:

    push  → relay   {"repository": "/repos/name"}     a transaction is about to run there: does its history follow the log's?
    push  → relay   {"seq": 12}                       committed up to 12: send it, and answer when the log has it
    relay → push    {"sent": 12}                      the log has it

The end of the connection is a message too: a process that dies in a transaction leaves the transaction behind, and the relay
rolls it back. Standard library only, because a push imports it. Only a programming error raises an exception here.
"""

import contextlib
import json
import socket
import time
from typing import Self


class RelayLine:
    """One connection; once anything went wrong, `wait_until_sent` returns False."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._committed = 0

    @classmethod
    def open(cls, path: str, folder: str, *, patience: float = 0.5) -> Self | None:
        """Connect to the relay at `path`; return None if no relay answers.

        The conversation is about the repository in `folder`.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        connection.settimeout(patience)
        try:
            connection.connect(path)
            connection.sendall(_encode_line({"repository": folder}))
        except OSError:
            connection.close()
            return None
        return cls(connection)

    def report_commit(self, seq: int) -> None:
        """Report that event `seq` is committed, without waiting for the answer."""
        with contextlib.suppress(OSError):
            self._connection.sendall(_encode_line({"seq": seq}))
            self._committed = seq

    def wait_until_sent(self, *, patience: float) -> bool:
        """Return whether the log has everything up to the reported event.

        Wait up to `patience` seconds for the relay's answer; return False if it does not come.
        """
        if not self._committed:
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
            return bool(json.loads(received)["sent"] >= self._committed)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def close(self) -> None:
        """End the conversation."""
        self._connection.close()


def _encode_line(message: dict[str, object]) -> bytes:
    return json.dumps(message).encode() + b"\n"

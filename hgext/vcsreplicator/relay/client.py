# SPDX-License-Identifier: GPL-2.0-or-later
"""A push's connection to the relay, opened with the transaction.

So the relay notices if the pushing process dies in the transaction. The conversation, one JSON object a line, over a Unix stream
socket:

    push  → relay   {"repository": "/repos/name"}     a transaction is about to run there: is it forked?
    push  → relay   {"ask": "log"}                    with `unavailable = refuse`, and before the first event: does the log have all
                                                      of it, and answer?
    relay → push    {"available": true}               yes; `false` if the repository is forked, otherwise a no is never sent
    push  → relay   {"seq": 12, "reasons": true}      committed up to 12: send it, and answer when the log has it
    relay → push    {"sent": 12}                      the log has it
    relay → push    {"failed": "Permission denied"}   only with `reasons`: the relay lacks a right here, and goes on trying;
                                                      with `"full": true` if a disk is full
    push  → relay   {"refused": "Permission denied"}  the server refuses the push for a reason of its own, not of the push
    push  → relay   {"ask": "mirrors", "id": REPOSITORY, "incarnation": INCARNATION, "announced": 12}
                                                      only with `acknowledge = mirrors`, and only after the previous answer:
                                                      do all mirrors serve 12, and is its notice written?
    relay → push    {"announced": 12, "mirrors": 2}   yes, 12 or a later one; 12 on so many mirrors (left out if not known, or if it
                                                      is a later one); a no is never sent

A relay that does not know a message ends the conversation.

While the relay, or the log behind it, hangs, each transaction would hold a server of one thread for the whole patience, and all
reads behind it. So a process that has waited in vain makes a pause (`ask_within`).

The end of the connection is a message too: a process that dies in a transaction leaves the transaction behind, and the relay
rolls it back. Standard library only, because a push imports it. Only a programming error raises an exception here.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from ..words.event import Event

# Seconds after which a relay that does not accept a connection counts as absent.
PATIENCE = 0.5
# Seconds for which a process waits during its pause: enough for a relay that is well again.
GLANCE = 0.2
# Bytes of the longest answer.
ANSWER_LIMIT = 8192
# Characters of the longest reason of a refusal.
REASON_LIMIT = 500
# When the pause ends, by the place of the relay or of the log; on the monotonic clock.
_ends: dict[str, float] = {}

_Answer = TypeVar("_Answer", bool, bool | None)


class RelayLine:
    """One connection; after any failure, no answer to a question is True.

    `failure` is the reason that the relay gave for not having sent the event, `mirrors` the number of mirrors that served an
    announced one; None if it gave none. `is_full` says that the reason is a full disk.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._committed = 0
        self.failure: str | None = None
        self.is_full = False
        self.mirrors: int | None = None

    @classmethod
    def open(cls, path: str, folder: str) -> Self | None:
        """Connect to the relay at `path` about a `folder`; None if no relay answers."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        connection.settimeout(PATIENCE)
        try:
            connection.connect(path)
            connection.sendall(_encode_line({"repository": folder}))
        except OSError:
            connection.close()
            return None
        return cls(connection)

    def is_log_available(self, *, patience: float) -> bool:
        """Ask whether the log answers and has every event of the repository.

        Waits up to `patience` seconds for the relay's answer; returns False if it does not come.
        """
        try:
            self._connection.sendall(_encode_line({"ask": "log"}))
            return self._read_answer(patience)["available"] is True
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def report_commit(self, seq: int) -> None:
        """Report that event `seq` is committed, without waiting for the answer."""
        with contextlib.suppress(OSError):
            self._connection.sendall(_encode_line({"seq": seq, "reasons": True}))
            self._committed = seq

    def report_refusal(self, reason: str) -> None:
        """Report that the server refuses pushes here, so that an operator reads why."""
        with contextlib.suppress(OSError):
            self._connection.sendall(_encode_line({"refused": reason[:REASON_LIMIT]}))

    def wait_until_sent(self, *, patience: float) -> bool | None:
        """Return whether the log has everything up to the reported event.

        Waits up to `patience` seconds for the relay's answer; returns False if it does not come, or is a `failure`. Returns None if
        the relay ends the conversation, because it stopped or refuses the peer.
        """
        if not self._committed:
            return None
        try:
            answer = self._read_answer(patience)
            if "failed" in answer:
                self.failure, self.is_full = str(answer["failed"]), answer.get("full") is True
                return False
            return bool(answer["sent"] >= self._committed)
        except TimeoutError:
            return False
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def wait_until_announced(self, event: Event, *, patience: float) -> bool | None:
        """Return whether the notice of an event in the log is written.

        Waits up to `patience` seconds for the relay's answer; returns False if it does not come. Returns None if the relay ends the
        conversation, because it stopped, or is too old to know the question.
        """
        names = {"id": event.repository, "incarnation": event.incarnation, "announced": event.seq}
        try:
            self._connection.sendall(_encode_line({"ask": "mirrors", **names}))
            answer = self._read_answer(patience)
            mirrors = answer.get("mirrors")
            self.mirrors = mirrors if type(mirrors) is int else None
            return bool(answer["announced"] >= event.seq)
        except TimeoutError:
            return False
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def close(self) -> None:
        self._connection.close()

    def _read_answer(self, patience: float) -> Any:
        """Read one line; raises OSError and ValueError."""
        deadline = time.monotonic() + patience
        received = b""
        while b"\n" not in received and len(received) <= ANSWER_LIMIT:
            self._connection.settimeout(max(deadline - time.monotonic(), 0.001))
            piece = self._connection.recv(4096)
            if not piece:
                raise ConnectionError("the relay ended the conversation")
            received += piece
        try:
            return json.loads(received)
        except RecursionError as problem:
            raise ValueError("not an answer of a relay") from problem


def _encode_line(message: dict[str, object]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def ask_within(
    place: str,
    question: Callable[[float], _Answer],
    *,
    patience: float,
    pause: float,
    clock: Callable[[], float] = time.monotonic,
) -> _Answer:
    """Ask a question that may take `patience` seconds, and return its answer.

    If the answer is False after all this time, the process gives each question at that `place` no more than a glance, for `pause`
    seconds or until an answer is True.
    """
    begin = clock()
    is_paused = begin < _ends.get(place, begin)
    seconds = min(patience, GLANCE) if is_paused else patience
    answer = question(seconds)
    if answer:
        _ends.pop(place, None)
    elif answer is False and not is_paused and clock() - begin >= seconds:
        _ends[place] = clock() + pause
    return answer

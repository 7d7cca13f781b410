# SPDX-License-Identifier: GPL-2.0-or-later
"""The question to a dashboard, its answer, and the reading of either."""

import socket
import time
from dataclasses import dataclass

from ...status.findings import Expectations
from ...status.summary import Summary
from ...words.errors import MalformedEvent
from ...words.shape import MAX_TEXT
from ...words.version import VERSION

# The format of question and answer; a dashboard answers no question of another format.
FORMAT = 1

# Seconds for the whole conversation.
PATIENCE = 2.0

# Bytes of a question and of an answer, at most.
QUESTION_LIMIT, ANSWER_LIMIT = 65_536, MAX_TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusQuestion:
    """The question of `status` or `check`.

    `version` is the program's, which must be that of the dashboard, because findings have the words of their release. `log` tells
    the log that is meant from others (`identify_log`).
    """

    format: int = FORMAT
    version: str = VERSION
    log: str
    expected: Expectations


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusAnswer:
    """The summary as of the question, or why there is none.

    It has everything that was committed before the question.
    """

    summary: Summary | None = None
    declined: str | None = None


def receive(connection: socket.socket, *, limit: int, deadline: float) -> bytes:
    """Read what the other end sends until it ends its side.

    `deadline` is by the monotonic clock. Raises OSError, TimeoutError included, and MalformedEvent if more than `limit` bytes come.
    """
    received = bytearray()
    while len(received) <= limit:
        set_time_left(connection, deadline)
        piece = connection.recv(65_536)
        if not piece:
            return bytes(received)
        received += piece
    raise MalformedEvent(f"more than {limit} bytes")


def set_time_left(connection: socket.socket, deadline: float) -> None:
    """Let the next operation wait until `deadline`; raise TimeoutError if it is over."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the time is over")
    connection.settimeout(left)

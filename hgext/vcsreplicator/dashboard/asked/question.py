# SPDX-License-Identifier: GPL-2.0-or-later
"""The question to a dashboard, its answer, and the end that asks it."""

import os
import socket
import stat
import time
from dataclasses import dataclass

from ...relay.admission import read_peer
from ...status.services import Expectations
from ...status.summary import Summary
from ...words.errors import MalformedEvent, Unavailable
from ...words.shape import MAX_TEXT, from_json, to_json
from ...words.version import VERSION

# The format of question and answer; a dashboard answers no question of another format.
FORMAT = 2

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


def ask(path: str, question: StatusQuestion, *, patience: float = PATIENCE) -> Summary:
    """Return the summary that the dashboard at `path` makes now.

    Raises Unavailable, after `patience` seconds at the latest, if no trusted answer comes.
    """
    deadline = time.monotonic() + patience
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
            set_time_left(connection, deadline)
            connection.connect(path)
            if not _is_believed(read_peer(connection)[0], path):
                raise Unavailable(
                    f"{path}: held by a user who is neither root, nor you, nor the owner of a folder that only root could make"
                )
            received = _converse(connection, question, deadline)
            answer = from_json(StatusAnswer, received, limit=ANSWER_LIMIT)
    except (OSError, MalformedEvent) as error:
        said = error.strerror if isinstance(error, OSError) else None
        raise Unavailable(f"{path}: {said or error}") from error
    if answer.summary is None:
        raise Unavailable(f"{path}: declined: {answer.declined}")
    return answer.summary


def _converse(connection: socket.socket, question: StatusQuestion, deadline: float) -> bytes:
    """Ask, and return the bytes of the answer; raise OSError and MalformedEvent."""
    try:
        connection.sendall(to_json(question))
        connection.shutdown(socket.SHUT_WR)
        received = receive(connection, limit=ANSWER_LIMIT, deadline=deadline)
    except ConnectionError:
        received = b""
    if not received:
        raise MalformedEvent("closed without an answer; may your user ask (dashboard.socket-users)?")
    return received


def _is_believed(user: int, path: str) -> bool:
    """Return whether the answers of this user at `path` are trusted.

    Answers of root and of our own user are. So are those of the owner of the socket's folder, if only root could make that folder:
    then root gave it to that user.
    """
    if user in (0, os.geteuid()):
        return True
    folder = os.path.dirname(os.path.realpath(path))
    if user != os.stat(folder).st_uid or folder == "/":
        return False
    while folder != "/":
        folder = os.path.dirname(folder)
        found = os.stat(folder)
        if found.st_uid != 0 or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return False
    return True


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

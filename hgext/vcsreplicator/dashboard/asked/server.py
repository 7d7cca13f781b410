# SPDX-License-Identifier: GPL-2.0-or-later
"""The answering end: who may ask, and threads with one connection at a time.

A peer that says nothing holds up one of them, for PATIENCE seconds. No question ends a thread.
"""

import contextlib
import pwd
import socket
import threading
import time
from collections.abc import Callable, Container, Iterable
from typing import Self

import structlog

from ...relay.admission import HeldSocket, read_peer
from ...words.clock import Clock, SystemClock
from ...words.errors import MalformedEvent
from ...words.shape import from_json, to_json
from .question import ANSWER_LIMIT, PATIENCE, QUESTION_LIMIT, StatusAnswer, StatusQuestion, receive, set_time_left

# Connections at a time; others wait to be accepted.
CONNECTIONS = 4

# Seconds between two attempts to accept a connection while the process has no file descriptor left.
FULL_PAUSE = 1.0

# Seconds between two log lines on refused peers: any user of the machine may connect as often as they like.
REFUSED_PAUSE = 10.0

# Seconds until a name that the system did not know is looked up again.
LOOK_AGAIN = 10.0

logger = structlog.get_logger()


class AnswerServer:
    """Answers questions at a socket while its block runs.

    `answer` gets a question and a deadline by the monotonic clock, after which the peer no longer waits. Entering the block raises
    BadConfig if the socket cannot be had.
    """

    def __init__(self, held: HeldSocket, answer: Callable[[StatusQuestion, float], StatusAnswer]) -> None:
        self._held, self._answer = held, answer
        self._closing = threading.Event()
        self._refused, self._warned, self._refusing = 0, float("-inf"), threading.Lock()
        self._listener: socket.socket | None = None
        self._threads = [
            threading.Thread(target=self._serve, name=f"answers-{number}", daemon=True) for number in range(CONNECTIONS)
        ]

    def __enter__(self) -> Self:
        self._listener = self._held.open()
        self._listener.setblocking(True)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        assert self._listener is not None
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the threads
        for thread in self._threads:
            thread.join(PATIENCE + 1.0)
        self._held.close()

    def _serve(self) -> None:
        assert self._listener is not None
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                self._closing.wait(FULL_PAUSE)
                continue
            try:
                with connection:
                    self._converse(connection)
            except OSError:
                continue  # the peer is gone, or took too long
            except Exception:
                logger.exception("question failed")

    def _note_refusal(self, uid: int) -> None:
        with self._refusing:
            self._refused += 1
            if time.monotonic() - self._warned >= REFUSED_PAUSE:
                logger.warning("peer refused", uid=uid, count=self._refused)
                self._refused, self._warned = 0, time.monotonic()

    def _converse(self, connection: socket.socket) -> None:
        """Answer one question; raise OSError if the peer is too slow to ask or read."""
        deadline = time.monotonic() + PATIENCE
        if not self._held.is_admitted(connection):
            self._note_refusal(read_peer(connection)[0])
            return
        try:
            received = receive(connection, limit=QUESTION_LIMIT, deadline=deadline)
            answer = self._answer(from_json(StatusQuestion, received), deadline)
        except MalformedEvent as error:
            answer = StatusAnswer(declined=f"the question cannot be read: {error}")
        encoded = to_json(answer)
        if len(encoded) > ANSWER_LIMIT:
            encoded = to_json(StatusAnswer(declined=f"the answer has {len(encoded)} bytes"))
        set_time_left(connection, deadline)
        connection.sendall(encoded)


class SocketUsers(Container[int]):
    """The ids of the users with these names; several threads may ask.

    A log line names each user that this machine does not have. The machine may get the user later, from a directory server that is
    not up yet. So the missing names are looked up again when an unknown id is asked for, at most once in LOOK_AGAIN seconds. One
    thread at a time does so, because the system may take long; the others do not wait for it.
    """

    def __init__(self, names: Iterable[str], clock: Clock = SystemClock()) -> None:  # noqa: B008
        self._clock, self._lock = clock, threading.Lock()
        self._ids, self._missing = set[int](), list(names)
        self._look_up()
        for name in self._missing:
            logger.warning("user of the socket not on this machine", user=name)

    def __contains__(self, user: object) -> bool:
        if user not in self._ids and self._missing and self._lock.acquire(blocking=False):
            try:
                if self._clock.monotonic() >= self._due:
                    for name in self._look_up():
                        logger.info("user of the socket found", user=name)
            finally:
                self._lock.release()
        return user in self._ids

    def _look_up(self) -> list[str]:
        """Look up the missing names, and return the names that the system knows now."""
        found = []
        for name in self._missing:
            with contextlib.suppress(KeyError, ValueError):
                self._ids.add(pwd.getpwnam(name).pw_uid)
                found.append(name)
        self._missing = [name for name in self._missing if name not in found]
        self._due = self._clock.monotonic() + LOOK_AGAIN
        return found

# SPDX-License-Identifier: GPL-2.0-or-later
"""The users of `socket-users`, by the ids that the system has for their names."""

import pwd
import threading
from collections.abc import Container, Iterable

import structlog

from ...words.clock import Clock, SystemClock

# Seconds until a name that the system did not know is looked up again.
LOOK_AGAIN = 10.0

logger = structlog.get_logger()


class SocketUsers(Container[int]):
    """The ids of the users with these names; several threads may ask.

    A log line names one that this machine does not have. It may get the user later, from a directory server that is not up yet: so
    the name is looked up again when an id is asked for that is not known, at most once in LOOK_AGAIN seconds. One thread at a time
    does so, because the system may take long; others do not wait for it.
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
                    self._look_up_again()
            finally:
                self._lock.release()
        return user in self._ids

    def _look_up_again(self) -> None:
        before = self._missing
        self._look_up()
        for name in before:
            if name not in self._missing:
                logger.info("user of the socket found", user=name)

    def _look_up(self) -> None:
        missing = []
        for name in self._missing:
            try:
                self._ids.add(pwd.getpwnam(name).pw_uid)
            except (KeyError, ValueError):
                missing.append(name)
        self._missing, self._due = missing, self._clock.monotonic() + LOOK_AGAIN

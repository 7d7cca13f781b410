# SPDX-License-Identifier: GPL-2.0-or-later
"""The thread that follows the log, and the newest view of it.

While the log is away the last view stays, with the reason and since when. An unexpected exception ends the thread, and `failure`
has it: its owner stops the service, so that no page shows an old view as if it were new.
"""

import threading
import time
from collections.abc import Collection

import structlog

from ..log import Log
from ..status.follower import Follower, look_at_destinations
from ..words.errors import Expired, Unavailable
from ..words.retry import RECONNECT
from .recent import RecentEvent, RecentEvents
from .view import View, make_view

# Seconds between two views at least, and how many times the cost of a view passes before the next.
PAUSE, REST = 2.0, 5.0

# Seconds of one wait for records.
WAIT = 0.5

logger = structlog.get_logger()


class LogWatcher:
    """Follows the log from `start` until `close`. Other threads may read the attributes; all they hold stays as it is."""

    def __init__(self, log: Log, *, destinations: Collection[str] | None, relay: str | None) -> None:
        self._log, self._destinations, self._relay = log, destinations, relay
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self.view: View | None = None
        self.trouble: str | None = "the log was not read yet"
        self.since = time.time()
        self.announced: tuple[RecentEvent, ...] = ()
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Start to follow."""
        self._thread.start()

    def close(self) -> None:
        """Stop, and wait for the thread a short while: a log that is away may hold it up."""
        self._stop.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        failures = 0
        try:
            while not self._stop.is_set():
                try:
                    self._follow()
                except (Unavailable, Expired) as error:
                    failures = failures + 1 if self.trouble else 1
                    self._note_trouble(str(error))
                    self._stop.wait(RECONNECT.delay(failures))
        except BaseException as error:
            self.failure = error

    def _note_trouble(self, reason: str) -> None:
        if self.trouble is None:
            self.since = time.time()
            logger.warning("log unavailable", reason=reason)
        self.trouble = reason

    def _follow(self) -> None:
        """Read the log until `close`. Raise Unavailable, and Expired of a log that lost records; both begin anew."""
        recent = RecentEvents(self._log)
        try:
            follower = Follower(self._log)
            try:
                self._refresh(follower, recent)
            finally:
                follower.close()
        finally:
            recent.close()

    def _refresh(self, follower: Follower, recent: RecentEvents) -> None:
        due = 0.0
        while not self._stop.is_set():
            has_new = recent.read_on(WAIT if due else 0.0)
            while has_new and not self._stop.is_set() and time.monotonic() < due + PAUSE:
                has_new = recent.read_on(0.0)
            self.announced = tuple(recent.announced)
            if time.monotonic() >= due:
                began = time.monotonic()
                picture = follower.update()
                look_at_destinations(self._log, picture)
                self.view = make_view(
                    picture, recent, follower.now(), destinations=self._destinations, relay=self._relay
                )
                if self.trouble is not None:
                    logger.info("log read", repositories=len(picture.states))
                self.trouble = None
                due = time.monotonic() + max(PAUSE, REST * (time.monotonic() - began))

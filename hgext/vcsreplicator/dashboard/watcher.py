# SPDX-License-Identifier: GPL-2.0-or-later
"""The thread that follows the log, and the newest view of it.

A view costs time that grows with the repositories, so views are made only while readers ask for them. While the log is
unavailable the last view stays, with the reason and since when. An unexpected exception ends the thread, and `failure` has it:
its owner stops the service, so that no page shows an old view as if it were new.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from ..log import Log
from ..status import Picture
from ..status.follower import Follower, look_at_destinations, look_at_topics
from ..status.services import Expectations
from ..words.clock import Clock, SystemClock
from ..words.errors import Expired, Unavailable
from ..words.retry import FAILOVER
from .graphs.history import MINUTE, History
from .recent import Announcements, RecentEvent, RecentEvents
from .view import View, make_sample, make_view


@dataclass(slots=True, kw_only=True)
class Pace:
    """How often the log is read and views are made; all but `rest` in seconds."""

    # Shortest pause between two views.
    pause: float = 2.0
    # The pause is `rest` x duration of the last view.
    rest: float = 10.0
    # For how long views are made after a page or a feed asked for one.
    interest: float = 60.0
    # Pause between two readings while no views are made: with longer ones `Follower.now` could not tell the time.
    reading: float = 5.0
    # Pause between two comparisons of the topics with the needed ones, for views.
    topics: float = 30.0
    # For how long a page waits for the next view.
    patience: float = 5.0
    # Longest wait for records.
    wait: float = 0.5


# The trouble until the first view, if the log itself has none.
NOT_READ = "the log was not read yet"

# Before any time of the machine, which may have started a moment ago.
_AT_ONCE = -math.inf

logger = structlog.get_logger()

T = TypeVar("T")
# A function of a picture and the time by the log's clock, and the future of its result.
PictureUse = tuple[Callable[[Picture, float], Any], "Future[Any]"]


def _wake_none() -> None:
    """Wake nothing: the log is not being read."""


class LogWatcher:
    """Follows the log from `start` until `close`.

    Other threads may read the attributes; the objects that they hold never change. `view` is the newest, however old. A page that
    shows the view calls `fetch_view`. A sample for `history` is taken every minute.
    """

    def __init__(
        self,
        log: Log,
        expected: Expectations,
        clock: Clock = SystemClock(),  # noqa: B008
        history: History | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._log, self._expected, self._clock, self._pace = log, expected, clock, pace or Pace()
        self.history = history or History()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self._changed = threading.Condition()
        self._asked = float("-inf")
        self._due = self._expires = self._topics_due = self._sample_due = _AT_ONCE
        self.view: View | None = None
        self.trouble: str | None = NOT_READ
        self.since = time.time()
        self.announced: tuple[RecentEvent, ...] = ()
        self._announcements = Announcements()
        self.failure: BaseException | None = None
        self._wake: Callable[[], None] = _wake_none
        self._uses: list[PictureUse] = []

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop, and wait briefly for the thread, which an unavailable log may block."""
        self._stop.set()
        with self._changed:
            self._wake()
        self._thread.join(5.0)

    def note_interest(self) -> None:
        """Make the thread renew views for the next `Pace.interest` seconds."""
        self._asked = time.monotonic()

    def fetch_view(self) -> View | None:
        """Return the newest view, None before the first.

        If it is overdue, wait up to `Pace.patience` seconds for the next one.
        """
        self.note_interest()
        with self._changed:
            overdue = self.view
            if not self._is_answer():
                self._wake()
                # The next view may be overdue too before this thread runs again.
                self._changed.wait_for(lambda: self.view is not overdue or self._is_answer(), self._pace.patience)
        return self.view

    def use_picture(self, use: Callable[[Picture, float], T], *, patience: float) -> T:
        """Return the result of `use` for the present picture.

        The picture has everything that was committed before this call. The thread calls `use` with the picture and the time by
        the log's clock. `use` must not keep the picture, because it changes. Raises Unavailable while the log is unavailable or
        its time is not known, and after `patience` seconds; then read the log instead. Passes on what `use` raises.
        """
        made: Future[T] = Future()
        with self._changed:
            if self.trouble is not None:
                raise Unavailable(self.trouble)
            self._uses.append((use, made))
            self._wake()
        try:
            return made.result(patience)
        except TimeoutError:
            made.cancel()
            raise Unavailable(f"no picture within {patience:.1f} s") from None

    def _is_answer(self) -> bool:
        """Return whether waiting for another view is of no use."""
        return self.view is None or self.trouble is not None or time.monotonic() < self._expires

    def _run(self) -> None:
        failures = 0
        try:
            while not self._stop.is_set():
                try:
                    self._follow()
                except (Unavailable, Expired) as error:
                    failures = failures + 1 if self.trouble else 1
                    self._note_trouble(str(error))
                    self._stop.wait(FAILOVER.delay(failures))
        except BaseException as error:
            self.failure = error
        finally:
            self._note_trouble("the dashboard stops", is_logged=False)

    def _note_trouble(self, reason: str, *, is_logged: bool = True) -> None:
        if self.trouble is None:
            self.since = time.time()
            if is_logged:
                logger.warning("log unavailable", reason=reason)
        with self._changed:
            self.trouble = reason
            self._changed.notify_all()
        self._refuse(self._take_uses(), reason)

    def _take_uses(self) -> list[PictureUse]:
        with self._changed:
            uses, self._uses = self._uses, []
        return uses

    def _refuse(self, uses: Iterable[PictureUse], reason: str) -> None:
        for _, made in uses:
            if made.set_running_or_notify_cancel():
                made.set_exception(Unavailable(reason))

    def _follow(self) -> None:
        """Read the log until `close`.

        Raises Unavailable, and Expired if the log has lost records. After both, the caller calls it again.
        """
        with closing(RecentEvents(self._log, self._announcements)) as recent:
            with self._changed:
                self._wake = recent.wake
            try:
                with closing(Follower(self._log, self._clock)) as follower:
                    self._refresh(follower, recent)
            finally:
                with self._changed:
                    self._wake = _wake_none

    def _refresh(self, follower: Follower, recent: RecentEvents) -> None:
        """Follow the log, and renew the view.

        The first is made as soon as the time is known, others when due and asked for.
        """
        self._due = reading = _AT_ONCE
        pace = self._pace
        while not self._stop.is_set():
            has_new = recent.read_on(0.0 if self._due == _AT_ONCE else pace.wait)
            while has_new and not self._uses and not self._stop.is_set() and time.monotonic() < self._due + pace.pause:
                has_new = recent.read_on(0.0)
            self._give_picture(follower)
            self.announced = tuple(recent.announced)
            now = time.monotonic()
            if now >= self._sample_due and self.trouble is None:
                self._take_sample(follower, recent)
            if now >= self._due and (self.trouble is not None or now < self._asked + pace.interest):
                self._renew_view(follower, recent)
            elif now >= reading:
                follower.update()  # so that the next view has little to read
            else:
                continue
            reading = time.monotonic() + pace.reading

    def _give_picture(self, follower: Follower) -> None:
        """Give the picture to the callers that wait for it; raises as `_follow`."""
        uses = self._take_uses()
        if not uses:
            return
        try:
            picture = follower.update()
            look_at_destinations(self._log, picture, self._expected.raw)
            look_at_topics(self._log, picture)
        except (Unavailable, Expired):
            # Refused once the trouble is noted, so that no later question is taken for one of these.
            with self._changed:
                self._uses[:0] = uses
            raise
        present = follower.now()
        if present is None:
            self._refuse(uses, "the time by the log's clock is not known")
            return
        for use, made in uses:
            if made.set_running_or_notify_cancel():
                try:
                    made.set_result(use(picture, present))
                except Exception as error:
                    made.set_exception(error)

    def _take_sample(self, follower: Follower, recent: RecentEvents) -> None:
        """Take a sample, whether or not a page is read; raises as `_follow`."""
        picture = follower.update()
        present = follower.now()
        if present is not None:
            self.history.add(make_sample(picture, recent, present))
            self._sample_due = time.monotonic() + MINUTE

    def _renew_view(self, follower: Follower, recent: RecentEvents) -> None:
        began = time.monotonic()
        picture = follower.update()
        if self._due == _AT_ONCE:
            began = time.monotonic()  # the first reading, of the whole log, says nothing of the cost of the next
        look_at_destinations(self._log, picture, self._expected.raw)
        if not picture.topics or began >= self._topics_due:
            look_at_topics(self._log, picture)
            self._topics_due = began + self._pace.topics
        present = follower.now()
        if present is None:
            self._due = began + self._pace.wait
            return
        view = make_view(picture, recent, present, self._expected)
        if self.trouble is not None:
            logger.info("log read", repositories=len(picture.states))
        cost = time.monotonic() - began
        with self._changed:
            self.view, self.trouble = view, None
            self._due = time.monotonic() + max(self._pace.pause, self._pace.rest * cost)
            self._expires = self._due + self._pace.pause
            self._changed.notify_all()

# SPDX-License-Identifier: GPL-2.0-or-later
"""Condition of one destination, as `destination list` and the metrics show it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import structlog
from prometheus_client import Gauge

from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.log.reports import ServiceReporter
from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import BadConfig, Unavailable
from hgext.vcsreplicator.words.records import DESTINATION_KEY, ServiceTrouble

from ..delivery.destination import DOWN
from ..delivery.window import Window
from ..destinations.state import StateDatabase

# Shortest interval between reports, in seconds.
REPORT_INTERVAL = 2.0
# Seconds after which an unchanged condition is reported again.
RENEWAL = 10.0

WAITING = Gauge("vcsreplicator_notifier_waiting_messages", "Read and not settled", ["destination"])
OLDEST = Gauge("vcsreplicator_notifier_oldest_age_seconds", "Age of the oldest message not settled", ["destination"])

logger = structlog.get_logger()


@runtime_checkable
class PartedDestination(Protocol):
    """A destination whose parts fail alone, as webhooks do."""

    def find_troubles(self) -> Sequence[ServiceTrouble]:
        """Return the trouble of each part that fails; raise Unavailable."""


class DestinationCondition:
    """The condition of a destination: whether it answers, and what waits for it.

    `trouble` is the last failure of the whole destination, until it answers again. Otherwise it is the failure of the delivery
    that has failed longest, while others may succeed.
    """

    def __init__(self, name: str, log: Log, state: StateDatabase, clock: Clock, *, since: float | None = None) -> None:
        self._name, self._state, self._clock = name, state, clock
        self._down = DOWN.labels(name)  # begins at 0, so that an alert has a series before the first failure
        self._reporter = ServiceReporter(log, f"{DESTINATION_KEY}{name}")
        self._reported_at = self._stored_at = float("-inf")
        self._stored: Mapping[str, object] = {}
        self._began_at = since
        self._outage: ServiceTrouble | None = None
        self._failed: dict[int, ServiceTrouble] = {}
        self._unread_since: float | None = None

    def record_outage(self, error: Exception) -> float:
        """Count the whole destination as unavailable; return the time when that began."""
        self._outage = self._describe_failure(error, self._outage)
        self._down.set(1)
        return self._outage.since

    def record_failure(self, number: int, error: Exception) -> None:
        """Count this delivery as failed until it is settled."""
        self._failed[number] = self._describe_failure(error, self._failed.get(number))

    def forget_failure(self, number: int) -> None:
        """Forget how this delivery failed."""
        if self._failed.pop(number, None) is not None:
            self._log_recovery()

    def record_answer(self) -> None:
        """Count the destination as available."""
        self._down.set(0)
        was_away, self._outage, self._began_at = self._outage is not None, None, None
        if was_away:
            self._log_recovery()

    def note_log_answer(self) -> None:
        """Let the next report be written soon: the log answers again."""
        self._reporter.note_answer()

    def _log_recovery(self) -> None:
        if self.trouble is None:
            logger.info("delivering again")

    def _describe_failure(self, error: Exception, former: ServiceTrouble | None) -> ServiceTrouble:
        since = self._began_at if former is None else former.since
        return ServiceTrouble(
            text=str(error),
            since=self._clock.now() if since is None else since,
            is_permanent=isinstance(error, BadConfig),
        )

    @property
    def trouble(self) -> ServiceTrouble | None:
        """The failure to report, with the reason as its text; None if nothing fails."""
        return self._outage or next(iter(self._failed.values()), None)

    def report(
        self,
        window: Window,
        position: int | None,
        mark: str | None,
        destination: object = None,
        *,
        replays: Sequence[Mapping[str, int]] = (),
    ) -> None:
        """Store the condition and report it to the log, if a report is due.

        A destination with parts that fail alone says which do. `mark` is the position's, should the log lose both. `replays` say
        how far each is. A failure to store the condition is only logged.
        """
        now = self._clock.monotonic()
        if now - self._reported_at < REPORT_INTERVAL:
            return
        self._reported_at = now
        for number in [number for number in self._failed if not window.holds(number)]:  # an operator skipped it
            self.forget_failure(number)
        parts = self._find_parts(destination)
        trouble = self.trouble
        oldest = window.oldest
        age = 0.0 if oldest is None else max(0.0, self._clock.now() - oldest.created)
        WAITING.labels(self._name).set(window.waiting)
        OLDEST.labels(self._name).set(age)
        condition = {
            "paused": window.paused,
            "position": position,
            "mark": mark,
            "waiting": window.waiting,
            "oldest": None if oldest is None else oldest.id,
            "oldest_age": round(age, 1),
            "trouble": None if trouble is None else trouble.text,
            "since": None if trouble is None else trouble.since,
            "parts": [{"trouble": part.text, "since": part.since} for part in parts],
            "replays": list(replays),
        }
        self._reporter.report([*self._list_own(), *parts], now=self._clock.now())
        if condition == self._stored and now - self._stored_at < RENEWAL:
            return
        try:
            self._state.record_condition(self._name, condition, now=self._clock.now())
        except Unavailable as error:
            logger.warning("status not stored", reason=str(error))
        else:
            self._stored, self._stored_at = condition, now

    def _list_own(self) -> list[ServiceTrouble]:
        if (trouble := self.trouble) is None:
            return []
        text = f"destination {self._name} is failing: {trouble.text}; see: vcsreplicator destination list"
        return [replace(trouble, text=text)]

    def _find_parts(self, destination: object) -> Sequence[ServiceTrouble]:
        """Return which parts fail, if there are any, or that this is not known."""
        try:
            found = destination.find_troubles() if isinstance(destination, PartedDestination) else ()
        except Unavailable as error:
            logger.warning("troubles not read", reason=str(error))
            self._unread_since = self._clock.now() if self._unread_since is None else self._unread_since
            text = f"destination {self._name} does not know what fails: {error}; see: vcsreplicator destination list"
            return [ServiceTrouble(text=text, since=self._unread_since)]
        self._unread_since = None
        return found

# SPDX-License-Identifier: GPL-2.0-or-later
"""The condition of one destination, as `destination list` and the metrics show it."""

from collections.abc import Mapping

import structlog
from prometheus_client import Gauge

from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import Unavailable

from .state import StateDatabase
from .window import Window

# Seconds between two reports: of changes, and of the same condition again.
REPORT_INTERVAL, RENEWAL = 2.0, 10.0

WAITING = Gauge("vcsreplicator_notifier_waiting_messages", "Read and not settled", ["destination"])
OLDEST = Gauge("vcsreplicator_notifier_oldest_age_seconds", "Age of the oldest message not settled", ["destination"])
DOWN = Gauge("vcsreplicator_notifier_down_flag", "1 while the destination does not answer", ["destination"])

logger = structlog.get_logger()


class DestinationCondition:
    """Whether the destination answers, and what waits for it; `trouble` is its last failure until it answers again."""

    def __init__(self, name: str, state: StateDatabase, clock: Clock) -> None:
        self._name, self._state, self._clock = name, state, clock
        self._reported_at = self._stored_at = float("-inf")
        self._stored: Mapping[str, object] = {}
        self.trouble: str | None = None

    def note_outage(self, error: Exception) -> None:
        """Count the whole destination as unavailable."""
        self.trouble = str(error)
        DOWN.labels(self._name).set(1)

    def note_answer(self) -> None:
        """Count the destination as available."""
        DOWN.labels(self._name).set(0)
        if self.trouble is not None:
            logger.info("delivering again")
            self.trouble = None

    def report(self, window: Window, position: int | None) -> None:
        """Store the condition if a report is due; a state that cannot store it is logged."""
        now = self._clock.monotonic()
        if now - self._reported_at < REPORT_INTERVAL:
            return
        self._reported_at = now
        oldest = window.oldest
        age = 0.0 if oldest is None else max(0.0, self._clock.now() - oldest.created)
        WAITING.labels(self._name).set(window.waiting)
        OLDEST.labels(self._name).set(age)
        condition = {
            "paused": window.paused,
            "position": position,
            "waiting": window.waiting,
            "oldest": None if oldest is None else oldest.id,
            "oldest_age": round(age, 1),
            "trouble": self.trouble,
        }
        if condition == self._stored and now - self._stored_at < RENEWAL:
            return
        try:
            self._state.record_condition(self._name, condition, now=self._clock.now())
        except Unavailable as error:
            logger.warning("status not stored", reason=str(error))
        else:
            self._stored, self._stored_at = condition, now

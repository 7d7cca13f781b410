# SPDX-License-Identifier: GPL-2.0-or-later
"""When to try again what a topic refused for its size."""

from contextlib import suppress

import structlog

from ..log import Log
from ..words.clock import Clock
from ..words.errors import ReplicationError
from .decisions.poison import Poison

# Seconds after which refused records are tried again although no limit is seen to have changed.
RETRY = 600.0

logger = structlog.get_logger()


class RefusalWatch:
    """Asks every `interval` seconds whether topics have other limits now."""

    def __init__(self, poison: Poison, log: Log, clock: Clock, interval: float) -> None:
        self._poison, self._log, self._clock, self._interval = poison, log, clock, interval
        self._began = self._asked = clock.monotonic()

    def is_due(self) -> bool:
        """Return whether the refused records are worth another try.

        A log that does not say a limit, or does not answer, is asked again later.
        """
        now = self._clock.monotonic()
        if not self._poison.refusals or now - self._asked < self._interval:
            return False
        self._asked = now
        known = {each.topic: each.limit for each in self._poison.refusals}
        is_due = now - self._began >= RETRY
        with suppress(ReplicationError):
            is_due |= any(self._log.largest(topic) != limit for topic, limit in known.items())
        if is_due:
            logger.info("messages that were too large are tried again", topics=sorted(known))
        return is_due

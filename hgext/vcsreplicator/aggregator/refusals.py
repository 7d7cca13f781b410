# SPDX-License-Identifier: GPL-2.0-or-later
"""When to try again what a topic refused for its size."""

from contextlib import suppress

import structlog

from ..log import Log
from ..words.clock import Clock
from ..words.errors import ReplicationError
from ..words.retry import Backoff
from .decisions.poison import Poison

# Seconds after which refused records are retried although no limit is seen to have changed. Each try loads the whole log again
# for each repository that waits, and rarely helps, so the pauses grow.
RETRIES = Backoff(first=600.0, longest=6 * 3600.0, jitter=0.0)

logger = structlog.get_logger()


class RefusalWatch:
    """Asks every `interval` seconds whether topics have other limits now."""

    def __init__(self, poison: Poison, log: Log, clock: Clock, interval: float) -> None:
        self._poison, self._log, self._clock, self._interval = poison, log, clock, interval
        self._began = self._asked = clock.monotonic()
        if poison.refusals and poison.waits_since is None:
            poison.waits_since = self._began

    def is_due(self) -> bool:
        """Return whether the refused records are worth another try.

        A log that does not say a limit, or does not answer, is asked again later.
        """
        now, poison = self._clock.monotonic(), self._poison
        if not poison.refusals and now - self._began >= RETRIES.first:
            poison.tries = 0
        if not poison.refusals or now - self._asked < self._interval:
            return False
        self._asked, is_changed = now, False
        known = {each.topic: each.limit for each in poison.refusals}
        with suppress(ReplicationError):
            is_changed = any(self._log.largest(topic) != limit for topic, limit in known.items())
        since = self._began if poison.waits_since is None else poison.waits_since
        is_due = is_changed or now - since >= RETRIES.delay(poison.tries + 1)
        if is_due:
            poison.tries = 0 if is_changed else poison.tries + 1
            logger.info("messages that were too large are tried again", topics=sorted(known))
        return is_due

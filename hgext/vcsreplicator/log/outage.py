# SPDX-License-Identifier: GPL-2.0-or-later
"""The failures of the log since it last answered, for a loop that tries again."""

import random
import threading

import structlog

from ..words.retry import FAILOVER

logger = structlog.get_logger()


class Outage:
    """Logs one line when the log fails, and another when it answers again, however often it is asked in between.

    A failure of another kind has a line of its own.
    """

    def __init__(self) -> None:
        self.failures = 0
        self._kind: type[Exception] | None = None

    def wait(self, error: Exception, stop: threading.Event) -> None:
        """Take a failure, and wait until the next attempt is due, or `stop` is set."""
        self.failures += 1
        if type(error) is not self._kind:
            self._kind = type(error)
            logger.warning("log unavailable", reason=str(error))
        stop.wait(FAILOVER.delay(self.failures, random.random()))

    def end(self) -> None:
        """Take an answer of the log."""
        if self.failures:
            logger.info("log answers again", failures=self.failures)
        self.failures, self._kind = 0, None

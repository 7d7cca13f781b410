# SPDX-License-Identifier: GPL-2.0-or-later
"""Time as an argument: the one place, beside the surfaces, that knows the system clock."""

import time
from typing import Protocol

DAY = 86400.0  # seconds


class Clock(Protocol):
    """Where a stage gets its time from; tests move theirs by hand."""

    def now(self) -> float:
        """Seconds since the epoch, UTC; may jump when the system's time is set."""

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean anything."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

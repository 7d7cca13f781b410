# SPDX-License-Identifier: GPL-2.0-or-later
"""Time as an argument: the one place, beside the surfaces, that knows the system clock."""

import time
from collections.abc import Hashable
from typing import Protocol

# Seconds.
DAY = 86400.0


class Clock(Protocol):
    """Where a stage gets its time from; tests move theirs by hand."""

    def now(self) -> float:
        """Return the seconds since the epoch, UTC; they jump when the system's time is set."""

    def monotonic(self) -> float:
        """Return seconds that never go back; only differences mean anything."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class Silence:
    """How long others have been silent, in seconds of the observer's own monotonic clock: clocks of machines are never compared.

    A sign of life counts when it differs from the last one that was seen. Without any, the silence began with the observer.
    """

    def __init__(self, began: float) -> None:
        self._began = began
        self._last: dict[Hashable, tuple[Hashable, float]] = {}

    def heard(self, who: Hashable, sign: Hashable, now: float) -> None:
        """Take the newest sign of life, which may be one that was taken before."""
        known = self._last.get(who)
        if known is None or known[0] != sign:
            self._last[who] = sign, now

    def seconds(self, who: Hashable, now: float) -> float:
        """Return the seconds since the last new sign."""
        known = self._last.get(who)
        return now - (known[1] if known else self._began)

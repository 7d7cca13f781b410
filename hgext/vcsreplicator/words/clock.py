# SPDX-License-Identifier: GPL-2.0-or-later
"""Clocks that stages take as arguments, so that tests can move time, and durations in words."""

import time
from collections.abc import Hashable
from typing import Protocol

# Seconds.
DAY = 86400.0


def format_duration(seconds: float) -> str:
    """Write a duration in the largest unit of which it has two; else in seconds."""
    for unit, length in (("d", DAY), ("h", 3600.0), ("min", 60.0)):
        if abs(seconds) >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def format_delay(seconds: float) -> str:
    """Write a duration; less than two seconds in milliseconds."""
    return format_duration(seconds) if abs(seconds) >= 2 else f"{1000 * seconds:.0f} ms"


class Clock(Protocol):
    """The clock of a stage; tests move theirs by hand."""

    def now(self) -> float:
        """Return the seconds since the epoch, UTC; they jump when the time is set."""

    def monotonic(self) -> float:
        """Return seconds that never go back; only differences have a meaning."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class Silence:
    """The seconds of others' silence, by the observer's own monotonic clock.

    Clocks of different machines are never compared. A heartbeat counts when it differs from the last. Without
    any sign, the silence began with the observer.
    """

    def __init__(self, began: float) -> None:
        self._began = self._listened = began
        self._last: dict[Hashable, tuple[Hashable, float]] = {}

    def listen(self, now: float, within: float) -> None:
        """Note that the observer listens, as it does every `within` seconds.

        Of a longer pause, in which it was stopped or the log did not answer, the rest is no silence.
        """
        pause, self._listened = now - self._listened - within, now
        if pause > 0:
            self._began += pause
            self._last = {who: (sign, min(now, at + pause)) for who, (sign, at) in self._last.items()}

    def heard(self, who: Hashable, sign: Hashable, now: float) -> None:
        """Record the newest heartbeat of `who`; a repeated one changes nothing."""
        known = self._last.get(who)
        if known is None or known[0] != sign:
            self._last[who] = sign, now

    def seconds(self, who: Hashable, now: float) -> float:
        """Return the seconds since the last new heartbeat of `who`."""
        known = self._last.get(who)
        return now - (known[1] if known else self._began)

# SPDX-License-Identifier: GPL-2.0-or-later
"""A clock that tests move by hand."""


class HandClock:
    """Stands still until it is moved; `now` and `monotonic` move together, unless it is set back."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._now = now
        self._monotonic = 0.0

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        self._now += seconds
        self._monotonic += seconds

    def set_back(self, seconds: float) -> None:
        """Set the time of day back, or forward by a negative number, as an operator or NTP does; nothing else passes."""
        self._now -= seconds

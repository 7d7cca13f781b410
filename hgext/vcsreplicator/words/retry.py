# SPDX-License-Identifier: GPL-2.0-or-later
"""Delays before the next attempt; pure, the caller sleeps."""

from dataclasses import dataclass

from .shape import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential delays between `first` and `longest` seconds, with jitter.

    `factor` is from one delay to the next; `jitter` spreads each (0.2 = ±20 %).
    """

    first: Seconds = 0.1
    longest: Seconds = 30.0
    factor: float = 2.0
    jitter: float = 0.2

    def delay(self, attempt: int, chance: float = 0.5) -> float:
        """Return the seconds to wait after failed attempt `attempt` (from 1).

        `chance` in [0, 1) picks the jitter.
        """
        exponent = min(max(attempt - 1, 0), 64)
        plain = min(self.longest, self.first * self.factor**exponent)
        return plain * (1 + self.jitter * (2 * chance - 1))


# For the log and our own services: at least one attempt in 1.2 s after an outage of any length, jitter included. One that refuses
# costs next to nothing, and one that does not answer takes until the client's own time limit.
RECONNECT = Backoff(first=0.1, longest=1.0)

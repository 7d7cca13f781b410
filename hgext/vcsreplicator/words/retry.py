# SPDX-License-Identifier: GPL-2.0-or-later
"""Delays before the next attempt; pure, the caller sleeps."""

import datetime
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

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
        exponent = min(max(attempt - 1, 0), 200)
        plain = min(self.longest, self.first * self.factor**exponent)
        return plain * (1 + self.jitter * (2 * chance - 1))


# For brokers of messages and our own services: at least one attempt per 1.2 s after an outage of any length, jitter included. A
# refused attempt costs next to nothing; an unanswered one lasts until the client's own time limit.
RECONNECT = Backoff(first=0.1, longest=1.0)

# For the log: of several brokers another one takes over after some seconds, so the delays grow by 3 % only. Each is a thirtieth of
# what the outage has lasted, until they are as long as the others.
FAILOVER = Backoff(first=0.1, longest=1.0, factor=1.03)

# Seconds that `Retry-After` may ask for.
LONGEST_WAIT = 86400.0


def read_retry_after(value: str | None, now: float) -> float:
    """Return the seconds that the header Retry-After asks us to wait, at most a day.

    Returns 0 if it asks for none or for nonsense.
    """
    if value is None:
        return 0.0
    value = value.strip()
    if value.isascii() and value.isdigit():
        return min(float(value.lstrip("0")[:9] or 0), LONGEST_WAIT)
    try:
        when = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return 0.0
    if when.tzinfo is None:
        when = when.replace(tzinfo=datetime.UTC)
    return min(max(0.0, when.timestamp() - now), LONGEST_WAIT)

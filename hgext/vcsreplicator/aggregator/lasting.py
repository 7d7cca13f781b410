# SPDX-License-Identifier: GPL-2.0-or-later
"""What a process of the aggregator keeps from one session to the next."""

from ..words.clock import Clock, Silence
from ..words.roster import Roster
from .decisions.poison import Poison
from .recent_notices import RecentNotices


class Lasting:
    """What the process has learned at work and cannot read from the log."""

    def __init__(self, clock: Clock, instance: str | None = None) -> None:
        """`instance` names the process in heartbeats."""
        self.instance, self.poison, self.silence = instance, Poison(), Silence(clock.monotonic())
        self.recent = RecentNotices(clock)
        # The newest roster that was seen in the log.
        self.written: Roster | None = None

# SPDX-License-Identifier: GPL-2.0-or-later
"""Which repositories wait for a worker, which for a time. Pure but for its clock."""

import heapq
from collections.abc import Iterator

from ...words.clock import Clock
from ..pool import Lane
from .backlog import Backlog
from .life import Following
from .values import Phase

# Seconds after which a stuck release is retried on its own: another process may have been in its way.
RELEASE_AGAIN = 1.0


class Agenda:
    """One queue for each lane of workers, and the alarms of resting repositories."""

    def __init__(self, backlog: Backlog, clock: Clock, large_bytes: int) -> None:
        self._backlog, self._clock, self._large_bytes = backlog, clock, large_bytes
        # In the order of their waiting.
        self._waiting: dict[Lane, dict[str, None]] = {lane: {} for lane in Lane}
        self._alarms: list[tuple[float, str]] = []

    def queue(self, following: Following) -> None:
        """Let the repository wait for a worker, if it has work that may begin now."""
        if self.is_queued(following) or following.work.is_running or following.work.is_resting:
            return
        lane = self.choose_lane(following)
        if lane is not None:
            self._waiting[lane][following.id] = None

    def is_queued(self, following: Following) -> bool:
        return any(following.id in waiting for waiting in self._waiting.values())

    def choose_lane(self, following: Following) -> Lane | None:
        """Return where the repository's next task belongs; None if there is none."""
        if following.phase is Phase.HEALING:
            return Lane.REPAIR
        if following.phase is Phase.LEAVING:
            return Lane.LIGHT
        if following.phase is not Phase.WAITING and (items := self._backlog.peek(following.id, events=1, size=0)):
            return Lane.HEAVY if items[0].is_large(self._large_bytes) else Lane.LIGHT
        return Lane.LIGHT if following.may_release else None

    def has_waiting(self, lane: Lane | None = None) -> bool:
        return bool(self._waiting[lane]) if lane else any(self._waiting.values())

    def take_next(self, lane: Lane) -> str:
        """Return the repository that has waited longest for this lane; end its wait."""
        repository = next(iter(self._waiting[lane]))
        del self._waiting[lane][repository]
        return repository

    def set_alarm(self, following: Following) -> None:
        """Let `take_due` yield the repository at the end of its rest."""
        heapq.heappush(self._alarms, (following.work.rests_until, following.id))

    def remind(self, following: Following) -> None:
        """Let `take_due` yield the repository, idle or not, after RELEASE_AGAIN seconds."""
        heapq.heappush(self._alarms, (self._clock.monotonic() + RELEASE_AGAIN, following.id))

    @property
    def next_due(self) -> float | None:
        """The time of the earliest alarm; None if there is none."""
        return self._alarms[0][0] if self._alarms else None

    def take_due(self) -> Iterator[str]:
        """Yield the repositories whose time has come, the earliest first.

        They include alarms added meanwhile that were due when the iteration began.
        """
        now = self._clock.monotonic()
        while self._alarms and self._alarms[0][0] <= now:
            yield heapq.heappop(self._alarms)[1]

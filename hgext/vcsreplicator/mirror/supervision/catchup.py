# SPDX-License-Identifier: GPL-2.0-or-later
"""Readers that bring a detached repository the events it missed in the stream.

A partition of the log that has no leader brings nothing. Its readers make way for repositories of other partitions, so it delays
only its own.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from ...log import EVENTS, Log
from ...words.clock import Clock
from ..sources import Source, SourceReport
from .life import Following

# How many repositories catch up at a time; the others wait for their turn.
LIMIT = 8
# Seconds without progress after which a reader makes way for a repository of another partition.
STUCK_AFTER = 5.0
# Seconds for which repositories of the same partition then come after all others.
PASSED_OVER = 60.0


@dataclass(slots=True, kw_only=True)
class _CatchUp:
    """One repository that catches up.

    Its reader goes on at `position` of `partition`. It was asked for records at the time `asked` and has not advanced since; None
    if it is not asked.
    """

    following: Following
    partition: int
    position: int
    source: Source | None = None
    asked: float | None = None


class CatchUpReaders:
    """The readers that run, and the repositories that wait for one."""

    def __init__(self, log: Log, report: Callable[[SourceReport], None], clock: Clock) -> None:
        self._log, self._report, self._clock = log, report, clock
        self._waiting: dict[str, _CatchUp] = {}
        self._running: dict[str, _CatchUp] = {}
        # Partition → the time until which its repositories come after all others.
        self._passed_over: dict[int, float] = {}

    def start(self, following: Following) -> None:
        """Read a detached repository from its resume point, once a reader may start."""
        self.stop(following)
        assert following.note is not None
        partition, position = following.note.partition, following.find_resume_offset(following.note)
        self._waiting[following.id] = _CatchUp(following=following, partition=partition, position=position)
        self._start_next()

    def stop(self, following: Following) -> None:
        """End the repository's reader, if it has one or waits for one."""
        self._waiting.pop(following.id, None)
        each = self._running.get(following.id)
        if each is not None:
            self._end_reader(each)
            self._start_next()

    def advance(self, following: Following, position: int) -> None:
        """Record that everything before this position has arrived."""
        each = self._running.get(following.id)
        if each is not None and position > each.position:
            each.position, each.asked = position, None
            self._passed_over.pop(each.partition, None)

    def read_on(self, following: Following) -> None:
        """Let the repository's reader, if it has one, bring the next batch."""
        each = self._running.get(following.id)
        if each is not None and each.source is not None:
            each.asked = self._clock.monotonic() if each.asked is None else each.asked
            each.source.may_read.set()

    def pass_over_stuck(self) -> None:
        """Let readers without progress make way for other partitions' repositories."""
        now = self._clock.monotonic()
        stuck = [each for each in self._running.values() if each.asked is not None and now - each.asked >= STUCK_AFTER]
        for each in stuck:
            waiting = {partition for partition in self._find_firsts() if not self._is_passed_over(partition)}
            if waiting - {each.partition}:
                self._passed_over[each.partition] = now + PASSED_OVER
                self._end_reader(each)
                self._waiting[each.following.id] = each
                each.following.change(each.following.read_later())
                self._start_next()

    def close(self) -> None:
        for each in self._running.values():
            if each.source is not None:
                each.source.stop()

    def _end_reader(self, each: _CatchUp) -> None:
        del self._running[each.following.id]
        if each.source is not None:
            each.source.stop()
        each.source = each.asked = None

    def _start_next(self) -> None:
        while self._waiting and len(self._running) < LIMIT:
            running = Counter(each.partition for each in self._running.values())
            firsts = self._find_firsts()
            ranks = {partition: (self._is_passed_over(partition), running[partition]) for partition in firsts}
            each = self._waiting[firsts[min(ranks, key=ranks.__getitem__)]]
            following = each.following
            start = {(EVENTS, each.partition): each.position}
            source = Source(self._log, start, self._report, follows=following.id, run=following.work.run)
            each.source, each.asked = source.start(), self._clock.monotonic()
            self._running[following.id] = self._waiting.pop(following.id)

    def _find_firsts(self) -> dict[int, str]:
        """Return which repository of each partition has waited longest, in this order."""
        firsts: dict[int, str] = {}
        for repository, each in self._waiting.items():
            firsts.setdefault(each.partition, repository)
        return firsts

    def _is_passed_over(self, partition: int) -> bool:
        return self._clock.monotonic() < self._passed_over.get(partition, float("-inf"))

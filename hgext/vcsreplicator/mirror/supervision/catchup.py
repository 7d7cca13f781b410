# SPDX-License-Identifier: GPL-2.0-or-later
"""Readers that bring a detached repository the events it missed in the stream."""

from collections.abc import Callable

from ...log import EVENTS, Log
from ..sources import Source
from .following import Following, Phase, resume_offset

# How many repositories catch up at a time; the others wait for their turn.
LIMIT = 8


class CatchUpReaders:
    """The readers that run, and the repositories that wait for one."""

    def __init__(self, log: Log, report: Callable[[object], None]) -> None:
        self._log, self._report = log, report
        self._waiting: dict[str, Following] = {}
        self._running: dict[str, Source] = {}

    def start(self, following: Following) -> None:
        """Read a detached repository from its resume point, once a reader may start."""
        self.stop(following)
        following.phase = Phase.CATCHING_UP
        following.run += 1
        self._waiting[following.id] = following
        self._start_next()

    def stop(self, following: Following) -> None:
        """End the repository's reader, if it has one or waits for one."""
        self._waiting.pop(following.id, None)
        source = self._running.pop(following.id, None)
        if source is not None:
            source.stop()
            self._start_next()

    def read_on(self, following: Following) -> None:
        """Let the repository's reader, if it has one, bring the next batch."""
        source = self._running.get(following.id)
        if source is not None:
            source.may_read.set()

    def close(self) -> None:
        for source in self._running.values():
            source.stop()

    def _start_next(self) -> None:
        while self._waiting and len(self._running) < LIMIT:
            following = self._waiting.pop(next(iter(self._waiting)))
            assert following.note is not None
            start = {(EVENTS, following.note.partition): resume_offset(following, following.note)}
            source = Source(self._log, start, self._report, follows=following.id, run=following.run)
            self._running[following.id] = source.start()

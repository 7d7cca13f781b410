# SPDX-License-Identifier: GPL-2.0-or-later
"""The partitions of `events`, each asked and doubted by itself.

A partition that no broker leads, or whose broker hangs, delays only the repositories whose events it has. Such a repository fails
at a question, before it would occupy a worker until an append ends. Of the threads that need the same answer one asks, and all
share what it hears, an answer or a failure. However many repositories wait, a log line says once that their partition does not
answer, and once that it answers again.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog

from ..log import EVENTS, Log, partition_of
from ..outbox.entry import NewestEvent
from ..outbox.file import SentMark
from ..words.clock import Clock
from ..words.errors import ReplicationError, Unavailable

# Seconds for which the relay relies on the end that it saw, or on a failure. A loss since then is found when the event is appended.
FRESH = 0.25
# Seconds that a thread waits for another one's question to the same partition.
TURN = 0.5

logger = structlog.get_logger()


class LoggedOutage(Unavailable):
    """The log, or one partition, does not answer, and a log line says so already."""


@dataclass(slots=True)
class _Partition:
    """What was heard of a partition, and the doubts about it.

    `at` is when it answered with its `end`; the thread that asks it holds `turn`. `failure` says why the newest question failed, at
    `failed_at`; it is empty after an answer. `away_since` is the time of the first failure since the newest answer.
    """

    turn: threading.Lock = field(default_factory=threading.Lock)
    doubts: int = 0
    answered: int = 0
    at: float = float("-inf")
    end: int = 0
    failure: str = ""
    failed_at: float = float("-inf")
    away_since: float = 0.0


class EventPartitions:
    """The partitions as far as they answered; any thread may use it."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log, self._clock = log, clock
        self._lock = threading.Lock()
        self._heard: dict[int, _Partition] = {}

    def find(self, newest: NewestEvent, sent: SentMark | None) -> int:
        """Return the partition of a repository's events; raise Unavailable, BadConfig."""
        if sent is not None and sent.partition is not None:
            return sent.partition
        return partition_of(newest.repository, self._log.partitions(EVENTS))

    def doubt(self, *partitions: int) -> None:
        """Have these partitions checked before anything else is sent to them."""
        with self._lock:
            for partition in partitions:
                self._find_heard(partition).doubts += 1

    def is_doubted(self, partition: int) -> bool:
        """Return whether a partition must be checked before anything is sent to it."""
        heard = self._find_heard(partition)
        return heard.doubts != heard.answered

    @contextmanager
    def checking(self, *partitions: int) -> Iterator[None]:
        """Settle the doubts about the partitions that were there when the block began.

        If it raises that the log does not answer, they are doubted once more.
        """
        doubts = {partition: self._find_heard(partition).doubts for partition in partitions}
        with self.doubting(*partitions):
            yield
        with self._lock:
            for partition, count in doubts.items():
                heard = self._find_heard(partition)
                heard.answered = max(heard.answered, count)

    @contextmanager
    def doubting(self, *partitions: int) -> Iterator[None]:
        """Doubt the partitions if the block raises that the log does not answer."""
        try:
            yield
        except ReplicationError:
            self.doubt(*partitions)
            raise

    @contextmanager
    def turn(self, partition: int) -> Iterator[None]:
        """Let one thread at a time ask a partition.

        A worker has other repositories to send. So this raises LoggedOutage if another thread has no answer within TURN seconds,
        or, if the newest question failed, at once; and for FRESH seconds after a failure.
        """
        heard = self._find_heard(partition)
        if not heard.turn.acquire(timeout=0.0 if heard.failure else TURN):
            silence = f"topic {EVENTS}, partition {partition}: no answer yet, as for another repository"
            raise LoggedOutage(heard.failure or self._mark_away(partition, heard, silence))
        try:
            if self._clock.monotonic() - heard.failed_at < FRESH:
                raise LoggedOutage(heard.failure)
            with self._note_failure(partition, heard):
                yield
        finally:
            heard.turn.release()

    @contextmanager
    def _note_failure(self, partition: int, heard: _Partition) -> Iterator[None]:
        """Note whether the partition failed in the block; the caller has the turn."""
        try:
            yield
        except Unavailable as error:
            heard.failed_at = self._clock.monotonic()
            raise LoggedOutage(self._mark_away(partition, heard, str(error))) from error
        with self._lock:
            failure, heard.failure, heard.failed_at = heard.failure, "", float("-inf")
        if failure:
            seconds = round(self._clock.monotonic() - heard.away_since, 1)
            logger.info("partition answers again", topic=EVENTS, partition=partition, seconds=seconds)

    def _mark_away(self, partition: int, heard: _Partition, failure: str) -> str:
        """Note why the partition failed, and log it if it answered before; return why."""
        with self._lock:
            is_new, heard.failure = not heard.failure, failure
            if is_new:
                heard.away_since = self._clock.monotonic()
        if is_new:
            logger.warning("partition does not answer", topic=EVENTS, partition=partition, reason=failure)
        return failure

    def find_end(self, partition: int, offset: int) -> int:
        """Return the end of a partition; one beyond the offset may be of a moment ago.

        The relay asked when the pusher connected, shortly before the commit, so the event needs no other question. Raises
        Unavailable.
        """
        heard = self._find_heard(partition)
        if self._clock.monotonic() - heard.at >= FRESH or heard.end <= offset:
            heard.end = self.ask_end(partition)
            # Not the time of the question, so that threads that waited for their turn use this answer, however slow it was.
            heard.at = self._clock.monotonic()
        return heard.end

    def ask_end(self, partition: int) -> int:
        """Ask for the end of a partition; raise Unavailable."""
        return self._log.ends(EVENTS, [partition])[partition]

    def _find_heard(self, partition: int) -> _Partition:
        return self._heard.setdefault(partition, _Partition())

# SPDX-License-Identifier: GPL-2.0-or-later
"""Repositories in trouble: followed apart from the stream, healed, and led back to it. Nobody else waits meanwhile.

A note about the repository is durable before anything that it says is relied on.
"""

import heapq
import random
from dataclasses import replace

import structlog

from ..log import EVENTS, partition_of
from ..words.errors import Rejected, Unavailable
from ..words.event import Event
from ..words.levels import Reason, RepositoryState
from ..words.retry import Backoff
from . import metrics
from .books import Books
from .following import NEEDS_OPERATOR, Following, Phase, repair, resume_offset, wait
from .notes import Detached
from .sources import Ends, Lost, Read, Source
from .task import Task, Trouble

CATCHING_UP_LIMIT = 8
RELEASE_AGAIN = 1.0
"""Seconds after which a release is tried again that another process was in the way of, where nothing else is tried."""

_PASSING = Backoff(first=0.02, longest=1.0)
logger = structlog.get_logger()


class Apart(Books):
    """What is done about trouble with one repository."""

    def _troubled(self, following: Following, task: Task, trouble: Trouble, *, done: int) -> None:
        now = self._clock.monotonic()
        if (
            following.phase is Phase.WAITING and not task.items
        ):  # a release; its trouble is told, and tried again with the rest
            following.is_stuck = True
            if following.note is not None and following.note.reason in NEEDS_OPERATOR:
                if trouble.passing:
                    heapq.heappush(self._alarms, (now + RELEASE_AGAIN, following.id))
                return None
        if len(task.items) > 1 and not done and not following.single and following.phase is not Phase.WAITING:
            following.single = True
            return self._queue(following)
        following.tries += 1
        following.troubled = following.troubled or now
        limit = 2 if trouble.reason is Reason.CRASHED else None
        patient = now - following.troubled < self._settings.slow_after and (limit is None or following.tries < limit)
        if trouble.passing and following.follows_stream and patient:
            self._rest(following, _PASSING.delay(following.tries, random.random()))
            return None
        is_kept = following.phase is Phase.HEALING and following.note is not None and trouble.passing
        reason = following.note.reason if is_kept and following.note else trouble.reason  # it is not repaired yet
        self._detach(following, reason, trouble.note)
        return None

    def _detach(self, following: Following, reason: Reason, note: str, *, offset: int | None = None) -> None:
        """From now on the repository is followed apart; first the note, then the position may pass."""
        former = following.note
        partition = partition_of(following.id, self._partitions)
        queued = self._backlog.peek(following.id, events=1, size=0)
        first = queued[0].offset if queued else self._backlog.next(partition) if offset is None else offset
        written = Detached(
            repository=following.id,
            path=following.path,
            partition=partition,
            offset=former.offset if former else first,
            reason=reason,
            note=note.encode("utf-8", "replace").decode()[:500],  # it may name a file of any bytes
            since=former.since if former else self._clock.now(),
            attempts=former.attempts if former else 0,
        )
        self._set_apart(following, written)

    def _refuse(self, following: Following, event: Event, other: str) -> None:
        """Waits for an operator, or until the other repository leaves its path."""
        self._detach(following, Reason.REFUSED, f"path {event.path!r} is taken by its twin {other!r}")

    def _set_apart(self, following: Following, written: Detached) -> None:
        """Nothing else is done for the repository until its note is written."""
        try:
            self._notes.detach(written)
        except Unavailable as error:
            logger.error("note not written", repository=following.id, reason=str(error))
            following.unwritten = written
            self._rest(following, 1.0)
            return
        logger.warning(
            "detached", repository=following.id, path=following.path, reason=written.reason.value, note=written.note
        )
        metrics.DETACHED_TOTAL.labels(written.reason.value).inc()
        self._stop_catching_up(following)
        self._backlog.drop(following.id)
        following.dropped += 1
        following.resting, following.unwritten = False, None
        following.note, following.phase, following.single = written, Phase.WAITING, False
        self._wait(following)
        self._ack(following)

    def _alarm(self, repository: str) -> None:
        """The time to rest is over, unless it was made longer meanwhile, or something else began."""
        following = self._all.get(repository)
        if following is not None and following.is_stuck and not following.resting:
            following.is_stuck = False
            self._queue(following)
        if following is None or not following.resting or self._clock.monotonic() < following.until:
            return
        following.resting = False
        if following.unwritten is not None:
            self._set_apart(following, following.unwritten)
        elif following.phase is Phase.JOINING and not self._backlog.untracked(following.id):
            self._rejoin(following)
        elif following.phase is Phase.WAITING and following.running:  # a task from before it was detached
            self._rest(following, 1.0)
        elif following.phase is Phase.WAITING:
            self._attempt(following)
        self._queue(following)

    def _wait(self, following: Following) -> None:
        """Sets the time of the next attempt."""
        assert following.note is not None
        following.troubled, following.tries = None, 0
        if following.running and following.note.reason is Reason.SLOW:
            return
        delay = wait(following.note, self._retries, random.random())
        if delay is not None:
            self._rest(following, delay)

    def _attempt(self, following: Following) -> None:
        """One attempt to heal: repair first if reading on is not enough."""
        following.resting = following.is_stuck = False
        if self._leave_if_due(following):
            return
        assert following.note is not None
        note = following.note = _tried(following.note)
        try:
            self._notes.detach(note)
        except Unavailable as error:
            logger.error("note not written", repository=following.id, reason=str(error))
        if repair(note) is None:
            self._catch_up(following)
        else:
            following.phase = Phase.HEALING
            # The master is ahead of whatever stands in the log now: what expired or cannot be read there is not needed.
            following.behind = self._backlog.next(note.partition)
        self._queue(following)

    def _grant(self, repository: str) -> None:
        """An operator's wish: what is followed apart is tried again now, what is not is copied anew from the master.

        It is kept until that has begun, or is under way anyway.
        """
        following = self._all.get(repository)
        if following is None:
            logger.warning("nothing to heal: no such repository on this mirror", repository=repository)
        elif following.unwritten is not None or (following.phase is Phase.WAITING and following.running):
            return  # it is not its turn yet
        elif following.phase is Phase.WAITING:
            self._attempt(following)
        elif following.phase is Phase.STREAM:
            self._detach(following, Reason.DIVERGED, "an operator asked for a new copy")
            if following.unwritten is not None:
                return
        else:
            logger.info("is being healed already", repository=repository, path=following.path)
        self._write(lambda: self._notes.granted(repository))

    def _catch_up(self, following: Following) -> None:
        """Reads the repository's events apart from the stream; waits if many others do."""
        self._stop_catching_up(following)
        following.phase = Phase.CATCHING_UP
        following.run += 1
        self._line.append(following.id)
        self._next_in_line()

    def _next_in_line(self) -> None:
        """Starts readers for those that wait for one, as many as there may be at once."""
        while self._line and len(self._catching_up) < CATCHING_UP_LIMIT:
            following = self._all[self._line.popleft()]
            assert following.note is not None
            start = {(EVENTS, following.note.partition): resume_offset(following, following.note)}
            source = Source(self._log, start, self.inbox.put, follows=following.id, run=following.run)
            self._catching_up[following.id] = source.start()

    def _caught(self, read: Read) -> None:
        """Events for a repository that catches up; once caught up with the stream, it joins it again."""
        following = self._all.get(read.follows or "")
        if following is None or following.run != read.run or following.phase is not Phase.CATCHING_UP:
            return
        for record in read.records:
            try:
                item = self._item(record)
            except Rejected as error:
                if record.offset < following.behind:
                    continue  # what it may have held came from the master; if not, the next event shows a gap
                self._detach(following, Reason.GAP, str(error), offset=record.offset)
                return
            if item is None or self._is_repeat(following, item):
                continue
            if (other := self._twin(following, item.event)) is not None:
                self._refuse(following, item.event, other)
                return
            self._backlog.add(following.id, item, tracked=False)
        assert following.note is not None
        partition = following.note.partition
        if read.positions[EVENTS, partition] >= self._backlog.next(partition):
            self._stop_catching_up(following)
            following.phase = Phase.JOINING
            if not self._backlog.untracked(following.id):
                self._rejoin(following)
        elif self._backlog.size(following.id) < self._settings.repository_buffer_bytes:
            self._catching_up[following.id].may_read.set()
        self._queue(following)

    def _rejoin(self, following: Following) -> None:
        try:
            self._notes.rejoin(following.id)
        except Unavailable as error:
            logger.error("note not removed", repository=following.id, reason=str(error))
            self._rest(following, 1.0)
            return
        logger.info("rejoined", repository=following.id, path=following.path)
        following.phase, following.note = Phase.STREAM, None
        self._ack(following)
        self._abandon_if_over(following)

    def _lost(self, lost: Lost) -> None:
        following = self._all.get(lost.follows)
        if following is not None and following.run == lost.run and following.phase is Phase.CATCHING_UP:
            self._detach(following, Reason.EXPIRED, lost.reason)

    def _stop_catching_up(self, following: Following) -> None:
        if following.id in self._line:
            self._line.remove(following.id)
        source = self._catching_up.pop(following.id, None)
        if source is not None:
            source.stop()
            self._next_in_line()

    def _find_silent_gaps(self, ends: Ends) -> None:
        """Repositories of which the aggregator saw more than this mirror, though everything is read: something was lost."""
        for following in self._all.values():
            have = following.checkpoint.seq if following.checkpoint else 0
            if following.expected <= have or following.phase is not Phase.STREAM or following.running:
                continue
            partition = partition_of(following.id, self._partitions)
            if not self._backlog.has(following.id) and self._backlog.next(partition) >= ends.ends[partition]:
                told = f"the log had events up to {following.expected}, this mirror has {have}"
                self._detach(following, Reason.GAP, told, offset=0)

    def _leave_if_due(self, following: Following) -> bool:
        """Whether the repository leaves, from now on or already; if a task of it is under way, that ends before.

        It leaves if this mirror carries it no more, or if it waits for a repair while the master has deleted it. What is followed
        in the stream meets its deletion there.
        """
        is_lost = following.phase is Phase.WAITING and following.deletion is not None
        path = following.there or following.path
        due = (is_lost or bool(path and not self._carries(path))) and not self._is_backup
        if not due or following.running or following.phase is Phase.LEAVING:
            return following.phase is Phase.LEAVING
        logger.info("leaves", repository=following.id, path=following.path, deleted=following.deletion is not None)
        self._stop_catching_up(following)
        self._backlog.drop(following.id)  # killed now, it is found on disk and leaves again
        following.dropped += 1
        following.resting, following.phase = False, Phase.LEAVING
        self._queue(following)
        return True

    def _left(self, following: Following) -> None:
        """It is set aside: a deletion is told, what is not carried any more is forgotten."""
        following.phase = Phase.STREAM if following.note is None else Phase.WAITING
        if not self._carries(following.there or following.path):
            self._abandon(following)
        elif following.deletion is not None:
            self._let_go(following, following.deletion)
            if following.note is not None:
                self._rejoin(following)
        else:
            self._detach(following, Reason.GAP, "it was set aside when it was not carried", offset=0)

    def _forget(self, state: RepositoryState) -> None:
        """A deleted repository of which everything is told: its ack goes."""
        self._over.add(state.repository)
        following = self._all.get(state.repository)
        if following is None and state.repository in self._acked_gone:
            self._acked_gone.remove(state.repository)
            self.sender.ack(f"{self._settings.name}/{state.repository}", None)
        if following is not None and not following.running:
            self._abandon_if_over(following)

    def _abandon_if_over(self, following: Following) -> None:
        if following.id in self._over and following.id in self._gone:
            self._abandon(following)

    def _abandon(self, following: Following) -> None:
        """Nothing is done for it any more; its ack goes."""
        self._stop_catching_up(following)
        self._backlog.drop(following.id)
        self._write(lambda: self._notes.rejoin(following.id))
        self._vacate(following)
        self.sender.ack(f"{self._settings.name}/{following.id}", None)
        del self._all[following.id]


def _tried(note: Detached) -> Detached:
    return replace(note, attempts=note.attempts + 1)

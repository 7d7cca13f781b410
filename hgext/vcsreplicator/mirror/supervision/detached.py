# SPDX-License-Identifier: GPL-2.0-or-later
"""Repositories in trouble, and their way back to the stream.

They are detached, so that everything else goes on, then repaired, caught up and joined. A note about the repository is durable
before anything relies on what it says.
"""

import contextlib
import functools
import random
from collections.abc import Iterator

import structlog

from ...log import EVENTS, partition_of
from ...log.requests import FAILED, OperatorRequest
from ...words.errors import Rejected, Unavailable, UnknownEvent
from ...words.event import event_names
from ...words.records import Reason
from ...words.retry import Backoff
from ...words.unexpected import fault
from .. import metrics
from ..notes import HEAL, try_to_write
from ..sources import ExpiredPosition, ReadRecords
from ..writer import Ends
from .backlog import checked_event
from .catchup import CatchUpReaders
from .departures import Departures
from .life import NOTE_AGAIN, Deed, Following, Moment, Phase
from .state import State

# Seconds between two looks at a detached repository while its last task is still under way.
TASK_AGAIN = 1.0
logger = structlog.get_logger()


class Detachments:
    """Detaches repositories, and leads them back to the stream."""

    def __init__(self, state: State, readers: CatchUpReaders, departures: Departures) -> None:
        self._state, self._settings, self._notes, self._clock = state, state.settings, state.notes, state.clock
        self._table, self._agenda, self._backlog = state.table, state.agenda, state.backlog
        self._readers, self._departures, self._membership = readers, departures, state.membership
        self._retries = Backoff(first=state.settings.retry_first, longest=state.settings.retry_longest)
        state.deeds |= {
            Deed.WRITE_NOTE: self._write_note,
            Deed.REJOIN: self._rejoin,
            Deed.FINISH_LEAVING: self._finish_leaving,
        }

    def find_trouble(self) -> tuple[str, float] | tuple[None, None]:
        """Return why a note cannot be written, and since when; None if all are."""
        found = [each.trouble for each in self._table if each.trouble.unwritten_note is not None]
        return (found[0].note_problem, min(each.note_problem_since for each in found)) if found else (None, None)

    @contextlib.contextmanager
    def isolate(self, repository: str | None) -> Iterator[None]:
        """Make an unexpected exception in the block the trouble of this repository alone."""
        try:
            yield
        except Exception as error:
            found, following = fault(error), self._table.get(repository)
            if found is None or following is None:
                raise
            logger.exception("unexpected", **following.names)
            self.detach(following, Reason.CRASHED, found.reason)

    def detach(
        self, following: Following, reason: Reason, note: str, *, offset: int | None = None, attempts: int = 0
    ) -> None:
        """Detach the repository with a resume point that loses nothing.

        `offset` is the resume point if nothing of the repository is queued (None: behind the last record read), and `attempts` says
        how often healing was tried before, if no note says so.
        """
        place, now = self.find_place(following, offset), self._clock.now()
        self._state.take(following, following.plan_note(reason, note, place=place, now=now, attempts=attempts))

    def find_place(self, following: Following, offset: int | None = None) -> tuple[int, int]:
        """Return the partition and the resume point of a repository that has no note yet."""
        partition = partition_of(following.id, self._backlog.partitions)
        if queued := self._backlog.peek(following.id, events=1, size=0):
            return partition, queued[0].offset
        return partition, self._backlog.next(partition) if offset is None else offset

    def find_moment(self) -> Moment:
        return Moment(now=self._clock.monotonic(), time=self._clock.now(), chance=random.random())

    def _write_note(self, following: Following) -> None:
        """Write the planned note, then stop following the stream; nothing before.

        Log lines name the event that could not be applied, or else the last one that was: then `applied` is its sequence.
        """
        written = following.trouble.unwritten_note
        assert written is not None
        queued = self._backlog.peek(following.id, events=1, size=0)
        names = following.names | (event_names(queued[0].event) if queued else {})
        try:
            self._notes.detach(written)
            self._backlog.drop(following.id)  # lets the position pass, so only after the note
        except Unavailable as error:
            named = written.path or written.repository
            problem = f"{self._settings.folder}: {error}; {named}: {written.reason.value} {written.note}"
            logger.error("note not written", **names, folder=self._settings.folder, reason=str(error))
            self._state.take(following, following.keep_unwritten(problem, moment=self.find_moment()))
            return
        logger.warning("detached", **names, applied=following.level, reason=written.reason.value, note=written.note)
        metrics.DETACHED_TOTAL.labels(written.reason.value).inc()
        self._state.take(following, following.noted(moment=self.find_moment(), retries=self._retries))
        failure = f"{FAILED}{written.reason.value}: {written.note}"
        try_to_write(functools.partial(self._answer_requests, following, failure))

    def _answer_requests(self, following: Following, result: str) -> None:
        """Answer the heal requests of an attempt that ended; may raise Unavailable."""
        while requests := following.trouble.heal_requests:
            self._notes.requests.answer(requests[-1], result, now=self._clock.now())
            following.take(following.hold_requests(requests[:-1]))

    def find_silent_gaps(self, ends: Ends) -> None:
        """Detach repositories that lack events though everything in the log is read.

        If rereading the log did not bring them, the repository is copied from the master.
        """
        for following in self._table:
            incarnation, expected = ends.expected.get(following.id, (None, 0))
            if incarnation != following.log.incarnation or not following.lacks(min(following.log.expected, expected)):
                continue
            partition = partition_of(following.id, self._backlog.partitions)
            is_behind = self._backlog.has(following.id) or self._backlog.next(partition) < ends.ends[partition]
            if is_behind or following.phase is not Phase.STREAM or following.work.is_running:
                continue
            checkpoint = following.checkpoint
            if checkpoint is None or checkpoint.incarnation == incarnation:
                found = f"the log had events up to {expected}, this mirror has {following.level}"
                following.take(following.count_silent_gap())
                self.detach(following, Reason.GAP, found, offset=0, attempts=following.trouble.silent_gaps - 1)
            else:
                found = f"the master continued as incarnation {incarnation}, this mirror has {checkpoint.incarnation}"
                self.detach(following, Reason.DIVERGED, found)

    def wake(self, repository: str) -> None:
        """Take the step that the repository rested for, unless another one began."""
        following = self._table.get(repository)
        if following is None:
            return
        if following.trouble.is_release_stuck and not following.work.is_resting:
            self._state.take(following, following.release_again())
        if not following.work.is_resting or not self._agenda.is_rested(following):
            return
        following.take(following.end_rest())
        if following.trouble.unwritten_note is not None:
            self._write_note(following)
        elif following.phase is Phase.JOINING and not self._backlog.has_untracked(following.id):
            self._rejoin(following)
        elif following.phase is Phase.WAITING and following.work.is_running:
            self._agenda.rest(following, TASK_AGAIN)
        elif following.phase is Phase.WAITING:
            self._attempt(following)
        self._agenda.queue(following)

    def take_up_requests(self) -> None:
        """Take up the heal requests of operators.

        A detached repository is retried now, another one is copied again. The request is answered when that has succeeded or
        failed: one that a kill interrupts is taken up again.
        """
        for request in try_to_write(self._notes.requests.list_open) or ():
            if request.kind == HEAL:
                self._take_up_request(request)

    def take_events(self, read: ReadRecords) -> None:
        """Queue the events of a catch-up reader; once caught up, join the stream."""
        following = self._table.get(read.follows)
        if following is None or following.work.run != read.run or following.phase is not Phase.CATCHING_UP:
            return
        if not self._queue_events(following, read):
            return
        assert following.note is not None
        partition = following.note.partition
        self._readers.advance(following, read.positions[EVENTS, partition])
        if read.positions[EVENTS, partition] >= self._backlog.next(partition):
            is_worked_off = not self._backlog.has_untracked(following.id)
            self._state.take(following, following.catch_up(is_worked_off=is_worked_off))
        elif self._backlog.size(following.id) < self._settings.repository_buffer_bytes:
            self._readers.read_on(following)
        self._agenda.queue(following)

    def take_loss(self, lost: ExpiredPosition) -> None:
        """Detach again a repository whose resume point the log no longer holds."""
        following = self._table.get(lost.follows)
        if following is not None and following.work.run == lost.run and following.phase is Phase.CATCHING_UP:
            self.detach(following, Reason.EXPIRED, lost.reason)

    def _queue_events(self, following: Following, read: ReadRecords) -> bool:
        """Queue new events; return False if the repository was detached again."""
        for record in read.records:
            try:
                item = checked_event(record, self._backlog.partitions)
            except UnknownEvent as error:
                # A repair does not replace it: only a newer program knows its meaning, and its effect on the master's copy.
                self.detach(following, Reason.UNKNOWN_VERSION, str(error), offset=record.offset)
                return False
            except Rejected as error:
                if record.offset < following.work.repaired_to:
                    continue  # its event came from the master; if not, the next event shows a gap
                self.detach(following, Reason.GAP, str(error), offset=record.offset)
                return False
            if item is None or following.is_at(item.event):
                continue
            self._backlog.add(following.id, item, tracked=False)
        return True

    def _attempt(self, following: Following) -> None:
        """Begin an attempt to heal: repair first if reading on is not enough."""
        following.take(following.begin_attempt())
        assert following.note is not None
        if self._departures.leave_if_due(following):
            return
        try:
            self._notes.detach(following.note)
        except Unavailable as error:
            logger.error("note not written", **following.names, reason=str(error))
        self._state.take(following, following.heal(end=self._backlog.next(following.note.partition)))

    def _take_up_request(self, request: OperatorRequest) -> None:
        """Begin a requested heal, unless it has begun or it is not its turn yet."""
        following = self._table.get(request.subject)
        if following is None:
            logger.warning("nothing to heal: no such repository on this mirror", repository=request.subject)
            result, now = f"{FAILED}no such repository on this mirror", self._clock.now()
            try_to_write(lambda: self._notes.requests.answer(request.id, result, now=now))
            return
        is_busy = following.phase is Phase.WAITING and following.work.is_running
        if request.id in following.trouble.heal_requests or following.trouble.unwritten_note is not None or is_busy:
            return
        if following.phase is Phase.WAITING:
            self._attempt(following)
        elif following.phase is Phase.STREAM:
            self.detach(following, Reason.DIVERGED, "an operator asked for a new copy")
        else:
            logger.info("is being healed already", **following.names)
        if following.trouble.unwritten_note is None:
            following.take(following.hold_requests((*following.trouble.heal_requests, request.id)))

    def _rejoin(self, following: Following) -> None:
        """Follow the repository in the stream again, once its note is removed."""
        try:
            self._answer_requests(following, "healed")
            self._notes.rejoin(following.id)
        except Unavailable as error:
            logger.error("note not removed", **following.names, reason=str(error))
            self._agenda.rest(following, NOTE_AGAIN)
            return
        logger.info("rejoined", **following.names)
        self._state.take(following, following.rejoin())
        self._departures.abandon_if_finished(following)

    def _finish_leaving(self, following: Following) -> None:
        """Acknowledge a deletion, or forget a repository that is not carried."""
        following.take(following.set_aside())
        if not self._membership.carries(following.master_path):
            self._departures.abandon(following)
        elif following.log.deletion is not None:
            self._departures.let_go(following, following.log.deletion)
            if following.note is not None:
                self._rejoin(following)
        else:
            self.detach(following, Reason.GAP, "it was set aside when it was not carried", offset=0)

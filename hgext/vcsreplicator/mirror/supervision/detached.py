# SPDX-License-Identifier: GPL-2.0-or-later
"""Repositories in trouble, and their way back to the stream.

They are detached, so that everything else goes on, then repaired, caught up and joined. A note about the repository is durable
before anything relies on it.
"""

import contextlib
import functools
from collections.abc import Iterator

import structlog

from ...log import EVENTS
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
from .life import NOTE_AGAIN, Deed, Following
from .state import State

logger = structlog.get_logger()


class Detachments:
    """Detaches repositories, and leads them back to the stream."""

    def __init__(self, state: State, readers: CatchUpReaders, departures: Departures) -> None:
        self._state, self._settings, self._notes, self._clock = state, state.settings, state.notes, state.clock
        self._table, self._backlog, self._readers, self._departures = state.table, state.backlog, readers, departures
        self._retries = Backoff(first=state.settings.retry_first, longest=state.settings.retry_longest)
        state.deeds |= {
            Deed.WRITE_NOTE: self._write_note,
            Deed.ATTEMPT: self._attempt,
            Deed.REJOIN: self._rejoin,
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

    def detach(self, following: Following, reason: Reason, note: str, *, offset: int | None = None) -> None:
        """Detach the repository with a resume point that loses nothing.

        `offset` is the resume point if nothing of the repository is queued (None: behind the last record read).
        """
        self._state.send(following, Following.plan_note, reason, note, offset=offset)

    def _write_note(self, following: Following) -> None:
        """Write the planned note, then stop following the stream; nothing before.

        Log lines name the event that could not be applied, or else the last applied event: then `applied` is its sequence.
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
            self._state.send(following, Following.keep_unwritten, problem)
            return
        logger.warning("detached", **names, applied=following.level, reason=written.reason.value, note=written.note)
        metrics.DETACHED_TOTAL.labels(written.reason.value).inc()
        self._state.send(following, Following.noted, self._retries)
        failure = f"{FAILED}{written.reason.value}: {written.note}"
        try_to_write(functools.partial(self._answer_requests, following, failure))

    def _answer_requests(self, following: Following, result: str) -> None:
        """Answer the heal requests of an attempt that ended; may raise Unavailable."""
        while requests := following.trouble.heal_requests:
            self._notes.requests.answer(requests[-1], result, now=self._clock.now())
            following.change(following.hold_requests(requests[:-1]))

    def find_silent_gaps(self, ends: Ends) -> None:
        """Detach repositories that lack events though everything in the log is read."""
        for repository, expected in ends.expected.items():
            if (following := self._table.get(repository)) is not None:
                self._state.send(following, Following.miss, *expected, ends.ends)

    def wake(self, repository: str) -> None:
        """Take the step that the repository rested for, unless another step began."""
        if (following := self._table.get(repository)) is not None:
            self._state.send(following, Following.wake)

    def take_up_requests(self) -> None:
        """Take up the heal requests of operators.

        A detached repository is retried now, any other is copied again. The request is answered when that has succeeded or failed,
        and taken up again if a kill interrupts it.
        """
        for request in try_to_write(self._notes.requests.list_open) or ():
            if request.kind == HEAL:
                self._take_up_request(request)

    def take_events(self, read: ReadRecords) -> None:
        """Queue the events of a catch-up reader; once caught up, join the stream."""
        following = self._table.get(read.follows)
        if following is None or not following.listens(read.run):
            return
        self._queue_events(following, read)
        if not following.listens(read.run):
            return
        assert following.note is not None
        partition = following.note.partition
        position = read.positions[EVENTS, partition]
        self._readers.advance(following, position)
        self._state.send(following, Following.advance, has_read_all=position >= self._backlog.next(partition))

    def take_loss(self, lost: ExpiredPosition) -> None:
        """Detach again a repository whose resume point the log no longer holds."""
        following = self._table.get(lost.follows)
        if following is not None and following.listens(lost.run):
            self.detach(following, Reason.EXPIRED, lost.reason)

    def _queue_events(self, following: Following, read: ReadRecords) -> None:
        """Queue new events up to a record for which the repository is detached again."""
        for record in read.records:
            try:
                item = checked_event(record, self._backlog.partitions)
            except UnknownEvent as error:
                # A repair does not replace it: only a newer program knows its meaning, and its effect on the master's copy.
                self.detach(following, Reason.UNKNOWN_VERSION, str(error), offset=record.offset)
                return
            except Rejected as error:
                if record.offset < following.work.repaired_to:
                    continue  # its event came from the master; if not, the next event shows a gap
                self.detach(following, Reason.GAP, str(error), offset=record.offset)
                return
            if item is None or following.is_at(item.event) or self._departures.is_past(item.event):
                continue
            self._backlog.add(following.id, item, tracked=False)

    def _attempt(self, following: Following) -> None:
        """Begin an attempt to heal: repair first if reading on is not enough."""
        following.change(following.count_attempt())
        assert following.note is not None
        if self._departures.leave_if_due(following):
            return
        try:
            self._notes.detach(following.note)
        except Unavailable as error:
            logger.error("note not written", **following.names, reason=str(error))
        self._state.carry_out(following, following.heal(end=self._backlog.next(following.note.partition)))

    def _take_up_request(self, request: OperatorRequest) -> None:
        """Begin a requested heal, unless it has begun or it is not its turn yet."""
        following = self._table.get(request.subject)
        if following is None:
            logger.warning("nothing to heal: no such repository on this mirror", repository=request.subject)
            result, now = f"{FAILED}no such repository on this mirror", self._clock.now()
            try_to_write(lambda: self._notes.requests.answer(request.id, result, now=now))
            return
        if not following.can_take_up(request.id):
            return
        if not self._state.send(following, Following.request):
            logger.info("is being healed already", **following.names)
        if following.trouble.unwritten_note is None:
            following.change(following.hold_requests((*following.trouble.heal_requests, request.id)))

    def _rejoin(self, following: Following) -> None:
        """Follow the repository in the stream again, once its note is removed."""
        try:
            self._answer_requests(following, "healed")
            self._notes.rejoin(following.id)
        except Unavailable as error:
            logger.error("note not removed", **following.names, reason=str(error))
            self._state.carry_out(following, following.rest(until=self._clock.monotonic() + NOTE_AGAIN))
            return
        logger.info("rejoined", **following.names)
        self._state.carry_out(following, following.rejoin())
        self._departures.abandon_if_finished(following)

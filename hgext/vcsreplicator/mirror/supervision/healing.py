# SPDX-License-Identifier: GPL-2.0-or-later
"""The way of a detached repository back to the stream: repair, catch-up, rejoin."""

import structlog

from ...log import EVENTS
from ...log.requests import FAILED, OperatorRequest
from ...words.errors import Rejected, Unavailable, UnknownEvent
from ...words.records import Reason
from ..notes import HEAL, try_to_write
from ..sources import ExpiredPosition, ReadRecords
from .catchup import CatchUpReaders
from .departures import Departures
from .detached import Detachments
from .intake import checked_event
from .life import NOTE_AGAIN, Deed, Following, Phase
from .state import State

# Seconds between two looks at a detached repository while its last task is still under way.
TASK_AGAIN = 1.0
logger = structlog.get_logger()


class Healing:
    """Leads detached repositories back to the stream."""

    def __init__(self, state: State, readers: CatchUpReaders, departures: Departures, detachments: Detachments) -> None:
        self._state = state
        self._settings, self._notes, self._clock = state.settings, state.notes, state.clock
        self._membership = state.membership
        self._table, self._agenda, self._backlog = state.table, state.agenda, state.backlog
        self._readers, self._departures, self._detachments = readers, departures, detachments
        state.deeds |= {Deed.REJOIN: self._rejoin, Deed.FINISH_LEAVING: self._finish_leaving}

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
            self._detachments.write_note(following)
        elif following.phase is Phase.JOINING and not self._backlog.has_untracked(following.id):
            self._rejoin(following)
        elif following.phase is Phase.WAITING and following.work.is_running:
            self._agenda.rest(following, TASK_AGAIN)
        elif following.phase is Phase.WAITING:
            self._attempt(following)
        self._agenda.queue(following)

    def answer_requests(self) -> None:
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
            self._detachments.detach(following, Reason.EXPIRED, lost.reason)

    def _queue_events(self, following: Following, read: ReadRecords) -> bool:
        """Queue new events; return False if the repository was detached again."""
        for record in read.records:
            try:
                item = checked_event(record, self._backlog.partitions)
            except UnknownEvent as error:
                # A repair does not replace it: only a newer program knows its meaning, and its effect on the master's copy.
                self._detachments.detach(following, Reason.UNKNOWN_VERSION, str(error), offset=record.offset)
                return False
            except Rejected as error:
                if record.offset < following.work.repaired_to:
                    continue  # its event came from the master; if not, the next event shows a gap
                self._detachments.detach(following, Reason.GAP, str(error), offset=record.offset)
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
            self._detachments.detach(following, Reason.DIVERGED, "an operator asked for a new copy")
        else:
            logger.info("is being healed already", **following.names)
        if following.trouble.unwritten_note is None:
            following.take(following.take_request(request.id))

    def _rejoin(self, following: Following) -> None:
        """Follow the repository in the stream again, once its note is removed."""
        try:
            self._detachments.answer_requests(following, "healed")
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
            self._detachments.detach(following, Reason.GAP, "it was set aside when it was not carried", offset=0)

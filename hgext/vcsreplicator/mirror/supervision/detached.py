# SPDX-License-Identifier: GPL-2.0-or-later
"""Repositories in trouble.

They are detached from the stream, so that everything else goes on. A note about the repository is durable before anything that it
says is relied on.
"""

import contextlib
import functools
import random
from collections.abc import Iterator

import structlog

from ...log import partition_of
from ...log.requests import FAILED
from ...words.errors import Unavailable
from ...words.event import event_names
from ...words.records import Reason
from ...words.retry import Backoff
from ...words.unexpected import fault
from .. import metrics
from ..notes import try_to_write
from ..writer import Ends
from .life import Deed, Following, InTrouble, Moment, Phase
from .state import State

logger = structlog.get_logger()


class Detachments:
    """Detaches repositories: writes the notes, and finds what is missing."""

    def __init__(self, state: State) -> None:
        self._state, self._settings, self._notes, self._clock = state, state.settings, state.notes, state.clock
        self._table, self._backlog = state.table, state.backlog
        self._retries = Backoff(first=state.settings.retry_first, longest=state.settings.retry_longest)
        state.deeds[Deed.WRITE_NOTE] = self.write_note

    @property
    def trouble(self) -> str | None:
        """The reason why a note cannot be written; None if all notes are written."""
        return next((each.note_problem for each in self._list_unwritten()), None)

    @property
    def trouble_since(self) -> float | None:
        """The time since which a note cannot be written; None if all notes are written."""
        return min((each.note_problem_since for each in self._list_unwritten()), default=None)

    def _list_unwritten(self) -> list[InTrouble]:
        return [each.trouble for each in self._table if each.trouble.unwritten_note is not None]

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

    def write_note(self, following: Following) -> None:
        """Write the planned note, then stop following the stream; nothing else is done before.

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
        try_to_write(functools.partial(self.answer_requests, following, failure))

    def answer_requests(self, following: Following, result: str) -> None:
        """Answer the heal requests of an attempt that ended; may raise Unavailable."""
        while following.trouble.heal_requests:
            self._notes.requests.answer(following.trouble.heal_requests[-1], result, now=self._clock.now())
            following.take(following.answer_request())

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

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
from ..notes import Detached, try_to_write
from ..task import Task, Trouble
from ..writer import Ends
from .catchup import CatchUpReaders
from .following import NEEDS_OPERATOR, Following, Phase, retry_delay
from .state import State

# Seconds after which a stuck release is retried on its own: another process may have been in its way.
RELEASE_AGAIN = 1.0

# Seconds after which a note that could not be written is retried.
NOTE_AGAIN = 1.0

# Characters of a note that are kept.
NOTE_KEPT = 500

# How often a repository may crash its worker before it is detached.
CRASHES_ALLOWED = 2

_PASSING = Backoff(first=0.02, longest=1.0)
logger = structlog.get_logger()


class Detachments:
    """Detaches repositories: decides about troubles, and writes the notes."""

    def __init__(self, state: State, readers: CatchUpReaders) -> None:
        self._settings, self._notes, self._clock = state.settings, state.notes, state.clock
        self._table, self._agenda, self._backlog, self._acks = state.table, state.agenda, state.backlog, state.acks
        self._readers = readers
        self._retries = Backoff(first=state.settings.retry_first, longest=state.settings.retry_longest)

    @property
    def trouble(self) -> str | None:
        """The reason why a note cannot be written; None if all notes are written."""
        return next((each.note_problem for each in self._table if each.unwritten_note is not None), None)

    @property
    def trouble_since(self) -> float | None:
        """The time since which a note cannot be written; None if all notes are written."""
        return min((each.note_problem_since for each in self._table if each.unwritten_note is not None), default=None)

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

    def take_trouble(self, following: Following, task: Task, trouble: Trouble, *, done: int) -> None:
        """Decide about the trouble of a task: retry, single events, or detaching.

        A repository that was detached while the task ran keeps its reason, its next attempt and the requests that this attempt
        answers; only one that was detached because the task is slow waits for the outcome.
        """
        if following.phase is Phase.WAITING and not task.items:
            following.is_release_stuck = True
            if following.note is not None and following.note.reason in NEEDS_OPERATOR:
                if trouble.passing:
                    self._agenda.remind(following, RELEASE_AGAIN)
                return
        if following.phase is Phase.WAITING and task.drops != following.drops:
            assert following.note is not None
            if following.note.reason is not Reason.SLOW:
                return
        # Several events that failed together may succeed one by one.
        is_first = not done and not following.takes_single_events and following.phase is not Phase.WAITING
        if is_first and len(task.items) > 1:
            following.takes_single_events = True
            self._agenda.queue(following)
            return
        now = self._clock.monotonic()
        following.tries += 1
        following.troubled_since = following.troubled_since or now
        is_patient = now - following.troubled_since < self._settings.slow_after
        if trouble.reason is Reason.CRASHED and following.tries >= CRASHES_ALLOWED:
            is_patient = False
        if trouble.passing and following.follows_stream and is_patient:
            self._agenda.rest(following, _PASSING.delay(following.tries, random.random()))
            return
        reason = trouble.reason
        if following.phase is Phase.HEALING and following.note is not None and trouble.passing:
            reason = following.note.reason  # it is not repaired yet
        self.detach(following, reason, trouble.note)

    def detach(
        self, following: Following, reason: Reason, note: str, *, offset: int | None = None, attempts: int = 0
    ) -> None:
        """Detach the repository with a resume point that loses nothing.

        The note is written before the position moves. `offset` is the resume point if nothing of the repository is queued (None:
        behind the last record read), and `attempts` says how often healing was tried before, if no note says so.
        """
        former = following.note
        partition = partition_of(following.id, self._backlog.partitions)
        if former is not None:
            resume = former.offset
        elif queued := self._backlog.peek(following.id, events=1, size=0):
            resume = queued[0].offset
        else:
            resume = self._backlog.next(partition) if offset is None else offset
        written = Detached(
            repository=following.id,
            path=following.path,
            partition=partition,
            offset=resume,
            reason=reason,
            note=note.encode("utf-8", "replace").decode()[:NOTE_KEPT],  # it may name a file of any bytes
            since=former.since if former else self._clock.now(),
            attempts=former.attempts if former else attempts,
        )
        self.write_note(following, written)

    def write_note(self, following: Following, written: Detached) -> None:
        """Write the note, then stop following the stream; nothing else is done before.

        Log lines name the event that could not be applied, or else the last one that was: then `applied` is its sequence.
        """
        queued = self._backlog.peek(following.id, events=1, size=0)
        names = following.names | (event_names(queued[0].event) if queued else {})
        try:
            self._notes.detach(written)
        except Unavailable as error:
            named = written.path or written.repository
            problem = f"{self._settings.folder}: {error}; {named}: {written.reason.value} {written.note}"
            logger.error("note not written", **names, folder=self._settings.folder, reason=str(error))
            if following.unwritten_note is None:
                following.note_problem_since = self._clock.now()
            following.unwritten_note, following.note_problem = written, problem[:NOTE_KEPT]
            self._agenda.rest(following, NOTE_AGAIN)
            return
        logger.warning("detached", **names, applied=following.level, reason=written.reason.value, note=written.note)
        metrics.DETACHED_TOTAL.labels(written.reason.value).inc()
        self._readers.stop(following)
        self._backlog.drop(following.id)
        following.drops += 1
        following.is_resting, following.unwritten_note = False, None
        following.note, following.phase, following.takes_single_events = written, Phase.WAITING, False
        self._plan_attempt(following, written)
        self._acks.send(following)
        failure = f"{FAILED}{written.reason.value}: {written.note}"
        try_to_write(functools.partial(self.answer_requests, following, failure))

    def answer_requests(self, following: Following, result: str) -> None:
        """Answer the heal requests of an attempt that ended; may raise Unavailable."""
        while following.heal_requests:
            self._notes.requests.answer(following.heal_requests[-1], result, now=self._clock.now())
            following.heal_requests.pop()

    def find_silent_gaps(self, ends: Ends) -> None:
        """Detach repositories that lack events though everything in the log is read.

        If rereading the log did not bring them, the repository is copied from the master.
        """
        for following in self._table:
            incarnation, expected = ends.expected.get(following.id, (None, 0))
            if incarnation != following.incarnation or not following.lacks(min(following.expected, expected)):
                continue
            partition = partition_of(following.id, self._backlog.partitions)
            is_behind = self._backlog.has(following.id) or self._backlog.next(partition) < ends.ends[partition]
            if is_behind or following.phase is not Phase.STREAM or following.is_running:
                continue
            checkpoint = following.checkpoint
            if checkpoint is None or checkpoint.incarnation == incarnation:
                found = f"the log had events up to {expected}, this mirror has {following.level}"
                self.detach(following, Reason.GAP, found, offset=0, attempts=following.count_silent_gap())
            else:
                found = f"the master continued as incarnation {incarnation}, this mirror has {checkpoint.incarnation}"
                self.detach(following, Reason.DIVERGED, found)

    def _plan_attempt(self, following: Following, note: Detached) -> None:
        """Plan the next attempt to heal, after the end of a slow task under way."""
        following.troubled_since, following.tries = None, 0
        if following.is_running and note.reason is Reason.SLOW:
            return
        delay = retry_delay(note, self._retries, random.random())
        if delay is not None:
            self._agenda.rest(following, delay)

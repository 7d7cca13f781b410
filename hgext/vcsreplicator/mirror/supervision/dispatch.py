# SPDX-License-Identifier: GPL-2.0-or-later
"""Tasks go to workers, and their outcomes become positions and acks.

A repository has one task at a time. The choice of worker matters only for warm caches: a slow one holds up no other repository.
"""

import structlog

from ...words.event import Type
from ...words.records import Reason
from .. import metrics
from ..checkpoint import Checkpoint
from ..pool import Answered, Lane, Worker, WorkerPool
from ..task import ReadEvent, Task, TaskOutcome, Trouble
from .departures import Departures, deletion
from .detached import Detachments
from .following import Following, Phase
from .healing import Healing
from .maintenance import Maintenance
from .state import State

logger = structlog.get_logger()


class TaskDispatch:
    """Gives tasks to idle workers, and takes their outcomes."""

    def __init__(
        self,
        state: State,
        pool: WorkerPool,
        departures: Departures,
        detachments: Detachments,
        healing: Healing,
        maintenance: Maintenance,
    ) -> None:
        self._settings, self._clock, self._membership = state.settings, state.clock, state.membership
        self._table, self._agenda, self._backlog, self._acks = state.table, state.agenda, state.backlog, state.acks
        self._pool, self._departures, self._detachments = pool, departures, detachments
        self._healing, self._maintenance = healing, maintenance

    def give_tasks(self) -> None:
        """Give the repositories that wait to idle workers, each of its lane."""
        for lane in Lane:
            while self._agenda.has_waiting(lane) and (worker := self._pool.idle(lane)) is not None:
                following = self._table.get(self._agenda.take_next(lane))
                if following is None or not following.is_queued:  # of the same name, but not the one that was queued
                    continue
                following.is_queued = False
                with self._detachments.isolate(following.id):
                    self._give_task(following, worker, lane)

    def take_answer(self, task: object, answered: Answered) -> None:
        """Take a worker's answer to the task that it had, or its death."""
        answer = answered.answer
        if not isinstance(task, Task) or (following := self._table.get(task.repository)) is None:
            return
        following.is_running = False
        if answer is None:
            self._take_death(following, task, hung=answered.worker.is_killed)
        elif isinstance(answer, TaskOutcome):
            self._apply_outcome(following, task, answer)

    def _give_task(self, following: Following, worker: Worker, lane: Lane) -> None:
        if self._agenda.choose_lane(following) is not lane:
            self._agenda.queue(following)
            return
        task = self._make_task(following)
        following.is_running = True
        self._pool.give(worker, task, self._clock.monotonic())

    def _make_task(self, following: Following) -> Task:
        is_leaving, heals = following.phase is Phase.LEAVING, following.phase is Phase.HEALING
        path = following.path
        if is_leaving or heals:
            path = following.master_path or path
        return Task(
            repository=following.id,
            path=path,
            folder=following.folder,
            items=() if is_leaving or heals or following.phase is Phase.WAITING else self._next_items(following),
            incarnation=following.incarnation,
            released=following.released,
            newest_known=following.newest_known,
            heal=following.note.reason if heals and following.note else None,
            leave=is_leaving,
            keep=self._membership.is_backup,
            drops=following.drops,
        )

    def _next_items(self, following: Following) -> tuple[ReadEvent, ...]:
        """Return the oldest events for one task; one with a bundle to fetch goes alone."""
        count = 1 if following.takes_single_events else self._settings.batch_events
        items = self._backlog.peek(following.id, events=count, size=self._settings.batch_bytes)
        if not items or not items[0].inline:
            return items[:1]
        return items[: next((number for number, item in enumerate(items) if not item.inline), len(items))]

    def _take_death(self, following: Following, task: Task, *, hung: bool) -> None:
        logger.warning("worker died", **task.names)
        metrics.DIED.inc()
        note = "its worker hung" if hung else "its worker died"
        trouble = Trouble(reason=Reason.CRASHED, note=note, passing=True)
        self._detachments.take_trouble(following, task, trouble, done=0)

    def _apply_outcome(self, following: Following, task: Task, outcome: TaskOutcome) -> None:
        before = following.level
        self._adopt_state(following, outcome)
        applied = max(0, following.level - before)
        if task.drops == following.drops:
            self._backlog.finish(following.id, outcome.done)
        deleted = outcome.gone or self._deletion_of_unknown(task, outcome)
        if deleted is not None:
            self._departures.let_go(following, deleted)
        metrics.APPLIED.inc(applied)
        if outcome.trouble is None:
            following.troubled_since, following.tries, following.takes_single_events = None, 0, False
            following.is_release_stuck = False
            self._healing.take_success(following)
        else:
            self._detachments.take_trouble(following, task, outcome.trouble, done=outcome.done)
        if self._table.get(following.id) is None:
            return
        if not (task.leave and outcome.trouble):  # such a repository rests first
            self._departures.leave_if_due(following)
        self._acks.send(following)
        self._agenda.queue(following)
        if following.phase is Phase.STREAM:
            self._departures.abandon_if_finished(following)

    def _adopt_state(self, following: Following, outcome: TaskOutcome) -> None:
        """Record the repository's new state on the mirror."""
        before, after = following.checkpoint, outcome.checkpoint
        following.checkpoint, following.folder = after, outcome.folder
        if after is not None:
            if after.path != following.path:
                self._table.vacate(following)
            if before is not None and after.path != before.path:
                following.master_path = after.path
            following.path = after.path
            if self._departures.has_ended(after):  # it was released long ago
                following.released, following.incarnation = after.seq, after.incarnation
        if outcome.serving > following.serving:
            self._maintenance.mark_cold(following)
        is_same_level = outcome.serving == following.serving and not (
            before and after and before.incarnation != after.incarnation
        )
        # A repair also changes what is served, and says no time: it was just now. A time stays with its level.
        following.served_at = outcome.served_at or (following.served_at if is_same_level else self._clock.now())
        following.serving = outcome.serving
        following.floor = outcome.floor

    def _deletion_of_unknown(self, task: Task, outcome: TaskOutcome) -> Checkpoint | None:
        """Return the checkpoint after a deletion of what never was here; else None."""
        if not outcome.done or outcome.checkpoint is not None:
            return None
        last = task.items[outcome.done - 1].event
        return deletion(last, self._clock.now()) if last.type is Type.DELETED else None

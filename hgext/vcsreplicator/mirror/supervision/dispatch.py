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
from .life import Following
from .maintenance import Maintenance
from .state import State
from .values import Phase

logger = structlog.get_logger()


class TaskDispatch:
    """Gives tasks to idle workers, and takes their outcomes."""

    def __init__(
        self,
        state: State,
        pool: WorkerPool,
        departures: Departures,
        detachments: Detachments,
        maintenance: Maintenance,
    ) -> None:
        self._state = state
        self._settings, self._clock, self._membership = state.settings, state.clock, state.membership
        self._table, self._agenda, self._backlog, self._acks = state.table, state.agenda, state.backlog, state.acks
        self._pool, self._departures, self._detachments = pool, departures, detachments
        self._maintenance = maintenance

    def give_tasks(self) -> None:
        """Give the repositories that wait to idle workers, each of its lane."""
        for lane in Lane:
            while self._agenda.has_waiting(lane) and (worker := self._pool.idle(lane)) is not None:
                following = self._table.get(self._agenda.take_next(lane))
                if following is None:
                    continue
                with self._detachments.isolate(following.id):
                    self._give_task(following, worker, lane)

    def take_answer(self, task: object, answered: Answered) -> None:
        """Take a worker's answer to the task that it had, or its death."""
        answer = answered.answer
        if not isinstance(task, Task) or (following := self._table.get(task.repository)) is None:
            return
        following.change(following.run(is_running=False))
        if answer is None:
            logger.warning("worker died", **task.names)
            metrics.DIED.inc()
            note = "its worker hung" if answered.worker.is_killed else "its worker died"
            self._take_trouble(following, task, Trouble(reason=Reason.CRASHED, note=note, passing=True), done=0)
        elif isinstance(answer, TaskOutcome):
            self._apply_outcome(following, task, answer)

    def _give_task(self, following: Following, worker: Worker, lane: Lane) -> None:
        if self._agenda.choose_lane(following) is not lane:
            self._agenda.queue(following)
            return
        task = self._make_task(following)
        following.change(following.run(is_running=True))
        self._pool.give(worker, task, self._clock.monotonic())

    def _make_task(self, following: Following) -> Task:
        is_leaving, heals = following.phase is Phase.LEAVING, following.phase is Phase.HEALING
        return Task(
            repository=following.id,
            path=following.master_path if is_leaving or heals else following.path,
            folder=following.disk.folder,
            items=() if is_leaving or heals or following.phase is Phase.WAITING else self._next_items(following),
            incarnation=following.log.incarnation,
            released=following.log.released,
            newest_known=following.log.newest_known,
            heal=following.note.reason if heals and following.note else None,
            leave=is_leaving,
            keep=self._membership.is_backup,
            drops=following.work.drops,
        )

    def _next_items(self, following: Following) -> tuple[ReadEvent, ...]:
        """Return the oldest events for one task; a bundle to fetch goes alone."""
        count = 1 if following.work.takes_single_events else self._settings.batch_events
        items = self._backlog.peek(following.id, events=count, size=self._settings.batch_bytes)
        if not items or not items[0].inline:
            return items[:1]
        return items[: next((number for number, item in enumerate(items) if not item.inline), len(items))]

    def _apply_outcome(self, following: Following, task: Task, outcome: TaskOutcome) -> None:
        """Take the outcome of a task: each line is one stop on the way.

        They are disk, queue, deletion, trouble or success, then whether the repository leaves, its ack, and more work.
        """
        self._adopt_disk(following, outcome)
        if task.drops == following.work.drops:
            self._backlog.finish(following.id, outcome.done)
        if deleted := outcome.gone or self._deletion_of_unknown(task, outcome):
            self._departures.let_go(following, deleted)
        if outcome.trouble is None:
            if following.phase is Phase.HEALING:
                logger.info("healed", **following.names)
            is_carried = self._membership.carries(following.master_path)
            self._state.send(following, Following.succeed, is_carried=is_carried)
        else:
            self._take_trouble(following, task, outcome.trouble, done=outcome.done)
        if self._table.get(following.id) is None:
            return
        if not (task.leave and outcome.trouble):  # such a repository rests first
            self._departures.leave_if_due(following)
        self._acks.send(following)
        self._agenda.queue(following)
        if following.phase is Phase.STREAM:
            self._departures.abandon_if_finished(following)

    def _adopt_disk(self, following: Following, outcome: TaskOutcome) -> None:
        after, before = outcome.checkpoint, following.level
        if after is not None and after.path != following.path:
            self._state.vacate(following)
        if outcome.serving > following.disk.serving:
            self._maintenance.mark_cold(following)
        has_ended = after is not None and self._departures.has_ended(after)
        following.change(following.adopt(outcome, now=self._clock.now(), has_ended=has_ended))
        metrics.APPLIED.inc(max(0, following.level - before))

    def _take_trouble(self, following: Following, task: Task, trouble: Trouble, *, done: int) -> None:
        self._state.send(following, Following.suffer, task, trouble, done=done, patience=self._settings.slow_after)

    def _deletion_of_unknown(self, task: Task, outcome: TaskOutcome) -> Checkpoint | None:
        """Return the checkpoint after a deletion of what never was here; else None."""
        if not outcome.done or outcome.checkpoint is not None:
            return None
        last = task.items[outcome.done - 1].event
        return deletion(last, self._clock.now()) if last.type is Type.DELETED else None

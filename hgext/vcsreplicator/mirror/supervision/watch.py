# SPDX-License-Identifier: GPL-2.0-or-later
"""Workers that take too long, and those without a task.

If one takes too long, its repository is detached, a replacement is started, and a worker that hangs is killed.
"""

import structlog

from .. import metrics
from ..pool import Lane, Worker, WorkerPool
from ..task import Task
from .life import Following
from .state import State

# Most slow workers beside which one more of this lane gets a replacement. If the disk is slow for all, more would not help; large
# pushes leave some for small work; repairs and checks take long by nature, and are replaced only if they hang.
REPLACEMENT_LIMITS = {Lane.LIGHT: 8, Lane.HEAVY: 6, Lane.REPAIR: 0, Lane.CHECK: 0}

# Seconds after which another worker is started beside a worker that is not ready yet.
START_SLOW = 5.0

# Seconds after which a worker that is not ready yet is killed.
START_LIMIT = 60.0
logger = structlog.get_logger()


class WorkerWatch:
    """Looks at all workers periodically, so that none holds up the others."""

    def __init__(self, state: State, pool: WorkerPool) -> None:
        self._state, self._settings, self._table, self._pool = state, state.settings, state.table, pool

    def check(self, now: float) -> None:
        """Act on workers that are slow or hang, or idle for long."""
        for worker in self._pool.workers:
            if worker.since is None:
                worker.since = now  # it begins to start
            if not worker.is_ready or worker.busy:
                self._check_worker(worker, now)
        self._pool.end_idle()
        metrics.SLOW_WORKERS.set(self._count_slow())

    def _check_worker(self, worker: Worker, now: float) -> None:
        assert worker.since is not None
        following = self._table.get(worker.busy.repository) if isinstance(worker.busy, Task) else None
        limit = self._settings.slow_after if worker.is_ready else START_SLOW
        if now - worker.since > limit:
            if following is not None:
                self._state.send(following, Following.be_slow, self._settings.slow_after)
            if not worker.is_slow:
                worker.is_slow = self._count_slow() < REPLACEMENT_LIMITS[worker.lane]
        if not worker.is_killed and self._is_hanging(worker, now):
            names = worker.busy.names if isinstance(worker.busy, Task) else {"repository": None}
            logger.error("worker hung", lane=worker.lane.value, seconds=round(now - worker.since), **names)
            metrics.HUNG.inc()
            worker.is_slow = True
            self._pool.kill(worker)

    def _is_hanging(self, worker: Worker, now: float) -> bool:
        """Return whether the worker hangs.

        Small work has a limit, everything else may take long as long as it makes progress.
        """
        assert worker.since is not None
        if not worker.is_ready:
            return now - worker.since > START_LIMIT
        if worker.lane is not Lane.LIGHT and (progress := self._pool.progress(worker)) != worker.progress:
            worker.progress, worker.moved = progress, now
        return now - max(worker.since, worker.moved) > self._settings.hung_after

    def _count_slow(self) -> int:
        return sum(worker.is_slow for worker in self._pool.workers)

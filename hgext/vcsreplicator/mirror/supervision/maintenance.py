# SPDX-License-Identifier: GPL-2.0-or-later
"""Work that no push waits for.

It is reading repositories through, removing old set-aside copies, and filling caches.
"""

import math
import random

import structlog

from ...words.clock import DAY
from ..pool import Lane, WorkerPool
from ..task import Check, Checked, Sweep, Warm
from .life import Deed, Following
from .state import State
from .values import Phase

# Seconds after a release until its caches are filled. Its ack and its notice go first: they would share the processors.
WARM_AFTER = 0.05
# Seconds after which caches are filled also while other workers are busy.
WARM_AT_LATEST = 30.0
# Seconds between two removals of old set-aside repositories.
SWEEP_INTERVAL = 3600.0
# Most reasons in one log line.
NAMED = 10
logger = structlog.get_logger()


class Maintenance:
    """Gives idle workers tasks that can wait."""

    def __init__(self, state: State, pool: WorkerPool) -> None:
        self._settings, self._table, self._agenda, self._clock = state.settings, state.table, state.agenda, state.clock
        self._state, self._pool = state, pool
        # Repositories whose caches are cold, in the order in which they became so → whether the lock on the disk must be changed
        # too, and since when they are cold.
        self._to_warm: dict[str, tuple[bool, float]] = {}
        # Repositories that are not read through yet in this round, and repositories that changed while they were read.
        self._unchecked: list[str] = []
        self._undecided: set[str] = set()
        self._sweep_at = self._clock.monotonic() + self._settings.beat_interval
        # When the next repository may be read through, and when the next round of all of them may begin.
        begin = min(self._settings.beat_interval, self._settings.check_interval)
        self._check_at = self._round_at = self._clock.monotonic() + begin

    def mark_cold(self, following: Following, *, relock: bool = False) -> None:
        """Let the repository's caches be filled soon, when all workers are idle.

        That spares the next reader the work. With `relock`, the lock on the disk is changed too.
        """
        was_relocking, since = self._to_warm.get(following.id, (False, self._clock.monotonic()))
        self._to_warm[following.id] = relock or was_relocking, since

    def has_cold(self) -> bool:
        """Return whether caches are to be filled."""
        return bool(self._to_warm)

    def warm_next(self) -> None:
        """Fill the caches of the repository that is cold longest.

        Not within WARM_AFTER of the mark; while a light worker is busy only after WARM_AT_LATEST, and one at a time. A repository
        that has a task keeps its turn: a copy from the master may take long, and nothing else would change its lock.
        """
        repository = self._find_cold()
        if repository is None:
            return
        relock, since = self._to_warm[repository]
        workers = (each for each in self._pool.workers if each.lane is Lane.LIGHT and not each.is_slow)
        tasks = [worker.busy for worker in workers if worker.busy]
        is_quiet = not tasks and not self._agenda.has_waiting()
        is_overdue = self._clock.monotonic() >= since + WARM_AT_LATEST
        if not is_quiet and (not is_overdue or any(isinstance(task, Warm) for task in tasks)):
            return
        worker = self._pool.idle(Lane.LIGHT)
        if worker is None:
            return
        del self._to_warm[repository]
        following = self._table.get(repository)
        if following is not None and following.disk.folder is not None:
            task = Warm(repository=repository, folder=following.disk.folder, relock=relock)
            self._pool.give(worker, task, self._clock.monotonic())

    def _find_cold(self) -> str | None:
        """Return the longest cold repository that may be warmed now."""
        cold_since = self._clock.monotonic() - WARM_AFTER
        for repository, (_, since) in self._to_warm.items():
            if since > cold_since:
                break
            following = self._table.get(repository)
            if following is None or not following.work.is_running:
                return repository
        return None

    def give_due(self, now: float) -> None:
        """Begin the next removal, else reading through, if due and a worker is idle."""
        if now >= self._sweep_at and (worker := self._pool.idle(Lane.CHECK)) is not None:
            self._sweep_at = now + SWEEP_INTERVAL
            sweep = Sweep(now=self._clock.now(), age=DAY * self._settings.keep_deleted_days)
            self._pool.give(worker, sweep, self._clock.monotonic())
        if self._settings.check_interval and now >= self._check_at:
            self._check_next(now)

    def rest_after_check(self, took: float) -> None:
        """Let the worker rest that read a repository through, or died of it, for `took` seconds."""
        self._check_at = self._clock.monotonic() + took * (1.0 / self._settings.check_share - 1.0)

    def take_swept(self, swept: Sweep) -> None:
        """Log why old copies are still there, if any are."""
        if swept.kept:
            logger.error("old copies not removed", count=len(swept.kept), reasons=swept.kept[:NAMED])

    def take_checked(self, checked: Checked) -> None:
        """Take the result of reading a repository through: damage, or a lower checkpoint."""
        if checked.is_undecided and checked.problem is not None:
            logger.error("not read through", repository=checked.repository, reason=checked.problem)
            return
        if checked.is_undecided and checked.repository not in self._undecided:
            self._undecided.add(checked.repository)
            self._unchecked.insert(0, checked.repository)  # once more when all others had their turn
        following = self._table.get(checked.repository)
        if following is None:
            return
        todo = self._state.send(following, Following.believe, checked)
        if Deed.QUEUE in todo and checked.shown is not None:
            served, shown = checked.shown  # the watermark was lost or replaced
            logger.error("release lost", **following.names, reason=f"served event {served}, clients see event {shown}")

    def _check_next(self, now: float) -> None:
        """Have the next repository read through, one at a time."""
        if not self._unchecked and now >= self._round_at:
            self._round_at = now + self._settings.check_interval
            self._undecided.clear()
            self._unchecked = [following.id for following in self._table if following.disk.folder is not None]
            random.shuffle(self._unchecked)  # restarts in the middle of rounds must not spare the same ones each time
        if not self._unchecked or (worker := self._pool.idle(Lane.CHECK)) is None:
            return
        following = self._table.get(self._unchecked.pop())
        if following is not None and following.disk.folder is not None and following.phase is Phase.STREAM:
            task = Check(
                repository=following.id,
                folder=following.disk.folder,
                seq=following.level,
                serving=following.disk.serving,
            )
            self._check_at = math.inf  # until it ends
            self._pool.give(worker, task, self._clock.monotonic())

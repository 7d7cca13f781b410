# SPDX-License-Identifier: GPL-2.0-or-later
"""The schedule of the relay's jobs.

It works in many repositories at once, on one job at a time in each, and retries failures indefinitely.
"""

import enum
import gc
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace

import prometheus_client
import structlog

from ..outbox.file import outbox_of
from ..words.clock import Clock
from ..words.errors import BlobsUnavailable, NoRoom, Refused, ReplicationError, Unavailable
from ..words.retry import FAILOVER, RECONNECT, Backoff
from ..words.unexpected import OUT_OF_MEMORY, lacks_memory
from .jobs import Job, RepositoryBusy
from .partitions import LoggedOutage
from .reasons.grouping import GroupedLines
from .reasons.rights import explain, find_denied
from .scan import is_folder

logger = structlog.get_logger()

FAILURES = prometheus_client.Counter("vcsreplicator_relay_failures_total", "Attempts that failed and are repeated")
WAITING = prometheus_client.Gauge(
    "vcsreplicator_relay_unsent_repositories", "Repositories with events that are not sent yet"
)

# Attempts at a transaction that may be abandoned, after the first; then it is left to the next round.
RECOVERY_RETRIES = 5
# Repositories that wait for the log and may each try as often as one alone; more of them share these attempts.
OFTEN = 4
# For repositories that this user may not write, or whose histories no memory holds: until an operator acts, each attempt fails.
# LONGEST is the longest delay of many such repositories.
DENIED, LONGEST = Backoff(first=0.1, longest=120.0), 600.0
# What an operator can do about a job that needed more memory than this process may use (`words.memory`).
NEEDS_MEMORY = (
    f"{OUT_OF_MEMORY}; after a large push set LimitDATA= in the relay's unit, otherwise find out who wrote there"
)
# Failures of a repository in a row that are logged as warnings; further ones are errors.
QUIET_FAILURES = 3
# Seconds between two looks at which tasks are due.
TICK = 0.1


class Obstacle(enum.StrEnum):
    """What stood in the way of many repositories, by the newest failure.

    The log was away, this user may not use a file of the repository, or the process had no memory left.
    """

    AWAY = "away"
    DENIED = "denied"
    MEMORY = "memory"


@dataclass(slots=True)
class _RepositoryTask:
    """The jobs that wait in one repository.

    `running` is true while a worker does some of them. `obstacle` is None if the newest failure had another reason.
    """

    jobs: set[Job] = field(default_factory=set)
    running: bool = False
    obstacle: Obstacle | None = None
    failures: int = 0
    not_before: float = 0.0


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the newest attempt at a job failed, and since when none succeeded.

    `is_busy` says that another process works there, which may take long, and `is_permanent` that no attempt succeeds before an
    operator acts.
    """

    job: Job
    reason: str
    since: float
    is_busy: bool = False
    is_permanent: bool = False


@dataclass(slots=True)
class _JobOutcomes:
    """What came of the jobs in one repository.

    These are the jobs to retry, a failure to roll back, and one of another job. `obstacle` is that of the newest failure;
    `has_answered` says that a job succeeded that needs the log and the repository.
    """

    retried: set[Job] = field(default_factory=set)
    unrecovered: Failure | None = None
    failure: Failure | None = None
    obstacle: Obstacle | None = None
    has_answered: bool = False

    def note(self, failure: Failure) -> None:
        """Note a failure; of other jobs than RECOVER the first stays, unless it was busy."""
        if failure.job is Job.RECOVER:
            self.unrecovered = failure
        elif self.failure is None or (self.failure.is_busy and not failure.is_busy):
            self.failure = failure


class Work:
    """The jobs to do, by repository folder; any thread may use it.

    `table` has the function that does each job. `on_failed` gets the folder of a repository, the reason, and whether the log's disk
    has no space left; otherwise the relay lacks a right in the repository. `on_trouble` is called when a failure is listed. By
    folder, `unrecovered` says why the newest attempt to roll back failed, and `failed` why that at another job did.
    """

    def __init__(
        self, table: Mapping[Job, Callable[[str], None]], *, workers: int, stop: threading.Event, clock: Clock
    ) -> None:
        self._table, self._stop, self._clock = table, stop, clock
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="relay")
        self._tasks: dict[str, _RepositoryTask] = {}
        # How many tasks wait for the end of each obstacle.
        self._obstructed = Counter[Obstacle | None]()
        self._lines = GroupedLines(clock)
        self.failed: dict[str, Failure] = {}
        self.unrecovered: dict[str, Failure] = {}
        self.on_failed: Callable[[str, str, bool], None] = lambda folder, reason, is_full: None
        self.on_trouble: Callable[[], None] = lambda: None
        self._changed, self._has_tasks = threading.Condition(), threading.Event()
        threading.Thread(target=self._start_due_tasks, name="relay-timer", daemon=True).start()

    def add(self, folder: str, *jobs: Job, now: bool = False) -> None:
        """Have these jobs done in a repository.

        With `now`, do not wait for the retry of an earlier failure.
        """
        with self._changed:
            task = self._tasks.setdefault(folder, _RepositoryTask())
            task.jobs.update(jobs)
            self._has_tasks.set()
            if now:
                task.not_before = 0.0
            self._start_task(folder, task)

    def list_failing(self) -> list[str]:
        """Return the folders in which the newest attempt at a job failed, unless busy."""
        with self._changed:
            failures = (*self.failed.items(), *self.unrecovered.items())
        return list(dict.fromkeys(folder for folder, failure in failures if not failure.is_busy))

    def forget_failures(self, folders: Collection[str]) -> None:
        """Forget the failures in all other folders than these."""
        with self._changed:
            for failed in (self.failed, self.unrecovered):
                for folder in failed.keys() - folders:
                    del failed[folder]

    def drain(self, timeout: float) -> None:
        """Let running jobs end, up to `timeout` seconds, and start no other."""
        deadline = time.monotonic() + timeout
        self._has_tasks.set()
        with self._changed:
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: not any(task.running for task in self._tasks.values()), deadline - time.monotonic()
            )
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start_task(self, folder: str, task: _RepositoryTask) -> None:
        """Start a task if it may run; the caller holds the condition."""
        WAITING.set(len(self._tasks))
        if not task.running and task.jobs and task.not_before <= self._clock.monotonic() and not self._stop.is_set():
            task.running = True
            # Without memory for one more thread, a running thread takes the task from the queue.
            with suppress(RuntimeError):
                self._pool.submit(self._run_task, folder, task)

    def _run_task(self, folder: str, task: _RepositoryTask) -> None:
        with self._changed:
            jobs, task.jobs = task.jobs, set()
            before = task.obstacle
            self._set_obstacle(task, None)
        try:
            outcomes = self._run_jobs(folder, task, jobs)
        except MemoryError:  # a job of another thread holds all memory
            outcomes = _JobOutcomes(jobs, obstacle=Obstacle.MEMORY)
        with self._changed:
            task.running = False
            task.jobs |= outcomes.retried
            self._set_obstacle(task, outcomes.obstacle)
            if outcomes.retried:
                task.failures += 1
                delay = choose_delay(task.obstacle, task.failures, self._obstructed[task.obstacle])
                task.not_before = self._clock.monotonic() + delay
            else:
                task.failures, task.not_before = 0, 0.0
            if before is not None and outcomes.has_answered and outcomes.obstacle is not before:
                self._start_obstructed(before)
            _replace_failure(self.unrecovered, folder, outcomes.unrecovered)
            _replace_failure(self.failed, folder, outcomes.failure)
            if any(failure and not failure.is_busy for failure in (outcomes.unrecovered, outcomes.failure)):
                self.on_trouble()
            if task.jobs:
                self._start_task(folder, task)
            else:
                self._tasks.pop(folder, None)
            WAITING.set(len(self._tasks))
            self._changed.notify_all()

    def _set_obstacle(self, task: _RepositoryTask, obstacle: Obstacle | None) -> None:
        """Note what a task waits for; the caller holds the condition."""
        self._obstructed[task.obstacle] -= 1
        self._obstructed[obstacle] += 1
        task.obstacle = obstacle

    def _start_obstructed(self, obstacle: Obstacle) -> None:
        """Start what waits for the end of an obstacle, now that one task passed.

        Each is started once for the first success, not again for the next. The caller holds the condition.
        """
        for folder, task in self._tasks.items():
            if task.obstacle is obstacle:
                self._set_obstacle(task, None)
                task.not_before = 0.0
                self._start_task(folder, task)

    def _run_jobs(self, folder: str, task: _RepositoryTask, jobs: set[Job]) -> _JobOutcomes:
        """Run jobs in their order; return what came of them.

        None runs behind a failed one, but what was committed before a transaction that cannot be rolled back is sent.
        """
        outcomes, now = _JobOutcomes(), self._clock.now()
        for job in Job:
            if job not in jobs - outcomes.retried:
                continue
            try:
                self._run_job(job, folder)
                outcomes.has_answered |= job is not Job.RECOVER
            except RepositoryBusy as error:
                logger.debug("busy", job=job, folder=folder, reason=str(error))
                outcomes.note(Failure(job, str(error), now, is_busy=True))
                if job is not Job.RECOVER or task.failures < RECOVERY_RETRIES:
                    outcomes.retried.add(job)
            except Refused as error:
                self._report_failure("error", "refused", folder, job, str(error))
                outcomes.note(Failure(job, str(error), now, is_permanent=True))
            except Exception as error:
                # Deleted or renamed: the next round finds it at its new place.
                if not (os.path.isdir(os.path.join(folder, ".hg")) or is_hidden(folder)):
                    logger.info("repository gone", job=job, folder=folder)
                    return _JobOutcomes(outcomes.retried)
                reason, denied = explain(folder, error), find_denied(folder, error)
                is_away = isinstance(error, Unavailable) and not isinstance(error, BlobsUnavailable)
                outcomes.obstacle = Obstacle.DENIED if denied is not None else None
                if is_away:
                    outcomes.obstacle = Obstacle.AWAY
                if isinstance(error, MemoryError):
                    outcomes.obstacle = Obstacle.MEMORY
                self._note_failure(folder, job, task, error, reason)
                outcomes.note(Failure(job, reason, now, is_permanent=denied is not None))
                if job is Job.RECOVER:
                    outcomes.retried = {Job.RECOVER, Job.ANNOUNCE} & jobs
                    continue
                if isinstance(error, NoRoom):
                    self.on_failed(folder, str(error), True)
                elif denied is not None:
                    self.on_failed(folder, denied[0], False)
                outcomes.retried = jobs
                break
        return outcomes

    def _run_job(self, job: Job, folder: str) -> None:
        """Run a job; raise MemoryError with what an operator can do if it needs too much.

        That exception keeps nothing alive of what the job had in memory.
        """
        try:
            self._table[job](folder)
        except Exception as error:
            if isinstance(error, ReplicationError) or not lacks_memory(error):
                raise
        else:
            return
        gc.collect()  # Mercurial's objects refer to each other
        raise MemoryError(NEEDS_MEMORY)

    def _note_failure(self, folder: str, job: Job, task: _RepositoryTask, error: Exception, reason: str) -> None:
        FAILURES.inc()
        is_expected = isinstance(error, Unavailable) or task.failures < QUIET_FAILURES
        severity = "warning" if is_expected and find_denied(folder, error) is None else "error"
        if isinstance(error, LoggedOutage):
            severity = "debug"
        fields = {"failures": task.failures + 1, "kind": type(error).__name__}
        self._report_failure(severity, "will try again", folder, job, reason, **fields)

    def _report_failure(self, severity: str, event: str, folder: str, job: Job, reason: str, **fields: object) -> None:
        """Write a line about a failed attempt, if one about its reason is due."""

        def write_line(attempts: int, repositories: int) -> None:
            many = {"attempts": attempts, "repositories": repositories} if repositories > 1 else {}
            getattr(logger, severity)(
                event, job=job, folder=folder, **outbox_of(folder).names(), **fields, **many, reason=reason
            )

        self._lines.note(write_line, folder, event, job, severity, reason)

    def _start_due_tasks(self) -> None:
        while self._has_tasks.wait() and not self._stop.wait(TICK):
            # A job of another thread may hold all memory: then try again at the next tick.
            with suppress(MemoryError), self._changed:
                for folder, task in list(self._tasks.items()):
                    self._start_task(folder, task)
                if not self._tasks:
                    self._has_tasks.clear()


def choose_delay(obstacle: Obstacle | None, failures: int, waiting: int) -> float:
    """Return the seconds to a repository's next attempt, where so many wait for the end of its obstacle."""
    if obstacle in (Obstacle.DENIED, Obstacle.MEMORY):
        fair = min(waiting / OFTEN, LONGEST)
        return max(DENIED.delay(failures, random.random()), fair * (0.8 + 0.4 * random.random()))
    longest = RECONNECT.delay(failures, random.random())
    if obstacle is None:
        return longest
    return min(FAILOVER.delay(failures, random.random()) * max(1.0, waiting / OFTEN), longest)


def _replace_failure(failures: dict[str, Failure], folder: str, failure: Failure | None) -> None:
    """Replace a repository's failure; of the same job it keeps the first one's time."""
    known = failures.pop(folder, None)
    if failure is not None:
        since = known.since if known is not None and known.job is failure.job else failure.since
        failures[folder] = replace(failure, since=since)


def is_hidden(folder: str) -> bool:
    """Return whether rights or a bad disk hide if there is a repository."""
    try:
        is_folder(os.path.join(folder, ".hg", "store"))
    except OSError:
        return True
    return False

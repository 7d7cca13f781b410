# SPDX-License-Identifier: GPL-2.0-or-later
"""A new mirror, filled while pushes go on and then let into the roster.

It is filled with every repository that it carries. Correctness depends on the order; each step can be repeated:

1. The mirror's name is known, inactive: nothing waits for it.
2. Its positions in `events` are stored: the present ends, once. The master has everything in the log before them, because only
   committed events get there; so a copy made later has them all.
3. Every repository that `state` names is copied from the master, many at once, each complete before it takes its place. A copy that
   has reached the log's level then is kept; so a killed bootstrap continues. A deleted repository, or one no longer carried, is
   given up.
4. The mirror joins only when nothing is missing, and no other mirror of this name is alive. From the joining point on, notices
   wait for it; started, it reads on from 2.

No service of this mirror may run meanwhile; the mirror's folder is locked.
"""

import os
import shutil
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...log import ACKS, EVENTS, Log
from ...log.table import read_table
from ...status import Picture
from ...status.follower import Follower
from ...words.clock import SystemClock
from ...words.errors import Refused, counted
from ...words.records import Reason, RepositoryState
from ...words.retry import Backoff
from ...words.roster import MirrorRole, MirrorState, Roster, Verb
from ...words.rules import Rules
from ...words.shape import within
from ..namesake import Namesakes, instance_of
from ..seals import OwnSeals
from ..service import lock_folder
from ..settings import MirrorSettings
from ..task import FoundRepository, Scan, Task, TaskOutcome
from . import crew
from .verify import carried, is_included

# Asks the aggregator to ADD the mirror (inactive, with rules) or to let it JOIN. Returns once decided or stopped; raises Refused.
Ask = Callable[[Verb, Rules | None], None]

# Attempts at a copy whose failure does not pass by itself; a failure that may pass is retried indefinitely.
ATTEMPTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapSettings:
    """How many repositories are copied at a time."""

    workers: int = 4

    def __post_init__(self) -> None:
        within(self, workers=(1, 100))


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the bootstrap is.

    `total` counts all repositories, `present` the ones here, and `failed` the ones given up. `bytes` counts what this
    run copied, half-made copies included.
    """

    total: int
    present: int
    failed: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFailed:
    """A repository that was not copied; `is_final` when this run tries no more."""

    path: str
    note: str
    is_final: bool


ReportProgress = Callable[[Progress | CopyFailed], None]


@dataclass(slots=True, kw_only=True)
class _BootstrapJob:
    state: RepositoryState
    attempts: int = 0
    bytes: int = 0
    is_done: bool = False
    is_failed: bool = False


def bootstrap(
    settings: MirrorSettings,
    events: Log,
    options: BootstrapSettings,
    *,
    ask: Ask,
    report: ReportProgress,
    stop: threading.Event,
    rules: Rules | None = None,
    backup: bool = False,
) -> bool:
    """Fill the mirror; return whether it joined (else stopped). Raises Refused."""
    with lock_folder(settings), closing(Follower(events)) as follower:

        def update() -> Picture:
            picture = follower.update()
            picture.require_roster()  # else repositories, or the mirror itself, would count as not wanted
            return picture

        _make_known(update(), settings.name, ask, rules, backup=backup)
        if stop.is_set():
            return False
        instance_of(Path(settings.folder))  # from now on the service may fill an empty root
        store_start(events, settings.group)
        jobs = _find_missing(settings, carried(update(), settings.name), stop)
        _copy(settings, options, jobs, update, report, stop)
        if stop.is_set():
            return False
        if failed := [job.state.path for job in jobs if job.is_failed]:
            named = ", ".join(failed[:5]) + (f" and {len(failed) - 5} more" if len(failed) > 5 else "")
            raise Refused(
                f"not joined: {counted(len(failed), 'repository')} could not be copied: {named}; run bootstrap again"
            )
        roster = update().roster
        known = roster.mirror(settings.name)
        if known is not None and known.state is MirrorState.INACTIVE:
            _wait_for_namesake(settings, events, roster, stop)
            if not stop.is_set():
                ask(Verb.JOIN, None)
        return not stop.is_set()


def _make_known(picture: Picture, name: str, ask: Ask, rules: Rules | None, *, backup: bool) -> None:
    known = picture.roster.mirror(name)
    if known is None or known.state is MirrorState.REMOVED:
        ask(Verb.ADD, rules)
    elif backup and known.role is not MirrorRole.BACKUP:
        raise Refused(
            f"{name} is in the roster, but not as a backup; to make it one: vcsreplicator roster remove {name} --yes, "
            "then run this command again"
        )
    elif rules is not None and rules != known.rules:
        raise Refused(
            f"{name} is in the roster with other rules; change them with: vcsreplicator roster rules {name} --yes, "
            "with --include and --exclude as here"
        )


def store_start(events: Log, group: str) -> None:
    """Store the present ends of `events` where the group has no position yet."""
    stored = events.stored(group, EVENTS)
    missing = {partition: end for partition, end in events.ends(EVENTS).items() if partition not in stored}
    if missing:
        events.acknowledge(group, EVENTS, missing)


def _wait_for_namesake(settings: MirrorSettings, events: Log, roster: Roster, stop: threading.Event) -> None:
    """Return once a former mirror of this name is silent, or `stop` is set.

    Later the service would have to wait for that, and notices for the service. Raises BadConfig if the former mirror is alive.
    """
    table = read_table(events, ACKS, keep=lambda record: record.key == settings.name)
    seals = OwnSeals(settings.name, Path(settings.folder))
    seals.take_roster(roster)
    namesakes = Namesakes(settings, instance_of(Path(settings.folder)), table.positions[ACKS, 0])
    namesakes.wait(events, seals, table.records.get((ACKS, settings.name)), stop)


def _find_missing(
    settings: MirrorSettings, wanted: list[RepositoryState], stop: threading.Event
) -> list[_BootstrapJob]:
    """Return a job for each repository, done already if it reaches as far as the log."""
    found: list[FoundRepository] = []

    def take(_job: None, answer: Any) -> float | None:
        if answer is None:
            raise Refused("a worker could not scan the mirror's folder; its output says why")
        found.extend(answer)
        return None

    crew.work(settings, [None], make_task=lambda _job: Scan(), decide=take, stop=stop, clock=SystemClock())
    here = [each.checkpoint for each in found if each.checkpoint is not None and not each.is_aside]
    levels = {(checkpoint.repository, checkpoint.incarnation): checkpoint.seq for checkpoint in here}
    return [
        _BootstrapJob(state=each, is_done=levels.get((each.repository, each.incarnation), -1) >= each.seq)
        for each in wanted
    ]


def _copy(
    settings: MirrorSettings,
    options: BootstrapSettings,
    jobs: list[_BootstrapJob],
    update: Callable[[], Picture],
    report: ReportProgress,
    stop: threading.Event,
) -> None:
    staging, clock = Path(settings.folder) / "staging", SystemClock()
    backoff = Backoff(first=settings.retry_first, longest=settings.retry_longest)
    counted = float("-inf")

    def make_task(job: _BootstrapJob) -> Task:
        job.attempts += 1
        return Task(repository=job.state.repository, path=job.state.path, folder=None, heal=Reason.BOOTSTRAP)

    def decide(job: _BootstrapJob, outcome: TaskOutcome | None) -> float | None:
        trouble = outcome.trouble if outcome else None
        if outcome is not None and trouble is None and outcome.checkpoint is not None and outcome.folder is not None:
            job.is_done, job.bytes = True, size_of(Path(outcome.folder) / ".hg")
            return None
        if trouble is not None:
            note = trouble.note
        else:
            note = "its worker died" if outcome is None else "the master does not have it any more"
        picture = update()
        job.state = picture.states.get(job.state.repository, job.state)  # it may have been renamed
        if not is_included(picture, settings.name, job.state):
            jobs.remove(job)
            shutil.rmtree(staging / job.state.repository, ignore_errors=True)
            return None
        job.is_failed = not (trouble and trouble.passing) and job.attempts >= ATTEMPTS
        report(CopyFailed(path=job.state.path, note=note, is_final=job.is_failed))
        return None if job.is_failed else backoff.delay(job.attempts)

    def report_progress() -> None:
        nonlocal counted
        if clock.monotonic() - counted >= 1.0:
            counted = clock.monotonic()
            report(_sum_progress(jobs, size_of(staging)))

    left = [job for job in jobs if not job.is_done]
    working = replace(settings, heavy_workers=options.workers)
    crew.work(working, left, make_task=make_task, decide=decide, stop=stop, clock=clock, each_turn=report_progress)
    report(_sum_progress(jobs, 0))


def _sum_progress(jobs: list[_BootstrapJob], half_made: int) -> Progress:
    return Progress(
        total=len(jobs),
        present=sum(job.is_done for job in jobs),
        failed=sum(job.is_failed for job in jobs),
        bytes=sum(job.bytes for job in jobs) + half_made,
    )


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder, without files that vanish."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_size
    return total

# SPDX-License-Identifier: GPL-2.0-or-later
"""Worker processes: started with a clean environment, given one task at a time, replaced when they end.

Light workers take small work; heavy ones, started when needed and at a lower priority, take large pushes and repairs, so that
small work never waits for those. What a worker answers, or that it died, arrives in the supervisor's inbox.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from .settings import MirrorSettings

WORKER = "hgext.vcsreplicator.hg.worker"
_KEPT = ("PATH", "PYTHONPATH", "HOME", "USER", "TZ", "TMPDIR", "HGMODULEPOLICY", "LD_LIBRARY_PATH", "LD_PRELOAD")
_NICE = 5
CONFIGURATION = """\
[extensions]
pushlog =
[ui]
quiet = yes
interactive = no
rollback = no
[experimental]
evolution = all
[phases]
publish = no
[worker]
enabled = no
"""
"""Mercurial's configuration in a worker. Markers are taken whatever the repository's own settings say about making them."""


class Lane(StrEnum):
    """What a worker is for."""

    LIGHT = "light"
    HEAVY = "heavy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A worker's answer to its task, or None because it died."""

    worker: "Worker"
    answer: Any


class Worker:
    """One process and the pipe to it; it is `busy` with a task `since` a time of the supervisor's clock.

    One `is_apart` that took too long: another has its place, and it ends with its task.
    """

    def __init__(self, settings: MirrorSettings, environment: Mapping[str, str], lane: Lane) -> None:
        self.lane = lane
        self.tasks = 0
        self.busy: object | None = None
        self.since = 0.0
        self.is_apart = self.is_killed = False
        self.pipe, theirs = Pipe()
        command = [sys.executable, "-m", WORKER, str(theirs.fileno())]
        nice = _lower_priority if lane is Lane.HEAVY else None
        with theirs:
            self.process = subprocess.Popen(
                command, env=dict(environment), pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, preexec_fn=nice
            )
        self.pipe.send(settings)


class Pool:
    """The workers of one mirror; used by the supervisor's thread alone."""

    def __init__(self, settings: MirrorSettings, arrived: Callable[[Answered], None]) -> None:
        self._settings = settings
        self._arrived = arrived
        self._environment = _environment(settings)
        self.workers: list[Worker] = []

    def start(self, lane: Lane) -> Worker:
        """One more worker."""
        worker = Worker(self._settings, self._environment, lane)
        self.workers.append(worker)
        threading.Thread(target=_listen, args=(worker, self._arrived), name="worker", daemon=True).start()
        return worker

    def fill(self) -> None:
        """Starts all light workers, so that the first events need not wait for that."""
        for _ in range(self._settings.workers - sum(worker.lane is Lane.LIGHT for worker in self.workers)):
            self.start(Lane.LIGHT)

    def idle(self, lane: Lane) -> Worker | None:
        """A worker of the lane that has nothing to do, started if there may be one more; None if all are busy."""
        ours = [worker for worker in self.workers if worker.lane is lane and not worker.is_apart]
        for worker in ours:
            if worker.busy is None:
                return worker
        limit = self._settings.workers if lane is Lane.LIGHT else self._settings.heavy_workers
        return self.start(lane) if len(ours) < limit else None

    def give(self, worker: Worker, task: object) -> None:
        """Hands the task over; a worker that is gone is told as died."""
        worker.busy = task
        worker.tasks += 1
        with contextlib.suppress(OSError):  # the listening thread finds the end of the pipe and says so
            worker.pipe.send(task)

    def freed(self, answered: Answered) -> None:
        """The worker has answered or died: it is idle, or leaves because it is dead, or has done enough."""
        worker = answered.worker
        worker.busy = None
        if answered.answer is None or worker.is_apart or worker.tasks >= self._settings.recycle_after:
            self._end(worker)

    def kill(self, worker: Worker) -> None:
        """Ends a worker in the middle of its task, which is told as died; one that hangs in the disk dies when that answers."""
        worker.is_killed = True
        worker.process.kill()

    def close(self, patience: float) -> None:
        """Ends all workers, each after the task it has; those not done within `patience` seconds are killed."""
        for worker in self.workers:
            _dismiss(worker)
        end = time.monotonic() + patience
        for worker in self.workers:
            try:
                worker.process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                with contextlib.suppress(
                    subprocess.TimeoutExpired
                ):  # one that hangs in the disk dies when that answers
                    worker.process.wait(1.0)
        self.workers.clear()

    def _end(self, worker: Worker) -> None:
        if worker not in self.workers:  # it was dismissed before
            return
        self.workers.remove(worker)
        _dismiss(worker)
        threading.Thread(target=worker.process.wait, name="reap", daemon=True).start()


def _dismiss(worker: Worker) -> None:
    """Nothing more is asked of it: it ends after the task it has, and the listening thread with it."""
    with contextlib.suppress(OSError):
        worker.pipe.send(None)


def _listen(worker: Worker, arrived: Callable[[Answered], None]) -> None:
    while True:
        try:
            answer = worker.pipe.recv()
        except (EOFError, OSError):
            answer = None
        arrived(Answered(worker=worker, answer=answer))
        if answer is None:
            worker.pipe.close()
            return


def _environment(settings: MirrorSettings) -> dict[str, str]:
    """Nothing of the caller's but where programs and credentials are; Mercurial reads one file of ours."""
    file = Path(settings.folder) / "worker.hgrc"
    file.parent.mkdir(parents=True, exist_ok=True)
    own = file.with_suffix(f".{os.getpid()}")  # others may be starting workers with the same file right now
    own.write_text(CONFIGURATION, encoding="ascii")
    own.replace(file)
    return {
        **{name: value for name, value in os.environ.items() if name in _KEPT or name.startswith("AWS_")},
        "HGRCPATH": str(file),
        "HGRCSKIPREPO": "1",
        "HGPLAIN": "1",
        "HGENCODING": "UTF-8",
        "LC_ALL": "C.UTF-8",
    }


def _lower_priority() -> None:
    os.nice(_NICE)

# SPDX-License-Identifier: GPL-2.0-or-later
"""The worker processes of a mirror.

They are started with a clean environment, given one task at a time, and replaced when they end. Each lane has workers of its own,
so no lane waits for another; workers of all lanes but LIGHT are started when needed, at a lower priority, and end if none is needed
for long. A worker's answer, or its death, arrives in the supervisor's inbox. A thread for each worker holds the conversation with
it, so the supervisor never waits for a pipe: it writes only what an idle worker's pipe holds. A pipe that breaks at any moment
means that the worker died.
"""

import contextlib
import os
import queue
import random
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import structlog

from ..log.ownership import give_to_owner, make_folders
from ..words.clock import Clock, SystemClock
from ..words.retry import Backoff
from .forking import can_fork
from .nursery import ForkedProcess, Nursery, start
from .settings import MirrorSettings
from .task import READY, Scan

WORKER, NURSERY = "hgext.vcsreplicator.hg.replica.worker", "hgext.vcsreplicator.hg.replica.nursery"
_KEPT = ("PATH", "PYTHONPATH", "HOME", "USER", "TZ", "TMPDIR", "HGMODULEPOLICY", "LD_LIBRARY_PATH", "LD_PRELOAD")
# Bytes that the pipe to an idle worker, which has read all before, takes without a wait.
_ROOM = 32 * 1024
# The niceness of workers of all lanes but LIGHT.
_NICE = 5
# Seconds without a task after which a worker of another lane than LIGHT ends.
IDLE = 60.0

# After a worker that did not start, or ended before it was ready: there may be no memory, or no room for a process, for a while.
_RESTARTS = Backoff(first=0.1, longest=10.0)
logger = structlog.get_logger()

# Mercurial's configuration in a worker. It applies markers even where the repository's own settings forbid making them.
CONFIGURATION = """\
[extensions]
*:required = yes
pushlog =
[ui]
quiet = yes
interactive = no
rollback = no
[experimental]
evolution = all
[phases]
publish = no
[storage]
revlog.persistent-nodemap.slow-path = allow
[worker]
enabled = no
"""


class Lane(StrEnum):
    """A kind of work with workers of its own, so that no kind waits for another."""

    # Small work.
    LIGHT = "light"
    # Large pushes.
    HEAVY = "heavy"
    # Copies from the master.
    REPAIR = "repair"
    # Work that no push waits for: reading repositories through, removing them for good.
    CHECK = "check"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A worker's answer to its task, or None because it died; READY before the first."""

    worker: "Worker"
    answer: Any


class Worker:
    """One process and the pipe to it.

    It is `busy` with a task, or idle, `since` a time of the supervisor's clock. A worker that takes too long `is_slow`: another one
    has its place, and it ends with its task. `progress` is its processor time when the supervisor last saw a change, at the time
    `moved`.
    """

    def __init__(
        self,
        settings: MirrorSettings,
        environment: Mapping[str, str],
        lane: Lane,
        module: str,
        nursery: Nursery | None = None,
    ) -> None:
        self.lane = lane
        self.tasks = 0
        self.busy: object | None = None
        self.since: float | None = None
        self.progress, self.moved = 0.0, float("-inf")
        self.is_ready = self.is_slow = self.is_killed = False
        # Packed, or empty once it is in the pipe.
        self.requests: queue.SimpleQueue[bytes | memoryview | None] = queue.SimpleQueue()
        self.requests.put(ForkingPickler.dumps(settings))
        self.pipe, self.process = _start_process(environment, module, nursery)
        if lane is not Lane.LIGHT:
            with contextlib.suppress(OSError):  # it has ended already, as its pipe will show
                os.setpriority(os.PRIO_PROCESS, self.process.pid, os.getpriority(os.PRIO_PROCESS, 0) + _NICE)


class WorkerPool:
    """The workers of one mirror; used by the supervisor's thread alone."""

    def __init__(
        self,
        settings: MirrorSettings,
        report: Callable[[Answered], None],
        clock: Clock = SystemClock(),  # noqa: B008
        *,
        worker: str = WORKER,
        nursery: str = NURSERY,
    ) -> None:
        self._settings = settings
        self._report, self._clock = report, clock
        self._modules = worker, nursery
        self._environment = _make_environment(settings)
        self._limits = {
            Lane.LIGHT: settings.workers,
            Lane.HEAVY: settings.heavy_workers,
            Lane.REPAIR: settings.repair_workers,
            Lane.CHECK: 1,
        }
        self.workers: list[Worker] = []
        self._nursery: Nursery | None = None
        # How many workers in succession were never ready, and the time before which no other one is started.
        self._failures, self._rests_until = 0, float("-inf")
        # Processes of ended workers for which there was no thread to wait.
        self._unreaped: list[subprocess.Popen[bytes] | ForkedProcess] = []

    def prepare(self, stop: threading.Event) -> bool:
        """Start a nursery, which forks workers; return whether it did not end by itself."""
        if not can_fork():
            return True
        try:
            self._nursery = Nursery(self._environment, self._modules[1])
        except OSError as error:
            logger.warning("nursery not started: workers start one by one", reason=str(error))
            return True
        while not stop.is_set():
            if self._nursery.wait(0.1):
                return self._nursery.is_ready or self._nursery.process.wait() < 0
        return True

    def start(self, lane: Lane) -> Worker | None:
        """Start a worker; None if the system refuses, or workers failed a moment ago."""
        if self._clock.monotonic() < self._rests_until:
            return None
        try:
            worker = Worker(self._settings, self._environment, lane, self._modules[0], self._nursery)
        except OSError as error:
            self._delay_starts(lane, str(error))
            return None
        try:
            threading.Thread(target=_converse, args=(worker, self._report), name="worker", daemon=True).start()
        except RuntimeError as error:  # a thread needs the same room as a process
            worker.process.kill()
            worker.process.wait()
            self._delay_starts(lane, str(error))
            return None
        self.workers.append(worker)
        return worker

    def _delay_starts(self, lane: Lane, reason: str) -> None:
        """Start no worker for a while, because the last was never ready."""
        self._failures += 1
        self._rests_until = self._clock.monotonic() + _RESTARTS.delay(self._failures, random.random())
        logger.warning("worker not started", lane=lane.value, reason=reason, failures=self._failures)

    def fill(self) -> None:
        """Start all light workers, so that the first events need not wait for that."""
        for _ in range(self._settings.workers - sum(worker.lane is Lane.LIGHT for worker in self.workers)):
            self.start(Lane.LIGHT)

    def idle(self, lane: Lane) -> Worker | None:
        """Return an idle worker of the lane; if there is none, start one if allowed."""
        self._unreaped = [process for process in self._unreaped if process.poll() is None]
        for worker in [each for each in self.workers if each.is_ready and each.busy is None]:
            if worker.process.poll() is not None:
                self._end_worker(worker)
        ours = [worker for worker in self.workers if worker.lane is lane and not worker.is_slow]
        for worker in ours:
            if worker.is_ready and worker.busy is None:
                return worker
        if len(ours) < self._limits[lane] and all(worker.is_ready for worker in ours):
            self.start(lane)
        return None

    def give(self, worker: Worker, task: object, now: float | None = None) -> None:
        """Hand the task over at the time `now`; a worker that ended is reported as died.

        A small task is written at once: its worker need not wait until the thread runs.
        """
        worker.busy, worker.since = task, now
        worker.tasks += 1
        packed: bytes | memoryview = ForkingPickler.dumps(task)
        if worker.is_ready and len(packed) <= _ROOM:
            with contextlib.suppress(OSError):  # the thread meets the error too
                worker.pipe.send_bytes(packed)
                packed = b""
        worker.requests.put(packed)

    def freed(self, answered: Answered) -> None:
        """Take a worker's report: it is idle now, or ends if it died or is worn out."""
        worker = answered.worker
        worker.since = self._clock.monotonic()
        if answered.answer == READY:
            worker.is_ready, worker.is_slow = True, worker.is_killed
            self._failures = 0
            return
        if not worker.is_ready:
            self._delay_starts(worker.lane, "it ended before it was ready")
        # After a scan a worker keeps the memory that it took for all repositories.
        is_spent = (
            answered.answer is None or isinstance(worker.busy, Scan) or getattr(answered.answer, "is_spent", False)
        )
        worker.busy = None
        if is_spent or worker.is_slow or worker.tasks >= self._settings.recycle_after:
            self._end_worker(worker)

    def end_idle(self) -> None:
        """End workers that had no task for long, except light ones.

        Each keeps the memory that its tasks took.
        """
        before = self._clock.monotonic() - IDLE
        for worker in [each for each in self.workers if each.is_ready and each.busy is None]:
            if worker.lane is not Lane.LIGHT and (worker.since or 0.0) < before:
                self._end_worker(worker)

    def progress(self, worker: Worker) -> float:
        """Return the worker's seconds of processor time, which grow with its progress."""
        try:
            times = Path(f"/proc/{worker.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
            return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):  # a system without this file, or it is dead, as its pipe will show
            return time.monotonic()

    def kill(self, worker: Worker) -> None:
        """Kill a worker in its task; reported as died, at once or when its disk answers."""
        worker.is_killed = True
        worker.process.kill()

    def close(self, patience: float) -> None:
        """End all workers after their tasks; kill those that outlast `patience`."""
        for worker in self.workers:
            worker.requests.put(None)
        end = time.monotonic() + patience
        for worker in self.workers:
            try:
                worker.process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                with contextlib.suppress(
                    subprocess.TimeoutExpired
                ):  # a process that waits for a disk dies when that answers
                    worker.process.wait(1.0)
        self.workers.clear()
        if self._nursery is not None:
            self._nursery.close()

    def _end_worker(self, worker: Worker) -> None:
        if worker not in self.workers:  # it was dismissed before
            return
        self.workers.remove(worker)
        worker.requests.put(None)
        try:
            threading.Thread(target=worker.process.wait, name="reap", daemon=True).start()
        except RuntimeError:  # a process that ended takes its room until its exit code is read
            self._unreaped.append(worker.process)


def _start_process(
    environment: Mapping[str, str], module: str, nursery: Nursery | None
) -> "tuple[Connection, subprocess.Popen[bytes] | ForkedProcess]":
    """Start a process at the other end of a pipe.

    A nursery that hangs may fork one late, so the pipe it got is given up.
    """
    if nursery is not None:
        ours, theirs = Pipe()
        with theirs:
            forked = nursery.fork(theirs.fileno())
        if forked is not None:
            return ours, forked
        ours.close()
    ours, theirs = Pipe()
    with theirs:
        return ours, start(module, theirs.fileno(), environment)


def _converse(worker: Worker, report: Callable[[Answered], None]) -> None:
    """Hand requests to the worker; after None it ends with its task."""
    with worker.pipe:
        while (request := worker.requests.get()) is not None:
            try:
                if request:
                    worker.pipe.send_bytes(request)
                answer = worker.pipe.recv()
            except Exception:  # mostly EOFError or OSError; after any error the conversation is over
                answer = None
            report(Answered(worker=worker, answer=answer))
            if answer is None:
                return


def _make_environment(settings: MirrorSettings) -> dict[str, str]:
    """Return an environment for programs and credentials, with our hgrc."""
    file = Path(settings.folder) / "worker.hgrc"
    make_folders(file.parent)
    own = file.with_suffix(f".{os.getpid()}")  # others may be starting workers with the same file right now
    own.unlink(missing_ok=True)
    with open(own, "x", encoding="ascii") as opened:
        give_to_owner(opened.fileno(), file.parent)  # root may run `verify` before the mirror has started
        opened.write(CONFIGURATION)
    own.replace(file)
    return {
        **{name: value for name, value in os.environ.items() if name in _KEPT or name.startswith("AWS_")},
        "HGRCPATH": str(file),
        "HGRCSKIPREPO": "1",
        "HGPLAIN": "1",
        "HGENCODING": "UTF-8",
        "LC_ALL": "C.UTF-8",
    }

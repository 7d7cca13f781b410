# SPDX-License-Identifier: GPL-2.0-or-later
"""Worker processes that die, hang or start where a folder holds traps; those here are tiny programs, no mirror's."""

import os
import queue
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hgext.vcsreplicator.mirror import pool as pools
from hgext.vcsreplicator.mirror.pool import Answered, Lane, WorkerPool
from hgext.vcsreplicator.mirror.settings import MirrorSettings
from hgext.vcsreplicator.mirror.task import READY

pytestmark = pytest.mark.processes

ECHO = """
import sys
from multiprocessing.connection import Connection
pipe = Connection(int(sys.argv[1]))
pipe.recv()
answer = "ready"
while True:
    pipe.send(answer)
    answer = pipe.recv()
"""


class Bench:
    """A pool, and what arrives from it."""

    def __init__(self, folder: Path) -> None:
        self.inbox: queue.SimpleQueue[Answered] = queue.SimpleQueue()
        self.pool = WorkerPool(MirrorSettings(name="alpha", root=str(folder)), self.inbox.put)

    def arrived(self) -> Any:
        answered = self.inbox.get(timeout=60)
        self.pool.freed(answered)
        return answered.answer


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    (tmp_path / "echo_worker.py").write_text(ECHO)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(pools, "WORKER", "echo_worker")
    bench = Bench(tmp_path)
    yield bench
    bench.pool.close(10)


def test_a_worker_killed_at_its_start_is_told_as_died(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **members: Any) -> None:
            super().__init__(*arguments, **members)
            self.kill()
            self.wait()

    monkeypatch.setattr(subprocess, "Popen", Killed)
    worker = bench.pool.start(Lane.LIGHT)
    bench.pool.give(worker, "task")
    assert bench.arrived() is None
    assert bench.pool.workers == []


def test_a_worker_gets_its_first_task_when_it_is_ready(bench: Bench) -> None:
    assert bench.pool.idle(Lane.HEAVY) is None
    assert bench.arrived() == READY
    worker = bench.pool.idle(Lane.HEAVY)
    assert worker is not None
    bench.pool.give(worker, "task")
    assert bench.arrived() == "task"


def test_a_worker_that_was_long_in_starting_is_used_when_it_is_ready(bench: Bench) -> None:
    bench.pool.idle(Lane.REPAIR)
    [worker] = bench.pool.workers
    worker.is_slow = True
    assert bench.arrived() == READY
    assert bench.pool.idle(Lane.REPAIR) is worker


def test_a_worker_that_died_idle_is_given_nothing(bench: Bench) -> None:
    bench.pool.idle(Lane.HEAVY)
    bench.arrived()
    first = bench.pool.idle(Lane.HEAVY)
    assert first is not None
    first.process.kill()
    first.process.wait()
    assert bench.pool.idle(Lane.HEAVY) is None
    bench.arrived()
    assert bench.pool.idle(Lane.HEAVY) not in (None, first)


def test_files_in_the_current_folder_are_no_modules_of_a_worker(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / "multiprocessing.py").write_text("raise SystemExit(1)\n")
    monkeypatch.chdir(trap)
    bench.pool.start(Lane.LIGHT)
    assert bench.arrived() == READY


def test_other_than_small_work_has_a_lower_priority(bench: Bench) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    for lane in Lane:
        worker = bench.pool.start(lane)
        bench.arrived()
        expected = own if lane is Lane.LIGHT else min(own + pools._NICE, 19)
        assert os.getpriority(os.PRIO_PROCESS, worker.process.pid) == expected


def test_a_worker_that_waits_makes_no_progress(bench: Bench) -> None:
    worker = bench.pool.start(Lane.LIGHT)
    bench.arrived()
    worker.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, worker.process.pid, os.WSTOPPED)
    assert bench.pool.progress(worker) == bench.pool.progress(worker) > 0.0
    worker.process.send_signal(signal.SIGCONT)

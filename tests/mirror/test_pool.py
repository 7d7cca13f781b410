# SPDX-License-Identifier: GPL-2.0-or-later
"""Worker processes that die, hang or start where a folder holds traps; those here are tiny programs, no mirror's."""

import errno
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from hgext.vcsreplicator.mirror import nursery as nurseries
from hgext.vcsreplicator.mirror import pool as pools
from hgext.vcsreplicator.mirror.nursery import ForkedProcess, Nursery
from hgext.vcsreplicator.mirror.pool import Answered, Lane, WorkerPool
from hgext.vcsreplicator.mirror.settings import MirrorSettings
from hgext.vcsreplicator.mirror.task import READY, Scan, Sweep
from testing.clock import HandClock
from testing.faults.system import System
from testing.waiting import eventually
from testing.warm import warm_starts
from tests.mirror.test_nursery import REFUSING

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

    def __init__(self, folder: Path, **modules: str) -> None:
        self.inbox: queue.SimpleQueue[Answered] = queue.SimpleQueue()
        self.clock = HandClock()
        settings = MirrorSettings(name="alpha", root=str(folder))
        self.pool = WorkerPool(settings, self.inbox.put, self.clock, **{"worker": "echo_worker", **modules})

    def arrived(self) -> Any:
        answered = self.inbox.get(timeout=60)
        self.pool.freed(answered)
        return answered.answer


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    (tmp_path / "echo_worker.py").write_text(ECHO)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
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


def test_an_idle_worker_has_a_small_task_before_its_thread_runs(bench: Bench) -> None:
    worker = bench.pool.start(Lane.LIGHT)
    assert bench.arrived() == READY
    given, worker.requests = worker.requests, queue.SimpleQueue()  # its thread waits at the first one
    bench.pool.give(worker, "task")
    assert worker.pipe.recv() == "task"
    given.put(None)


def test_a_stopped_worker_holds_up_nobody_who_gives_it_a_large_task(bench: Bench) -> None:
    worker = bench.pool.start(Lane.LIGHT)
    assert bench.arrived() == READY
    worker.process.send_signal(signal.SIGSTOP)
    bench.pool.give(worker, "x" * 8_000_000)
    worker.process.send_signal(signal.SIGCONT)
    assert bench.arrived() == "x" * 8_000_000


def test_a_worker_that_died_idle_is_told_as_died_whatever_it_is_given(bench: Bench) -> None:
    for task in ("small", "x" * 8_000_000):
        worker = bench.pool.start(Lane.LIGHT)
        assert bench.arrived() == READY
        worker.process.kill()
        worker.process.wait()
        bench.pool.give(worker, task)
        assert bench.arrived() is None


def test_a_worker_gets_its_first_task_when_it_is_ready(bench: Bench) -> None:
    assert bench.pool.idle(Lane.HEAVY) is None
    assert bench.arrived() == READY
    worker = bench.pool.idle(Lane.HEAVY)
    assert worker is not None
    bench.pool.give(worker, "task")
    assert bench.arrived() == "task"


def test_a_worker_that_found_all_repositories_ends_with_its_memory(bench: Bench) -> None:
    worker = bench.pool.start(Lane.LIGHT)
    assert bench.arrived() == READY
    bench.pool.give(worker, Scan())
    assert bench.arrived() == Scan()
    worker.process.wait(60)
    assert bench.pool.workers == []


def test_a_worker_without_a_task_for_long_ends_with_its_memory(bench: Bench) -> None:
    light, heavy = bench.pool.start(Lane.LIGHT), bench.pool.start(Lane.HEAVY)
    for _ in range(2):
        bench.arrived()
    bench.clock.advance(pools.IDLE)
    bench.pool.end_idle()
    bench.pool.give(heavy, "task")
    bench.clock.advance(1)
    bench.pool.end_idle()  # not while it works, however long
    assert bench.arrived() == "task"
    bench.pool.end_idle()
    assert bench.pool.workers == [light, heavy]
    bench.clock.advance(pools.IDLE + 1)
    bench.pool.end_idle()
    heavy.process.wait(60)
    assert bench.pool.workers == [light]


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


@pytest.fixture(scope="session")
def stem() -> None:
    """Start what starts warm before a test changes where Python finds modules."""
    with warm_starts():
        pass


@pytest.fixture
def nursery(stem: None, bench: Bench) -> Nursery:
    """The nursery of the pool; what it forks are a mirror's workers, and what is started without it are tiny programs."""
    with warm_starts():
        assert bench.pool.prepare(threading.Event())
    assert bench.pool._nursery is not None
    return bench.pool._nursery


def test_a_worker_that_the_nursery_forked_is_our_child_and_ends_as_any(bench: Bench, nursery: Nursery) -> None:
    worker = bench.pool.start(Lane.HEAVY)
    assert bench.arrived() == READY
    assert Path(f"/proc/{worker.process.pid}/comm").read_text() == "worker\n"
    bench.pool.give(worker, Sweep(now=1.0, age=0.0))
    assert bench.arrived() == Sweep(now=1.0, age=0.0)
    bench.pool.close(10)
    assert worker.process.wait() == 0
    # Its socket is closed before it is killed, so it may end by itself.
    assert nursery.process.poll() in (0, -signal.SIGKILL)


def test_workers_outlive_their_nursery_and_the_next_start_without_it(bench: Bench, nursery: Nursery) -> None:
    first = bench.pool.start(Lane.LIGHT)
    assert bench.arrived() == READY
    nursery.process.kill()
    nursery.process.wait()
    second = bench.pool.start(Lane.LIGHT)
    assert bench.arrived() == READY
    assert Path(f"/proc/{second.process.pid}/comm").read_text() != "worker\n"
    bench.pool.give(first, Sweep(now=1.0, age=0.0))
    assert bench.arrived() == Sweep(now=1.0, age=0.0)


def test_a_worker_that_a_hung_nursery_forks_late_ends(
    bench: Bench, nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[int] = []
    give_up = nursery.close

    def wake_and_give_up() -> None:
        monkeypatch.setattr(nursery, "close", give_up)
        nursery.process.send_signal(signal.SIGCONT)
        nursery._socket.settimeout(60)
        late.append(int(nursery._socket.recv(20)))
        give_up()

    monkeypatch.setattr(nurseries, "PATIENCE", 0.05)
    monkeypatch.setattr(nursery, "close", wake_and_give_up)
    nursery.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, nursery.process.pid, os.WSTOPPED)
    worker = bench.pool.start(Lane.LIGHT)
    assert ForkedProcess(late[0]).wait(60) == 0
    assert bench.arrived() == READY
    assert worker.process.pid != late[0]
    bench.pool.give(worker, "echo")
    assert bench.arrived() == "echo"


def test_a_forked_worker_is_waited_for_without_asking_again_and_again(bench: Bench, nursery: Nursery) -> None:
    class Counting(ForkedProcess):
        polls = 0

        def poll(self) -> int | None:
            self.polls += 1
            return super().poll()

    worker = bench.pool.start(Lane.LIGHT)
    assert bench.arrived() == READY
    process = worker.process = Counting(worker.process.pid)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    waiters = [threading.Thread(target=process.wait) for _ in range(2)]
    for waiter in waiters:
        waiter.start()
    process.kill()
    for waiter in waiters:
        waiter.join(60)
    assert (process.wait(), process.polls) == (-signal.SIGKILL, 4)


def test_without_descriptors_of_processes_workers_start_one_by_one(bench: Bench, system: System) -> None:
    system.refuse(errno.ENOSYS, "os.pidfd_open")
    assert bench.pool.prepare(threading.Event())
    worker = bench.pool.start(Lane.LIGHT)
    assert bench.arrived() == READY
    assert isinstance(worker.process, subprocess.Popen)


def test_a_forked_worker_that_is_killed_is_told_as_died(bench: Bench, nursery: Nursery) -> None:
    worker = bench.pool.start(Lane.LIGHT)
    assert bench.arrived() == READY
    bench.pool.give(worker, Sweep(now=1.0, age=0.0))
    bench.arrived()
    worker.process.kill()
    assert worker.process.wait() == -signal.SIGKILL
    bench.pool.give(worker, Sweep(now=1.0, age=0.0))
    assert bench.arrived() is None
    assert bench.pool.workers == []


def test_hgrc_of_workers_that_root_makes_is_of_its_folders_owner(tmp_path: Path, system: System) -> None:
    """Root may run `verify` before the mirror has started; a link in the place of the new file is not followed."""
    state = tmp_path / "~vcsreplicator"
    state.mkdir()
    (state / f"worker.{os.getpid()}").symlink_to(tmp_path / "other")
    system.become(0)
    given = system.note_owners()
    Bench(tmp_path)
    assert [path for path, *_ in given] == [f"{state}/worker.{os.getpid()}"]
    assert (state / "worker.hgrc").read_text() == pools.CONFIGURATION
    assert not (tmp_path / "other").exists()


def test_a_stop_ends_the_wait_for_the_nursery(bench: Bench) -> None:
    stop = threading.Event()
    stop.set()
    assert bench.pool.prepare(stop)


@pytest.mark.usefixtures("bench")
def test_where_the_system_refuses_to_fork_workers_are_started_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "refusing_nursery.py").write_text(REFUSING)
    bench = Bench(tmp_path, nursery="refusing_nursery")
    try:
        assert bench.pool.prepare(threading.Event())
        worker = bench.pool.start(Lane.HEAVY)
        assert bench.arrived() == READY
        assert worker is not None
        assert isinstance(worker.process, subprocess.Popen)
    finally:
        bench.pool.close(10)


def test_a_pool_without_a_nursery_starts_workers_one_by_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nurseries, "start", refuse_process)
    assert bench.pool.prepare(threading.Event())
    assert isinstance(bench.pool.start(Lane.LIGHT).process, subprocess.Popen)
    assert bench.arrived() == READY


def refuse_process(*arguments: object) -> None:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def test_while_the_system_refuses_processes_few_are_tried(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, structlog.testing.capture_logs() as lines:
        patch.setattr(pools, "start", refuse_process)
        bench.pool.fill()
        for _ in range(100):
            assert bench.pool.idle(Lane.LIGHT) is None
            assert bench.pool.idle(Lane.HEAVY) is None
            bench.clock.advance(0.01)
        assert [line["failures"] for line in lines] == [*range(1, 1 + len(lines))]
        assert {line["event"] for line in lines} == {"worker not started"}
        assert 2 <= len(lines) <= 5
    bench.clock.advance(60.0)
    bench.pool.idle(Lane.LIGHT)
    assert bench.arrived() == READY
    assert bench.pool.idle(Lane.LIGHT) is not None


def test_a_worker_without_a_thread_ends_and_another_starts_later(
    bench: Bench, nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked: list[ForkedProcess] = []
    fork = nursery.fork

    def keep(descriptor: int) -> ForkedProcess | None:
        process = fork(descriptor)
        assert process is not None
        forked.append(process)
        return process

    monkeypatch.setattr(nursery, "fork", keep)
    with monkeypatch.context() as patch, structlog.testing.capture_logs() as lines:
        patch.setattr(threading.Thread, "start", refuse_thread)
        assert bench.pool.idle(Lane.LIGHT) is None
    assert [line["event"] for line in lines] == ["worker not started"]
    assert ([process.returncode for process in forked], bench.pool.workers) == ([-signal.SIGKILL], [])
    bench.clock.advance(1.0)
    bench.pool.idle(Lane.LIGHT)
    assert bench.arrived() == READY


def test_a_dead_worker_is_given_up_though_no_thread_waits_for_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = bench.pool.start(Lane.LIGHT)
    assert bench.arrived() == READY
    worker.process.kill()
    worker.process.wait()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse_thread)
        assert bench.pool.idle(Lane.LIGHT) is None
    assert bench.pool.workers == []


def test_a_worker_whose_end_had_no_thread_keeps_no_place(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ended and that none waited for counts for the limit that refused the thread."""
    worker = bench.pool.start(Lane.LIGHT)
    assert worker is not None
    assert bench.arrived() == READY
    worker.process.kill()
    with monkeypatch.context() as patch:
        bench.pool.give(worker, "task")
        answered = bench.inbox.get(timeout=60)
        patch.setattr(threading.Thread, "start", refuse_thread)
        bench.pool.freed(answered)
    eventually(lambda: bench.pool.idle(Lane.LIGHT) is None and not Path(f"/proc/{worker.process.pid}").exists())


def refuse_thread(*_: object) -> None:
    raise RuntimeError("can't start new thread")


def test_after_a_worker_that_never_was_ready_the_next_starts_later(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "echo_worker.py").write_text("raise SystemExit(3)")
    with structlog.testing.capture_logs() as lines:
        for at_least in (0.08, 0.16, 0.32):
            bench.pool.idle(Lane.HEAVY)
            assert len(bench.pool.workers) == 1
            assert bench.arrived() is None
            bench.clock.advance(at_least - 0.01)
            bench.pool.idle(Lane.HEAVY)
            assert bench.pool.workers == []
            bench.clock.advance(at_least)
    assert [line["event"] for line in lines] == ["worker not started"] * 3
    (tmp_path / "echo_worker.py").write_text(ECHO)
    bench.pool.idle(Lane.HEAVY)
    assert bench.arrived() == READY

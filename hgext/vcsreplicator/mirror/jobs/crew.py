# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs done by worker processes of a mirror, many at once, each as often as it takes: what bootstrap and verify have in common."""

import heapq
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ...words.clock import Clock
from ..pool import Answered, Lane, WorkerPool
from ..settings import MirrorSettings

Job = TypeVar("Job")
TURN = 0.1
PATIENCE = 5.0


def work(
    settings: MirrorSettings,
    jobs: Sequence[Job],
    *,
    task: Callable[[Job], object],
    decide: Callable[[Job, Any], float | None],
    stop: threading.Event,
    clock: Clock,
    pace: float = 0.0,
    turn: Callable[[], None] = lambda: None,
) -> None:
    """Returns once every job is done, or soon after `stop` is set; `settings.heavy_workers` work at a time, at low priority.

    `task` makes what a worker is given for a job, `decide` takes its answer (None: the worker died) and says in how many seconds
    to try again, None when the job is done. Jobs start at least `pace` seconds apart. `turn` is called ten times a second.
    """
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    pool = WorkerPool(settings, inbox.put)
    due = [(0.0, number) for number in range(len(jobs))]
    running: dict[int, int] = {}
    start = float("-inf")
    try:
        while (due or running) and not stop.is_set():
            now = clock.monotonic()
            while due and max(due[0][0], start) <= now and (worker := pool.idle(Lane.HEAVY)) is not None:
                _, number = heapq.heappop(due)
                running[id(worker)] = number
                pool.give(worker, task(jobs[number]))
                start = now + pace
            turn()
            try:
                answered: Answered = inbox.get(timeout=TURN)
            except queue.Empty:
                continue
            done = running.pop(id(answered.worker), None)
            pool.freed(answered)
            if done is not None and (delay := decide(jobs[done], answered.answer)) is not None:
                heapq.heappush(due, (clock.monotonic() + delay, done))
    finally:
        pool.close(PATIENCE)

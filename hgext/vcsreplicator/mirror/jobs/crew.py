# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs by worker processes for bootstrap and verify, each as often as it takes."""

import heapq
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ...words.clock import Clock
from ..pool import Answered, Lane, WorkerPool
from ..settings import MirrorSettings

Job = TypeVar("Job")
# Seconds that one turn waits for an answer.
TURN = 0.1
# Seconds that workers get at the end to finish their tasks.
PATIENCE = 5.0


def work(
    settings: MirrorSettings,
    jobs: Sequence[Job],
    *,
    make_task: Callable[[Job], object],
    decide: Callable[[Job, Any], float | None],
    stop: threading.Event,
    clock: Clock,
    share: float = 1.0,
    each_turn: Callable[[], None] = lambda: None,
) -> None:
    """Do every job; returns when all are done, or soon after `stop` is set.

    `settings.heavy_workers` work at a time, at low priority. `make_task` makes a worker's task for a job. `decide` takes the
    answer (None: the worker died) and returns in how many seconds to try again, None when the job is done. Each worker works for
    at most `share` of the time: after a task that took one second it rests for `1 / share - 1` seconds. `each_turn` is called at
    least ten times a second meanwhile.
    """
    inbox: queue.SimpleQueue[Answered] = queue.SimpleQueue()
    pool = WorkerPool(settings, inbox.put, clock)
    due = [(0.0, number) for number in range(len(jobs))]
    # The job of each busy worker and when it began, and when the rest of each other worker ends.
    running: dict[int, tuple[int, float]] = {}
    rests = [clock.monotonic()] * settings.heavy_workers
    try:
        while (due or running) and not stop.is_set():
            now = clock.monotonic()
            while due and rests and max(due[0][0], rests[0]) <= now and (worker := pool.idle(Lane.HEAVY)) is not None:
                heapq.heappop(rests)
                _, number = heapq.heappop(due)
                running[id(worker)] = number, now
                pool.give(worker, make_task(jobs[number]))
            each_turn()
            try:
                answered = inbox.get(timeout=min(TURN, rests[0] - now) if rests and rests[0] > now else TURN)
            except queue.Empty:
                continue
            done = running.pop(id(answered.worker), None)
            pool.freed(answered)
            if done is None:
                continue
            number, began = done
            ended = clock.monotonic()
            heapq.heappush(rests, ended + (ended - began) * (1.0 / share - 1.0))
            if (delay := decide(jobs[number], answered.answer)) is not None:
                # Jobs to continue at once come before new ones.
                heapq.heappush(due, (ended + delay if delay else float("-inf"), number))
    finally:
        pool.close(PATIENCE)

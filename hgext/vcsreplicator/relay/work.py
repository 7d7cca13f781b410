# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's work on repositories: several at once, one thing at a time in each, whatever fails is tried again for ever."""

import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol

import prometheus_client
import structlog

from ..outbox import Entry, Outbox, SentMark, Store
from ..outbox.forks import fork_behind
from ..words.clock import Clock
from ..words.errors import Refused, Unavailable
from ..words.retry import RECONNECT
from .fork import StateWatch
from .loss import LossWatch
from .sending import EventSender

logger = structlog.get_logger()

SENT = prometheus_client.Counter("vcsreplicator_relay_sent_events_total", "Events that the log acknowledged")
FAILURES = prometheus_client.Counter("vcsreplicator_relay_failures_total", "Attempts that failed and are repeated")
FORKS = prometheus_client.Counter(
    "vcsreplicator_relay_forks_total", "Repositories stopped because the log tells another history"
)
WAITING = prometheus_client.Gauge(
    "vcsreplicator_relay_unsent_repositories", "Repositories with events that are not sent yet"
)
SECONDS = prometheus_client.Histogram(
    "vcsreplicator_relay_send_seconds",
    "Time to send what a repository had to send",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
)

LOOKS = 5  # more than once at a lock that may be abandoned; then it is left to the next scan


class Recovering(Protocol):
    """The part of the border that repairs."""

    def recover(self, folder: str) -> bool: ...

    def announce(self, folder: str) -> bool: ...


class _Busy(Exception):
    """Another process is at what a job needs: nothing is wrong, and no worker waits for it."""


@dataclass(slots=True)
class _Task:
    """What one repository waits for; `running` while a thread is at it."""

    jobs: set[str] = field(default_factory=set)
    running: bool = False
    failures: int = 0
    not_before: float = 0.0


class Work:
    """Jobs by repository folder: "recover" comes before "announce" before "send". May be called from any thread."""

    def __init__(
        self,
        sender: EventSender,
        recovering: Recovering,
        watch: StateWatch,
        losses: LossWatch,
        *,
        workers: int,
        stop: threading.Event,
        clock: Clock,
    ) -> None:
        self.on_sent: Callable[[str, int], None] = lambda folder, seq: None
        self._sender, self._recovering, self._watch, self._losses = sender, recovering, watch, losses
        self._stop, self._clock = stop, clock
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="relay")
        self._tasks: dict[str, _Task] = {}
        self._changed = threading.Condition()
        self._timer = threading.Thread(target=self._repeat, name="relay-timer", daemon=True)
        self._timer.start()

    def poke(self, folder: str, *, now: bool = False) -> None:
        """There is something to send; `now` forgets earlier failures."""
        self._want(folder, "send", now=now)

    def recover(self, folder: str) -> None:
        """There may be an abandoned transaction."""
        self._want(folder, "recover")

    def announce(self, folder: str) -> None:
        """This repository has no event yet."""
        self._want(folder, "announce")

    def drain(self, timeout: float) -> None:
        """Lets running work end, up to `timeout` seconds, and begins nothing new."""
        deadline = time.monotonic() + timeout
        with self._changed:
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: not any(task.running for task in self._tasks.values()), deadline - time.monotonic()
            )
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _want(self, folder: str, job: str, *, now: bool = False) -> None:
        with self._changed:
            task = self._tasks.setdefault(folder, _Task())
            task.jobs.add(job)
            if now:
                task.not_before = 0.0
            self._begin(folder, task)

    def _begin(self, folder: str, task: _Task) -> None:
        """Starts a task that may run; the caller holds the condition."""
        WAITING.set(len(self._tasks))
        if not task.running and task.jobs and task.not_before <= self._clock.monotonic() and not self._stop.is_set():
            task.running = True
            self._pool.submit(self._run, folder, task)

    def _run(self, folder: str, task: _Task) -> None:
        with self._changed:
            jobs, task.jobs = task.jobs, set()
        again: set[str] = set()
        for job in ("recover", "announce", "send"):
            if job in jobs:
                try:
                    getattr(self, f"_{job}")(folder)
                except _Busy as reason:
                    logger.debug("busy", job=job, folder=folder, reason=str(reason))
                    if job != "recover" or task.failures < LOOKS:
                        again.add(job)
                except Refused as error:
                    logger.error("refused", job=job, folder=folder, reason=str(error))
                except Exception as error:
                    if not os.path.isdir(
                        os.path.join(folder, ".hg")
                    ):  # deleted or renamed: it is found at its new place
                        logger.info("repository gone", job=job, folder=folder)
                        break
                    self._failed(folder, job, task, error)
                    again = jobs
                    break
        with self._changed:
            task.running = False
            task.jobs |= again
            if again:
                task.failures += 1
                task.not_before = self._clock.monotonic() + RECONNECT.delay(task.failures, random.random())
            else:
                task.failures, task.not_before = 0, 0.0
            if task.jobs:
                self._begin(folder, task)
            else:
                self._tasks.pop(folder, None)
            WAITING.set(len(self._tasks))
            self._changed.notify_all()

    def _failed(self, folder: str, job: str, task: _Task, error: Exception) -> None:
        FAILURES.inc()
        say = logger.warning if isinstance(error, Unavailable) or task.failures < 3 else logger.error
        say(
            "will try again",
            job=job,
            folder=folder,
            failures=task.failures + 1,
            reason=str(error),
            kind=type(error).__name__,
        )

    def _send(self, folder: str) -> None:
        box = Outbox(Store(os.path.join(folder, ".hg", "store")))
        with box.sending(wait=False) as alone, SECONDS.time():
            if not alone:
                raise _Busy("another process sends its events, or is about to strip what they are made of")
            reason = self._watch.fork(box) or fork_behind(box)
            if reason is not None:
                if box.fork() is None:
                    FORKS.inc()
                    logger.error("fork: nothing is sent, pushes are refused", folder=folder, reason=reason)
                    box.set_fork(reason)
                return
            if box.fork() is not None:
                return
            try:
                count = self._send_all(folder, box)
            except Unavailable:
                self._losses.doubt()
                raise
            sent = box.sent()
        SENT.inc(count)
        if sent is not None:
            self.on_sent(folder, sent.seq)

    def _send_all(self, folder: str, box: Outbox) -> int:
        """Sends what is unsent, and again what the log lost; the number of events. The caller holds the sending lock."""
        self._losses.check(folder, box)
        before = self._losses.newest()

        def on_sent(entry: Entry) -> None:
            self._watch.sent(entry.event)
            self.on_sent(folder, entry.event.seq)

        def on_appended(partition: int, offset: int) -> None:
            self._losses.appended(partition, offset, before)

        def on_marked(sent: SentMark) -> None:
            level = box.level()
            if level is not None:
                self._losses.sent(folder, level.repository, sent)

        sender = replace(self._sender, on_appended=on_appended, on_sent=on_sent, on_marked=on_marked)
        return sender.send(folder, box)

    def _recover(self, folder: str) -> None:
        journal = os.path.join(folder, ".hg", "store", "journal")
        if not os.path.exists(journal):
            return
        if self._recovering.recover(folder):
            logger.warning("abandoned transaction rolled back", folder=folder)
        elif os.path.exists(journal):
            raise _Busy(
                "somebody holds the lock: a transaction that runs, or a killed process whose parent has not noticed"
            )

    def _announce(self, folder: str) -> None:
        if not self._recovering.announce(folder):
            raise _Busy("somebody holds the lock")
        logger.info("repository announced", folder=folder)
        self._send(folder)

    def _repeat(self) -> None:
        """Starts what waits for its next attempt."""
        while not self._stop.wait(0.1):
            with self._changed:
                for folder, task in list(self._tasks.items()):
                    self._begin(folder, task)

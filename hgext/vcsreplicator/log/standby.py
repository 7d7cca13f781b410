# SPDX-License-Identifier: GPL-2.0-or-later
"""Processes of which one works and the others stand by.

Any number of processes may run with the same configuration. The process that works has fenced the others: which of them writes
never depends on a clock or on this module, which only decides when to try to take over. Silence is measured by the own monotonic
clock, and only while the log answers.
"""

import functools
import os
import threading
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import structlog

from ..words.clock import Clock
from ..words.errors import ReplicationError
from ..words.records import ServiceReport
from ..words.shape import to_json
from ..words.version import VERSION
from . import SERVICES, Log, NewRecord, PartitionKey, Record
from .reports import INTERVAL, TIMEOUT

# Seconds of one wait for a heartbeat; a request to stop waits for it.
POLL = 1.0
# Seconds between two answers of the log after which it was away: who works could not send a heartbeat either. While a process is
# silent, the log is asked after each wait.
AWAY = 2 * POLL
# The part of its patience after which a standby begins to ask, and the seconds after which a failed report is written again: once
# the log is back, a heartbeat comes before a standby that noticed nothing runs out of patience.
SUSPICIOUS, RETRY = 0.6, 1.0

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Sign:
    """What a record says: a process works on what has this name, or no longer does.

    Without `instance` some process works on it.
    """

    name: str
    instance: str | None
    works: bool = True


@dataclass(slots=True)
class Rival:
    """The process that works, as far as is known, and when it was `heard` last."""

    heard: float
    instance: str | None = None
    works: bool = True

    def hear(self, sign: Sign, now: float) -> None:
        """Take a sign; that a process stopped counts only if that process worked."""
        if sign.works:
            self.heard, self.instance, self.works = now, sign.instance or self.instance, True
        elif sign.instance == self.instance:
            self.works = False


class StandbyReader:
    """Reads the heartbeats of the processes that work on what `rivals` names."""

    def __init__(
        self,
        log: Log,
        positions: dict[PartitionKey, int],
        rivals: dict[str, Rival],
        *,
        read_signs: Callable[[Record], Iterable[Sign]],
        patience: float,
        clock: Clock,
    ) -> None:
        self.rivals = rivals
        self._log, self._reader, self._read_signs = log, log.reader(positions), read_signs
        self._patience, self._clock = patience, clock
        # When the log answered last, while a rival is silent.
        self._answered: float | None = None

    def find_turns(self) -> list[str]:
        """Return the names that this process may take over, if heartbeats do not come.

        Waits for heartbeats for up to POLL seconds, if it knows of no turn. It no longer follows the returned names. Raises
        Unavailable and Expired: make another reader then, so that silence counts from its beginning.
        """
        is_known = not all(rival.works for rival in self.rivals.values())
        records = self._reader.poll(0.0 if is_known else min(POLL, self._patience))
        now = self._clock.monotonic()
        for record in records:
            for sign in self._read_signs(record):
                if sign.name in self.rivals:
                    self.rivals[sign.name].hear(sign, now)
        turns = {name: "no other process works" for name, rival in self.rivals.items() if not rival.works}
        turns = turns or self._find_lost(now)
        for name, reason in turns.items():
            del self.rivals[name]
            logger.info("taking over", what=name, reason=reason)
        return list(turns)

    def _find_lost(self, now: float) -> dict[str, str]:
        """Return what is no longer worked on although no process said so, and why."""
        named = {rival.instance for rival in self.rivals.values() if rival.instance is not None}
        gone = {instance for instance in named if is_gone(instance)}
        found = {name: "its process is gone" for name, rival in self.rivals.items() if rival.instance in gone}
        if found:
            return found
        silent = {name: now - rival.heard for name, rival in self.rivals.items()}
        if max(silent.values(), default=0.0) < SUSPICIOUS * self._patience:
            self._answered = None
            return {}
        began = now if self._answered is None else self._answered
        is_behind = self._is_behind()  # what was not read yet may be a heartbeat
        answered = self._answered = self._clock.monotonic()
        if answered - began > AWAY:
            logger.info("the log was away: silence counts from now on")
            self._answered = None
            for rival in self.rivals.values():
                rival.heard = answered
        elif not is_behind:
            return {
                name: f"no heartbeat for {seconds:.1f} s"
                for name, seconds in silent.items()
                if seconds >= self._patience
            }
        return {}

    def _is_behind(self) -> bool:
        positions = self._reader.positions().items()
        return any(self._log.ends(topic)[partition] > at for (topic, partition), at in positions)

    def close(self) -> None:
        self._reader.close()


class Presence:
    """Reports, in a thread, that this process runs, and on what it works.

    It does so after each change, and every INTERVAL. It withdraws the report at a stop, not at a failure. Of two processes on one
    host the log has the report of either.
    """

    def __init__(self, log: Log, key: str, instance: str, clock: Clock, *, topic: str = SERVICES) -> None:
        self._log, self._key, self._instance, self._clock, self._interval = log, key, instance, clock, INTERVAL
        self._topic = topic
        self._works: tuple[str, ...] = ()
        self._ended, self._changed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._ended.set()
        self._changed.set()
        self._thread.join()
        if kind is None:
            self._works = ()
            self._append(self._describe(), None)

    def report(self, works: Iterable[str], *, interval: float = INTERVAL) -> None:
        """Report at once on what this process works, if that has changed.

        From the next report on, while it works, others follow every `interval` seconds.
        """
        found = tuple(sorted(works))
        self._interval = interval
        if found != self._works:
            self._works = found
            self._changed.set()

    def _run(self) -> None:
        was_written = True
        while not self._ended.is_set():
            is_written = self._append(self._describe(), warns=was_written)
            pause = self._interval if self._works else INTERVAL
            self._changed.wait(pause if is_written else min(pause, RETRY))
            self._changed.clear()
            was_written = is_written

    def _describe(self) -> bytes:
        works = self._works
        return to_json(
            ServiceReport(
                time=self._clock.now(),
                version=VERSION,
                is_standby=not works,
                instance=self._instance,
                works=works,
            )
        )

    def _append(self, *values: bytes | None, warns: bool = True) -> bool:
        """Return whether the log has them."""
        records = [NewRecord(topic=self._topic, key=self._key, value=value) for value in values]
        try:
            self._log.append(records, timeout=TIMEOUT)
        except ReplicationError as error:
            if warns:
                logger.warning("report not written", reason=str(error))
            return False
        return True


def only_once(ready: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls `ready` the first time only."""
    called = threading.Event()

    def announce() -> None:
        if not called.is_set():
            called.set()
            ready()

    return announce


def name_process() -> str:
    """Return a name of this process that no other process has, on any machine.

    Where `/proc` does not show the boot, as with `ProcSubset=pid` of systemd, it is random: such a process is waited for.
    """
    try:
        return f"{_read_space(os.getpid())}/{os.getpid()}/{_read_start(os.getpid())}"
    except OSError:
        return uuid.uuid4().hex


def is_gone(instance: str) -> bool:
    """Return whether a process of this machine and container has ended."""
    space, *process = instance.rsplit("/", 2)
    try:
        if len(process) != 2 or space != _read_space(os.getpid()):
            return False
    except OSError:
        return False
    pid, start = process
    return not pid.isdecimal() or _read_start(pid) != start


@functools.cache
def _read_space(pid: int) -> str:
    """Return the boot and the container of this process.

    Read once for each `pid`, because a fork may be in another container. A process that stands by asks each second whether
    another one is gone.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat(f'/proc/{pid}/ns/pid').st_ino}"


def _read_start(pid: int | str) -> str:
    """Return when a process started, in ticks since the boot; else nothing, also for a number of any length."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]

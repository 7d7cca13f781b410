# SPDX-License-Identifier: GPL-2.0-or-later
"""An aggregator that stands by for another, and takes over from it.

Any number of processes may run with the same configuration. One works, and fences the others: which of them commits never
depends on a clock or on this module, which only decides when to try. Silence is measured by the own monotonic clock, and only while
the log answers. An aggregator that is fenced stands by again.
"""

import os
import random
import threading
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import structlog

from ..log import SERVICES, STATE, Log, NewRecord, PartitionKey
from ..log.reports import INTERVAL, TIMEOUT
from ..log.table import ReadStopped, Table
from ..words.clock import Clock, SystemClock
from ..words.errors import Expired, Fenced, ReplicationError, Unavailable
from ..words.records import AGGREGATOR, AGGREGATOR_KEY, AggregatorHeartbeat, ServiceReport
from ..words.retry import FAILOVER
from ..words.shape import to_json, try_json
from ..words.version import VERSION
from . import loop
from .loading import read_beat, read_state
from .metrics import ACTIVE, clear_gauges
from .settings import AggregatorSettings

# Seconds of one wait for a heartbeat; a request to stop waits for it.
POLL = 1.0

logger = structlog.get_logger()


def run(
    settings: AggregatorSettings,
    log: Log,
    *,
    stop: threading.Event,
    ready: Callable[[], None],
    host: str,
    instance: str | None = None,
    clock: Clock | None = None,
) -> None:
    """Aggregate, or stand by for another aggregator, until `stop` is set.

    Calls `ready` once it works or stands by. It reports to the log as the aggregator on `host`; heartbeats
    name it by `instance`, or else by its process. Raises BadConfig, and Poisoned as
    `loop.run` does.
    """
    clock, instance, is_fenced = clock or SystemClock(), instance or name_process(), False
    announce, loaded, loading = _only_once(ready), list[float](), 0.0

    def note_loaded() -> None:
        loaded.append(clock.monotonic())
        announce()

    with _Reporter(log, host, clock) as reporter:
        while not stop.is_set():
            state = wait_for_turn(
                settings,
                log,
                instance,
                is_fenced=is_fenced,
                stop=stop,
                stands_by=announce,
                clock=clock,
                loading=loading,
            )
            if state is None:
                break
            turn = [state]
            del state  # all that the topic had: the session takes it, and lets go of it
            reporter.set_standby(stands_by=False)
            began = clock.monotonic()
            loaded.clear()
            try:
                loop.run(settings, log, stop=stop, ready=note_loaded, clock=clock, state=turn.pop(), instance=instance)
            except Fenced as error:
                logger.warning("fenced", reason=str(error))
                is_fenced, loading = True, (loaded or [clock.monotonic()])[0] - began
            clear_gauges()
            reporter.set_standby(stands_by=True)


def wait_for_turn(
    settings: AggregatorSettings,
    log: Log,
    instance: str,
    *,
    is_fenced: bool,
    stop: threading.Event,
    stands_by: Callable[[], None],
    clock: Clock,
    loading: float = 0.0,
) -> Table | None:
    """Wait while another aggregator works; return `state`, or None at a stop.

    Calls `stands_by` if it waits. It does not wait for an aggregator that ended, for a process of this machine that is gone, or for
    one that has been silent for `takeover_after` since this began. With `is_fenced` another one has just begun, which may not have
    sent a heartbeat yet: it sends none while it loads, which took this process `loading` seconds. Two that did not wait for that
    long would fence each other forever. Waits for an unavailable log indefinitely. Raises BadConfig if a newer release wrote
    `state`.
    """
    failures, patience = 0, max(settings.takeover_after, 2 * settings.beat) + loading
    while not stop.is_set():
        try:
            state = read_state(log, stop)
            beat = read_beat(state)
            if not is_fenced and (beat is None or not _may_work(beat)):
                return state
            logger.info("standing by", active=beat and beat.instance)
            stands_by()
            positions = state.positions
            del state  # all that the topic had: another aggregator may work for months
            if not _follow(log, positions, patience, instance, stop=stop, clock=clock):
                return None
            return read_state(log, stop)
        except ReadStopped:
            return None
        except (Unavailable, Expired) as error:
            failures += 1
            logger.warning("log unavailable", reason=str(error), failures=failures)
            stop.wait(FAILOVER.delay(failures, random.random()))
    return None


def _follow(
    log: Log,
    positions: dict[PartitionKey, int],
    patience: float,
    instance: str,
    *,
    stop: threading.Event,
    clock: Clock,
) -> bool:
    """Follow heartbeats until there is no other aggregator; return False at a stop.

    States are signs of an aggregator, too, which sends no heartbeat while it writes very many. Raises Unavailable and
    Expired.
    """
    heard, active = clock.monotonic(), None
    with closing(log.reader(positions)) as reader:
        while not stop.is_set():
            records = reader.poll(min(POLL, patience))
            for record in records:
                heard = clock.monotonic()
                beat = try_json(AggregatorHeartbeat, record.value) if record.key == AGGREGATOR else None
                active = beat.instance if beat is not None else active
                if beat is not None and beat.ended and active != instance:
                    logger.info("taking over", reason="the other aggregator ended")
                    return True
            if not records and active is not None and is_gone(active):
                logger.warning("taking over", reason="the process of the other aggregator is gone")
                return True
            silence = clock.monotonic() - heard
            if records or silence < patience:
                continue
            if any(log.ends(STATE)[partition] > at for (_, partition), at in reader.positions().items()):
                continue  # the reader is behind: what it lacks may be a heartbeat
            logger.warning("taking over", reason=f"no heartbeat for {silence:.1f} s")
            return True
    return False


def _may_work(beat: AggregatorHeartbeat) -> bool:
    """Return whether the aggregator that sent this heartbeat may be at work.

    One of an earlier release, which does not say who it is, is fenced at once, as it always was.
    """
    return beat.instance is not None and not beat.ended and not is_gone(beat.instance)


def name_process() -> str:
    """Return a name of this process that no other process has, on any machine.

    Where `/proc` does not show the boot, as with `ProcSubset=pid` of systemd, it is random: such a process is waited for.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}/{os.getpid()}/{_read_start(os.getpid())}"
    except OSError:
        return uuid.uuid4().hex


def is_gone(instance: str) -> bool:
    """Return whether a process of this machine and container has ended."""
    machine, _, process = instance.partition("/")
    own_machine, _, own_process = name_process().partition("/")
    space, _, process = process.partition("/")
    if machine != own_machine or space != own_process.partition("/")[0]:
        return False
    pid, _, start = process.partition("/")
    return not pid.isdecimal() or _read_start(int(pid)) != start


def _read_start(pid: int) -> str:
    """Return when a process started, in ticks since the boot; else nothing."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _only_once(ready: Callable[[], None]) -> Callable[[], None]:
    called = threading.Event()

    def announce() -> None:
        if not called.is_set():
            called.set()
            ready()

    return announce


class _Reporter:
    """Reports every INTERVAL seconds that this process runs, in a thread.

    It withdraws that at a stop, not at a failure. Of two processes on one host the log has the report of either.
    """

    def __init__(self, log: Log, host: str, clock: Clock) -> None:
        self._log, self._key, self._clock = log, f"{AGGREGATOR_KEY}{host}", clock
        self._stands_by, self._ended = True, threading.Event()
        self._changed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)

    def __enter__(self) -> "_Reporter":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._ended.set()
        self._changed.set()
        self._thread.join()
        if kind is None:
            self._write(None)

    def set_standby(self, *, stands_by: bool) -> None:
        """Report at once whether this process works or stands by."""
        ACTIVE.set(not stands_by)
        if stands_by != self._stands_by:
            self._stands_by = stands_by
            self._changed.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            report = ServiceReport(time=self._clock.now(), version=VERSION, count=0, is_standby=self._stands_by)
            self._write(to_json(report))
            self._changed.wait(INTERVAL)
            self._changed.clear()

    def _write(self, value: bytes | None) -> None:
        try:
            self._log.append([NewRecord(topic=SERVICES, key=self._key, value=value)], timeout=TIMEOUT)
        except ReplicationError as error:
            logger.warning("report not written", reason=str(error))

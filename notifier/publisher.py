# SPDX-License-Identifier: GPL-2.0-or-later
"""Deliver the log's notices to every destination, each on its own: one thread, one reader, one position, one failure domain.

The order in which things happen is the promise: read, send, confirmed, and only then move the position. Killed anywhere, what was
not confirmed is sent again; what was confirmed since the last stored position is sent twice. A destination in trouble waits by
itself for ever; an operator may pause it, or skip a message.
"""

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable, Iterator

import structlog

from hgext.vcsreplicator.clock import Clock, SystemClock
from hgext.vcsreplicator.errors import BadConfig, Fenced, ReplicationError, Unavailable
from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.retry import Backoff

from .courier import Courier
from .settings import NotifierSettings, read
from .state import State

__all__ = ["NotifierSettings", "read", "run"]

STARTED_WITHIN = 5.0
"""Seconds that readiness waits for destinations to have tried to connect; one that hangs does not hold up the others."""

log_line = structlog.get_logger()


def run(
    settings: NotifierSettings,
    log: Log,
    *,
    stop: threading.Event,
    ready: Callable[[], None],
    clock: Clock | None = None,
) -> None:
    """Delivers until `stop` is set, then drains for at most some seconds and returns.

    Calls `ready` once every destination has connected or failed to. Raises BadConfig for what only an operator can change.
    """
    clock = clock or SystemClock()
    State(settings.state).close()  # made before threads open it
    with _alone(settings.state):
        _run(settings, log, stop=stop, ready=ready, clock=clock)


@contextlib.contextmanager
def _alone(state: str) -> Iterator[None]:
    """The state is this process's alone: two notifiers would repeat each other and cut each other's files."""
    lock = os.open(f"{state}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise BadConfig(f"notifier.state: another notifier works with {state} already") from error
    try:
        yield
    finally:
        os.close(lock)


def _run(
    settings: NotifierSettings, log: Log, *, stop: threading.Event, ready: Callable[[], None], clock: Clock
) -> None:
    ended = threading.Event()
    lanes = [
        _Lane(Courier(name, destination, settings, log, clock, stop=ended), ended)
        for name, destination in settings.destinations.items()
    ]
    for lane in lanes:
        lane.start()
    try:
        for lane in lanes:
            lane.courier.started.wait(STARTED_WITHIN)
        if not ended.is_set():
            ready()
        while not stop.wait(0.1) and not ended.is_set():
            pass
    finally:
        ended.set()
        for lane in lanes:
            lane.join()
    for lane in lanes:
        if lane.fatal is not None:
            raise lane.fatal


class _Lane(threading.Thread):
    """Keeps one courier at work: whatever breaks is told, and begun again after a while."""

    def __init__(self, courier: Courier, stop: threading.Event) -> None:
        super().__init__(name=f"notifier-{courier.name}")
        self.courier = courier
        self.fatal: ReplicationError | None = None
        self._stop_asked = stop

    def run(self) -> None:
        structlog.contextvars.bind_contextvars(destination=self.courier.name)
        backoff, failures = Backoff(first=0.2, longest=30.0), 0
        while not self._stop_asked.is_set():
            began = self.courier.clock.monotonic()
            try:
                self.courier.run()
            except (BadConfig, Fenced) as error:
                self.fatal = error
                self._stop_asked.set()
            except Unavailable as error:
                failures = 1 if self.courier.clock.monotonic() - began > 60 else failures + 1
                log_line.error("destination cannot begin", reason=str(error), failures=failures)
                self._stop_asked.wait(backoff.delay(failures))
            except Exception as error:
                failures = 1 if self.courier.clock.monotonic() - began > 60 else failures + 1
                log_line.error("courier failed", reason=str(error), kind=type(error).__name__, exc_info=True)
                self._stop_asked.wait(backoff.delay(failures))
        self.courier.started.set()

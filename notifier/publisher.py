# SPDX-License-Identifier: GPL-2.0-or-later
"""The notifier's publisher: delivers the log's notices to every destination.

Each destination has its own thread, reader and position, and fails alone.

The promise is this order: read, send, be confirmed, and only then move the position. After a kill at any step, the next start sends
all messages since the last stored position again, confirmed or not. A failing destination waits and is retried indefinitely; an
operator may pause it, or skip a message.
"""

import contextlib
import itertools
import random
import threading
from collections.abc import Callable

import structlog

from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.words.clock import Clock, SystemClock
from hgext.vcsreplicator.words.errors import BadConfig, Fenced, ReplicationError, Unavailable

from .courier import Courier
from .database import alone
from .settings import NotifierSettings, read
from .state import StateDatabase
from .window import RETRY

__all__ = ["NotifierSettings", "read", "run"]

# Seconds that readiness waits for destinations to have tried to connect; one that hangs does not hold up the others.
STARTED_WITHIN = 5.0

logger = structlog.get_logger()


def run(
    settings: NotifierSettings,
    log: Log,
    *,
    stop: threading.Event,
    ready: Callable[[], None],
    clock: Clock | None = None,
) -> None:
    """Deliver until `stop` is set, then drain for some seconds.

    Calls `ready` once every destination has connected or failed to; each one that hangs delays that by `STARTED_WITHIN` seconds
    at most. If the state is unavailable (a full disk, a lock), the publisher waits and tries again. Raises BadConfig for what
    only an operator can change, and Fenced if a newer instance took over.
    """
    with contextlib.ExitStack() as held:
        for attempt in itertools.count(1):
            try:
                held.enter_context(alone(settings.state, "notifier.state", "notifier"))
                StateDatabase(settings.state).close()  # made before threads open it
                break
            except Unavailable as error:
                delay = RETRY.delay(attempt, random.random())
                logger.error("state unavailable", reason=str(error), retry_in=round(delay, 1))
                held.close()
                if stop.wait(delay):
                    return
        _run_couriers(settings, log, stop=stop, ready=ready, clock=clock or SystemClock())


def _run_couriers(
    settings: NotifierSettings, log: Log, *, stop: threading.Event, ready: Callable[[], None], clock: Clock
) -> None:
    couriers_stop = threading.Event()
    threads = [
        _CourierThread(
            Courier(name, destination, settings, log, clock, stop=couriers_stop),
            couriers_stop=couriers_stop,
            service_stop=stop,
        )
        for name, destination in settings.destinations.items()
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.courier.started.wait(STARTED_WITHIN)
        if not couriers_stop.is_set():
            ready()
        stop.wait()
    finally:
        couriers_stop.set()
        for thread in threads:
            thread.courier.wake()
        for thread in threads:
            thread.join()
    for thread in threads:
        if thread.fatal is not None:
            raise thread.fatal


class _CourierThread(threading.Thread):
    """A thread that keeps one courier at work.

    It reports errors, and starts the courier again after a while. BadConfig and Fenced end all couriers instead, by
    `couriers_stop`, and the service, by `service_stop`.
    """

    def __init__(self, courier: Courier, *, couriers_stop: threading.Event, service_stop: threading.Event) -> None:
        super().__init__(name=f"notifier-{courier.name}")
        self.courier = courier
        self.fatal: ReplicationError | None = None
        self._couriers_stop, self._service_stop = couriers_stop, service_stop

    def run(self) -> None:
        structlog.contextvars.bind_contextvars(destination=self.courier.name)
        failures = 0
        while not self._couriers_stop.is_set():
            began = self.courier.clock.monotonic()
            try:
                self.courier.run()
            except (BadConfig, Fenced) as error:
                self.fatal = error
                self._couriers_stop.set()
                self._service_stop.set()
            except Exception as error:
                failures = 1 if self.courier.clock.monotonic() - began > 60 else failures + 1
                if isinstance(error, Unavailable):
                    logger.error("destination cannot begin", reason=str(error), failures=failures)
                else:
                    is_a_bug = not isinstance(error, ReplicationError)
                    logger.error("courier failed", reason=str(error), kind=type(error).__name__, exc_info=is_a_bug)
                self._couriers_stop.wait(RETRY.delay(failures, random.random()))
        self.courier.started.set()

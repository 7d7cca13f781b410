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
from concurrent.futures import ThreadPoolExecutor

import structlog

from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.errors import BadConfig, Fenced, ReplicationError, Unavailable

from ..clients.database import alone
from ..delivery.window import RETRY
from ..destinations.state import StateDatabase
from .courier import Courier
from .settings import NotifierSettings

# Seconds that readiness waits for the first attempt to connect of each destination.
STARTED_WITHIN = 5.0

logger = structlog.get_logger()


def run(settings: NotifierSettings, log: Log, *, stop: threading.Event, ready: Callable[[], None]) -> None:
    """Deliver until `stop` is set, then drain for some seconds.

    Calls `ready` once every destination has connected or failed to; a destination that hangs delays this by `STARTED_WITHIN`
    seconds at most. If the state is unavailable (a full disk, a lock), the publisher waits and tries again. Raises BadConfig for
    what only an operator can change, and Fenced if a newer instance took over.
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
        _run_couriers(settings, log, stop=stop, ready=ready)


def _run_couriers(settings: NotifierSettings, log: Log, *, stop: threading.Event, ready: Callable[[], None]) -> None:
    couriers_stop, clock = threading.Event(), SystemClock()
    couriers = [
        Courier(name, destination, settings, log, clock, stop=couriers_stop)
        for name, destination in settings.destinations.items()
    ]
    with ThreadPoolExecutor(max(1, len(couriers)), thread_name_prefix="notifier") as threads:
        try:
            at_work = [threads.submit(_keep_at_work, courier, stop) for courier in couriers]
            for courier in couriers:
                courier.started.wait(STARTED_WITHIN)
            if not couriers_stop.is_set():
                ready()
            stop.wait()
        finally:
            couriers_stop.set()
            for courier in couriers:
                courier.wake()
    for each in at_work:
        each.result()


def _keep_at_work(courier: Courier, service_stop: threading.Event) -> None:
    """Keep a courier at work until it is stopped.

    Reports errors, and starts the courier again after a while. BadConfig and Fenced end all couriers instead, and the service.
    """
    structlog.contextvars.bind_contextvars(destination=courier.name)
    failures = 0
    try:
        while not courier.stop.is_set():
            began = courier.clock.monotonic()
            try:
                courier.run()
            except (BadConfig, Fenced):
                courier.stop.set()
                service_stop.set()
                raise
            except Exception as error:
                failures = 1 if courier.clock.monotonic() - began > 60 else failures + 1
                if isinstance(error, Unavailable):
                    logger.error("destination cannot begin", reason=str(error), failures=failures)
                else:
                    is_a_bug = not isinstance(error, ReplicationError)
                    logger.error("courier failed", reason=str(error), kind=type(error).__name__, exc_info=is_a_bug)
                courier.stop.wait(RETRY.delay(failures, random.random()))
    finally:
        courier.started.set()

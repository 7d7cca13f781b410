# SPDX-License-Identifier: GPL-2.0-or-later
"""The notifier's publisher: delivers the log's notices to every destination.

Each destination has its own thread, reader and position, and fails alone. Any number of notifiers may have the same destination:
one delivers, and has fenced the others, which stand by (`turns`).

The promise is this order: read, send, be confirmed, and only then move the position. After a kill at any step, the next start sends
all messages since the last stored position again, confirmed or not. A failing destination waits and is retried indefinitely; an
operator may pause it, or skip a message.
"""

import contextlib
import itertools
import random
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import structlog
from prometheus_client import Gauge

from hgext.vcsreplicator.log import SERVICES, Log
from hgext.vcsreplicator.log.standby import Presence, name_process
from hgext.vcsreplicator.log.turns import BEAT, Turns
from hgext.vcsreplicator.words.clock import Clock, SystemClock
from hgext.vcsreplicator.words.errors import BadConfig, Fenced, ReplicationError, Unavailable
from hgext.vcsreplicator.words.records import NOTIFIER_KEY

from ..clients.database import alone
from ..delivery.window import RETRY
from ..destinations.state import StateDatabase
from .courier import Courier, clear_gauges
from .decoding import NoticeDecoder
from .position import StoredPosition
from .requests import SharedRequests
from .settings import DEFAULT_STATE, NotifierSettings

# Seconds that readiness waits for the first attempt to connect of each destination.
STARTED_WITHIN = 5.0

ACTIVE = Gauge("vcsreplicator_notifier_active", "Whether this process delivers (1) or stands by (0)", ["destination"])

logger = structlog.get_logger()


def run(
    settings: NotifierSettings,
    log: Log,
    *,
    stop: threading.Event,
    ready: Callable[[], None],
    host: str | None = None,
    instance: str | None = None,
) -> None:
    """Deliver, or stand by for other notifiers, until `stop` is set; then drain for some seconds.

    Calls `ready` once every destination has connected or failed to, or stands by; a destination that hangs delays this by
    `STARTED_WITHIN` seconds at most. It reports to the log as the notifier on `host`, this machine unless given; `instance` names
    it in heartbeats, or else its process does. If the state is unavailable (a full disk, a lock), the publisher waits and tries
    again. Raises BadConfig for what only an operator can change.
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
        clock, instance, host = SystemClock(), instance or name_process(), host or _name_host(settings.state)
        presence = Presence(log, f"{NOTIFIER_KEY}{host}", instance, clock)
        held.enter_context(presence)
        turns = Turns(
            log,
            set(settings.destinations),
            instance,
            topic=SERVICES,
            kind=NOTIFIER_KEY,
            patience=settings.takeover_after,
            stop=stop,
            clock=clock,
        )
        held.callback(turns.close)
        _run_couriers(settings, log, turns, presence, clock, stop=stop, ready=ready)


def _name_host(state: str) -> str:
    """Return this machine's name, with what distinguishes notifiers on it: their state."""
    host = socket.gethostname()
    return host if state == DEFAULT_STATE else f"{host} {state}"


def _run_couriers(
    settings: NotifierSettings,
    log: Log,
    turns: Turns,
    presence: Presence,
    clock: Clock,
    *,
    stop: threading.Event,
    ready: Callable[[], None],
) -> None:
    couriers_stop, is_ready = threading.Event(), False
    decoder, requests = NoticeDecoder(settings.public), SharedRequests(log)
    couriers = {
        name: Courier(name, destination, settings, log, clock, stop=couriers_stop, decoder=decoder, requests=requests)
        for name, destination in settings.destinations.items()
    }
    at_work: dict[str, Future[None]] = {}
    with ThreadPoolExecutor(max(1, len(couriers)), thread_name_prefix="notifier") as threads:
        try:
            while not stop.is_set():
                for name in [name for name, work in at_work.items() if work.done()]:
                    at_work.pop(name).result()
                    turns.lose(name)
                begun = turns.find_turns()
                at_work |= {name: threads.submit(_keep_at_work, couriers[name], stop) for name in begun}
                # One that cannot begin, or read for long, must keep no other notifier from its turn.
                presence.report((name for name in at_work if couriers[name].keeps_others()), interval=BEAT)
                for name in couriers:
                    ACTIVE.labels(name).set(name in at_work)
                if is_ready:
                    continue
                for name in begun:
                    couriers[name].started.wait(STARTED_WITHIN)
                if not couriers_stop.is_set():
                    ready()
                    is_ready = True
        finally:
            couriers_stop.set()
            for courier in couriers.values():
                courier.wake()
    for each in at_work.values():
        each.result()


def _keep_at_work(courier: Courier, service_stop: threading.Event) -> None:
    """Keep a courier at work until it is stopped, or another notifier took over.

    Reports errors, and starts the courier again after a while. BadConfig ends all couriers instead, and the service.
    """
    structlog.contextvars.bind_contextvars(destination=courier.name)
    failures = 0
    with contextlib.ExitStack() as opened:
        opened.callback(courier.started.set)
        opened.callback(clear_gauges, courier.name)
        position: StoredPosition | None = None
        courier.unread_since = None
        while not courier.stop.is_set():
            began = courier.clock.monotonic()
            try:
                if position is None:  # opened once: a second one would fence another notifier that began meanwhile
                    position = StoredPosition(courier.name, courier.log, courier.clock)
                    courier.cannot_begin = False
                    opened.callback(position.close)
                courier.run(position)
            except Fenced as error:
                logger.warning("fenced", reason=str(error))
                return
            except BadConfig:
                courier.stop.set()
                service_stop.set()
                raise
            except Exception as error:
                courier.cannot_begin = position is None
                failures = 1 if courier.clock.monotonic() - began > 60 else failures + 1
                if isinstance(error, Unavailable):
                    logger.error("destination cannot begin", reason=str(error), failures=failures)
                else:
                    is_a_bug = not isinstance(error, ReplicationError)
                    logger.error("courier failed", reason=str(error), kind=type(error).__name__, exc_info=is_a_bug)
                courier.stop.wait(RETRY.delay(failures, random.random()))

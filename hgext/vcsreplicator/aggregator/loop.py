# SPDX-License-Identifier: GPL-2.0-or-later
"""The aggregator's service: one session after the other.

After a transaction whose outcome is unknown the aggregator throws away everything in memory and reads it again. It does so after
an unexpected exception, too, but then without the record or the repository that caused it; and after a record that a topic refuses
for its size, without its repository, until the topic takes it. A newer aggregator fences an older
one, which leaves `run` with Fenced; trouble with the log does not change that.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import structlog

from ..log import Log, TooLarge, Transactor, topics
from ..log.outage import Outage
from ..log.table import ReadStopped, Table
from ..words.clock import Clock, SystemClock
from ..words.errors import Expired, Unavailable
from .decisions.poison import Poison, Poisoned
from .lasting import Lasting
from .loading import IDENTITY, read_state
from .session import Session
from .settings import AggregatorSettings

# Longest wait for a record in seconds; a request to stop ends it.
POLL = 1.0
# Seconds between two looks of the thread that waits for a stop whether it is still needed.
THREAD_KEPT = 60.0

logger = structlog.get_logger()


def run(
    settings: AggregatorSettings,
    log: Log,
    *,
    stop: threading.Event,
    ready: Callable[[], None],
    clock: Clock | None = None,
    state: Table | None = None,
    instance: str | None = None,
    begin: Callable[[], Transactor] | None = None,
    cannot_load: Callable[[], None] = lambda: None,
) -> None:
    """Aggregate until `stop` is set; call `ready` once all is loaded.

    `state` is what that topic had, if it was read; `instance` names this process in heartbeats; `begin` makes the transactor, so
    that no other aggregator can write. Calls `cannot_load` after each failure until all is loaded. Retries an unavailable log
    indefinitely. Raises Fenced, BadConfig, and Poisoned if an exception comes again without its cause.
    """
    clock, begin = clock or SystemClock(), begin or partial(log.transactor, IDENTITY)
    transactor: Transactor | None = None
    lasting, outage = Lasting(clock, instance), Outage()
    announced = False
    with _waking_at_stop(stop) as sessions:
        while not stop.is_set():
            try:
                if transactor is None:
                    state = state or read_state(log, stop)
                    transactor = begin()
                else:
                    transactor.renew()
                with Session(settings, log, transactor, clock, lasting, stop, state) as session:
                    sessions[:], state = [session], None
                    if not announced:
                        _report_ready(log, ready)
                        announced = True
                    while not stop.is_set() and not session.is_outdated:
                        session.step(POLL)
                        outage.end()
                    session.finish(ends=stop.is_set())
            except ReadStopped:
                logger.info("stopped while reading the log")
            except (Unavailable, Expired, TooLarge) as error:
                if isinstance(error, TooLarge) and _leave_out(lasting.poison, error):
                    continue
                if transactor is not None and not announced:
                    cannot_load()
                outage.wait(error, stop)
            except Poisoned as poisoned:
                logger.exception("unexpected exception", what=poisoned.what)
                if not lasting.poison.add(poisoned):
                    raise
            finally:
                state = None  # what another aggregator wrote since then counts
                if transactor is not None:
                    transactor.close()


def _leave_out(poison: Poison, error: TooLarge) -> bool:
    """Leave out what topics refused for its size; return whether that helps."""
    is_new = False
    for record in error.records:
        numbers = {"size": record.size, "limit": record.limit, "see": "vcsreplicator topics check"}
        is_known = not poison.refuse(record)
        name = (record.key or "").partition("/")[0][:100]
        if is_known:
            logger.error("message too large, all repositories wait", topic=record.topic, key=name, **numbers)
        else:
            logger.error("message too large, its repository waits", topic=record.topic, repository=name, **numbers)
        is_new = is_new or not is_known
    return is_new


def _report_ready(log: Log, ready: Callable[[], None]) -> None:
    """Call `ready`; log the topics whose needed records expire, as far as shown."""
    ready()
    with suppress(Unavailable):
        for topic in log.compare(topics()):
            if loss := topic.describe_loss():
                logger.error("topic loses records", topic=topic.name, reason=loss)


@contextmanager
def _waking_at_stop(stop: threading.Event) -> Iterator[list[Session]]:
    """Wake the sessions of a list at a stop; keep none of them afterwards."""
    sessions: list[Session] = []
    ended = threading.Event()

    def wake() -> None:
        while not stop.wait(THREAD_KEPT):
            if ended.is_set():
                return
        for session in tuple(sessions):
            session.wake()

    threading.Thread(target=wake, name="stop", daemon=True).start()
    try:
        yield sessions
    finally:
        ended.set()
        sessions.clear()

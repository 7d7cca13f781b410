# SPDX-License-Identifier: GPL-2.0-or-later
"""The decoder as a service, even while one of its parts is unavailable."""

import contextlib
import random
import threading
from collections.abc import Callable

import structlog

from hgext.vcsreplicator.log import ERRORS, Log, topics
from hgext.vcsreplicator.words.clock import Clock, SystemClock
from hgext.vcsreplicator.words.errors import Expired, Fenced, Unavailable
from hgext.vcsreplicator.words.retry import RECONNECT

from ...delivery.destination import DOWN
from ...messages.raw import raw_topic
from .decoding import Tools
from .documents import load_schemas
from .geo import open_geo
from .loop import BATCH, DecodeLoop
from .repeats import Repeats, open_repeats
from .routing import Outputs
from .settings import NONE, REDIS, DecodeSettings, PlaceKind, name_unreadable, read_place
from .sources import GROUP, LogSource, QueueSource, RawSource

# Seconds at work after which an earlier failure no longer counts.
_WELL_AFTER = 60.0

logger = structlog.get_logger()


def open_tools(settings: DecodeSettings) -> Tools:
    """Load schemas and databases; BadConfig names the key."""
    geo = None
    if settings.geoip is not None:
        geo = open_geo(settings.geoip, settings.cities, settings.city_population, settings.load_balancers)
    return Tools(
        schemas=load_schemas(settings.schemas),
        geo=geo,
        without_id=frozenset(settings.without_id),
        largest=settings.largest,
    )


def run(
    settings: DecodeSettings,
    log: Log,
    *,
    stop: threading.Event,
    ready: Callable[[], None],
    tools: Tools | None = None,
    clock: Clock | None = None,
) -> None:
    """Decode until `stop` is set.

    Calls `ready` once input and outputs answer. Waits for an input or output that is unavailable, and divides a topic's partitions
    anew if another decoder took over one of them. Raises BadConfig, also for credentials that are refused at start.
    """
    clock, tools = clock or SystemClock(), tools or open_tools(settings)
    if settings.broker is not None:
        from .queues import check_broker  # its client takes a tenth of a second to load

        check_broker(settings)
    is_ready, failures, down = False, 0, DOWN.labels(GROUP)
    with contextlib.closing(open_repeats(settings, clock)) as repeats:
        while not stop.is_set():
            began = clock.monotonic()
            try:
                with contextlib.ExitStack() as opened:
                    loop = _open_loop(settings, tools, log, repeats, clock, stop, opened)
                    if not is_ready:
                        ready()
                        is_ready = True
                    loop.work(stop)
            except (Unavailable, Expired, Fenced) as error:
                if stop.is_set():
                    logger.info("stopped before all was delivered", reason=str(error))
                    return
                failures = 1 if clock.monotonic() - began > _WELL_AFTER else failures + 1
                down.set(1)
                delay = RECONNECT.delay(failures, random.random())
                logger.warning("decoding waits", reason=str(error), retry_in=round(delay, 1))
                stop.wait(delay)


def _open_loop(
    settings: DecodeSettings,
    tools: Tools,
    log: Log,
    repeats: Repeats,
    clock: Clock,
    stop: threading.Event,
    opened: contextlib.ExitStack,
) -> DecodeLoop:
    """Open input and outputs, created if missing; raises Unavailable or BadConfig."""
    given = read_place(settings.input)
    places = [settings.place_of(route) for route in sorted(tools.schemas.routes)]
    used = {place.name for place in (given, *places) if place.kind is PlaceKind.LOG}
    log.create([*(topic for topic in topics() if topic.name == ERRORS), *map(raw_topic, sorted(used))])
    outputs = [place.name for place in places if place.kind is PlaceKind.QUEUE]
    if given.kind is PlaceKind.QUEUE:
        outputs.append(name_unreadable(given.name))
    queues = None
    if outputs:
        from .queues import OutputQueues  # its client takes a tenth of a second to load

        queues = OutputQueues(settings, outputs, stop, clock)
        opened.callback(queues.close)
        queues.keep_connected()
    if given.kind is PlaceKind.LOG:
        source: RawSource = LogSource(log, given.name, shares_ids=settings.repeats in (REDIS, NONE))
    else:
        from .queues import open_input  # its client takes a tenth of a second to load

        assert queues is not None
        source = QueueSource(log, open_input(settings, given.name, 2 * BATCH), given.name, queues)
    opened.callback(source.close)
    routed = Outputs(settings, queues)
    opened.callback(routed.close)
    return DecodeLoop(source, routed, repeats, tools, clock)

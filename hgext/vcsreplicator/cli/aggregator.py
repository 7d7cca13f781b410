# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator aggregator`: the daemon."""

import functools
import threading
from collections.abc import Callable, Mapping

import click

from ..config import Config
from ..log import Log
from .options import run_daemon, with_config

# Seconds for which a request for /status waits for another one.
PATIENCE = 1.0


@click.command()
@with_config
def command(config: Config) -> None:
    """Run the aggregator: release events, and write notices.

    It releases events that all gating mirrors have applied, and announces events that all of them serve."""
    from ..aggregator.loop import run
    from ..aggregator.settings import AggregatorSettings

    settings = config.settings(AggregatorSettings, "aggregator")
    run_daemon(config, "aggregator", run, settings, pages=lambda log: {"/status": _status_page(log)})


def _status_page(log: Log) -> Callable[[], Mapping[str, object]]:
    """Make the page /status, the same as `vcsreplicator status --json`.

    One request at a time reads the log. Others wait a short while: a log that hangs must not take all threads of the HTTP server.
    """
    from ..status.findings import Expectations, as_data
    from ..status.follower import Follower, look_at_destinations, look_at_topics

    lock = threading.Lock()
    follower = functools.cache(lambda: Follower(log))  # begins to read at the first request

    def page() -> Mapping[str, object]:
        if not lock.acquire(timeout=PATIENCE):
            return {"ready": False, "reasons": ["another request waits for the log"]}
        try:
            now = follower().present()
            look_at_destinations(log, follower().picture)
            look_at_topics(log, follower().picture)
            return as_data(follower().picture, now, Expectations())
        finally:
            lock.release()

    return page

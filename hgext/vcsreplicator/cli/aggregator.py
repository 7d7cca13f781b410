# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator aggregator`: the daemon."""

import threading
from collections.abc import Callable, Mapping

import click

from ..config import Config
from ..log import Log
from .options import run_daemon, with_config


@click.command()
@with_config
def command(config: Config) -> None:
    """Run the aggregator: release events, and write notices.

    It releases what all gating mirrors have applied, and announces what all of them serve."""
    from ..aggregator import loop

    settings = config.settings(loop.AggregatorSettings, "aggregator")
    run_daemon(config, "aggregator", loop.run, settings, pages=lambda log: {"/status": _status_page(log)})


def _status_page(log: Log) -> Callable[[], Mapping[str, object]]:
    """Make the page /status, the same as `vcsreplicator status --json`."""
    from ..status.findings import as_data
    from ..status.follower import Follower, look_at_destinations

    lock = threading.Lock()
    followers: list[Follower] = []

    def read_status() -> Mapping[str, object]:
        if not followers:
            followers.append(Follower(log))
        picture = followers[0].update()
        look_at_destinations(log, picture)
        return as_data(picture, followers[0].now())

    def page() -> Mapping[str, object]:
        with lock:
            return read_status()

    return page

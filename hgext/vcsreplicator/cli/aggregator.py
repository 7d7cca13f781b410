# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator aggregator`: the daemon."""

import sys
import threading
from collections.abc import Callable, Mapping

import click

from ..config import Config
from ..log import Log
from ..service import configure_logging, serve
from ..words.errors import Expired
from .options import log_of, with_config


@click.command()
@with_config
def command(config: Config) -> None:
    """Release what all gating mirrors applied, announce what all of them serve."""
    from ..aggregator import loop

    configure_logging("aggregator")
    settings = config.settings(loop.AggregatorSettings, "aggregator")
    with log_of(config) as log:
        sys.exit(
            serve(
                "aggregator",
                lambda stop, ready: loop.run(settings, log, stop=stop, ready=ready),
                listen=config.listen("aggregator"),
                pages={"/status": _status(log)},
            )
        )


def _status(log: Log) -> Callable[[], Mapping[str, object]]:
    """The same as `vcsreplicator status --json`, for dashboards."""
    from ..status import Follower, as_data

    lock = threading.Lock()
    followers: list[Follower] = []

    def look() -> Mapping[str, object]:
        if not followers:
            followers.append(Follower(log))
        picture = followers[0].update()
        return as_data(picture, followers[0].now())

    def page() -> Mapping[str, object]:
        with lock:
            try:
                return look()
            except Expired:  # the log lost records: look at it anew
                while followers:
                    followers.pop().close()
                return look()

    return page

# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator edge`: the HTTP server that takes submissions."""

import functools

import click

from ..config import Config, address
from .options import needing, run_daemon, with_config


@click.command()
@with_config
def command(config: Config) -> None:
    """Accept submissions over HTTP: POST and PUT to /submit/…

    A submission is answered with 200 once it is durable: in the log, or on disk while the log is unavailable."""
    from notifier.edge.settings import EdgeSettings

    with needing("edge"):
        from notifier.edge import server
    settings = config.settings(EdgeSettings, "edge")
    where = address(settings.listen, f"{config.file}: edge.listen")
    run_daemon(config, "edge", functools.partial(server.run, address=where), settings)

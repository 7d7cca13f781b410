# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator edge`: the HTTP server that takes submissions."""

import functools

import click

from ..config import Config, address
from ..words.errors import BadConfig
from .options import run_daemon, with_config


@click.command()
@with_config
def command(config: Config) -> None:
    """Take submissions over HTTP: POST and PUT to /submit/…

    A submission is answered with 200 once it is durable: in the log, or on disk while the log is away."""
    from notifier.edge.settings import EdgeSettings

    try:
        from notifier.edge import server
    except ModuleNotFoundError as error:
        raise BadConfig(f"{error.name} is not installed; install vcsreplicator[edge]") from None

    settings = config.settings(EdgeSettings, "edge")
    where = address(settings.listen, f"{config.file}: edge.listen")
    run_daemon(config, "edge", functools.partial(server.run, address=where), settings)

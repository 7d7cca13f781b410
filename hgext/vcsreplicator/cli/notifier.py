# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator notifier`: the daemon."""

import sys

import click

from ..config import Config
from ..service import configure_logging, serve
from .options import log_of, with_config


@click.command()
@with_config
def command(config: Config) -> None:
    """Deliver every notice to every destination, each on its own feet."""
    from notifier import publisher, settings

    configure_logging("notifier")
    chosen = settings.read(config.tables, config.file)
    with log_of(config) as log:
        sys.exit(
            serve(
                "notifier",
                lambda stop, ready: publisher.run(chosen, log, stop=stop, ready=ready),
                listen=config.listen("notifier"),
            )
        )

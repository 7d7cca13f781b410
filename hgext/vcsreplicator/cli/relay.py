# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator relay`: the daemon."""

import sys

import click

from ..config import Config
from ..service import configure_logging, serve
from .options import log_of, with_config


@click.command()
@with_config
def command(config: Config) -> None:
    """Move the events of the master's repositories to the log, oldest first."""
    from ..relay import daemon

    configure_logging("relay")
    settings = config.settings(daemon.RelaySettings, "relay", blobs=config.blobs)
    with log_of(config) as log:
        sys.exit(
            serve(
                "relay",
                lambda stop, ready: daemon.run(settings, log, stop=stop, ready=ready),
                listen=config.listen("relay"),
            )
        )

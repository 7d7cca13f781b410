# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator relay`: the daemon."""

import functools

import click

from ..config import Config
from .options import run_daemon, with_config


@click.command()
@with_config
def command(config: Config) -> None:
    """Run the relay: send events of the master's repositories to the log."""
    from ..hg.relaying import MasterRepositories
    from ..relay import daemon
    from ..relay.settings import RelaySettings

    settings = config.settings(RelaySettings, "relay", blobs=config.blobs)
    port = MasterRepositories(settings.roots, settings.source)
    run_daemon(config, "relay", functools.partial(daemon.run, port=port), settings)

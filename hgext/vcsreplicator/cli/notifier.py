# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator notifier`: the daemon."""

import click

from ..config import Config
from .options import run_daemon, with_config


@click.command()
@with_config
def command(config: Config) -> None:
    """Run the notifier: deliver notices to each destination independently."""
    from notifier import publisher, settings

    found = settings.read(config.tables, config.file)
    settings.check_secrets(found, config.file)
    run_daemon(config, "notifier", publisher.run, found)

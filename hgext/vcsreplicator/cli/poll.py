# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator poll`: the daemon that follows the pushes of other hosts."""

import click

from ..config import Config
from .options import needing, run_without_log, with_config


@click.command()
@with_config
def command(config: Config) -> None:
    """Run the poller: send pushes of other hosts to the queue of hg-push."""
    from notifier.poll.settings import PollSettings

    with needing("poll"):
        from notifier.poll import poller
    settings = config.settings(PollSettings, "poll")
    run_without_log(config, "poll", poller.run, settings)

# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator poll`: the daemon that follows the pushes of other hosts."""

import sys

import click

from ..config import Config
from ..service import configure_logging, serve
from ..words.errors import BadConfig
from .options import with_config


@click.command()
@with_config
def command(config: Config) -> None:
    """Run the poller: send pushes of other hosts to the queue of hg-push."""
    from notifier.poll.settings import PollSettings

    try:
        from notifier.poll import poller
    except ModuleNotFoundError as error:
        raise BadConfig(f"{error.name} is not installed; install vcsreplicator[poll]") from None
    settings = config.settings(PollSettings, "poll")
    configure_logging("poll")
    run = poller.run
    sys.exit(serve("poll", lambda stop, ready: run(settings, stop=stop, ready=ready), listen=config.listen("poll")))

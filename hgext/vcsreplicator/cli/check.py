# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator check`: for monitoring systems that understand exit codes."""

import sys

import click

from ..config import Config
from ..status import Follower, findings, look_at_destinations
from .options import destinations, log_of, with_config

WORDS = ("OK", "WARNING", "CRITICAL")


@click.command()
@click.option(
    "--warn",
    default=150,
    type=click.IntRange(1),
    show_default=True,
    help="Events or notices behind that are worth a warning.",
)
@click.option(
    "--critical",
    default=600,
    type=click.IntRange(1),
    show_default=True,
    help="Events or notices behind that need someone now.",
)
@with_config
def command(config: Config, warn: int, critical: int) -> None:
    """Say in one line if someone must act; exit code 0 no, 1 soon, 2 now."""
    with log_of(config) as log:
        follower = Follower(log)
        try:
            now = follower.present()
            picture = follower.picture
            look_at_destinations(log, picture)
        finally:
            follower.close()
    found = findings(picture, now, warn=warn, critical=critical, destinations=destinations(config))
    level = max((finding.level for finding in found), default=0)
    click.echo(f"{WORDS[level]} - " + ("; ".join(finding.text for finding in found) or "everything is level"))
    sys.exit(level)

# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator check`: one line and an exit code for monitoring systems."""

import os
import sys
import time

import click

from ..config import Config
from ..relay.daemon import RelaySettings
from ..relay.lacking import find_lacking
from ..status import Follower, look_at_destinations
from ..status.findings import findings
from .options import destinations, log_of, with_config

# What monitoring systems call the exit codes 0, 1 and 2.
WORDS = ("OK", "WARNING", "CRITICAL")


@click.command()
@click.option(
    "--warn",
    default=150,
    type=click.IntRange(1),
    show_default=True,
    help="Warning from this many events or notices behind.",
)
@click.option(
    "--critical",
    default=600,
    type=click.IntRange(1),
    show_default=True,
    help="Critical from this many events or notices behind.",
)
@with_config
def command(config: Config, warn: int, critical: int) -> None:
    """Say in one line whether an operator must act: exit code 0 no, 1 soon, 2 now."""
    with log_of(config) as log:
        follower = Follower(log)
        try:
            now = follower.present()
            picture = follower.picture
            look_at_destinations(log, picture)
        finally:
            follower.close()
        found = findings(picture, now, warn=warn, critical=critical, destinations=destinations(config))
        if "relay" in config.tables:
            settings = config.settings(RelaySettings, "relay", blobs=config.blobs)
            found += find_lacking(filter(os.path.isdir, settings.roots), log, time.time())
    severity = max((finding.level for finding in found), default=0)
    text = (
        "; ".join(finding.text for finding in sorted(found, key=lambda finding: -finding.level))
        or "everything is caught up"
    )
    click.echo(f"{WORDS[severity]} - {text}")
    sys.exit(severity)

# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator check`: one line and an exit code for monitoring systems."""

import os
import sys
import time

import click

from ..config import Config
from ..log import Log
from ..relay.daemon import RelaySettings
from ..relay.lacking import find_lacking, has_outbox, read_report
from ..status import Follower, look_at_destinations
from ..status.findings import Finding, findings
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
            found += _check_master(config.settings(RelaySettings, "relay", blobs=config.blobs), log)
    severity = max((finding.level for finding in found), default=0)
    text = (
        "; ".join(finding.text for finding in sorted(found, key=lambda finding: -finding.level))
        or "everything is caught up"
    )
    click.echo(f"{WORDS[severity]} - {text}")
    sys.exit(severity)


def _check_master(settings: RelaySettings, log: Log) -> list[Finding]:
    """Return what the relay reports, or while it is silent what its outboxes say; nothing on a machine without outboxes."""
    roots = [root for root in settings.roots if os.path.isdir(root)]
    report = read_report(settings.socket, time.monotonic())
    if report is not None:
        return report.listed()
    if not has_outbox(roots):
        return []
    silent = Finding(level=2, text="the relay gives no sign of life: pushes may wait in the outboxes")
    return [silent, *find_lacking(roots, log, time.time())]

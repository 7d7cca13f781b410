# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator check`: one line and an exit code for monitoring systems."""

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from typing import NoReturn

import click

from ..config import Config
from ..log import Log
from ..relay.settings import RelaySettings
from ..status import SILENT
from ..status.findings import RELAY_KEY, REPORTED_WITHIN, finding_of
from ..status.summary import Summary
from ..status.wording import Finding, Severity
from ..words.errors import TopicMissing, Unavailable, visible
from ..words.shape import plain
from .asking import expect, find_summary, opening_log
from .options import SECONDS, relay_of, with_config, with_json

_with_limit = functools.partial(click.option, type=click.IntRange(1), show_default=True)


@click.command()
@_with_limit("--warn", default=150, help="Warning from this many events or notices behind.")
@_with_limit("--critical", default=600, help="Critical from this many events or notices behind.")
@click.option(
    "--patience",
    default=SILENT,
    type=SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long a relay or a destination may be silent or in trouble.",
)
@with_json
@with_config
def command(config: Config, warn: int, critical: int, patience: float, as_json: bool) -> None:
    """Say in one line whether an operator must act: exit code 0 no, 1 soon, 2 now.

    It looks at aggregator, mirrors, relay and destinations, and at no other service.
    """
    relay, expected = relay_of(config), expect(config, warn=warn, critical=critical, patience=patience)
    try:
        with opening_log(config) as open_log:
            summary = find_summary(config, open_log, expected)
            found = list(summary.findings)
            if relay and summary.measure_silence(RELAY_KEY + relay.source) > max(patience, REPORTED_WITHIN):
                found += _find_on_disk(relay, open_log)
    except (TopicMissing, Unavailable) as error:  # exit code 1 would mean that it is not urgent
        _print_and_exit([Finding(level=Severity.CRITICAL, text=str(error))], None, as_json=as_json)
    _print_and_exit(found, summary, as_json=as_json)


def _print_and_exit(found: list[Finding], summary: Summary | None, *, as_json: bool) -> NoReturn:
    """Print what was found, and exit with its severity.

    `summary` is None if the log could not be read.
    """
    severity = max((finding.level for finding in found), default=Severity.OK)
    ordered = sorted(found, key=lambda finding: -finding.level)
    watched, notes = (summary.watched, summary.notes) if summary else ("nothing", ())
    if as_json:
        said = {"state": severity.name, "findings": [plain(finding) for finding in ordered]}
        click.echo(json.dumps({**said, "watched": watched, "notes": notes}, indent=2))
    else:
        texts = [finding.text for finding in ordered] or [summary.describe_well() if summary else ""]
        texts += [f"note: {note}" for note in notes]
        click.echo(f"{severity.name} - {'; '.join(map(visible, texts))}")
    sys.exit(severity)


def _find_on_disk(relay: RelaySettings, open_log: Callable[[], Log]) -> list[Finding]:
    """Find the troubles in the outboxes that a silent relay does not report.

    Reads only the outboxes that are on this machine.
    """
    roots, now = [root for root in relay.roots if os.path.isdir(root)], time.time()
    if not roots:
        return []
    from ..relay.lacking import find_lacking, has_outbox  # a quarter of a second

    if not has_outbox(roots):
        return []
    return [finding_of(trouble, now - trouble.since, now) for trouble in find_lacking(roots, open_log(), now)]

# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator check`: one line and an exit code for monitoring systems."""

import functools
import json
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from ..config import Config
from ..status import SILENT
from ..status.summary import Summary
from ..status.wording import Finding, Severity
from ..words.errors import TopicMissing, Unavailable, visible
from ..words.shape import plain
from .asking import expect, find_all, find_full_log
from .options import SECONDS, expect_exact_roots, relay_of, with_config, with_json

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

    It looks at aggregator, mirrors, relay, destinations, guardian and poller, and at documents without a decoder.
    """
    if relay := relay_of(config):
        expect_exact_roots(config, relay)
    if (full := find_full_log(config)) is not None:
        _print_and_exit([full], None, as_json=as_json)
    expected = expect(config, warn=warn, critical=critical, patience=patience)
    try:
        summary = find_all(config, expected)
    except (TopicMissing, Unavailable) as error:  # exit code 1 would mean that it is not urgent
        _print_and_exit([Finding(level=Severity.CRITICAL, text=str(error))], None, as_json=as_json)
    _print_and_exit(summary.findings, summary, as_json=as_json)


def _print_and_exit(found: Sequence[Finding], summary: Summary | None, *, as_json: bool) -> NoReturn:
    """Print what was found, and exit with its severity.

    `summary` is None if the log could not be read.
    """
    severity = max((finding.level for finding in found), default=Severity.OK)
    watched, notes, recent = (summary.watched, summary.notes, summary.recent) if summary else ("nothing", (), ())
    if as_json:
        said = {"state": severity.name, "findings": [plain(finding) for finding in found]}
        click.echo(json.dumps({**said, "watched": watched, "recent": recent, "notes": notes}, indent=2))
    else:
        texts = [finding.text for finding in found] or [summary.describe_well() if summary else ""]
        texts += [f"note: {note}" for note in notes]
        click.echo(f"{severity.name} - {'; '.join(map(visible, texts))}")
    sys.exit(severity)

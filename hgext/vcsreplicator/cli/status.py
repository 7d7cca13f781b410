# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator status`: progress, and what an operator must do."""

import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import NoReturn

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..config import Config
from ..log import Log
from ..status.findings import as_data
from ..status.follower import Follower, look_at_destinations, look_at_topics
from ..status.services import Expectations
from ..status.summary import Summary
from ..status.wording import Finding, Severity, describe_round
from ..words.clock import format_duration
from ..words.errors import Unavailable, counted, visible
from .asking import add_findings, expect, find_all, find_here, follow_summary
from .display import console, make_listing, print_json, table
from .options import log_of, with_config, with_json
from .progress import is_terminal, metered, metered_log

# Seconds between two looks at this machine while it watches: outboxes may be many, and a dead disk is waited for.
LOOK = 10.0


@click.command()
@click.option("--watch", is_flag=True, help="Update the display every second until interrupted.")
@with_json
@with_config
def command(config: Config, watch: bool, as_json: bool) -> None:
    """Show mirrors, destinations, waiting notices, and what an operator must do."""
    expected = expect(config)
    if as_json:
        with metered_log(config) as log:
            _print_data(config, log, expected)
    elif watch:
        with log_of(config) as log, metered(log) as shown, closing(Follower(shown)) as follower:
            _watch(_make_watched(config, follower, log, expected))
    else:
        console().print(make_view(find_all(config, expected)))


def _print_data(config: Config, log: Log, expected: Expectations) -> None:
    with closing(Follower(log)) as follower:
        now, picture = follower.present(), follower.picture
        look_at_destinations(log, picture, expected.raw)
        look_at_topics(log, picture)
        here = find_here(config, lambda: log, expected, lambda name: picture.silence(name, now))
        print_json(as_data(picture, now, expected, here))


def _make_watched(config: Config, follower: Follower, log: Log, expected: Expectations) -> Callable[[], Group]:
    """Return what makes one view after another.

    What was found on this machine stays for LOOK seconds.
    """
    here, due = list[Finding](), 0.0

    def view() -> Group:
        nonlocal here, due
        summary = follow_summary(follower, log, expected)
        if time.monotonic() >= due:
            here = find_here(config, lambda: log, expected, summary.measure_silence)
            due = time.monotonic() + LOOK
        return make_view(add_findings(summary, here))

    return view


def _watch(draw: Callable[[], Group]) -> NoReturn:
    if not is_terminal(sys.stdout):
        _write_repeatedly(draw)
    with Live(draw(), console=console(), refresh_per_second=2) as live:
        while True:
            time.sleep(1)
            try:
                live.update(draw(), refresh=True)
            except Unavailable as error:
                text = Text(f"the log cannot be read, trying again: {visible(str(error))}", "red")
                live.update(text, refresh=True)


def _write_repeatedly(draw: Callable[[], Group]) -> NoReturn:
    """Write each view as lines, for a file or a pipe."""
    output = console()
    while True:
        try:
            output.print(draw(), Text(), end="")
        except Unavailable as error:
            output.print(Text(f"the log cannot be read, trying again: {visible(str(error))}"))
        output.file.flush()
        time.sleep(1)


def make_view(summary: Summary) -> Group:
    seen = "not seen"
    if summary.aggregator is not None:
        seen = f"seen {_format_age(summary.aggregator, summary.now)}, roster version {summary.roster}"
    waiting = f"{summary.waiting_events} in {counted(summary.waiting_repositories, 'repository')}"
    numbers = [
        ("repositories", str(summary.repositories)),
        ("events", str(summary.events)),
        ("announced", str(summary.announced)),
        ("waiting for a notice", waiting),
        ("aggregator", seen),
        ("errors", str(summary.errors)),
    ]
    parts: list[Table | Text] = [table(("", ""), numbers), Text(), _list_mirrors(summary)]
    for line in summary.mirrors:
        if line.verified:
            oldest = _format_age(line.verified.oldest or 0.0, summary.now)
            parts.append(Text(f"mirror {line.name}: last verified: {describe_round(line.verified, oldest)}"))
    parts += [Text(), _list_services(summary)]
    parts += [Text(visible(f"{line.title}: {text}")) for line in summary.services for text in line.troubles]
    if summary.waiting:
        parts += [Text(), _waiting_table(summary)]
    for finding in summary.findings:
        colour = "red" if finding.level is Severity.CRITICAL else "yellow"
        parts.append(Text(f"{finding.level.name.lower()}: {visible(finding.text)}", colour))
    parts += [Text(f"note: {visible(note)}") for note in summary.notes]
    return Group(*parts)


def _list_mirrors(summary: Summary) -> Table | Text:
    rows = [
        (
            line.name,
            line.state or "not in the roster",
            str(line.repositories),
            str(line.behind),
            str(line.detached),
            _format_seen(line.seen, summary.now),
        )
        for line in summary.mirrors
    ]
    return make_listing("mirrors", ("mirror", "state", "repositories", "behind", "detached", "seen"), rows)


def _list_services(summary: Summary) -> Table | Text:
    """List relays and destinations; their troubles are too long for a table."""
    rows = []
    for line in summary.services:
        lag = "" if line.behind is None else str(line.behind)
        oldest = "" if line.oldest is None else _format_age(line.oldest, summary.now)
        count = str(len(line.troubles) or "")
        rows.append((line.title, lag, oldest, _format_seen(line.seen, summary.now), count))
    return make_listing("services", ("service", "behind", "oldest", "seen", "troubles"), rows)


def _waiting_table(summary: Summary) -> Table:
    rows = [
        (line.path, str(line.seq), str(line.released), str(line.noticed), ", ".join(line.holding))
        for line in summary.waiting
    ]
    return table(("waiting for a notice", "event", "released", "noticed", "waits for"), rows)


def _format_seen(seen: float | None, now: float) -> str:
    return "never" if seen is None else _format_age(seen, now)


def _format_age(then: float, now: float) -> str:
    return f"{format_duration(max(0.0, now - then))} ago"

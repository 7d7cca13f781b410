# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator status`: progress, and what an operator must do."""

import json
import time
from collections.abc import Callable

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..config import Config
from ..status import AGGREGATOR, DESTINATION, Follower, Picture, look_at_destinations
from ..status.findings import as_data, findings
from ..words.errors import Unavailable, visible
from .display import console, table
from .options import destinations, log_of, with_config, with_json

# Repositories whose notices wait, at most.
SHOWN = 15


@click.command()
@click.option("--watch", is_flag=True, help="Update the display every second until interrupted.")
@with_json
@with_config
def command(config: Config, watch: bool, as_json: bool) -> None:
    """Show mirrors, destinations, waiting notices, and what an operator must do."""
    wanted = destinations(config)
    with log_of(config) as log:
        follower = Follower(log)

        def read_all() -> Picture:
            picture = follower.update()
            look_at_destinations(log, picture)
            return picture

        try:
            if as_json:
                now = follower.present()
                click.echo(json.dumps(as_data(read_all(), now, destinations=wanted), indent=2))
            elif watch:
                _watch(lambda: _view(read_all(), follower.now(), wanted))
            else:
                now = follower.present()
                console().print(_view(read_all(), now, wanted))
        finally:
            follower.close()


def _watch(view: Callable[[], Group]) -> None:
    with Live(view(), console=console(), refresh_per_second=2) as live:
        while True:
            time.sleep(1)
            try:
                live.update(view(), refresh=True)
            except Unavailable as error:
                text = Text(f"the log cannot be read, trying again: {visible(str(error))}", "red")
                live.update(text, refresh=True)


def _view(picture: Picture, now: float, wanted: list[str] | None) -> Group:
    waiting = picture.waiting()
    beat = picture.aggregator
    seen = "not seen"
    if beat:
        seen = f"seen {_format_age(picture.seen(AGGREGATOR), now)}, roster version {beat.roster}"
    numbers = [
        ("repositories", str(len(picture.states))),
        ("events", str(picture.ends.get("events", 0))),
        ("notices", str(picture.ends.get("notices", 0))),
        ("waiting for a notice", f"{sum(s.seq - s.noticed for s in waiting)} in {len(waiting)} repositories"),
        ("aggregator", seen),
        ("errors", str(picture.errors)),
    ]
    summary = table(("", ""), numbers)
    summary.show_header = False
    parts: list[Table | Text] = [summary, Text(), _mirror_table(picture, now), Text(), _destination_table(picture, now)]
    if waiting:
        parts += [Text(), _waiting_table(picture)]
    for finding in findings(picture, now, destinations=wanted):
        word, colour = ("critical", "red") if finding.level == 2 else ("warning", "yellow")
        parts.append(Text(f"{word}: {visible(finding.text)}", colour))
    return Group(*parts)


def _mirror_table(picture: Picture, now: float) -> Table:
    rows = []
    known = {mirror.name: mirror.state.value for mirror in picture.roster.mirrors} if picture.roster else {}
    for name in sorted(known | dict.fromkeys(picture.beats, "")):
        acks = [ack for ack in picture.acks.values() if ack.mirror == name]
        rows.append(
            (
                name,
                known.get(name, "not in the roster"),
                str(len(acks)),
                str(picture.behind(name)),
                str(sum(ack.detached is not None for ack in acks)),
                _format_age(picture.seen(name), now) if name in picture.heard else "never",
            )
        )
    return table(("mirror", "state", "repositories", "behind", "detached", "seen"), rows)


def _destination_table(picture: Picture, now: float) -> Table:
    rows = [
        (
            group.removeprefix(DESTINATION),
            str(lag),
            _format_age(picture.oldest[group], now) if group in picture.oldest else "",
        )
        for group, lag in sorted(picture.groups.items())
    ]
    return table(("destination", "behind", "oldest"), rows)


def _waiting_table(picture: Picture) -> Table:
    rows = []
    for state in picture.waiting()[:SHOWN]:
        slow = picture.holding(state)
        rows.append((state.path, str(state.seq), str(state.released), str(state.noticed), ", ".join(slow)))
    return table(("waiting for a notice", "event", "released", "noticed", "waits for"), rows)


def _format_age(then: float, now: float) -> str:
    seconds = max(0.0, now - then)
    return f"{seconds:.0f} s ago" if seconds < 120 else f"{seconds / 60:.0f} min ago"

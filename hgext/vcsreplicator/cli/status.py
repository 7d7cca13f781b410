# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator status`: how far everything is."""

import json
import time

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..config import Config
from ..status import Follower, Picture, as_data, findings
from .options import log_of, with_config

SHOWN = 15


@click.command()
@click.option("--watch", is_flag=True, help="Keep showing, every second, until interrupted.")
@click.option("--json", "as_json", is_flag=True, help="For programs: the whole picture.")
@with_config
def command(config: Config, watch: bool, as_json: bool) -> None:
    """Show mirrors, destinations, what waits, and what needs a human."""
    with log_of(config) as log:
        follower = Follower(log)
        try:
            if as_json:
                click.echo(json.dumps(as_data(follower.update(), time.time()), indent=2))
            elif watch:
                _watch(follower)
            else:
                Console().print(_view(follower.update(), time.time()))
        finally:
            follower.close()


def _watch(follower: Follower) -> None:
    with Live(_view(follower.update(), time.time()), refresh_per_second=2) as live:
        while True:
            time.sleep(1)
            live.update(_view(follower.update(), time.time()))


def _view(picture: Picture, now: float) -> Group:
    waiting = picture.waiting()
    beat = picture.aggregator
    summary = Table(box=None, show_header=False)
    summary.add_row("repositories", str(len(picture.states)))
    summary.add_row("events", str(picture.ends.get("events", 0)))
    summary.add_row("notices", str(picture.ends.get("notices", 0)))
    summary.add_row("waiting for a notice", f"{sum(s.seq - s.noticed for s in waiting)} in {len(waiting)} repositories")
    summary.add_row("aggregator", f"seen {_ago(beat.time, now)}, roster version {beat.roster}" if beat else "not seen")
    summary.add_row("errors", str(picture.errors))
    parts: list[Table | Text] = [summary, Text(), _mirrors(picture, now), Text(), _destinations(picture)]
    if waiting:
        parts += [Text(), _waiting(picture)]
    for finding in findings(picture, now):
        parts.append(
            Text(
                ("critical: " if finding.level == 2 else "warning: ") + finding.text,
                "red" if finding.level == 2 else "yellow",
            )
        )
    return Group(*parts)


def _mirrors(picture: Picture, now: float) -> Table:
    table = Table("mirror", "state", "repositories", "behind", "detached", "seen", box=None)
    known = {mirror.name: mirror.state.value for mirror in picture.roster.mirrors} if picture.roster else {}
    for name in sorted(known | dict.fromkeys(picture.beats, "")):
        acks = [ack for ack in picture.acks.values() if ack.mirror == name]
        beat = picture.beats.get(name)
        table.add_row(
            name,
            known.get(name, "not in the roster"),
            str(len(acks)),
            str(picture.behind(name)),
            str(sum(ack.detached is not None for ack in acks)),
            _ago(beat.time, now) if beat else "never",
        )
    return table


def _destinations(picture: Picture) -> Table:
    table = Table("destination", "behind", box=None)
    for group, lag in sorted(picture.groups.items()):
        table.add_row(group.removeprefix("notifier-"), str(lag))
    return table


def _waiting(picture: Picture) -> Table:
    table = Table("waits for a notice", "event", "released", "noticed", "behind it", box=None)
    for state in picture.waiting()[:SHOWN]:
        slow = [
            ack.mirror
            for ack in picture.acks.values()
            if ack.repository == state.repository and (ack.applied < state.seq or ack.serving < state.released)
        ]
        table.add_row(state.path, str(state.seq), str(state.released), str(state.noticed), ", ".join(sorted(slow)))
    return table


def _ago(then: float, now: float) -> str:
    seconds = max(0.0, now - then)
    return f"{seconds:.0f} s ago" if seconds < 120 else f"{seconds / 60:.0f} min ago"

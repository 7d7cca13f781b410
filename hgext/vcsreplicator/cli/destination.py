# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator destination`: how destinations are, and pause, resume, skip; who asked is recorded."""

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from ..config import Config
from ..words.errors import Refused
from .display import console, table
from .options import HOW_MANY, SECONDS, with_config
from .requests import ask, when

_wait = click.option(
    "--wait", default=10.0, type=SECONDS, show_default=True, metavar="SECONDS", help="For the notifier's answer."
)


@click.group()
def command() -> None:
    """Pause, resume and skip on a destination."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@with_config
def list_(config: Config, as_json: bool) -> None:
    """List the destinations as their notifier last told."""
    from notifier.settings import read
    from notifier.state import StateDatabase

    settings = read(config.tables, config.file)
    known = {}
    if Path(settings.state).exists():
        with closing(StateDatabase(settings.state)) as state:
            known = state.conditions()
    rows = {name: known.get(name) for name in settings.destinations}
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    headings = ("destination", "state", "position", "waiting", "oldest", "told")
    console().print(table(headings, [_cells(name, row) for name, row in rows.items()]))


def _cells(name: str, row: Mapping[str, Any] | None) -> tuple[str, ...]:
    if row is None:
        return name, "never ran"
    what = "paused" if row["paused"] else f"in trouble: {row['trouble']}" if row["trouble"] else "delivering"
    age = f"{row['oldest_age']:.0f} s" if row["oldest"] else ""
    return name, what, str(row["position"]), str(row["waiting"]), age, when(row["time"])


@command.command()
@click.argument("name")
@_wait
@with_config
def pause(config: Config, name: str, wait: float) -> None:
    """Send nothing to NAME until it is resumed; nothing is lost."""
    ask(config, name, "pause", {}, wait=wait)


@command.command()
@click.argument("name")
@_wait
@with_config
def resume(config: Config, name: str, wait: float) -> None:
    """Go on where NAME was paused."""
    ask(config, name, "resume", {}, wait=wait)


@command.command()
@click.argument("name")
@click.option("--message", metavar="ID", help="Only this one  [default: the oldest that failed]")
@click.option("--yes", is_flag=True, help="Do it.")
@_wait
@with_config
def skip(config: Config, name: str, message: str | None, yes: bool, wait: float) -> None:
    """Pass over one message that NAME cannot deliver; it is kept among the errors."""
    if not yes:
        what = f"message {message}" if message else "the oldest message that failed"
        raise Refused(f"{what} would never be sent to {name}; add --yes to do it")
    ask(config, name, "skip", {"message": message}, wait=wait)


@command.command()
@click.option("--last", default=20, type=HOW_MANY, show_default=True, help="How many.")
@with_config
def requests(config: Config, last: int) -> None:
    """Show who asked for what, and what became of it."""
    from notifier.settings import read
    from notifier.state import StateDatabase

    path, found = read(config.tables, config.file).state, []
    if Path(path).exists():
        with closing(StateDatabase(path)) as state:
            found = state.requests(last)
    rows = [
        (when(each.asked_at), each.who, each.destination, each.kind.value, each.result or "waiting") for each in found
    ]
    console().print(table(("asked", "who", "destination", "what", "result"), rows))

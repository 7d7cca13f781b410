# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator destination`: shows destinations, asks the notifier for changes."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any

import click

from ..config import Config
from ..log.requests import OperatorRequest
from ..status.destinations import is_overdue
from ..words.clock import format_duration
from ..words.errors import Refused, visible
from ..words.shape import plain
from .display import print_listing
from .options import TEXT, complete_destination, log_of, with_answer, with_config, with_json, with_last, with_yes
from .requests import ask_notifier, when


@click.group()
def command() -> None:
    """List, pause and resume destinations, and skip messages."""


@command.command("list")
@with_json
@with_config
def list_(config: Config, as_json: bool) -> None:
    """List the destinations, as the notifier last reported them."""
    from notifier.clients.database import is_there
    from notifier.destinations.state import StateDatabase
    from notifier.publishing.settings import read

    settings = read(config.tables, config.file)
    known = {}
    if is_there(settings.state):
        with closing(StateDatabase(settings.state)) as state:
            known = state.conditions()
    rows, now = {name: known.get(name) for name in settings.destinations}, time.time()
    headings = ("destination", "state", "position", "waiting", "oldest", "reported (UTC)")
    print_listing(
        rows, "destinations", headings, (_row_of(name, row, now) for name, row in rows.items()), as_json=as_json
    )
    if not as_json:
        for name, row in rows.items():
            for text in _list_troubles(row or {}):
                click.echo(visible(f"{name}: {text}"))


def _row_of(name: str, row: Mapping[str, Any] | None, now: float) -> tuple[str, ...]:
    if row is None:
        return name, "never ran"
    what = "delivering"
    if row["paused"]:
        what = "paused"
    elif row["trouble"]:
        what = "failing"
    if is_overdue(row["time"], now):
        what = f"no report since {when(row['time'])} UTC; before that: {what}"
    age = format_duration(row["oldest_age"]) if row["oldest"] else ""
    position = "" if row["position"] is None else str(row["position"])
    return name, what, position, str(row["waiting"]), age, when(row["time"])


def _list_troubles(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield the troubles of a destination, which are too long for the table."""
    if row.get("trouble") and not row["paused"]:
        yield f"failing since {when(row.get('since'))} UTC: {row['trouble']}"
    for part in row.get("parts", ()):
        yield f"{part['trouble']} (since {when(part['since'])} UTC)"


@command.command()
@click.argument("name", shell_complete=complete_destination)
@with_answer
@with_config
def pause(config: Config, name: str, wait: float) -> None:
    """Pause NAME until it is resumed; no message is lost."""
    ask_notifier(config, name, "pause", {}, wait=wait)


@command.command()
@click.argument("name", shell_complete=complete_destination)
@with_answer
@with_config
def resume(config: Config, name: str, wait: float) -> None:
    """Continue where NAME was paused."""
    ask_notifier(config, name, "resume", {}, wait=wait)


@command.command()
@click.argument("name", shell_complete=complete_destination)
@click.option("--message", type=TEXT, metavar="ID", help="Id of the message.  [default: the oldest that failed]")
@with_yes
@with_answer
@with_config
def skip(config: Config, name: str, message: str | None, yes: bool, wait: float) -> None:
    """Skip one message that NAME cannot deliver.

    `vcsreplicator errors` shows it. While the notifier is stopped, the id is required.
    """
    if not yes:
        what = f"message {message}" if message else "the oldest message that failed"
        raise Refused(f"{what} would never be sent to {name}; add --yes to do it")
    ask_notifier(config, name, "skip", {"message": message}, wait=wait)


@command.command()
@with_last(default=20)
@with_json
@with_config
def requests(config: Config, last: int, as_json: bool) -> None:
    """Show requests: who made each, when, and the result."""
    from notifier.clients.database import NOWHERE, is_there
    from notifier.destinations.state import StateDatabase
    from notifier.publishing.requests import show_requests
    from notifier.publishing.settings import read

    settings = read(config.tables, config.file)
    is_here = is_there(settings.state)
    with closing(StateDatabase(settings.state if is_here else NOWHERE)) as state:
        if not is_here:
            with log_of(config) as log:
                show_requests(settings.destinations, log, state)
        print_requests(state.requests.list_newest(last), "destination", as_json=as_json)


def print_requests(
    found: Iterable[OperatorRequest], subject: str, *, as_json: bool, name_subject: Callable[[str], str] = str
) -> None:
    """Print requests; `name_subject` returns the name of a subject for people."""
    rows = [
        (when(each.asked_at), each.who, name_subject(each.subject), each.kind, each.result or "waiting")
        for each in found
    ]
    data = [{subject if key == "subject" else key: value for key, value in plain(each).items()} for each in found]
    print_listing(data, "requests", ("asked (UTC)", "who", subject, "what", "result"), rows, as_json=as_json)

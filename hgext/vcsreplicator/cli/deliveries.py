# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator deliveries`: what became of every message to every subscription of webhooks."""

import json
import time
from collections.abc import Mapping
from typing import Any

import click

from ..config import Config
from ..words.errors import Refused
from .display import console, table
from .options import HOW_MANY, with_config
from .requests import open_deliveries, when, who

_destination = click.option("--destination", metavar="NAME", help="If there are several of type webhook.")
_NUMBER = click.IntRange(1, 2**63 - 1)
_STATES = click.Choice(["queued", "delivered", "exhausted", "cancelled"])


@click.group()
def command() -> None:
    """List, show and repeat deliveries."""


@command.command("list")
@click.option("--state", type=_STATES)
@click.option("--subscription", metavar="NAME")
@click.option("--last", default=30, type=HOW_MANY, show_default=True, help="How many.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@_destination
@with_config
def list_(
    config: Config, destination: str | None, state: str | None, subscription: str | None, last: int, as_json: bool
) -> None:
    """List the newest deliveries."""
    with open_deliveries(config, destination) as deliveries:
        rows = deliveries.newest(state=state, subscription=subscription, limit=last)
        counts = deliveries.counts()
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    headings = ("id", "subscription", "state", "attempts", "next", "type", "repository", "error")
    console().print(table(headings, map(_cells, rows)))
    click.echo(", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "no deliveries")


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    due = when(row["mature_at"]) if row["state"] == "queued" else ""
    head = (str(row["id"]), row["subscription"], row["state"], str(row["attempt"]), due, row["type"])
    return (*head, row["repo_url"], row["error"] or "")


@command.command()
@click.argument("number", type=_NUMBER)
@_destination
@with_config
def show(config: Config, destination: str | None, number: int) -> None:
    """Show one delivery whole, with its body."""
    with open_deliveries(config, destination) as deliveries:
        row = deliveries.show(number)
    if row is None:
        raise Refused(f"there is no delivery {number}")
    click.echo(json.dumps(row, indent=2, sort_keys=True))


@command.command()
@click.argument("numbers", type=_NUMBER, nargs=-1)
@click.option("--exhausted", metavar="SUBSCRIPTION", help="All that were given up for this subscription.")
@click.option("--yes", is_flag=True, help="Do it, for several.")
@_destination
@with_config
def redeliver(
    config: Config, destination: str | None, numbers: tuple[int, ...], exhausted: str | None, yes: bool
) -> None:
    """Send deliveries again, by number or all that were given up."""
    with open_deliveries(config, destination) as deliveries:
        chosen = list(numbers)
        if exhausted is not None:
            found = deliveries.newest(state="exhausted", subscription=exhausted, limit=1_000_000)
            chosen += [row["id"] for row in reversed(found)]
        if len(chosen) > 1 and not yes:
            raise Refused(f"{len(chosen)} deliveries would be sent again; add --yes to do it")
        done = deliveries.redeliver(chosen, who=who(), now=time.time())
    click.echo(f"{done} queued again")

# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator deliveries`: the messages to each subscription of webhooks."""

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import click

from ..config import Config
from ..words.clock import format_duration
from ..words.errors import Refused, counted
from .display import print_json, print_listing
from .options import (
    TEXT,
    complete_subscription,
    takes_json,
    with_answer,
    with_config,
    with_json,
    with_last,
    with_webhook,
    with_yes,
)
from .requests import ask_destination, find_webhook, open_deliveries, when, who

_NUMBER = click.IntRange(1, 2**63 - 1)

HEADINGS = ("id", "subscription", "state", "attempts", "next try", "error", "repository")


@click.group()
def command() -> None:
    """List, show and repeat deliveries of webhooks."""


@command.command("list")
@click.option(
    "--state",
    type=click.Choice(["queued", "delivered", "exhausted", "cancelled"]),
    help="Only deliveries in this state.",
)
@click.option(
    "--subscription",
    type=TEXT,
    metavar="NAME",
    help="Only deliveries to this subscription.",
    shell_complete=complete_subscription,
)
@with_last(default=30)
@with_json
@with_webhook
@with_config
def list_(
    config: Config, destination: str | None, state: str | None, subscription: str | None, last: int, as_json: bool
) -> None:
    """List the newest deliveries."""
    with open_deliveries(config, destination) as deliveries:
        rows = deliveries.newest(state=state, subscription=subscription, limit=last)
        counts = deliveries.counts()
    now = time.time()
    print_listing(
        rows,
        "such deliveries" if counts else "deliveries",
        HEADINGS,
        (_row_of(row, now) for row in rows),
        as_json=as_json,
    )
    if counts and not as_json:
        click.echo(", ".join(f"{count} {name}" for name, count in sorted(counts.items())))


def _row_of(row: Mapping[str, Any], now: float) -> tuple[str, ...]:
    """Return what fits on a terminal of 80 columns; `show` has the rest, such as the URL and the type."""
    due = f"in {format_duration(max(0.0, row['mature_at'] - now))}" if row["state"] == "queued" else ""
    head = (str(row["id"]), row["subscription"], row["state"], str(row["attempt"]), due, row["error"] or "")
    return (*head, urlsplit(row["repo_url"]).path.strip("/"))


@command.command()
@click.argument("number", type=_NUMBER)
@takes_json
@with_webhook
@with_config
def show(config: Config, destination: str | None, number: int) -> None:
    """Show one delivery completely, with its body.

    Times are in seconds since the epoch; `ended` has the end of an attempt as date and time.
    """
    with open_deliveries(config, destination) as deliveries:
        row = deliveries.show(number)
    if row is None:
        raise Refused(f"there is no delivery {number}")
    print_json({**row, "attempts": [{**each, "ended": f"{when(each['ended_at'])} UTC"} for each in row["attempts"]]})


@command.command()
@click.argument("numbers", type=_NUMBER, nargs=-1)
@click.option(
    "--exhausted", type=TEXT, metavar="SUBSCRIPTION", help="All deliveries of this subscription that were given up."
)
@with_yes
@with_answer
@with_webhook
@with_config
def redeliver(
    config: Config, destination: str | None, numbers: tuple[int, ...], exhausted: str | None, yes: bool, wait: float
) -> None:
    """Send deliveries again; several need --yes."""
    if not numbers and exhausted is None:
        raise Refused("expected numbers of deliveries, or --exhausted SUBSCRIPTION")
    from notifier.destinations.webhook.changes import request_redelivery

    with open_deliveries(config, destination) as deliveries:
        rows = {number: deliveries.show(number) for number in numbers}
        if unknown := [str(number) for number, row in rows.items() if row is None]:
            raise Refused(f"there is no delivery {', '.join(unknown)}")
        given_up = 0
        if exhausted is not None:
            given_up = len(deliveries.newest(state="exhausted", subscription=exhausted, limit=1_000_000))
    if not (count := len(rows) + given_up):
        raise Refused(f"no delivery to {exhausted} was given up")
    if count > 1 and not yes:
        raise Refused(f"{counted(count, 'delivery')} would be sent again; add --yes to do it")
    chosen, argument = find_webhook(config, destination)[0], request_redelivery(list(rows.values()), exhausted)
    click.echo(ask_destination(config, chosen, "redeliver", argument, person=who(), wait=wait))

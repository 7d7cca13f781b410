# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator deliveries`: the messages to each subscription of webhooks."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from ..config import Config
from ..words.errors import Refused
from .display import print_json, print_listing
from .options import TEXT, complete_subscription, takes_json, with_config, with_json, with_last, with_webhook, with_yes
from .requests import open_deliveries, when, who

_NUMBER = click.IntRange(1, 2**63 - 1)


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
    headings = ("id", "subscription", "state", "attempts", "next", "type", "repository", "error")
    print_listing(rows, headings, map(_row_of, rows), as_json=as_json)
    if not as_json:
        click.echo(", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "no deliveries")


def _row_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    due = when(row["mature_at"]) if row["state"] == "queued" else ""
    head = (str(row["id"]), row["subscription"], row["state"], str(row["attempt"]), due, row["type"])
    return (*head, row["repo_url"], row["error"] or "")


@command.command()
@click.argument("number", type=_NUMBER)
@takes_json
@with_webhook
@with_config
def show(config: Config, destination: str | None, number: int) -> None:
    """Show one delivery completely, with its body."""
    with open_deliveries(config, destination) as deliveries:
        row = deliveries.show(number)
    if row is None:
        raise Refused(f"there is no delivery {number}")
    print_json(row)


@command.command()
@click.argument("numbers", type=_NUMBER, nargs=-1)
@click.option(
    "--exhausted", type=TEXT, metavar="SUBSCRIPTION", help="All deliveries of this subscription that were given up."
)
@with_yes
@with_webhook
@with_config
def redeliver(
    config: Config, destination: str | None, numbers: tuple[int, ...], exhausted: str | None, yes: bool
) -> None:
    """Send deliveries again; several need --yes."""
    if not numbers and exhausted is None:
        raise Refused("expected numbers of deliveries, or --exhausted SUBSCRIPTION")
    with open_deliveries(config, destination, must_exist=True) as deliveries:
        chosen = list(numbers)
        if exhausted is not None:
            found = deliveries.newest(state="exhausted", subscription=exhausted, limit=1_000_000)
            chosen += [row["id"] for row in reversed(found)]
        if not chosen:
            raise Refused(f"no delivery to {exhausted} was given up")
        if len(chosen) > 1 and not yes:
            raise Refused(f"{len(chosen)} deliveries would be sent again; add --yes to do it")
        done = deliveries.redeliver(chosen, who=who(), now=time.time())
        reasons = _explain_left(deliveries, sorted(set(chosen) - set(done)))
    if not done:
        raise Refused(f"nothing was queued: {'; '.join(reasons)}")
    click.echo("; ".join([f"{len(done)} queued again", *reasons]))


def _explain_left(deliveries: Any, left: Sequence[int]) -> list[str]:
    """Return why these deliveries were not queued."""
    unknown = [str(number) for number in left if deliveries.show(number) is None]
    removed = [str(number) for number in left if str(number) not in unknown]
    return [
        *([f"there is no delivery {', '.join(unknown)}"] if unknown else []),
        *([f"the subscription of delivery {', '.join(removed)} was removed"] if removed else []),
    ]

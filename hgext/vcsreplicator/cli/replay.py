# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator replay`: sends notices of a repository to one destination again."""

import datetime
from typing import Any

import click

from ..config import Config
from .options import TEXT, complete_destination, complete_repository, with_config, with_wait
from .progress import Meter
from .requests import ask_destination, who


@click.command()
@click.option(
    "--repository",
    type=TEXT,
    required=True,
    metavar="PATH",
    help="Path or id of the repository.",
    shell_complete=complete_repository,
)
@click.option("--since", required=True, metavar="TIME|PUSHID", help="2026-07-29T22:11 (UTC), or the first push id.")
@click.option(
    "--to",
    "destination",
    required=True,
    metavar="DESTINATION",
    help="Destination that gets the messages again.",
    shell_complete=complete_destination,
)
@with_wait(default=60.0, help="How long to wait for the end of the replay.")
@with_config
def command(config: Config, repository: str, since: str, destination: str, wait: float) -> None:
    """Send the notices of a repository again, to one destination only.

    Messages keep their ids; their property `replay` names the operator and the time.
    """
    argument = {"repository": repository, **read_since(since)}
    with Meter("replaying") as meter:
        result = ask_destination(config, destination, "replay", argument, person=who(), wait=wait, show=meter.show)
    click.echo(f"{destination}: {result}")


def read_since(text: str) -> dict[str, Any]:
    """Read where a replay begins, a time or a push id; raise BadParameter if neither."""
    if text.isascii() and text.isdigit() and len(text) < 19:
        return {"since_push": int(text)}
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"expected a time such as 2026-07-29T22:11, or a push id, got {text[:60]!r}") from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=datetime.UTC)
    return {"since_time": time.timestamp()}

# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator replay`: send notices of a repository again, to one destination, marked as such."""

import datetime
from typing import Any

import click

from ..config import Config
from .options import SECONDS, with_config
from .requests import ask


@click.command()
@click.option("--repository", required=True, metavar="PATH", help="Its wire path, or its id.")
@click.option("--since", required=True, metavar="TIME|PUSHID", help="2026-07-29T22:11 (UTC), or the first push id.")
@click.option("--to", "destination", required=True, metavar="DESTINATION", help="The only one that gets them.")
@click.option("--wait", default=60.0, type=SECONDS, show_default=True, metavar="SECONDS", help="For the replay to end.")
@with_config
def command(config: Config, repository: str, since: str, destination: str, wait: float) -> None:
    """Send the notices of a repository again, to one destination.

    Others are not touched. Messages keep their ids and carry who asked, and when, in their property `replay`.
    """
    ask(config, destination, "replay", {"repository": repository, **_since(since)}, wait=wait)


def _since(text: str) -> dict[str, Any]:
    if text.isascii() and text.isdigit():
        return {"since_push": int(text)}
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"expected a time such as 2026-07-29T22:11, or a push id, got {text!r}") from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=datetime.UTC)
    return {"since_time": time.timestamp()}

# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator topics`: creates missing topics, and lists all."""

import json

import click

from ..config import Config
from ..log import Log, topics
from ..words.clock import DAY
from .display import console, table
from .options import Number, log_of, with_config, with_json


@click.group()
def command() -> None:
    """Create and list the topics of the log."""


@command.command()
@click.option(
    "--partitions",
    default=16,
    type=click.IntRange(1, 10_000),
    show_default=True,
    help="Partitions of `events`; can never be changed.",
)
@click.option(
    "--retention",
    default=30.0,
    type=Number(0.01, 36_500),
    show_default=True,
    help="Days to keep `events` and `notices`.",
)
@with_config
def create(config: Config, partitions: int, retention: float) -> None:
    """Create the missing topics; existing topics are not changed."""
    with log_of(config) as log:
        made = log.create(topics(partitions=partitions, retention=retention * DAY))
    click.echo("created " + ", ".join(made) if made else "all topics exist")


@command.command("list")
@with_json
@with_config
def list_(config: Config, as_json: bool) -> None:
    """List the topics with their partitions and records."""
    with log_of(config) as log:
        rows = [_row(log, topic.name) for topic in topics()]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    headings = ("topic", "partitions", "first", "end")
    console().print(table(headings, [[str(row[heading]) for heading in headings] for row in rows]))


def _row(log: Log, topic: str) -> dict[str, object]:
    beginnings, ends = log.beginnings(topic), log.ends(topic)
    return {"topic": topic, "partitions": len(ends), "first": sum(beginnings.values()), "end": sum(ends.values())}

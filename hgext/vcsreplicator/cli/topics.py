# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator topics`: creates missing topics, lists and compares them."""

import contextlib
import sys
from collections.abc import Iterator

import click

from ..config import Config
from ..log import EVENTS, SHORTEST, Log, Topic, TopicComparison, topics
from ..words.clock import DAY
from ..words.errors import TopicMissing, Unavailable
from ..words.shape import plain
from .display import print_listing
from .options import Number, log_of, with_config, with_json

# Partitions of `events`, unless the operator says otherwise.
PARTITIONS = 16
# Days for which topics that are not kept by key keep records, unless the operator says otherwise.
RETENTION = 30.0
_COUNT = click.IntRange(1, 10_000)

_with_retention = click.option(
    "--retention",
    default=RETENTION,
    type=Number(SHORTEST, 36_500),
    show_default=True,
    help="Days to keep records of the topics that are not kept by key: `events`, `notices`, `errors`, `roster-requests`.",
)


@click.group()
def command() -> None:
    """Create, list and check the topics of the log."""


@command.command()
@click.option(
    "--partitions",
    default=PARTITIONS,
    type=_COUNT,
    show_default=True,
    help="Partitions of `events`; can never be changed.",
)
@_with_retention
@with_config
def create(config: Config, partitions: int, retention: float) -> None:
    """Create the missing topics; existing topics are not changed."""
    with log_of(config, creates=True) as log:
        made = log.create(topics(partitions=partitions, retention=retention * DAY))
    click.echo("created " + ", ".join(made) if made else "all topics exist")


@command.command("list")
@with_json
@with_config
def list_(config: Config, as_json: bool) -> None:
    """List the topics with their partitions and records."""
    with log_of(config) as log:
        rows = [_make_row(log, topic.name) for topic in (*topics(), *_list_raw(config, log))]
    headings = ("topic", "partitions", "first", "end")
    print_listing(rows, "topics", headings, ([str(row[each]) for each in headings] for row in rows), as_json=as_json)


def _make_row(log: Log, topic: str) -> dict[str, object]:
    beginnings, ends = log.beginnings(topic), log.ends(topic)
    return {"topic": topic, "partitions": len(ends), "first": sum(beginnings.values()), "end": sum(ends.values())}


@command.command()
@click.option("--partitions", type=_COUNT, help="Partitions that `events` must have.  [default: those it has]")
@_with_retention
@with_json
@with_config
def check(config: Config, partitions: int | None, retention: float, as_json: bool) -> None:
    """Compare the topics with the needed ones; print remedies.

    Changes nothing. Exit code 0: all is as needed; 1: a difference costs space or time; 2: a topic is missing, or a difference
    puts records or promises at risk.
    """
    with log_of(config) as log:
        count = partitions or _count_partitions(log)
        found = log.compare((*topics(partitions=count, retention=retention * DAY), *_list_raw(config, log)))
    hidden = ", ".join(each.name for each in found if not each.is_shown)
    if hidden:
        raise Unavailable(
            f"topics {hidden}: hidden by ACLs; allow this user to read them and to describe their configs"
        )
    remedies = [remedy for each in found for remedy in each.remedies]
    if any(each.found is None for each in found):
        remedies.insert(0, f"vcsreplicator topics create --partitions {count} --retention {retention:g}")
    headings = ("topic", "partitions", "replicas", "kept", "differs")
    data = {"topics": [plain(each) for each in found], "remedies": remedies}
    print_listing(data, "topics", headings, map(_describe, found), as_json=as_json)
    if remedies and not as_json:
        click.echo("\n".join(("to fix it:", *remedies)))
    sys.exit(_find_exit_code(found))


def _list_raw(config: Config, log: Log) -> Iterator[Topic]:
    """Yield the topics of [edge] and [decode] that these services have made."""
    from notifier.messages.raw import raw_topic
    from notifier.services.decode.settings import DecodeSettings
    from notifier.services.edge.settings import EdgeSettings

    named: set[str] = set()
    if "edge" in config.tables:
        named.add(config.settings(EdgeSettings, "edge").topic)
    if "decode" in config.tables:
        named |= config.settings(DecodeSettings, "decode").topics
    for name in sorted(named):
        with contextlib.suppress(TopicMissing):
            log.partitions(name)
            yield raw_topic(name)


def _count_partitions(log: Log) -> int:
    try:
        return log.partitions(EVENTS)
    except TopicMissing:
        return PARTITIONS


def _describe(comparison: TopicComparison) -> tuple[str, ...]:
    found = comparison.found
    if found is None:
        return comparison.name, "", "", "", "missing"
    kept = "indefinitely" if found.retention is None else f"{found.retention / DAY:g} d"
    differences = ", ".join(
        f"{each.setting} is {each.found}, {'must' if each.is_must else 'should'} be {each.needed}"
        for each in comparison.differences
    )
    replicas = "" if comparison.replicas is None else str(comparison.replicas)
    return comparison.name, str(found.partitions), replicas, "by key" if found.compacted else kept, differences or "no"


def _find_exit_code(found: list[TopicComparison]) -> int:
    if any(each.found is None or any(difference.is_must for difference in each.differences) for each in found):
        return 2
    return 1 if any(each.differences for each in found) else 0

# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator errors`: records and messages that were rejected, and why.

It also submits rejected messages of the decoder again.
"""

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ..config import Config
from ..log import ERRORS, LARGEST, Log, Record
from ..log.table import read_records
from ..words.clock import SystemClock
from ..words.errors import BadConfig, MalformedEvent, Refused
from ..words.levels import ErrorRecord
from ..words.shape import from_json, plain
from .display import print_json, print_listing
from .options import naming, takes_json, with_config, with_last, with_yes
from .progress import metered_log
from .requests import when

if TYPE_CHECKING:
    from notifier.raw import RawMessage

# Messages that are written again together.
_TOGETHER = 500

# The beginning of a place that is a queue of the decoder's broker.
_QUEUE = "queue:"

_with_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs, with the bytes in base64.")


class _ListByDefault(click.Group):
    """A group whose first verb may be left out."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ListByDefault)
def command() -> None:
    """List, show and retry rejects: what cannot be applied, decoded or delivered."""


@command.command("list")
@with_last(default=20)
@_with_json
@with_config
def list_(config: Config, last: int, as_json: bool) -> None:
    """List the newest rejects (the default verb)."""
    with metered_log(config) as log:
        records = _read_newest(log, last)
    if not records and not as_json:
        click.echo("no errors")
        return
    rows = [
        (
            str(number),
            when(record.time),
            record.destination or record.service,
            f"{record.topic}/{record.partition}@{record.offset}",
            record.reason,
        )
        for number, record in records
    ]
    headings = ("number", "when", "service", "from", "reason")
    print_listing([plain(record) for _, record in records], headings, rows, as_json=as_json)


@command.command()
@click.argument("number", type=click.IntRange(0))
@takes_json
@with_config
def show(config: Config, number: int) -> None:
    """Print the reject NUMBER of the list as JSON, with all that was kept."""
    with metered_log(config) as log:
        [record] = _chosen(log, [number])
    print_json(plain(_read_error(record, record.value or b"")))


@command.command()
@click.argument("numbers", nargs=-1, type=click.IntRange(0))
@click.option("--type", "kind", metavar="TYPE", help="All submitted messages with this error_type, such as schema.")
@with_yes
@with_config
def retry(config: Config, numbers: tuple[int, ...], kind: str | None, yes: bool) -> None:
    """Submit rejected messages of the decoder again, by NUMBERS or by type.

    They return to the topic or queue they came from. First remove the cause, such as a missing schema."""
    from notifier.raw import to_record

    if bool(numbers) == (kind is not None):
        raise click.UsageError("expected NUMBERS or --type")
    with metered_log(config) as log:
        found = _to_submit(log, numbers, kind)
        if not found:
            raise Refused(f"no reject has the error_type {kind!r}; vcsreplicator errors list --json shows them")
        queued = [
            (record.offset, place[len(_QUEUE) :], raw) for record, place, raw in found if place.startswith(_QUEUE)
        ]
        records = [to_record(raw, place) for _, place, raw in found if not place.startswith(_QUEUE)]
        if queued:
            _publish(config, queued, yes=yes)
        if yes:
            for begin in range(0, len(records), _TOGETHER):
                log.append(records[begin : begin + _TOGETHER])
    click.echo(f"{'submitted' if yes else 'would submit'} {len(found)} again{'' if yes else ' (--yes does it)'}")


def _to_submit(log: Log, numbers: Sequence[int], kind: str | None) -> list[tuple[Record, str, "RawMessage"]]:
    """Return the chosen rejects, each with its place and message; raises Refused."""
    from notifier.decode.rejects import raw_of

    found = []
    every = read_records(log, {(ERRORS, 0): log.beginnings(ERRORS)[0]})
    for record in _chosen(log, numbers) if numbers else every:
        error = _read_error(record, record.value or b"")
        if kind is not None and (error.attributes or {}).get("error_type") != kind:
            continue
        raw = raw_of(error)
        if raw is None:
            raise Refused(f"error {record.offset} cannot be submitted again: {_obstacle(error)}")
        found.append((record, error.topic, raw))
    return found


def _publish(config: Config, messages: Sequence[tuple[int, str, "RawMessage"]], *, yes: bool) -> None:
    """Publish messages, each with its number and queue, to the decoder's broker.

    Without `yes` only check that a broker is configured. Raises BadConfig or Unavailable."""
    from notifier.decode.settings import DecodeSettings

    settings = config.settings(DecodeSettings, "decode")
    if settings.broker is None:
        number, queue, _ = messages[0]
        raise BadConfig(
            f"{config.file}: decode.broker: expected amqp://USER@HOST/VHOST, because error {number} came from queue:{queue}"
        )
    if not yes:
        return
    from notifier.decode.queues import publish_raw  # its client takes a tenth of a second to load

    from ..service import configure_logging

    configure_logging("errors")
    with naming(config):
        publish_raw(settings, [(queue, raw) for _, queue, raw in messages], SystemClock())


def _obstacle(error: ErrorRecord) -> str:
    if error.service != "decode":
        return f"it is the reject of {error.destination or error.service}, not of the decoder"
    return "its message was not kept"


def _read_newest(log: Log, count: int) -> list[tuple[int, ErrorRecord]]:
    [end], [beginning] = log.ends(ERRORS).values(), log.beginnings(ERRORS).values()
    records = read_records(log, {(ERRORS, 0): max(beginning, end - count)})
    return [(record.offset, _read_error(record, record.value)) for record in records if record.value]


def _chosen(log: Log, numbers: Sequence[int]) -> list[Record]:
    """Return the records with these offsets; raises Refused if one is missing."""
    beginning, end = log.beginnings(ERRORS)[0], log.ends(ERRORS)[0]
    found = []
    for number in numbers:
        first = None
        if beginning <= number < end:
            first = next(iter(read_records(log, {(ERRORS, 0): number})), None)
        if first is None or first.offset != number:
            raise Refused(f"there is no error {number}; vcsreplicator errors list shows their numbers")
        found.append(first)
    return found


def _read_error(record: Record, value: bytes) -> ErrorRecord:
    """Read the record; one of another release is shown with its bytes."""
    try:
        return from_json(ErrorRecord, value, limit=LARGEST)
    except MalformedEvent as error:
        return ErrorRecord(
            time=record.time,
            service="unknown",
            reason=f"a record that this release does not understand: {error}",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            key=record.key,
            value=base64.b64encode(value).decode("ascii"),
        )

# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator errors`: records and messages that were rejected, and why."""

import base64
import json

import click

from ..config import Config
from ..log import ERRORS, Log, Record
from ..log.table import read_records
from ..words.errors import MalformedEvent
from ..words.levels import ErrorRecord
from ..words.shape import from_json, plain
from .display import console, table
from .options import log_of, with_config, with_last
from .requests import when


@click.command()
@with_last(default=20)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs, with the bytes in base64.")
@with_config
def command(config: Config, last: int, as_json: bool) -> None:
    """Show rejects: records and messages that cannot be applied or delivered."""
    with log_of(config) as log:
        records = _newest(log, last)
    if as_json:
        click.echo(json.dumps([plain(record) for record in records], indent=2))
        return
    if not records:
        click.echo("no errors")
        return
    rows = [
        (
            when(record.time),
            record.destination or record.service,
            f"{record.topic}/{record.partition}@{record.offset}",
            record.reason,
        )
        for record in records
    ]
    console().print(table(("when", "service", "from", "reason"), rows))


def _newest(log: Log, count: int) -> list[ErrorRecord]:
    [end], [beginning] = log.ends(ERRORS).values(), log.beginnings(ERRORS).values()
    records = read_records(log, {(ERRORS, 0): max(beginning, end - count)})
    return [_read_error(record, record.value) for record in records if record.value]


def _read_error(record: Record, value: bytes) -> ErrorRecord:
    """Read the record; one of another release is shown with its bytes."""
    try:
        return from_json(ErrorRecord, value)
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

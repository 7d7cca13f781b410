# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator errors`: what could never work, and why."""

import datetime
import json

import click
from rich.console import Console
from rich.table import Table

from ..config import Config
from ..levels import ErrorRecord
from ..log import ERRORS, Log
from ..shape import from_json, plain
from .options import log_of, with_config


@click.command()
@click.option("--last", default=20, show_default=True, help="How many.")
@click.option("--json", "as_json", is_flag=True, help="For programs, with the bytes in base64.")
@with_config
def command(config: Config, last: int, as_json: bool) -> None:
    """Show the newest rejects: records and messages that were set aside."""
    with log_of(config) as log:
        records = _newest(log, last)
    if as_json:
        click.echo(json.dumps([plain(record) for record in records], indent=2))
        return
    if not records:
        click.echo("no errors")
        return
    table = Table("when", "service", "from", "reason", box=None)
    for record in records:
        when = datetime.datetime.fromtimestamp(record.time, datetime.UTC)
        place = f"{record.topic}/{record.partition}@{record.offset}"
        table.add_row(f"{when:%Y-%m-%d %H:%M:%S}", record.destination or record.service, place, record.reason)
    Console().print(table)


def _newest(log: Log, count: int) -> list[ErrorRecord]:
    [end], [beginning] = log.ends(ERRORS).values(), log.beginnings(ERRORS).values()
    reader = log.reader({(ERRORS, 0): max(beginning, end - count)})
    records: list[ErrorRecord] = []
    try:
        while reader.positions()[ERRORS, 0] < end:
            records += [from_json(ErrorRecord, record.value) for record in reader.poll(1.0) if record.value]
    finally:
        reader.close()
    return records

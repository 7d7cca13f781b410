# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator errors`: shows rejects, and submits those of the decoder again."""

import base64
import hashlib
import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from ..config import Config
from ..log import ERRORS, LARGEST, Log, NewRecord, Record
from ..log.table import read_records
from ..words.clock import SystemClock
from ..words.errors import BadConfig, MalformedEvent, Refused
from ..words.records import SUBMITTED_KEY, ErrorRecord, Submitted
from ..words.shape import from_json, plain, to_json
from .display import print_json, print_listing
from .options import naming, takes_json, with_config, with_last, with_yes
from .progress import metered_log
from .requests import when

if TYPE_CHECKING:
    from notifier.messages.raw import RawMessage
    from notifier.services.decode.settings import DecodeSettings

# Most messages in one append.
_BATCH_MESSAGES = 500
# Bytes after which an append takes no more.
_BATCH_BYTES = 4 * 1024 * 1024

# The search for the newest rejects, if it did not find enough, begins again this many times farther from the end.
_FARTHER = 4

# Most numbers in one note of submitted rejects.
_NOTED_TOGETHER = 10_000

# The beginning of a place that is a queue of the decoder's broker.
_QUEUE = "queue:"

_with_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs, with the bytes in base64.")


class _ListByDefault(click.Group):
    """A group whose first verb may be left out."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
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
    headings = ("number", "when (UTC)", "service", "from", "reason")
    print_listing([plain(record) for _, record in records], headings, rows, as_json=as_json)


@command.command()
@click.argument("number", type=click.IntRange(0))
@takes_json
@with_config
def show(config: Config, number: int) -> None:
    """Print the reject NUMBER of the list as JSON, whole."""
    with metered_log(config) as log:
        [record] = _read_chosen(log, [number])
    print_json(plain(_read_error(record, record.value or b"")))


@command.command()
@click.argument("numbers", nargs=-1, type=click.IntRange(0))
@click.option("--type", "kind", metavar="TYPE", help="All submitted messages with this error_type, such as schema.")
@with_yes
@with_config
def retry(config: Config, numbers: tuple[int, ...], kind: str | None, yes: bool) -> None:
    """Submit rejects of the decoder again, by NUMBERS or by type.

    They return to the topic or queue they came from. First remove the cause, such as a missing schema. By type, each
    reject is submitted only once; a message that fails again has a new reject, which counts as another one."""
    if bool(numbers) == (kind is not None):
        raise click.UsageError("expected NUMBERS or --type")
    with metered_log(config) as log:
        found, lost = _to_submit(log, numbers, kind)
        settings = _broker_settings(config, found)
        if yes:
            for batch in _read_batches(log, numbers, found):
                _submit(config, settings, log, batch)
    summary = f"{'submitted' if yes else 'would submit'} {len(found)} again{'' if yes else ' (--yes does it)'}"
    click.echo(f"{summary}; of {lost} others the message was not kept" if lost else summary)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """A message to submit again: its rejects' `numbers`, and where it came from."""

    numbers: list[int]
    place: str


def _to_submit(log: Log, numbers: Sequence[int], kind: str | None) -> tuple[list[_Choice], int]:
    """Return the messages of the chosen rejects, each once; raises Refused.

    By type, these are the rejects that were not submitted again yet, and those without a message are only counted."""
    from notifier.services.decode.rejects import raw_of

    found, submitted, lost = dict[bytes, _Choice](), set[int](), 0
    for record in _read_rejects(log, numbers):
        if (before := _read_submitted(record)) is not None:
            submitted.update(before.numbers)
            continue
        error = _read_error(record, record.value or b"")
        if kind is not None and (error.attributes or {}).get("error_type") != kind:
            continue
        raw = raw_of(error)
        if raw is None and kind is not None:
            lost += 1
            continue
        if raw is None:
            raise Refused(f"error {record.offset} cannot be submitted again: {_find_obstacle(error)}")
        choice = found.setdefault(_identify(error.topic, raw), _Choice(numbers=[], place=error.topic))
        choice.numbers.append(record.offset)
    if not found and not lost:
        raise Refused(f"no reject has the error_type {kind!r}; vcsreplicator errors list --json shows them")
    fresh = [
        replace(each, numbers=[number for number in each.numbers if number not in submitted]) for each in found.values()
    ]
    return [each for each in fresh if each.numbers], lost


def _read_rejects(log: Log, numbers: Sequence[int]) -> Iterator[Record]:
    return _read_chosen(log, numbers) if numbers else read_records(log, {(ERRORS, 0): log.beginnings(ERRORS)[0]})


def _identify(place: str, raw: "RawMessage") -> bytes:
    """Return a key that is the same for all rejects of one message."""
    names = (place, raw.attributes.get("uri", ""), raw.attributes.get("submission_timestamp", ""))
    return hashlib.sha256(json.dumps(names).encode() + raw.payload).digest()


def _read_batches(
    log: Log, numbers: Sequence[int], found: Sequence[_Choice]
) -> Iterator[list[tuple[_Choice, "RawMessage"]]]:
    """Yield the messages with their choices, as many at a time as a log takes."""
    from notifier.services.decode.rejects import raw_of

    wanted = {choice.numbers[-1]: choice for choice in found}
    batch, size = list[tuple[_Choice, "RawMessage"]](), 0
    for record in _read_rejects(log, numbers):
        choice = wanted.pop(record.offset, None)
        raw = None if choice is None else raw_of(_read_error(record, record.value or b""))
        if choice is None or raw is None:
            continue
        batch.append((choice, raw))
        size += len(record.value or b"")
        if len(batch) == _BATCH_MESSAGES or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _submit(
    config: Config, settings: "DecodeSettings | None", log: Log, batch: Sequence[tuple[_Choice, "RawMessage"]]
) -> None:
    """Submit messages, and only then write which rejects need no other attempt.

    Raises BadConfig or Unavailable; then some may be submitted, and all will be again."""
    from notifier.messages.raw import to_record

    queued = [(choice.place[len(_QUEUE) :], raw) for choice, raw in batch if choice.place.startswith(_QUEUE)]
    records = [
        to_record(raw, choice.place, log.partitions(choice.place))
        for choice, raw in batch
        if not choice.place.startswith(_QUEUE)
    ]
    if queued and settings is not None:
        from notifier.services.decode.queues import publish_raw  # its client takes a tenth of a second to load

        from ..service import configure_logging

        configure_logging("errors")
        with naming(config):
            publish_raw(settings, queued, SystemClock())
    if records:
        log.append(records)
    numbers = [number for choice, _ in batch for number in choice.numbers]
    notes = [
        Submitted(time=SystemClock().now(), numbers=tuple(numbers[begin : begin + _NOTED_TOGETHER]))
        for begin in range(0, len(numbers), _NOTED_TOGETHER)
    ]
    log.append([NewRecord(topic=ERRORS, key=SUBMITTED_KEY, value=to_json(note)) for note in notes])


def _broker_settings(config: Config, found: Sequence[_Choice]) -> "DecodeSettings | None":
    """Return the decoder's settings if a message came from a queue.

    Raises BadConfig if they name no broker then."""
    from notifier.services.decode.settings import DecodeSettings

    queued = next((choice for choice in found if choice.place.startswith(_QUEUE)), None)
    if queued is None:
        return None
    settings = config.settings(DecodeSettings, "decode")
    if settings.broker is None:
        origin = f"error {queued.numbers[0]} came from {queued.place}"
        raise BadConfig(f"{config.file}: decode.broker: expected amqp://USER@HOST/VHOST, because {origin}")
    return settings


def _find_obstacle(error: ErrorRecord) -> str:
    from notifier.services.decode.rejects import names_input

    if error.service != "decode":
        return f"it is the reject of {error.destination or error.service}, not of the decoder"
    if not names_input(error):
        return f"it names {error.topic}, where no message of the decoder comes from"
    return "its message was not kept"


def _read_newest(log: Log, count: int) -> list[tuple[int, ErrorRecord]]:
    [end], [beginning] = log.ends(ERRORS).values(), log.beginnings(ERRORS).values()
    begin = end
    while True:
        begin = max(beginning, end - max(count, _FARTHER * (end - begin)))  # not every offset is a reject's
        newest = deque[Record](maxlen=count)
        for record in read_records(log, {(ERRORS, 0): begin}):
            if record.value and _read_submitted(record) is None:
                newest.append(record)
        if len(newest) == count or begin == beginning:
            return [(record.offset, _read_error(record, record.value or b"")) for record in newest]


def _read_chosen(log: Log, numbers: Sequence[int]) -> Iterator[Record]:
    """Yield the rejects with these offsets; raises Refused if one is missing."""
    beginning, end = log.beginnings(ERRORS)[0], log.ends(ERRORS)[0]
    for number in numbers:
        first = None
        if beginning <= number < end:
            first = next(iter(read_records(log, {(ERRORS, 0): number})), None)
        if first is None or first.offset != number or _read_submitted(first) is not None:
            raise Refused(f"there is no error {number}; vcsreplicator errors list shows their numbers")
        yield first


def _read_submitted(record: Record) -> Submitted | None:
    """Read a note of rejects that were submitted again; None for a reject."""
    if record.key != SUBMITTED_KEY:
        return None
    try:
        return from_json(Submitted, record.value or b"", limit=LARGEST)
    except MalformedEvent:
        return None


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

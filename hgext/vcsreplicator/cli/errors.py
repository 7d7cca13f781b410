# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator errors`: shows rejects, and submits those of the decoder again."""

import base64
import hashlib
import json
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from ..config import Config
from ..log import ERRORS, LARGEST, Log, NewRecord, Record
from ..log.table import read_records
from ..words.clock import SystemClock
from ..words.errors import MalformedEvent, Refused
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
    print_listing([plain(record) for _, record in records], "errors", headings, rows, as_json=as_json)


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

    They go to the input of the decoder. First remove the cause, such as a missing schema. By type, each reject is
    submitted only once; a message that fails again has a new reject, which counts as another one."""
    if bool(numbers) == (kind is not None):
        raise click.UsageError("expected NUMBERS or --type")
    from notifier.messages.raw import NOTIFIER_TYPES
    from notifier.services.decode.settings import DecodeSettings
    from notifier.services.edge.settings import EdgeSettings

    settings = config.settings(DecodeSettings, "decode")
    reserved = config.settings(EdgeSettings, "edge").reserved if "edge" in config.tables else NOTIFIER_TYPES
    with metered_log(config) as log:
        found, refused = _to_submit(log, numbers, kind, settings, reserved)
        if yes:
            for batch in _read_batches(log, numbers, found):
                _submit(config, settings, log, batch)
    summary = f"{'submitted' if yes else 'would submit'} {len(found)} again{'' if yes else ' (--yes does it)'}"
    if refused:
        summary += f"; cannot submit {len(refused)}: errors retry {refused[-1]} says why"
    click.echo(summary)


def _to_submit(
    log: Log, numbers: Sequence[int], kind: str | None, settings: "DecodeSettings", reserved: Collection[str]
) -> tuple[list[list[int]], list[int]]:
    """Return the messages of the chosen rejects, each once with its numbers; raises Refused.

    By type, these are the rejects that were not submitted again yet, and a list of those that may not be."""
    from notifier.services.decode.rejects import find_obstacle, raw_of

    found, submitted, refused = dict[bytes, list[int]](), set[int](), list[int]()
    for record in _read_rejects(log, numbers):
        if (before := _read_submitted(record)) is not None:
            submitted.update(before.numbers)
            continue
        error = _read_error(record, record.value or b"")
        if kind is not None and (error.attributes or {}).get("error_type") != kind:
            continue
        obstacle, raw = find_obstacle(error, settings, reserved), raw_of(error)
        if obstacle is None and raw is not None:
            found.setdefault(_identify(raw), []).append(record.offset)
        elif kind is not None:
            refused.append(record.offset)
        else:
            raise Refused(f"error {record.offset} cannot be submitted again: {obstacle}")
    if not found and not refused:
        raise Refused(f"no reject has the error_type {kind!r}; vcsreplicator errors list --json shows them")
    fresh = ([number for number in each if number not in submitted] for each in found.values())
    return [each for each in fresh if each], refused


def _read_rejects(log: Log, numbers: Sequence[int]) -> Iterator[Record]:
    return _read_chosen(log, numbers) if numbers else read_records(log, {(ERRORS, 0): log.beginnings(ERRORS)[0]})


def _identify(raw: "RawMessage") -> bytes:
    """Return a key that is the same for all rejects of one message."""
    names = (raw.attributes.get("uri", ""), raw.attributes.get("submission_timestamp", ""))
    return hashlib.sha256(json.dumps(names).encode() + raw.payload).digest()


def _read_batches(
    log: Log, numbers: Sequence[int], found: Sequence[list[int]]
) -> Iterator[list[tuple[list[int], "RawMessage"]]]:
    """Yield the messages with their numbers, as many at a time as a log takes."""
    from notifier.services.decode.rejects import raw_of

    wanted = {each[-1]: each for each in found}
    batch, size = list[tuple[list[int], "RawMessage"]](), 0
    for record in _read_rejects(log, numbers):
        chosen = wanted.pop(record.offset, None)
        raw = None if chosen is None else raw_of(_read_error(record, record.value or b""))
        if chosen is None or raw is None:
            continue
        batch.append((chosen, raw))
        size += len(record.value or b"")
        if len(batch) == _BATCH_MESSAGES or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _submit(
    config: Config, settings: "DecodeSettings", log: Log, batch: Sequence[tuple[list[int], "RawMessage"]]
) -> None:
    """Submit messages, and only then write which rejects need no other attempt.

    Raises BadConfig or Unavailable; then some may be submitted, and all will be again."""
    from notifier.messages.raw import to_record, topic_of

    if topic := topic_of(settings.input):
        partitions = log.partitions(topic)
        log.append([to_record(raw, topic, partitions) for _, raw in batch])
    else:
        from notifier.services.decode.queues import publish_raw  # its client takes a tenth of a second to load

        from ..service import configure_logging

        configure_logging("errors")
        with naming(config):
            publish_raw(settings, [(settings.input.removeprefix("queue:"), raw) for _, raw in batch], SystemClock())
    numbers = [number for each, _ in batch for number in each]
    notes = [
        Submitted(time=SystemClock().now(), numbers=tuple(numbers[begin : begin + _NOTED_TOGETHER]))
        for begin in range(0, len(numbers), _NOTED_TOGETHER)
    ]
    log.append([NewRecord(topic=ERRORS, key=SUBMITTED_KEY, value=to_json(note)) for note in notes])


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

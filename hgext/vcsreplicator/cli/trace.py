# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator trace`: follows one push from the commit to its notice."""

import datetime
import time
from collections.abc import Iterator

import click

from ..config import Config
from ..log import EVENTS, NOTICES, Log, Record, partition_of
from ..log.table import read_records
from ..status import DESTINATION, Picture
from ..words import wire
from ..words.errors import Refused, Rejected, visible
from ..words.event import Event
from ..words.levels import Notice, RepositoryState
from ..words.shape import from_json
from .display import console, table
from .options import log_of, with_config
from .repositories import find_repository, read_picture


@click.command()
@click.argument("repository")
@click.option("--push", type=int, metavar="ID", help="Follow the push with this id.")
@click.option("--event", "seq", type=int, metavar="N", help="Follow the event with this number.  [default: the newest]")
@with_config
def command(config: Config, repository: str, push: int | None, seq: int | None) -> None:
    """Follow one push of REPOSITORY (path or id) through every stage.

    Prints what has happened, when, and what is missing."""
    with log_of(config) as log:
        picture = read_picture(log)
        state = find_repository(picture, repository)
        event, record = _find_event(log, state, push, seq)
        notice = _find_notice(log, state, event)
    _show(picture, state, event, record, notice)


def _find_event(log: Log, state: RepositoryState, push: int | None, seq: int | None) -> tuple[Event, Record]:
    """Read the wanted event where it first appears; raises Refused if it is missing."""
    found: tuple[Event, Record] | None = None
    partition = partition_of(state.repository, log.partitions(EVENTS))
    for record in _read_key(log, EVENTS, partition, state.repository):
        try:
            event = wire.decode(record.value or b"").event
        except Rejected:
            continue
        entry = event.changes.push
        wanted = (push is None or (entry is not None and entry.id == push)) and (seq is None or event.seq == seq)
        # A repeat of the same event does not count; an event of a newer history does.
        if wanted and (found is None or found[0].id != event.id):
            found = (event, record)
    if found is None:
        number = "" if seq is None else f" {seq}"
        what = f"event{number}" if push is None else f"push {push}"
        raise Refused(f"{state.path}: no {what} in the log; it may be older than the retention of the log")
    return found


def _find_notice(log: Log, state: RepositoryState, event: Event) -> tuple[Notice, Record] | None:
    if event.incarnation == state.incarnation and state.noticed < event.seq:
        return None
    for record in _read_key(log, NOTICES, 0, state.repository):
        notice = from_json(Notice, record.value or b"")
        if notice.event.id == event.id and notice.replay is None:
            return notice, record
    return None


def _read_key(log: Log, topic: str, partition: int, key: str) -> Iterator[Record]:
    """Yield each record of this key that has a value, up to the present end."""
    records = read_records(log, {(topic, partition): log.beginnings(topic)[partition]})
    return (record for record in records if record.key == key and record.value)


def _steps(
    picture: Picture, state: RepositoryState, event: Event, record: Record, notice: tuple[Notice, Record] | None
) -> Iterator[tuple[float | None, str]]:
    """Yield the steps of the event with their times, None where it is not known."""
    yield event.time, "committed on the master"
    yield record.time, f"in the log: {EVENTS}, partition {record.partition}, offset {record.offset}"
    proofs = {proof.mirror: proof for proof in notice[0].acks} if notice else {}
    for proof in proofs.values():
        yield proof.applied_at, f"applied on {proof.mirror}"
        yield proof.served_at, f"served by {proof.mirror}"
    for (mirror, repository), ack in sorted(picture.acks.items()):
        if repository == state.repository and mirror not in proofs:
            detached = f", detached: {ack.detached} {ack.note or ''}" if ack.detached else ""
            done = "applied" if ack.applied >= event.seq else "not applied"
            yield None, f"{mirror}: {done} (applied {ack.applied}, serving {ack.serving}{detached})"
    if notice:
        yield notice[1].time, f"notice written: offset {notice[1].offset}, roster version {notice[0].roster}"
    else:
        late = time.time() - event.time
        yield None, f"no notice yet, {late:.0f} s after the commit (released {state.released}, noticed {state.noticed})"


def _show(
    picture: Picture, state: RepositoryState, event: Event, record: Record, notice: tuple[Notice, Record] | None
) -> None:
    push = event.changes.push
    by = f", push {push.id} by {push.user}" if push else ""
    click.echo(visible(f"{event.path}  event {event.seq} ({event.type}), id {event.id}{by}"))
    # A step without a time is missing: it comes last.
    steps = sorted(_steps(picture, state, event, record, notice), key=lambda step: (step[0] is None, step[0] or 0.0))
    rows = [
        (_format_instant(at), "" if at is None else f"{1000 * (at - event.time):.0f} ms", what) for at, what in steps
    ]
    console().print(table(("when (UTC)", "after", "what"), rows))
    if notice:
        for group, lag in sorted(picture.groups.items()):
            done = "delivered" if picture.ends[NOTICES] - lag > notice[1].offset else "not yet delivered"
            click.echo(f"{group.removeprefix(DESTINATION)}: {done}")


def _format_instant(at: float | None) -> str:
    return "" if at is None else f"{datetime.datetime.fromtimestamp(at, datetime.UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]

# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator trace`: one push, from the commit to its notice."""

import datetime
import time
from collections.abc import Iterator

import click

from ..config import Config
from ..log import EVENTS, NOTICES, Log, Record, partition_of
from ..log.table import read_records
from ..status import Follower, Picture
from ..words import wire
from ..words.errors import Refused, Rejected
from ..words.event import Event
from ..words.levels import Notice, RepositoryState
from ..words.shape import from_json
from .display import console, table, visible
from .options import log_of, with_config


@click.command()
@click.argument("repository")
@click.option("--push", type=int, metavar="ID", help="The push with this id.")
@click.option("--event", "seq", type=int, metavar="N", help="The event with this number (default: the newest).")
@with_config
def command(config: Config, repository: str, push: int | None, seq: int | None) -> None:
    """Follow one push of REPOSITORY (its path) through every stage: what has happened, when, and what is missing."""
    with log_of(config) as log:
        follower = Follower(log)
        try:
            picture = follower.update()
        finally:
            follower.close()
        state = _state(picture, repository)
        event, record = _event(log, state, push, seq)
        notice = _notice(log, state, event)
    _show(picture, state, event, record, notice)


def _state(picture: Picture, path: str) -> RepositoryState:
    known = [state for state in picture.states.values() if state.path == path]
    if not known:
        raise Refused(f"no repository {path!r} in the log; expected a path as `vcsreplicator status --json` lists them")
    return max(known, key=lambda state: state.generation)


def _event(log: Log, state: RepositoryState, push: int | None, seq: int | None) -> tuple[Event, Record]:
    found: tuple[Event, Record] | None = None
    partition = partition_of(state.repository, log.partitions(EVENTS))
    for record in _records(log, EVENTS, partition, state.repository):
        try:
            event = wire.decode(record.value or b"").event
        except Rejected:
            continue
        entry = event.changes.push
        wanted = (push is None or (entry is not None and entry.id == push)) and (seq is None or event.seq == seq)
        if wanted and (found is None or found[0].id != event.id):  # the newest history's, where it stands first
            found = (event, record)
    if found is None:
        what = f"push {push}" if push is not None else f"event {seq}" if seq is not None else "event"
        raise Refused(f"{state.path}: no {what} in the log; it may be older than the log's retention")
    return found


def _notice(log: Log, state: RepositoryState, event: Event) -> tuple[Notice, Record] | None:
    if event.incarnation == state.incarnation and state.noticed < event.seq:
        return None
    for record in _records(log, NOTICES, 0, state.repository):
        notice = from_json(Notice, record.value or b"")
        if notice.event.id == event.id and notice.replay is None:
            return notice, record
    return None


def _records(log: Log, topic: str, partition: int, key: str) -> Iterator[Record]:
    """Yield every record of this key that has a value, oldest first, up to the end as of now."""
    records = read_records(log, {(topic, partition): log.beginnings(topic)[partition]})
    return (record for record in records if record.key == key and record.value)


def _show(
    picture: Picture, state: RepositoryState, event: Event, record: Record, notice: tuple[Notice, Record] | None
) -> None:
    lines: list[tuple[float | None, str]] = []

    def line(at: float | None, what: str) -> None:
        lines.append((at, what))

    push = event.changes.push
    by = f", push {push.id} by {push.user}" if push else ""
    click.echo(visible(f"{event.path}  event {event.seq} ({event.type}), id {event.id}{by}"))
    line(event.time, "committed on the master")
    line(record.time, f"in the log: {EVENTS}, partition {record.partition}, offset {record.offset}")
    proofs = {proof.mirror: proof for proof in notice[0].acks} if notice else {}
    for proof in proofs.values():
        line(proof.applied_at, f"applied on {proof.mirror}")
        line(proof.served_at, f"served by {proof.mirror}")
    for (mirror, repository), ack in sorted(picture.acks.items()):
        if repository == state.repository and mirror not in proofs:
            detached = f", detached: {ack.detached} {ack.note or ''}" if ack.detached else ""
            level = "applied" if ack.applied >= event.seq else "not applied"
            line(None, f"{mirror}: {level} (applied {ack.applied}, serving {ack.serving}{detached})")
    if notice:
        line(notice[1].time, f"notice written: offset {notice[1].offset}, roster version {notice[0].roster}")
    else:
        late = time.time() - event.time
        line(None, f"no notice yet, {late:.0f} s after the commit (released {state.released}, noticed {state.noticed})")
    # What has no time is what is missing: it comes last.
    in_order = sorted(lines, key=lambda item: (item[0] is None, item[0] or 0.0))
    rows = [(_instant(at), "" if at is None else f"{1000 * (at - event.time):.0f} ms", what) for at, what in in_order]
    console().print(table(("when (UTC)", "after", "what"), rows))
    for group, lag in sorted(picture.groups.items()):
        if notice:
            done = "delivered" if picture.ends[NOTICES] - lag > notice[1].offset else "not yet delivered"
            click.echo(f"{group.removeprefix('notifier-')}: {done}")


def _instant(at: float | None) -> str:
    return "" if at is None else f"{datetime.datetime.fromtimestamp(at, datetime.UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]

# SPDX-License-Identifier: GPL-2.0-or-later
"""The history of one event: its stages from the commit to the notice."""

import enum
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from ..log import EVENTS, NOTICES, Log, Record, partition_of
from ..log.table import read_records
from ..words import wire
from ..words.clock import format_delay, format_duration
from ..words.errors import Rejected
from ..words.event import Event
from ..words.records import AGGREGATOR, Ack, Notice, RepositoryState, measure_lag
from ..words.roster import MirrorState
from ..words.shape import from_json
from . import Picture
from .mirrors import describe_detached

# Seconds without a heartbeat after which a step says so; one comes every five seconds.
QUIET = 30.0


class Stage(enum.StrEnum):
    """How far an event is; each stage follows the one before."""

    COMMITTED = "committed"
    LOGGED = "in the log"
    APPLIED = "applied"
    RELEASED = "released"
    SERVED = "served"
    ANNOUNCED = "announced"
    PASSED = "passed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineStep:
    """A stage that an event has reached, or that it waits for, in one line.

    `is_done` is false for a stage that the event waits for. `at` is in seconds since the epoch, None where it is not known.
    `mirror` names the mirror of a stage that each mirror has.
    """

    stage: Stage
    text: str
    at: float | None = None
    mirror: str | None = None
    is_done: bool = True


# A notice and its record.
NoticeRecord = tuple[Notice, Record]


def list_steps(
    picture: Picture,
    state: RepositoryState,
    event: Event,
    record: Record,
    notice: NoticeRecord | None,
    now: float,
    *,
    released: float | None = None,
) -> list[TimelineStep]:
    """List the steps of the event in the order of time, those without a time last.

    `released` is the time of its release, None where that is not known. One after the notice is that of a later record.
    """
    if notice and released is not None and released > notice[1].time:
        released = None
    steps = [
        TimelineStep(stage=Stage.COMMITTED, text="committed on the master", at=event.time),
        TimelineStep(
            stage=Stage.LOGGED,
            text=f"in the log: {EVENTS}, partition {record.partition}, offset {record.offset}",
            at=record.time,
        ),
        *_list_mirror_steps(picture, state, event, notice, now),
        *_find_release(state, event, notice, released),
        _find_last_step(picture, state, event, notice, now),
    ]
    return sorted(steps, key=lambda step: (step.at is None, step.at or 0.0))


def _list_mirror_steps(
    picture: Picture, state: RepositoryState, event: Event, notice: NoticeRecord | None, now: float
) -> Iterator[TimelineStep]:
    """Yield the steps of the event on each mirror.

    For a gating mirror they come from the notice's proof, for any other from its present level. One that the notice waits for has
    a step although it has reported no level; a removed one has none, though it may have reported one before it was stopped.
    """
    proofs = {proof.mirror: proof for proof in notice[0].acks} if notice else {}
    for name, proof in proofs.items():
        yield TimelineStep(
            stage=Stage.APPLIED, text=f"applied on {name}", at=_find_time(event, proof.applied_at), mirror=name
        )
        yield TimelineStep(
            stage=Stage.SERVED, text=f"served by {name}", at=_find_time(event, proof.served_at), mirror=name
        )
    for ack in picture.levels(state.repository):
        known = picture.roster.mirror(ack.mirror)
        if ack.mirror not in proofs and not (known and known.state is MirrorState.REMOVED):
            yield _describe_level(picture, ack, event, now)
    reported = {ack.mirror for ack in picture.levels(state.repository)}
    for name in picture.gating(state) if notice is None else ():
        if name not in reported:
            text = f"{name}: not applied (it has reported nothing of this repository)"
            yield TimelineStep(stage=Stage.APPLIED, text=text, mirror=name, is_done=False)


def _find_time(event: Event, at: float) -> float | None:
    """Return when a mirror did something with the event, None for before its commit.

    Mirrors of older releases kept the time of a former level, and the clock of a mirror may be wrong.
    """
    return at if at >= event.time else None


def _find_release(
    state: RepositoryState, event: Event, notice: NoticeRecord | None, released: float | None
) -> Iterator[TimelineStep]:
    """Yield the release of an event that is released.

    The log keeps no time of it. A mirror serves only what is released, so the first that served the event says by when it was.
    """
    text = "released to mirrors"
    if released is None:
        if not notice and not (event.incarnation == state.incarnation and event.seq <= state.released):
            return
        proofs = [proof for proof in notice[0].acks if _find_time(event, proof.served_at) is not None] if notice else []
        first = min(proofs, key=lambda proof: proof.served_at, default=None)
        text += ", at a time that is not known"
        if first is not None:
            text += f": by {format_delay(first.served_at - event.time)}, when {first.mirror} served it"
    yield TimelineStep(stage=Stage.RELEASED, text=text, at=released)


def _describe_level(picture: Picture, ack: Ack, event: Event, now: float) -> TimelineStep:
    """Describe the present level of a mirror.

    The step has a time only if the level is exactly that of the event.
    """
    detached = f", detached: {describe_detached(picture, ack, now)}" if ack.detached else ""
    is_same = ack.incarnation == event.incarnation
    has_applied, is_serving = is_same and ack.applied >= event.seq, is_same and ack.serving >= event.seq
    at = None
    if is_same and ack.applied == event.seq:
        at = _find_time(event, ack.served_at if is_serving else ack.applied_at)
    done = "applied" if has_applied else "not applied"
    return TimelineStep(
        stage=Stage.SERVED if is_serving else Stage.APPLIED,
        text=f"{ack.mirror}: {done} (applied {ack.applied}, serving {ack.serving}{detached})",
        at=at,
        mirror=ack.mirror,
        is_done=has_applied,
    )


def _find_last_step(
    picture: Picture, state: RepositoryState, event: Event, notice: NoticeRecord | None, now: float
) -> TimelineStep:
    if notice:
        text = f"notice written: offset {notice[1].offset}, roster version {notice[0].roster}"
        return TimelineStep(stage=Stage.ANNOUNCED, text=text, at=notice[1].time)
    late = f"{format_duration(now - event.time)} after the commit"
    waits = _name_obstacles(picture, state, event, now)
    text = f"no notice yet, {late} (released {state.released}, noticed {state.noticed}){waits}"
    return TimelineStep(stage=Stage.ANNOUNCED, text=text, is_done=False)


def _name_obstacles(picture: Picture, state: RepositoryState, event: Event, now: float) -> str:
    """Name the silent aggregator and the gating mirrors that the notice waits for.

    These mirrors have not applied the event, or do not serve what is released of it and before it. If no mirror is late, it is the
    aggregator's turn.
    """
    gating, is_present = picture.gating(state), event.incarnation == state.incarnation
    released = min(event.seq, state.released) if is_present else event.seq
    found = []
    for name in gating:
        ack = picture.acks.get((name, state.repository))
        counts = ack if ack and ack.incarnation == event.incarnation else None
        if measure_lag(counts, seq=event.seq, released=released).is_late:
            is_quiet = picture.silence(name, now) > QUIET
            found.append(f"{name} ({_describe_silence(picture, name, now)})" if is_quiet else name)
    if picture.silence(AGGREGATOR, now) > QUIET:
        found.insert(0, f"the aggregator ({_describe_silence(picture, AGGREGATOR, now)})")
    elif gating and not found:
        found.append("the aggregator")
    return f"; waits for {', '.join(found)}" if found else ""


def _describe_silence(picture: Picture, name: str, now: float) -> str:
    return f"silent for {format_duration(picture.silence(name, now))}" if picture.seen(name) else "never seen"


def is_wanted(event: Event, push: int | None, seq: int | None) -> bool:
    """Return whether the event has this push and sequence; None fits any."""
    entry = event.changes.push
    return (push is None or (entry is not None and entry.id == push)) and (seq is None or event.seq == seq)


def find_event(
    log: Log, state: RepositoryState, push: int | None, seq: int | None, *, stop: threading.Event | None = None
) -> tuple[Event, Record] | None:
    """Read the wanted event where it first appears.

    Without `push` and `seq` this is the newest event. Reads a whole partition, because no log is read backwards. Raises ReadStopped
    once `stop` is set.
    """
    found: tuple[Event, Record] | None = None
    partition = partition_of(state.repository, log.partitions(EVENTS))
    for record in _read_key(log, EVENTS, partition, state.repository, stop):
        try:
            event = wire.decode(record.value or b"").event
        except Rejected:
            continue
        # A repeat of the same event does not count; an event of a newer history does.
        if is_wanted(event, push, seq) and (found is None or found[0].id != event.id):
            found = (event, record)
    return found


def find_notice(
    log: Log, state: RepositoryState, event: Event, *, stop: threading.Event | None = None
) -> NoticeRecord | None:
    """Read the notice of an event, not that of a replay; None if there is none.

    Raises ReadStopped once `stop` is set.
    """
    if event.incarnation == state.incarnation and state.noticed < event.seq:
        return None
    for record in _read_key(log, NOTICES, 0, state.repository, stop):
        notice = from_json(Notice, record.value or b"")
        if notice.event.id == event.id and notice.replay is None:
            return notice, record
    return None


def read_at(log: Log, topic: str, partition: int, offset: int) -> Record | None:
    """Read the record at an offset; None after 5 seconds; raise Expired if lost."""
    with closing(log.reader({(topic, partition): offset})) as reader:
        return next(iter(reader.poll(5.0, limit=1)), None)


def _read_key(log: Log, topic: str, partition: int, key: str, stop: threading.Event | None) -> Iterator[Record]:
    """Yield each record of this key that has a value, up to the present end."""
    records = read_records(log, {(topic, partition): log.beginnings(topic)[partition]}, stop=stop)
    return (record for record in records if record.key == key and record.value)

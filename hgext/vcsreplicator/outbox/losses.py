# SPDX-License-Identifier: GPL-2.0-or-later
"""Losses: the log came back without its newest records.

It was restored from a copy, or a broker came back with older data. A sent mark has the place in the log of the newest event
that was sent (`file.SentMark`). If the log has another record there, or none, events were lost, and the sender sends again
everything that the outbox keeps; readers drop repeats. So when in doubt, events are repeated, never lost. The same holds if that
event expired before the aggregator read it. Standard library only,
because a push that sends its own events imports it.
"""

import threading
import time
from collections.abc import Mapping
from contextlib import closing, suppress

from ..log import EVENTS, Log, Positions
from ..words.errors import Expired, ReplicationError, Unavailable
from ..words.records import RepositoryState
from ..words.value import Value
from ..words.wire import ID
from .file import Outbox, SentMark, TornRecord

# Seconds that the log gets to show records that it says it has.
PATIENCE = 20.0
# Most records between two wanted ones that are read, because it would take longer to begin another reading.
NEAR = 1000


class EventPlace(Value):
    """The id of an event, and the offset that the log gave it."""

    id: str
    offset: int


def find_standing(log: Log, wanted: Mapping[int, EventPlace], *, beginnings: Positions | None = None) -> set[int]:
    """Return the partitions of `events` where the wanted event is at its offset.

    `wanted` has one event for each partition; no other partition is asked for. An event that retention removed counts as there.
    `beginnings` are those of the partitions, if the caller just asked. Raises Unavailable if the log cannot tell.
    """
    if not wanted:
        return set()
    if beginnings is None:
        beginnings = log.beginnings(EVENTS, wanted)
    ends = log.ends(EVENTS, wanted)
    found, left = set(), {}
    for partition, place in wanted.items():
        if 0 <= place.offset < beginnings.get(partition, 0):
            found.add(partition)
        elif 0 <= place.offset < ends.get(partition, 0):
            left[EVENTS, partition] = place.offset
    if not left:
        return found
    deadline = time.monotonic() + PATIENCE
    try:
        with closing(log.reader(left)) as reader:
            while left:
                for record in reader.poll(0.2, limit=len(left)):
                    offset = left.pop((EVENTS, record.partition), -1)
                    reader.pause([(EVENTS, record.partition)])
                    if record.offset == offset and record.headers.get(ID) == wanted[record.partition].id:
                        found.add(record.partition)
                if left and time.monotonic() > deadline:
                    raise Unavailable(f"the log does not show records of {EVENTS} that it says it has")
    except Expired as error:
        raise Unavailable(f"{EVENTS}: {error}") from error
    return found


def find_events(log: Log, partition: int, wanted: Mapping[int, str], stop: threading.Event) -> set[str]:
    """Return which of the wanted events stand at their offsets in a partition.

    `wanted` has the id of an event for each offset. All are read in one pass, which leaves out parts of more than `NEAR` records
    without a wanted one. An event that retention removed is not returned, nor an event that was not read before `stop` was set.
    Raises Unavailable if the log does not show what it says it has, or Expired.
    """
    beginning, end = log.beginnings(EVENTS, [partition])[partition], log.ends(EVENTS, [partition])[partition]
    parts, found = list[tuple[int, int]](), set[str]()
    for offset in sorted(offset for offset in wanted if beginning <= offset < end):
        is_near = bool(parts) and offset - parts[-1][1] <= NEAR
        parts.append((parts.pop()[0] if is_near else offset, offset))
    for first, last in parts:
        deadline = time.monotonic() + PATIENCE
        with closing(log.reader({(EVENTS, partition): first})) as reader:
            while reader.positions()[EVENTS, partition] <= last and not stop.is_set():
                records = reader.poll(0.2, limit=min(last + 1 - reader.positions()[EVENTS, partition], NEAR))
                found.update(
                    each.headers[ID] for each in records if each.headers.get(ID) == wanted.get(each.offset, "")
                )
                if records:
                    deadline = time.monotonic() + PATIENCE
                elif time.monotonic() > deadline:
                    raise Unavailable(f"the log does not show records of {EVENTS} that it says it has")
    return found


def has_lost(log: Log, box: Outbox, state: RepositoryState | None) -> bool:
    """Return whether the log lacks the newest event that was sent from this outbox.

    `state` is the aggregator's state of the repository. The event of a mark without a place, of an older release, counts as lost
    unless the aggregator saw it. So does an event that retention removed, if the state is from before it: without a state the
    aggregator may have lost that, and would announce the event again.
    """
    sent = box.sent()
    if sent is None:
        return False
    if sent.partition is None:
        return not _is_done(state, box, sent)
    if sent.offset is None:
        return True
    if not find_standing(log, {sent.partition: EventPlace(id=sent.id, offset=sent.offset)}):
        return True
    if state is None or _is_done(state, box, sent):
        return False
    return sent.offset < log.beginnings(EVENTS, [sent.partition])[sent.partition]


def has_seen(state: RepositoryState | None, box: Outbox, sent: SentMark) -> bool:
    """Return whether the aggregator saw the event of this sent mark in the log."""
    newest = box.newest()
    if state is None or newest is None or state.incarnation != newest.incarnation:
        return False
    return state.event == sent.id if state.seq == sent.seq else state.seq > sent.seq


def _is_done(state: RepositoryState | None, box: Outbox, sent: SentMark) -> bool:
    """Return whether the event of this sent mark need not be sent again.

    Either the aggregator saw it, or an adoption replaced its history; then the log may never have had it.
    """
    return has_seen(state, box, sent) or _is_replaced(box, sent)


def _is_replaced(box: Outbox, sent: SentMark) -> bool:
    """Return whether an adoption replaced the history of the sent mark's event."""
    newest = box.newest()
    if newest is None or sent.id == newest.id:
        return False
    # An unreadable event may be of the present history.
    with suppress(ReplicationError, TornRecord):
        marked = next(box.acknowledged(), None)
        return marked is not None and marked.event.incarnation != newest.incarnation
    return False


def send_again(box: Outbox, state: RepositoryState | None) -> tuple[int, int] | None:
    """Move the sent mark back, so that the kept events are sent again.

    `Outbox.send_again` chooses the events. The caller holds the sending lock. Returns the first and last sequence that the
    aggregator never saw and the outbox no longer keeps; None if there are none.
    """
    first = box.send_again()
    newest = box.newest()
    if first is None or newest is None:
        return None
    seen = state.seq if state is not None and state.incarnation == newest.incarnation else 0
    return (seen + 1, first - 1) if first > seen + 1 else None

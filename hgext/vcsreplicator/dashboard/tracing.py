# SPDX-License-Identifier: GPL-2.0-or-later
"""The timeline of one event.

The records are read where they are known to be, or else searched for a bounded time.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..log import EVENTS, NOTICES, Record
from ..log.table import ReadStopped
from ..status.timeline import NoticeRecord, Stage, TimelineStep, find_event, find_notice, list_steps, read_at
from ..words import wire
from ..words.errors import Expired, Rejected, Unavailable
from ..words.event import Event
from ..words.records import Notice, RepositoryState
from ..words.shape import from_json
from .recent import RecentEvent
from .sources import Sources
from .view import View

# Seconds that a search of the log may take.
DEADLINE = 10.0
# Searches that run at a time.
SEARCHES = 2

_searches = threading.BoundedSemaphore(SEARCHES)


class NotRead(Exception):
    """The event cannot be shown; the text says why, for readers of any role."""


def trace_event(sources: Sources, view: View, state: RepositoryState, seq: int) -> tuple[Event, list[TimelineStep]]:
    """Return an event of the present history and its steps, deliveries included.

    Raises NotRead if the event cannot be shown.
    """
    known = next(
        (
            event
            for event in view.events.get(state.repository, ())
            if event.seq == seq and event.incarnation == state.incarnation
        ),
        None,
    )
    try:
        event, record, notice = _read_known(sources, known) if known else _search(sources, state, seq)
        if notice is None and known is None:
            with hold_search() as stop:
                notice = find_notice(sources.log, state, event, stop=stop)
    except (Unavailable, Expired):
        raise NotRead("the log cannot be read, or has lost this event") from None
    except Rejected:
        raise NotRead("the log holds something else in place of this event") from None
    except ReadStopped:
        raise NotRead(f"it was not found within {DEADLINE:.0f} s; vcsreplicator trace searches longer") from None
    released = known.released if known else None
    steps = list_steps(view.picture, state, event, record, notice, view.now, released=released)
    return event, [*steps, *_list_deliveries(sources, view, event, notice)]


def _read_known(sources: Sources, known: RecentEvent) -> tuple[Event, Record, NoticeRecord | None]:
    record = read_at(sources.log, EVENTS, known.partition, known.offset)
    if record is None:
        raise Unavailable("the record did not come")
    event = wire.decode(record.value or b"").header.event
    if event is None or event.id != known.id:
        raise Expired("another record stands there")
    found = None if known.notice is None else read_at(sources.log, NOTICES, 0, known.notice)
    notice = None if found is None else from_json(Notice, found.value or b"")
    return event, record, (notice, found) if notice and found and notice.event.id == event.id else None


def _search(sources: Sources, state: RepositoryState, seq: int) -> tuple[Event, Record, None]:
    if not 1 <= seq <= state.seq:
        raise NotRead(f"the newest event is {state.seq}")
    with hold_search() as stop:
        found = find_event(sources.log, state, None, seq, stop=stop)
    if found is None:
        raise NotRead("it is older than the retention of the log")
    return *found, None


@contextmanager
def hold_search() -> Iterator[threading.Event]:
    """Yield an event that is set at the deadline; NotRead while too many search."""
    if not _searches.acquire(blocking=False):
        raise NotRead("other searches of the log are under way; load the page again in a few seconds")
    stop = threading.Event()
    timer = threading.Timer(DEADLINE, stop.set)
    timer.start()
    try:
        yield stop
    finally:
        timer.cancel()
        _searches.release()


def _list_deliveries(sources: Sources, view: View, event: Event, notice: NoticeRecord | None) -> Iterator[TimelineStep]:
    for name, position in sorted(view.picture.positions.items()) if notice else ():
        is_passed = bool(notice and position > notice[1].offset)
        text = f"{name}: {sources.describe_delivery(name, event, is_passed=is_passed)}"
        yield TimelineStep(stage=Stage.PASSED, text=text, is_done=is_passed)

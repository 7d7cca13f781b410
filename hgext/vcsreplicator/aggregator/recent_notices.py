# SPDX-License-Identifier: GPL-2.0-or-later
"""The newest notices of an aggregator, for a log that loses them.

Nothing else would write them again: `state` says that their events are announced.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog

from ..log import NOTICES, Log, NewRecord, Record
from ..log.table import read_records
from ..words.clock import Clock
from ..words.errors import MalformedEvent, Unavailable
from ..words.records import Notice
from ..words.shape import from_json

# Notices that are remembered, their bytes, and the seconds after which the log is trusted to keep what it has.
MOST, MOST_BYTES, LONGEST = 1000, 8 * 1024 * 1024, 600.0

logger = structlog.get_logger()


class RecentNotices:
    """What the log must have at the end of `notices`; used by one session after the other."""

    def __init__(self, clock: Clock) -> None:
        # The newest offset that is known to be in use, -1 if there is none: once records are lost, below those remembered.
        self.newest = -1
        # Bytes of what is remembered, and the offset before which the topic must not end, by the last look.
        self._clock, self._size, self._due = clock, 0, 0
        # By value: the message, when it was written, and its offset; None if the outcome of its transaction is not known.
        self._written: dict[bytes, tuple[NewRecord, float, int | None]] = {}

    def has_any(self) -> bool:
        return bool(self._written)

    def begin(self, messages: Sequence[NewRecord]) -> None:
        """Take the messages of a transaction that begins."""
        for message in messages:
            if message.topic == NOTICES and message.value is not None:
                self._forget(message.value)
                self._written[message.value] = message, self._clock.monotonic(), None
                self._size += len(message.value)
        while len(self._written) > MOST or self._size > MOST_BYTES:
            self._forget(next(iter(self._written)))

    def end(self, messages: Sequence[NewRecord], places: Sequence[tuple[int, int]]) -> None:
        """Take the places of the messages of a transaction that is committed."""
        for message, (_, offset) in zip(messages, places, strict=True):
            if message.topic == NOTICES:
                self.newest = offset
                if (value := message.value) in self._written:
                    self._written[value] = *self._written[value][:2], offset

    def take_undone(
        self, log: Log, since: int, stop: threading.Event | None, is_announced: Callable[[Notice], bool]
    ) -> None:
        """Take the notices from this offset on that `state` has announced, and whose transaction was aborted all the same.

        That is so once a broker was killed: see `docs/decisions/transactions-left-open.md`. Not taken is a notice whose repository
        has that one or a later one there. Raises Unavailable, Expired and ReadStopped.
        """
        [beginning], [end] = log.beginnings(NOTICES).values(), log.ends(NOTICES).values()
        since = max(since, beginning)
        undone = log.undone(NOTICES, since, stop=stop) if since < end else []
        if not undone:
            return
        newest = dict[tuple[str, str], int]()
        for record in read_records(log, {(NOTICES, 0): since}, stop=stop):
            if (notice := _read_first(record)) is not None:
                newest[_chain(notice)] = notice.event.seq
        found = dict[tuple[tuple[str, str], int], Record]()
        for record in undone:
            notice = _read_first(record)
            if notice is not None and is_announced(notice) and notice.event.seq > newest.get(_chain(notice), 0):
                found[_chain(notice), notice.event.seq] = record
        self._due = max(self._due, since)
        self.begin(
            [NewRecord(topic=NOTICES, key=each.key, value=each.value, headers=each.headers) for each in found.values()]
        )

    def note_end(self, end: int) -> None:
        """Raise Unavailable if the topic ends before what it had at the last look: a new session finds out what is lost.

        What was written since does not count: a log may show a transaction a moment after its commit.
        """
        if end < self._due:
            raise Unavailable(f"topic {NOTICES}: lost its records from {end} on")
        self.newest = max(self.newest, end - 1)
        self._due = self.newest + 1
        while self._written and next(iter(self._written.values()))[1] < self._clock.monotonic() - LONGEST:
            self._forget(next(iter(self._written)))

    def find_lost(
        self, log: Log, stop: threading.Event | None, is_announced: Callable[[Notice], bool]
    ) -> list[tuple[Notice, NewRecord]]:
        """Find the notices that were written and are no longer in the log, the oldest first.

        Of a transaction with an unknown outcome those that `is_announced` knows from `state`. A topic without any notice was
        emptied, or made anew, and gets none again. Raises Unavailable, Expired and ReadStopped.
        """
        [beginning], [end] = log.beginnings(NOTICES).values(), log.ends(NOTICES).values()
        lost, found = list[tuple[Notice, NewRecord]](), dict[bytes | None, int]()
        if self._written:
            offsets = [offset for _, _, offset in self._written.values() if offset is not None]
            start = min(max(min([self._due, *offsets]), beginning), end)
            found = {record.value: record.offset for record in read_records(log, {(NOTICES, 0): start}, stop=stop)}
        for value, (message, at, offset) in list(self._written.items()):
            notice = from_json(Notice, value)
            if value in found:
                self._written[value] = message, at, found[value]
            elif is_announced(notice) if offset is None else offset >= beginning:
                self._written[value] = message, at, end if offset is None else offset
                lost.append((notice, message))
            else:
                self._forget(value)
        if lost and not found and not any(read_records(log, {(NOTICES, 0): beginning}, stop=stop)):
            logger.warning("topic notices is empty: no notice is written again", known=len(lost))
            self._written, self._size, lost = {}, 0, []
        self.newest, self._due = end - 1, end
        return lost

    def _forget(self, value: bytes) -> None:
        if self._written.pop(value, None) is not None:
            self._size -= len(value)


def _read_first(record: Record) -> Notice | None:
    """Read a notice; None for a replay, or what is no notice."""
    with suppress(MalformedEvent):
        notice = from_json(Notice, record.value or b"")
        return notice if notice.replay is None else None
    return None


def _chain(notice: Notice) -> tuple[str, str]:
    return notice.event.repository, notice.event.incarnation

# SPDX-License-Identifier: GPL-2.0-or-later
"""Sending the events of one repository to the log: in order, at least once, marked after the log has them.

Used by the relay daemon and, where there is none, by the push itself; whoever holds the repository's sending lock. Standard
library only beside the log that is handed in.

Write, then acknowledge: read an entry, make its record, append, move the marker. Killed before the append nothing happened;
killed before the marker moved, the entry is sent again, and readers drop it.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from ..log import EVENTS, Log, NewRecord
from ..outbox import Entry, Needs, Outbox, Place, SentMark
from ..words import wire
from ..words.errors import Rejected, ReplicationError
from ..words.wire import Attachment, Where

BATCH = 16  # records in one append
PIECE = 1 << 20


class Bundle:
    """A bundle in the making, piece by piece; `unpacked` are the bytes so far before their compression."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.pieces = pieces
        self.unpacked = 0

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.pieces)


class Bundles(Protocol):
    """Makes bundles; implemented at the Mercurial border."""

    def chunks(self, folder: str, entry: Entry) -> Bundle:
        """The bundle of an entry of the repository in `folder`, piece by piece; raises Gone if its changesets are not there."""


class Blobs(Protocol):
    """Where bundles go that a record cannot hold."""

    def put(self, chunks: Iterable[bytes]) -> Attachment:
        """Stores the bundle durably and says where; raises Unavailable."""


class ChangesetsGone(ReplicationError):
    """The changesets of an event are not in the repository any more; a mirror must look at the master."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSender:
    """Everything sending needs; `timeout` in seconds for one append.

    `on_appended` hears where the log took the newest record, before the marker moves: if it raises, the marker stays. `on_sent`
    hears of each entry that the log has, `on_marked` of the marker.
    """

    log: Log
    source: str
    bundles: Bundles
    blobs: Blobs | None
    timeout: float = 30.0
    on_appended: Callable[[int, int], None] | None = None
    on_sent: Callable[[Entry], None] | None = None
    on_marked: Callable[[SentMark], None] | None = None

    def send(self, folder: str, box: Outbox) -> int:
        """Sends what is unsent; the number of entries. The caller holds the sending lock.

        Raises Unavailable if the log or the blob store does not take it now; what was marked stays marked.
        """
        count = 0
        for batch in batched(box.unsent()):
            sent = batch[-1].sent()
            box.prepare_sent(sent)
            partition, offset = self._append(folder, batch, box)
            if self.on_appended is not None:
                self.on_appended(partition, offset)
            sent = replace(sent, partition=partition, offset=offset)
            box.move_sent(sent)
            if self.on_marked is not None:
                self.on_marked(sent)
            count += len(batch)
            for place in batch:
                if place.entry.needs is Needs.BUNDLE:
                    box.drop_bundle(place.entry.event.id)
            if self.on_sent is not None:
                for place in batch:
                    self.on_sent(place.entry)
        return count

    def _append(self, folder: str, batch: list[Place], box: Outbox) -> tuple[int, int]:
        """Has the log take the batch: (partition, offset) of its last record.

        What is too large for this log, which may take less than ours do, goes without its bundle.
        """
        try:
            taken = self.log.append([self.message(folder, place.entry, box) for place in batch], timeout=self.timeout)
            return taken[-1]
        except Rejected:
            pass
        for place in batch:
            try:
                taken = self.log.append([self.message(folder, place.entry, box)], timeout=self.timeout)
            except Rejected:
                taken = self.log.append([self.message(folder, place.entry, box, room=0)], timeout=self.timeout)
        return taken[-1]

    def message(self, folder: str, entry: Entry, box: Outbox, *, room: int = wire.INLINE_LIMIT) -> NewRecord:
        """The record of `events` for an entry, of up to `room` bytes with a bundle inside."""
        event = entry.event
        attachment, body = self._attachment(folder, entry, box, room)
        return NewRecord(
            topic=EVENTS,
            key=event.repository,
            value=wire.encode(event, attachment, body),
            headers=wire.headers(event, self.source),
        )

    def _attachment(self, folder: str, entry: Entry, box: Outbox, room: int) -> tuple[Attachment | None, bytes]:
        if entry.needs is Needs.NOTHING:
            return None, b""
        if entry.needs is Needs.MASTER:
            return Attachment(where=Where.MASTER), b""
        kept = box.kept_bundle(entry.event.id)
        try:
            if kept is None:
                return self._placed(entry, self.bundles.chunks(folder, entry), room)
            bundle = Bundle(iter(lambda: kept.read(PIECE), b""))
            bundle.unpacked = box.kept_unpacked(entry.event.id)
            return self._placed(entry, bundle, room)
        except ChangesetsGone:
            return Attachment(where=Where.MASTER), b""
        finally:
            if kept is not None:
                kept.close()

    def _placed(self, entry: Entry, bundle: Bundle, room: int) -> tuple[Attachment, bytes]:
        """The bundle inside the record, or in the blob store, or not at all: then mirrors ask the master."""
        chunks = iter(bundle)
        body, whole = _take(chunks, max(room - len(wire.encode(entry.event)), 0))
        if whole and room and bundle.unpacked <= wire.UNPACKED_LIMIT:
            return wire.inline(body), body
        if self.blobs is not None:
            return self.blobs.put(itertools.chain([body], chunks)), b""
        return Attachment(where=Where.MASTER), b""


def batched(places: Iterable[Place]) -> Iterator[list[Place]]:
    """The places in order, in lists of up to BATCH."""
    iterator = iter(places)
    while batch := list(itertools.islice(iterator, BATCH)):
        yield batch


def _take(chunks: Iterator[bytes], room: int) -> tuple[bytes, bool]:
    """(what was read, whether that is all): reads until the end or until more than `room` bytes are there."""
    parts, size = [], 0
    for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if size > room:
            return b"".join(parts), False
    return b"".join(parts), True

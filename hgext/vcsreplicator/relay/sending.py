# SPDX-License-Identifier: GPL-2.0-or-later
"""Sending the events of one repository to the log: in order, at least once.

The sender marks them as sent after the log has them. The relay daemon uses this module, or, without a relay, the push itself, under
the repository's sending lock. Standard library only, besides the log that the caller passes in.

Write, then acknowledge: read an entry, make its record, append, move the sent mark. After a kill before the append, nothing
happened; after a kill before the sent mark moved, the entry is sent again, and readers drop the repeat.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from ..log import EVENTS, Log, NewRecord
from ..outbox.bundles import Bundle, ChangesetsGone
from ..outbox.entry import Entry, MirrorNeeds
from ..outbox.file import Outbox, Place, SentMark
from ..words import wire
from ..words.errors import Rejected, Unavailable
from ..words.wire import Attachment, BundlePlace

# Records in one append.
BATCH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSender:
    """Everything that sending needs; `timeout` is in seconds for one append.

    `make_bundle` makes the bundle of an entry of the repository in a folder and raises ChangesetsGone; `store_blob` stores a
    bundle that a record cannot hold and raises Unavailable. `on_appended` gets the place of a batch's first record before the
    sent mark moves: if it raises, the mark stays. `on_marked` gets the mark and the entries that the log has, the newest last.
    """

    log: Log
    source: str
    make_bundle: Callable[[str, Entry], Bundle]
    store_blob: Callable[[Iterable[bytes]], Attachment] | None
    timeout: float = 30.0
    on_appended: Callable[[int, int], None] = lambda partition, offset: None
    on_marked: Callable[[SentMark, list[Entry]], None] = lambda sent, entries: None

    def send(self, folder: str, box: Outbox) -> int:
        """Send the unsent entries and return their number.

        The caller holds the sending lock. Raises Unavailable if the log or the blob store does not take them now, or if the log has
        lost marked events. Entries marked so far stay marked.
        """
        count, places = 0, box.unsent()
        while batch := list(itertools.islice(places, BATCH)):
            known, sent = box.sent(), batch[-1].sent()
            box.prepare_sent(sent)
            (partition, first), (_, offset) = self._append(folder, batch, box)
            if known and known.partition == partition and known.offset is not None and first <= known.offset:
                raise Unavailable("the log lost records while this was sent: it is sent again")
            self.on_appended(partition, first)
            sent = replace(sent, partition=partition, offset=offset)
            box.move_sent(sent)
            count += len(batch)
            try:
                for place in batch:
                    if place.entry.needs is MirrorNeeds.BUNDLE:
                        box.bundles.remove(place.entry.event.id)
            finally:
                self.on_marked(sent, [place.entry for place in batch])
        return count

    def _append(self, folder: str, batch: list[Place], box: Outbox) -> tuple[tuple[int, int], tuple[int, int]]:
        """Append the batch; return where its first and its last record stand.

        Each place is (partition, offset). If a record is too large for this log, whose limit may be below that of a log set up by
        this project, its event omits the bundle.
        """
        with contextlib.suppress(Rejected):
            taken = self.log.append([self.message(folder, place.entry, box) for place in batch], timeout=self.timeout)
            return taken[0], taken[-1]
        taken = []
        for place in batch:
            try:
                taken += self.log.append([self.message(folder, place.entry, box)], timeout=self.timeout)
            except Rejected:
                taken += self.log.append([self.message(folder, place.entry, box, room=0)], timeout=self.timeout)
        return taken[0], taken[-1]

    def message(self, folder: str, entry: Entry, box: Outbox, *, room: int = wire.INLINE_LIMIT) -> NewRecord:
        """Make the record of `events` for an entry.

        With a bundle inside, the record has up to `room` bytes. With `room` 0 it omits the connection too: nothing optional may
        keep the event from the log.
        """
        event = entry.event
        attachment, body = self._attach(folder, entry, box, room)
        return NewRecord(
            topic=EVENTS,
            key=event.repository,
            value=wire.encode(event, attachment, body),
            headers={**wire.headers(event, self.source), **wire.connection_headers(entry.connection if room else None)},
        )

    def _attach(self, folder: str, entry: Entry, box: Outbox, room: int) -> tuple[Attachment | None, bytes]:
        if entry.needs is MirrorNeeds.NOTHING:
            return None, b""
        if entry.needs is MirrorNeeds.BUNDLE:
            with box.bundles.opened(entry.event.id) as stored, contextlib.suppress(ChangesetsGone):
                return self._place_bundle(entry, stored or self.make_bundle(folder, entry), room)
        return Attachment(where=BundlePlace.MASTER), b""

    def _place_bundle(self, entry: Entry, bundle: Bundle, room: int) -> tuple[Attachment, bytes]:
        """Put the bundle into the record or into the blob store.

        With neither, mirrors pull it from the master.
        """
        chunks = iter(bundle)
        body, is_whole = _read_up_to(chunks, max(room - len(wire.encode(entry.event)), 0))
        if is_whole and room and bundle.unpacked <= wire.UNPACKED_LIMIT:
            return wire.inline(body), body
        if self.store_blob is not None:
            return self.store_blob(itertools.chain([body], chunks)), b""
        return Attachment(where=BundlePlace.MASTER), b""


def _read_up_to(chunks: Iterator[bytes], room: int) -> tuple[bytes, bool]:
    """Read to the end, or until more than `room` bytes are there.

    Returns the bytes read, and whether that is all.
    """
    parts, size = [], 0
    for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if size > room:
            return b"".join(parts), False
    return b"".join(parts), True

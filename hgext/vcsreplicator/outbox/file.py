# SPDX-License-Identifier: GPL-2.0-or-later
"""The file of an outbox, and the files beside it.

`.hg/store/outbox.NNNN.log`   segments of framed records (`pushlog.store.appendfile`), a JSON `Entry` each, oldest segment first
`.hg/store/outbox.sent`       JSON `SentMark`: the newest event that the log acknowledged, where its record ends, and the place
                              that the log gave it: if another record stands there, the log has lost records (`losses`)
`.hg/store/outbox.lock`       held (flock) by the process that sends; one sender at a time, so the log sees events in order
`.hg/store/outbox-ID.log`     the bundle of an unsent event (`bundles`)
`.hg/store/outbox.fork`       JSON `Fork`: why this repository refuses pushes (the history in the log is not that of the outbox)

The newest record is the repository's identity and its newest event: nothing else says which repository this is. Segments are
written under the store lock and within a transaction. The sent mark is only a memory: without it, the sender sends again everything
that is still there, and readers drop repeats.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pushlog.store.appendfile import AppendFile, open_regular
from pushlog.store.appendfile import TornRecord as TornRecord

from ..words.errors import MalformedEvent, ReplicationError, quote_value
from ..words.event import MOST_REPLACED, NamedEvent, Tip, event_names, replaced_incarnations
from ..words.shape import from_json, parse, to_json
from ..words.value import Value
from .entry import Entry, NewestEvent, OutboxEnd
from .folder import FILE_LIMIT, WHOLE_LIMIT, Store, create_file, match_mode, read_file, replace_file

if TYPE_CHECKING:
    from pushlog.store.appendfile import Folder

    from .bundles import StoredBundles

MAGIC = b"OBX1"
SEGMENT = "outbox.{:04d}.log"
SENT = b"outbox.sent"
LOCK = b"outbox.lock"
FORK = b"outbox.fork"
# Bytes after which a new segment begins.
SEGMENT_SIZE = 8 * 1024 * 1024
# Bytes of a sent mark, padded with blanks: a prepared one needs no more room when it is completed.
SENT_SIZE = 320
# Bytes of the largest entry that can be read.
RECORD_LIMIT = 64 * 1024 * 1024
# Why a fork refuses pushes that belong to another master (`Fork.master`).
LEAVING = "leaving"
FORMER = "former"
# Members of a newest event and of the changelog after it that are no text.
_NUMBERS = frozenset(("generation", "seq", "length"))


class SentMark(Value):
    """The sent mark: the newest event that the log has.

    `end` is the byte of `segment` where its record ends. `partition` and `offset` are its place in the log; None if that is not
    known (an older release, an adoption).
    """

    seq: int
    id: str
    segment: int
    end: int
    partition: int | None = None
    offset: int | None = None


class Fork(Value):
    """The reason why the outbox cannot continue the log's history.

    `master` is LEAVING while its master is handed over, and FORMER once another master replaced it: then pushes belong to that one,
    and nothing else is wrong. `incarnation` is that of the log's history, if it is not the outbox's own. `repository` and
    `generation` are those of the repository that the log has at this path, if it is another one: an adoption continues it.
    `seq` and `event` (its id) are of the event that the log has and the outbox lacks; an older release wrote neither.
    """

    reason: str
    master: str | None = None
    incarnation: str | None = None
    repository: str | None = None
    generation: int | None = None
    seq: int | None = None
    event: str | None = None


class Place(Value):
    """An entry with the segment it stands in and the byte where its record ends."""

    entry: Entry
    segment: int
    end: int

    def sent(self) -> SentMark:
        """Return the sent mark that says that the log has everything up to this entry."""
        return SentMark(seq=self.entry.event.seq, id=self.entry.event.id, segment=self.segment, end=self.end)


class Outbox:
    """The outbox in a store.

    Methods that take `tr` act inside that transaction, others see committed entries.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    @functools.cached_property
    def bundles(self) -> StoredBundles:
        """The stored bundles of events in this outbox."""
        from .bundles import StoredBundles

        return StoredBundles(self._folder)

    def segments(self) -> list[int]:
        """Return the numbers of the segments on disk, ascending."""
        # Without a pattern, which each push would compile.
        names = [name for name in os.listdir(self._folder.join(b"")) if name.startswith(b"outbox.")]
        numbers = [name[len(b"outbox.") : -len(b".log")] for name in names if name.endswith(b".log")]
        return sorted(int(number) for number in numbers if len(number) >= 4 and number.isdigit())

    def end(self) -> OutboxEnd | None:
        """Read the newest event from the newest entry; None without an entry.

        Decoded by hand: a push need not load the decoders of all parts of an entry. Raises MalformedEvent and TornRecord.
        """
        for number in reversed(self.segments()):
            record = self._open_segment(number).last()
            if record is not None:
                return _decode_end(record.payload)
        return None

    def newest(self) -> NewestEvent | None:
        """Read the repository's identity and its newest event."""
        end = self.end()
        return None if end is None else end.newest

    def is_torn(self) -> bool:
        """Return whether the newest entry is damaged, so that none can follow; decode none."""
        try:
            for number in reversed(self.segments()):
                if self._open_segment(number).last() is not None:
                    return False
        except TornRecord:
            return True
        return False

    def names(self) -> dict[str, str | int]:
        """Return the names of the oldest unsent event, or of the newest, for a log line.

        There are none if it has no entry, or if it cannot be read.
        """
        with contextlib.suppress(OSError, ReplicationError, TornRecord):
            first = next(self.unsent(), None)
            found = self.newest() if first is None else first.entry.event
            return {} if found is None else event_names(found)
        return {}

    def append(self, tr: Any, entries: Sequence[Entry]) -> bytes:
        """Append entries under `tr` and return the segment's name.

        Call it in a finalizer, holding the store lock. A full segment is never written to again; `prune` removes those whose
        entries are all in the log.
        """
        segment = self._last_segment(tr)
        segment.append(tr, [to_json(entry) for entry in entries])
        return segment.name

    def reserve(self, tr: Any) -> None:
        """Write to the journal how to undo `append`, to be synced before that."""
        self._last_segment(tr).reserve(tr)

    def unsent(self) -> Iterator[Place]:
        """Read the committed entries behind the sent mark, oldest first."""
        sent = self.sent()
        return self.since(sent.segment, sent.end) if sent is not None else self.kept()

    def since(self, segment: int, end: int) -> Iterator[Place]:
        """Read the committed entries behind this byte of a segment, oldest first."""
        for number in self.segments():
            if number >= segment:
                for record in self._open_segment(number).records(end if number == segment else 0):
                    yield Place(entry=_decode_entry(record.payload), segment=number, end=record.end)

    def kept(self) -> Iterator[Place]:
        """Read the committed entries that are still there, sent or not, oldest first."""
        return self.since(0, 0)

    def acknowledged(self) -> Iterator[Entry]:
        """Read committed entries up to the sent mark, newest first, one when asked for."""
        sent = self.sent()
        return iter(()) if sent is None else self._read_back(sent)

    def replaced(self) -> tuple[str, ...]:
        """Read which incarnations the present one has replaced, newest first.

        The kept events belong to them or name them; at most MOST_REPLACED are returned. An entry that cannot be read hides the
        older ones.
        """
        newest, found = self.newest(), dict[str, None]()
        with contextlib.suppress(OSError, ReplicationError, TornRecord):
            for entry in self._read_back(None):
                if newest is None or entry.event.repository != newest.repository or len(found) >= MOST_REPLACED:
                    break
                found |= dict.fromkeys((entry.event.incarnation, *replaced_incarnations(entry.event)))
                found.pop(newest.incarnation, None)
        return tuple(found)[:MOST_REPLACED]

    def has_unsent(self) -> bool:
        """Return whether a committed entry is behind the sent mark; read no entries."""
        sent = self.sent()
        first, end = (sent.segment, sent.end) if sent is not None else (0, 0)
        return any(self._open_segment(n).tail() > (end if n == first else 0) for n in self.segments() if n >= first)

    def ends_at(self, sent: SentMark) -> bool:
        """Return whether the outbox ends where this sent mark says; read no entries.

        Otherwise events are unsent, or the outbox lacks events that were sent.
        """
        if self.segments()[-1:] != [sent.segment]:
            return False
        with contextlib.suppress(FileNotFoundError):
            # For thousands of repositories: if the size is enough, nothing is opened.
            if os.stat(self._folder.join(SEGMENT.format(sent.segment).encode())).st_size == sent.end:
                return True
        return self._open_segment(sent.segment).tail() == sent.end

    def sent(self) -> SentMark | None:
        """Read the sent mark; None without one, and if it cannot be read."""
        try:
            with open(self._folder.join(SENT), "rb", opener=open_regular) as file:
                return from_json(SentMark, file.read(FILE_LIMIT))
        except (FileNotFoundError, MalformedEvent):
            return None

    def fits(self, sent: SentMark) -> bool:
        """Return whether the sent mark's event stands where it says, or damage hides it."""
        segment = self._open_segment(sent.segment)
        if segment.tail() < sent.end:
            return False
        try:
            record = segment.last(before=sent.end)
            return record is not None and _decode_end(record.payload).newest.id == sent.id
        except TornRecord:
            with contextlib.suppress(TornRecord):
                return any(record.end == sent.end for record in segment.records())
            return True

    def mark_sent(self, sent: SentMark) -> None:
        """Move the sent mark; the caller holds the sending lock.

        If a power cut undoes that, events repeat.
        """
        self.prepare_sent(sent)
        self.move_sent(sent)

    def prepare_sent(self, sent: SentMark) -> None:
        """Write the sent mark that `move_sent` puts in place.

        So a full disk is noticed before events are sent, not afterwards.
        """
        with create_file(self._folder, self._folder.join(SENT) + b".new") as file:
            file.write(to_json(sent).ljust(SENT_SIZE))

    def move_sent(self, sent: SentMark) -> None:
        """Put the prepared sent mark in place, with its event's place in the log."""
        prepared = self._folder.join(SENT) + b".new"
        with open(prepared, "r+b", opener=open_regular) as file:
            file.write(to_json(sent).ljust(SENT_SIZE))
        os.replace(prepared, self._folder.join(SENT))

    def forget_history(self) -> None:
        """Remove sent mark and fork of a lost outbox; the caller holds the sending lock."""
        self.set_fork(None)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._folder.join(SENT))

    def send_again(self) -> int | None:
        """Move the sent mark to before the oldest kept event of the present incarnation.

        Returns that event's sequence; None if there is nothing to send again. Events before the last adoption are not sent again,
        because the log must perhaps never have them; a mark before unsent events from before the adoption stays, without its place
        in the log. The caller holds the sending lock.
        """
        newest, sent, before = self.newest(), self.sent(), None
        for place in self.kept():
            if newest is not None and place.entry.event.incarnation == newest.incarnation:
                if before is None:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(self._folder.join(SENT))
                elif sent is not None and (sent.segment, sent.end) < (before.segment, before.end):
                    self.mark_sent(SentMark(seq=sent.seq, id=sent.id, segment=sent.segment, end=sent.end))
                else:
                    self.mark_sent(before.sent())
                return place.entry.event.seq
            before = place
        return None

    def prune(self) -> list[int]:
        """Remove segments whose entries are all in the log; return their numbers.

        Three kinds stay: the newest segment, since it holds the newest event; the one before it, for a log that loses its newest
        records; and a segment that Mercurial's undo file names. Nothing is removed while a sender is at work: it may move the sent
        mark back, and then it needs them all. The caller holds the store lock outside a transaction, and waits for no sender.
        """
        numbers = self.segments()
        if len(numbers) < 3:
            return []
        with self.sending(wait=False) as alone:
            sent = self.sent() if alone else None
            if sent is None:
                return []
            return self._remove_segments(number for number in numbers[:-2] if number < sent.segment)

    @contextlib.contextmanager
    def sending(self, *, wait: bool) -> Iterator[bool]:
        """Hold the sending lock within the block, and give True.

        If another process holds it and `wait` is off, give False.
        """
        descriptor = os.open(self._folder.join(LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            match_mode(self._folder, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(descriptor)

    def fork(self) -> Fork | None:
        """Read why this repository refuses pushes; None if it takes them."""
        content = read_file(self._folder.join(FORK))
        if not content:
            return None
        try:
            return from_json(Fork, content)
        except MalformedEvent:  # of an older release, which wrote the reason alone
            reason = content.decode("utf-8", "replace")
            found = re.match(r"the log has incarnation (\w+) of it", reason)
            return Fork(reason=reason, incarnation=found[1] if found else None)

    def set_fork(self, fork: Fork | None) -> None:
        """Make this repository refuse pushes for this reason, or with None take them."""
        if fork is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._folder.join(FORK))
        else:
            replace_file(self._folder, FORK, to_json(fork))

    def _remove_segments(self, numbers: Iterable[int]) -> list[int]:
        """Remove these segments, but not that in Mercurial's undo file."""
        undo = read_file(self._folder.join(b"undo"), limit=WHOLE_LIMIT)
        names = {number: SEGMENT.format(number).encode() for number in numbers}
        removed = [number for number, name in names.items() if name + b"\0" not in undo]
        for number in removed:
            os.unlink(self._folder.join(names[number]))
        return removed

    def _read_back(self, sent: SentMark | None) -> Iterator[Entry]:
        """Read the committed entries, of a sent mark those up to it, newest first."""
        for number in reversed(self.segments()):
            if sent is None or number <= sent.segment:
                segment = self._open_segment(number)
                before = min(sent.end, segment.tail()) if sent is not None and number == sent.segment else None
                while (record := segment.last(before=before)) is not None:
                    yield _decode_entry(record.payload)
                    before = record.start

    def _last_segment(self, tr: Any) -> AppendFile:
        """Return the segment to append to, a new one if the newest is full."""
        numbers = self.segments() or [1]
        segment = self._open_segment(numbers[-1])
        return segment if segment.tail(tr) < SEGMENT_SIZE else self._open_segment(numbers[-1] + 1)

    def _open_segment(self, number: int) -> AppendFile:
        return AppendFile(self._folder, SEGMENT.format(number).encode(), MAGIC, limit=RECORD_LIMIT)


def outbox_of(folder: str) -> Outbox:
    """Return the outbox of the repository in a folder, which Mercurial does not open."""
    return Outbox(Store(os.path.join(folder, ".hg", "store")))


def _decode_entry(payload: bytes) -> Entry:
    return from_json(Entry, payload, limit=RECORD_LIMIT)


def _decode_end(payload: bytes) -> OutboxEnd:
    try:
        event = parse(payload, "Entry", limit=RECORD_LIMIT)["event"]
        members = {name: event[name] for name in NamedEvent.list_members()}
        end = OutboxEnd(newest=NewestEvent(**members), after=Tip(**event["after"]))
        for name, member in (*members.items(), *vars(end.after).items()):
            if type(member) is not (int if name in _NUMBERS else str):
                raise TypeError(f"{name} is {quote_value(member)}")
        return end
    except (MalformedEvent, KeyError, TypeError) as error:
        raise MalformedEvent(f"outbox: its newest entry cannot be read: {error}") from error

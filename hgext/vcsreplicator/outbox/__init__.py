# SPDX-License-Identifier: GPL-2.0-or-later
"""The outbox: the events of one repository, in its store, from the commit of their transaction until the log has them.

`.hg/store/outbox.NNNN.log`   segments of framed records (`pushlog.store.appendfile`), a JSON `Entry` each, oldest segment first
`.hg/store/outbox.sent`       JSON `SentMark`: the newest event that the log acknowledged, where its record ends, and where the log
                              took it: if that is not there any more, the log has lost records (`losses`)
`.hg/store/outbox.lock`       held (flock) by whoever sends; one sender at a time, so the log sees events in order
`.hg/store/outbox-ID.log`     the bundle of an unsent event, kept because its changesets were about to go; beside it, in
                              `outbox-ID.size.log`, the number of bytes that it unpacks to
`.hg/store/outbox.fork`       why this repository takes no pushes: the log tells another history than the outbox

The newest record is the repository's identity and level: nothing else says which repository this is. Segments are written under
the store lock and within a transaction; the marker is only a memory: without it, everything that is still there is sent again,
which readers drop.
"""

import contextlib
import enum
import fcntl
import json
import os
import stat
from collections.abc import Iterator, Sequence
from typing import IO, Any, Protocol

from pushlog.store.appendfile import AppendFile, Folder, TornRecord

from ..words import digest
from ..words.errors import MalformedEvent
from ..words.event import Changes, Event, MasterSettings, Tip, Type
from ..words.shape import from_json, to_json
from ..words.value import Value

MAGIC = b"OBX1"
SEGMENT = "outbox.{:04d}.log"
SENT = b"outbox.sent"
LOCK = b"outbox.lock"
FORK = b"outbox.fork"
SEGMENT_SIZE = 8 * 1024 * 1024
SENT_SIZE = 320  # bytes of a marker, blanks at its end: one that was prepared takes no more room once it is whole
RECORD_LIMIT = 64 * 1024 * 1024

_LEVEL = ("repository", "incarnation", "path", "generation", "seq", "id", "digest")
_SEGMENT_PREFIX, _SEGMENT_SUFFIX = b"outbox.", b".log"


class Store:
    """The store folder of a repository for whoever has no Mercurial at hand."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def join(self, name: bytes) -> bytes:
        return os.path.join(os.fsencode(self.folder), name)


class BundleStream(Protocol):
    """A bundle in the making; `unpacked` are the bytes so far before their compression."""

    unpacked: int

    def __iter__(self) -> Iterator[bytes]: ...


class Needs(enum.StrEnum):
    """What a mirror needs besides the event: nothing, a bundle made of `first` and `markers`, or a look at the master."""

    NOTHING = "nothing"
    BUNDLE = "bundle"
    MASTER = "master"


class Entry(Value):
    """A record of the outbox: the event, and what its bundle is made of.

    The bundle holds the revisions `first` up to before `event.after.length`, and `markers` (binary, base64).
    """

    event: Event
    needs: Needs
    first: int = 0
    markers: tuple[str, ...] = ()


class NewestEvent(Value):
    """Where a repository stands: its identity and its newest event."""

    repository: str
    incarnation: str
    path: str
    generation: int
    seq: int
    id: str
    digest: str


class End(Value):
    """What a push needs to know of the newest entry; `kind` is the event's type."""

    level: NewestEvent
    kind: str
    after: Tip


class SentMark(Value):
    """The newest event that the log has, and the byte of the segment where its record ends.

    `partition` and `offset` are where the log took it; None if that is not known (an older release, an adoption).
    """

    seq: int
    id: str
    segment: int
    end: int
    partition: int | None = None
    offset: int | None = None


class Place(Value):
    """An entry with the segment it stands in and the byte where its record ends."""

    entry: Entry
    segment: int
    end: int

    def sent(self) -> SentMark:
        """The marker that says: up to here."""
        return SentMark(seq=self.entry.event.seq, id=self.entry.event.id, segment=self.segment, end=self.end)


def new_id() -> str:
    """An identifier nobody else makes: 32 hexadecimal digits."""
    return os.urandom(16).hex()


def first_level(path: str, generation: int) -> NewestEvent:
    """The level of a repository that has no event yet: a new identity."""
    return NewestEvent(
        repository=new_id(),
        incarnation=new_id(),
        path=path,
        generation=generation,
        seq=0,
        id="",
        digest=digest.START,
    )


def level_of(event: Event) -> NewestEvent:
    """The level after this event."""
    return NewestEvent(
        repository=event.repository,
        incarnation=event.incarnation,
        path=event.path,
        generation=event.generation,
        seq=event.seq,
        id=event.id,
        digest=event.digest,
    )


def next_event(
    level: NewestEvent,
    kind: Type,
    *,
    time: float,
    source: str,
    changes: Changes,
    after: Tip,
    settings: MasterSettings,
    hgrc: Any = None,
    detail: Any = None,
) -> Event:
    """The event that follows `level`, with a new id."""
    return Event(
        type=kind,
        repository=level.repository,
        incarnation=level.incarnation,
        path=level.path,
        generation=level.generation,
        seq=level.seq + 1,
        id=new_id(),
        previous=level.id or None,
        digest=digest.advance(level.digest, kind, changes),
        time=time,
        source=source,
        changes=changes,
        after=after,
        settings=settings,
        hgrc=hgrc,
        detail=detail,
    )


class Outbox:
    """The outbox in a store. Methods that take `tr` see and write inside that transaction, others see what is committed."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def segments(self) -> list[int]:
        """The numbers of the segments on disk, ascending."""
        names = os.listdir(self._folder.join(b""))
        numbers = [
            name[len(_SEGMENT_PREFIX) : -len(_SEGMENT_SUFFIX)]
            for name in names
            if name.startswith(_SEGMENT_PREFIX) and name.endswith(_SEGMENT_SUFFIX)
        ]
        return sorted(int(number) for number in numbers if len(number) >= 4 and number.isdigit())

    def last(self, tr: Any = None) -> Entry | None:
        """The newest entry, None for a repository that never had one."""
        payload = self._last(tr)
        return None if payload is None else _decode(payload)

    def end(self, tr: Any = None) -> End | None:
        """What the newest entry says of the repository; read by hand, which spares a push the readers of all its parts."""
        payload = self._last(tr)
        if payload is None:
            return None
        try:
            event = json.loads(payload)["event"]
            level = NewestEvent(**{name: event[name] for name in _LEVEL})
            return End(level=level, kind=event["type"], after=Tip(**event["after"]))
        except (ValueError, KeyError, TypeError) as error:
            raise MalformedEvent(f"outbox: its newest entry cannot be read: {error}") from error

    def level(self, tr: Any = None) -> NewestEvent | None:
        """The level of the newest entry."""
        end = self.end(tr)
        return None if end is None else end.level

    def append(self, tr: Any, entries: Sequence[Entry]) -> bytes:
        """Appends under `tr`, in a finalizer and holding the store lock; the name of the segment they went to.

        Old segments are left behind by going to a new one; those that the log has whole are removed by `prune`.
        """
        segment = self._current(tr)
        segment.append(tr, [to_json(entry) for entry in entries])
        return segment.name

    def reserve(self, tr: Any) -> None:
        """Has the journal say to what `append` is to be undone, so that it can be synced before there is something to undo."""
        segment = self._current(tr)
        tr.add(segment.name, segment.tail(tr))

    def unsent(self) -> Iterator[Place]:
        """Committed entries behind the marker, oldest first."""
        sent = self.sent()
        for number in self.segments():
            if sent is None or number >= sent.segment:
                start = sent.end if sent is not None and number == sent.segment else 0
                for record in self._segment(number).records(start):
                    yield Place(entry=_decode(record.payload), segment=number, end=record.end)

    def kept(self) -> Iterator[Place]:
        """Committed entries that are still there, sent or not, oldest first."""
        for number in self.segments():
            for record in self._segment(number).records():
                yield Place(entry=_decode(record.payload), segment=number, end=record.end)

    def acknowledged(self) -> Iterator[Entry]:
        """Committed entries up to the marker that are still there, newest first: who looks for a late one reads no others."""
        sent = self.sent()
        for number in reversed(self.segments()):
            if sent is None or number > sent.segment:
                continue
            segment = self._segment(number)
            before = min(sent.end, segment.tail()) if number == sent.segment else None
            while (record := segment.last(before=before)) is not None:
                yield _decode(record.payload)
                before = record.start

    def has_unsent(self) -> bool:
        """Whether anything committed is behind the marker; does not read the entries."""
        sent, numbers = self.sent(), self.segments()
        if sent is None:
            return any(self._segment(number).tail() for number in numbers)
        if numbers and numbers[-1] == sent.segment:  # a look at the size spares the rest, for thousands of repositories
            with contextlib.suppress(FileNotFoundError):
                if os.stat(self._folder.join(SEGMENT.format(sent.segment).encode())).st_size == sent.end:
                    return False
        return any(
            self._segment(n).tail() > (sent.end if n == sent.segment else 0) for n in numbers if n >= sent.segment
        )

    def sent(self) -> SentMark | None:
        """The marker; None if there is none, or none that can be read."""
        try:
            with open(self._folder.join(SENT), "rb") as file:
                return from_json(SentMark, file.read())
        except (FileNotFoundError, MalformedEvent):
            return None

    def fits(self, sent: SentMark) -> bool:
        """Whether the event of a marker stands where that says, as far as damage lets one see; holding the sending lock."""
        segment = self._segment(sent.segment)
        if segment.tail() < sent.end:
            return False
        try:
            record = segment.last(before=sent.end)
            return record is not None and _decode(record.payload).event.id == sent.id
        except TornRecord:
            with contextlib.suppress(TornRecord):
                return any(record.end == sent.end for record in segment.records())
            return True

    def mark_sent(self, sent: SentMark) -> None:
        """Moves the marker; the caller holds the sending lock. Lost with the power it is only moved again."""
        self.prepare_sent(sent)
        self.move_sent(sent)

    def prepare_sent(self, sent: SentMark) -> None:
        """Writes the marker that `move_sent` puts in place: a full or read-only disk is noticed before there is something to mark.

        Who found out afterwards would send the same again and again.
        """
        with self._made(self._folder.join(SENT) + b".new") as file:
            file.write(to_json(sent).ljust(SENT_SIZE))

    def move_sent(self, sent: SentMark) -> None:
        """Moves the marker to what was prepared, by now with the place where the log took the event."""
        prepared = self._folder.join(SENT) + b".new"
        with open(prepared, "r+b") as file:
            file.write(to_json(sent).ljust(SENT_SIZE))
        os.replace(prepared, self._folder.join(SENT))

    def send_again(self) -> int | None:
        """Moves the marker to before the oldest event of the present incarnation that is kept; that one's sequence.

        None if there is nothing to send again. What an adoption replaced is not sent: it may be what the log must never see.
        The caller holds the sending lock.
        """
        level, before = self.level(), None
        for place in self.kept():
            if level is not None and place.entry.event.incarnation == level.incarnation:
                if before is not None:
                    self.mark_sent(before.sent())
                else:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(self._folder.join(SENT))
                return place.entry.event.seq
            before = place
        return None

    def prune(self) -> list[int]:
        """Removes segments that the log has whole; the numbers. The caller holds the store lock, outside a transaction.

        The newest segment stays, for it says where the repository stands; so does the one before it, for a log that loses its
        newest records, and one that Mercurial's undo file names.
        """
        sent, numbers = self.sent(), self.segments()
        if sent is None or len(numbers) < 3:
            return []
        undo = _read(self._folder.join(b"undo"))
        removed = []
        for number in numbers[:-2]:
            name = SEGMENT.format(number).encode()
            if number < sent.segment and name + b"\0" not in undo:
                os.unlink(self._folder.join(name))
                removed.append(number)
        return removed

    @contextlib.contextmanager
    def sending(self, *, wait: bool) -> Iterator[bool]:
        """Holds the sending lock; False if another holds it and `wait` is off."""
        descriptor = os.open(self._folder.join(LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._match_mode(descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(descriptor)

    def keeps_bundle(self, event: str) -> bool:
        """Whether the bundle of an event is stored."""
        return os.path.exists(self._folder.join(_bundle_name(event)))

    def keep_bundle(self, event: str, bundle: BundleStream) -> None:
        """Stores the bundle of an event until it is sent, and the number of bytes that it unpacks to."""
        path = self._folder.join(_bundle_name(event))
        with self._made(path + b".new") as file:
            file.writelines(bundle)
            file.flush()
            os.fsync(file.fileno())
        self._replace(_size_name(event), str(bundle.unpacked).encode())
        os.replace(path + b".new", path)

    def kept_bundle(self, event: str) -> IO[bytes] | None:
        """The stored bundle of an event, for the caller to close."""
        try:
            return open(self._folder.join(_bundle_name(event)), "rb")
        except FileNotFoundError:
            return None

    def kept_unpacked(self, event: str) -> int:
        """How many bytes the stored bundle unpacks to."""
        with contextlib.suppress(ValueError):
            return int(_read(self._folder.join(_size_name(event))))
        return 0

    def drop_bundle(self, event: str) -> None:
        """The event is sent."""
        for name in (_bundle_name(event), _size_name(event)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._folder.join(name))

    def fork(self) -> str | None:
        """Why this repository takes no pushes; None if it does."""
        return _read(self._folder.join(FORK)).decode("utf-8", "replace") or None

    def set_fork(self, reason: str | None) -> None:
        """Stops pushes to this repository, or lets them in again (None)."""
        if reason is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._folder.join(FORK))
        else:
            self._replace(FORK, reason.encode())

    def _current(self, tr: Any) -> AppendFile:
        """The segment that is written to."""
        numbers = self.segments() or [1]
        segment = self._segment(numbers[-1])
        return segment if segment.tail(tr) < SEGMENT_SIZE else self._segment(numbers[-1] + 1)

    def _last(self, tr: Any) -> bytes | None:
        for number in reversed(self.segments()):
            record = self._segment(number).last(tr)
            if record is not None:
                return record.payload
        return None

    def _segment(self, number: int) -> AppendFile:
        return AppendFile(self._folder, SEGMENT.format(number).encode(), MAGIC)

    def _replace(self, name: bytes, content: bytes) -> None:
        path = self._folder.join(name)
        temporary = b"%s.%d.tmp" % (path, os.getpid())
        with self._made(temporary) as file:
            file.write(content)
        os.replace(temporary, path)

    def _made(self, path: bytes) -> IO[bytes]:
        """A new file, with the mode that the store's files have."""
        file = open(path, "wb")  # noqa: SIM115 – the caller's to close
        try:
            self._match_mode(file.fileno())
        except BaseException:  # the repository is elsewhere by now
            file.close()
            raise
        return file

    def _match_mode(self, descriptor: int) -> None:
        """Lets whoever may write to the store read and write a file of this process's, whatever the umask says."""
        now, wanted = os.fstat(descriptor), os.stat(self._folder.join(b"")).st_mode & 0o666
        if stat.S_IMODE(now.st_mode) != wanted and now.st_uid == os.geteuid():
            os.fchmod(descriptor, wanted)


def _decode(payload: bytes) -> Entry:
    return from_json(Entry, payload, limit=RECORD_LIMIT)


def _bundle_name(event: str) -> bytes:
    return b"outbox-%s.log" % event.encode("ascii")


def _size_name(event: str) -> bytes:
    return b"outbox-%s.size.log" % event.encode("ascii")


def _read(path: bytes) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""

# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's watch for bookmarks and phases moved without the extension.

No event and no pushlog says what a repository's bookmarks and phases are, so the watch knows them from its first look on: what was
moved before the relay started is not found. Bookmarks must be those of then, moved as the newer events say. Phases need the
changelog, which is not opened: they must be those of then if no newer event added changesets or moved phases. Of a bookmark only
hashes of its name and node are kept: 16 bytes, where there may be 100,000 in a repository.

A look reads files without a lock, and counts only if no process worked there meanwhile. Mercurial changes none of these files
without the store's lock, and each lock changes the time of the store's folder: while that stays, nothing is read. A lock taken in
the same tick of the file system's clock as the look changes no time: a folder that was young is looked at again.
"""

import itertools
import os
import zlib
from array import array
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

import structlog

from ..outbox.entry import Entry
from ..outbox.file import Outbox, TornRecord, outbox_of
from ..outbox.folder import read_file
from ..words.clock import Clock, SystemClock
from ..words.errors import ReplicationError
from ..words.event import Type

logger = structlog.get_logger()

# Most repositories that are read in one round; the rest waits for the next.
AT_ONCE = 1000
# Bytes that are read of a file.
LIMIT = 64 * 1024 * 1024
# Seconds after a folder's time in which a change may leave that time as it is: the longest tick of a file system's clock.
TICK = 2.0

# Device, inode and time of a store's folder.
_Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _SeenBookmarks:
    """Bookmarks and a checksum of phases, at an outbox's end.

    `end` is its newest segment and that one's size; None without an event. `bookmarks` is what `_pack_marks` returns.
    `phases` is None if moved phases were not announced, and newer events touched phases.
    """

    end: tuple[int, int] | None
    bookmarks: bytes
    phases: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What mirrors get of a repository by its events, and whether the files differ.

    `stamp` is None if the folder was young.
    """

    stamp: _Stamp | None
    announced: _SeenBookmarks
    is_moved: bool


class BookmarkWatch:
    """Remembers the bookmarks and phases of each repository; used by one thread."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._known: dict[str, _Known] = {}
        self._left = AT_ONCE

    def begin_round(self, folders: Container[str]) -> None:
        """Forget all other repositories, and count anew how many are read."""
        self._left = AT_ONCE
        for folder in [folder for folder in self._known if folder not in folders]:
            del self._known[folder]

    def is_moved(self, folder: str) -> bool:
        """Return whether bookmarks or phases are others than the events say.

        What is known stands while a process works there, or if the files cannot be read.
        """
        known = self._known.get(folder)
        try:
            stamp = _read_stamp(folder)
            if (known is None or known.stamp != stamp) and self._left:
                self._left -= 1
                is_young = abs(self._clock.now() - stamp[-1] / 1e9) < TICK
                if (found := _look_again(folder, stamp, known)) is not None:
                    known = self._known[folder] = replace(found, stamp=None) if is_young else found
        except (OSError, ReplicationError, TornRecord) as error:
            logger.debug("bookmarks not compared", folder=folder, reason=str(error))
        return known is not None and known.is_moved


def _look_again(folder: str, stamp: _Stamp, known: _Known | None) -> _Known | None:
    """Compare the files with the events; None if a process works there."""
    box = outbox_of(folder)
    seen = _look_at(folder, box)
    announced = seen if known is None else _follow_events(known, seen, box)
    if _is_busy(folder) or _read_stamp(folder) != stamp:
        return None
    return _Known(stamp=stamp, announced=announced, is_moved=announced != seen)


def _follow_events(known: _Known, seen: _SeenBookmarks, box: Outbox) -> _SeenBookmarks:
    """Return what newer events make of what is known.

    Returns what is seen if they cannot say it.
    """
    before = known.announced
    if before.end is None or seen.end is None or before.end > seen.end or before.end[0] not in box.segments():
        # A new outbox, or so many events that the oldest of them are removed.
        return seen
    if before.end == seen.end:
        return before
    try:
        entries = [place.entry for place in box.since(*before.end)]
    except TornRecord:
        # Another outbox in the place of the former.
        return seen
    return _apply_entries(known, seen, entries)


def _apply_entries(known: _Known, seen: _SeenBookmarks, entries: list[Entry]) -> _SeenBookmarks:
    """Return what these entries, which are all newer ones, make of what is known.

    After a `sync` mirrors have what the master has. A strip moves bookmarks and phases without naming them.
    """
    types = {entry.event.type for entry in entries}
    if Type.SYNC in types or (Type.STRIPPED in types and not known.is_moved):
        return seen
    before, marks = known.announced, _unpack_marks(known.announced.bookmarks)
    for bookmark in (bookmark for entry in entries for bookmark in entry.event.changes.bookmarks):
        name = hash(bookmark.name.encode("utf-8", "surrogateescape"))
        marks.pop(name, None)
        if bookmark.node is not None:
            marks[name] = hash(bookmark.node.encode())
    phases = before.phases
    if any(entry.event.changes.added or entry.event.changes.phases for entry in entries):
        phases = None if known.is_moved else seen.phases
    return replace(before, end=seen.end, bookmarks=_pack_marks(marks), phases=phases)


def _look_at(folder: str, box: Outbox) -> _SeenBookmarks:
    """Read what the files say; only of use if no process worked there meanwhile."""
    control = os.fsencode(os.path.join(folder, ".hg"))
    lines = [line for name in (b"bookmarks", b"store/bookmarks") for line in _read_lines(os.path.join(control, name))]
    roots = sorted(_read_lines(os.path.join(control, b"store/phaseroots")))
    # Its newest segment is read last: if an event came meanwhile, the stamp has changed.
    return _SeenBookmarks(
        end=box.extent(),
        bookmarks=_pack_marks({hash(name): hash(node) for node, _, name in (line.partition(b" ") for line in lines)}),
        phases=zlib.crc32(b"\n".join(roots)),
    )


def _pack_marks(marks: Mapping[int, int]) -> bytes:
    """Return the hashes of names and nodes, sorted, in 16 bytes a bookmark."""
    return array("q", itertools.chain.from_iterable(sorted(marks.items()))).tobytes()


def _unpack_marks(packed: bytes) -> dict[int, int]:
    hashes = array("q", packed)
    return dict(zip(hashes[::2], hashes[1::2], strict=True))


def _read_lines(path: bytes) -> list[bytes]:
    return list(filter(None, read_file(path, LIMIT).split(b"\n")))


def _read_stamp(folder: str) -> _Stamp:
    found = os.stat(f"{folder}/.hg/store")
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _is_busy(folder: str) -> bool:
    store = os.path.join(folder, ".hg", "store")
    return any(os.path.lexists(os.path.join(store, name)) for name in ("lock", "journal"))

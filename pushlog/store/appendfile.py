# SPDX-License-Identifier: GPL-2.0-or-later
"""An append-only file of framed records whose appends commit with a Mercurial transaction.

A record is there exactly if the transaction that appended it committed: an abort, a kill and ``hg recover`` truncate the file
to what it was, because its size is in Mercurial's journal before its first new byte is written. Readers take no lock and see
committed records only. This module knows frames and bytes; what a record means is the business of its users.

========  =====  ==================================================================
bytes     field  meaning
========  =====  ==================================================================
4         magic  the kind of file, given by its user
4         size   number of payload bytes, big endian
4         crc    CRC-32 over ``size`` and the payload, big endian
size      -      payload
4         size   again, so that the last record is found from the end of the file
========  =====  ==================================================================

Name such a file flat in the store and let it end in ``.log``: a sub-folder does not survive a format upgrade, and ``.i`` and
``.d`` mean something to Mercurial. Bytes that were written but not synced can be lost with the power: `sync` is the remedy, a
`TornRecord` is how the loss shows, `mend` removes it.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, NamedTuple, Protocol, cast

if TYPE_CHECKING:
    from mercurial.transaction import transaction as Transaction
    from mercurial.vfs import abstractvfs

_HEAD = struct.Struct(">4sII")
_SIZE = struct.Struct(">I")
FRAME_BYTES = _HEAD.size + _SIZE.size  # what a record needs besides its payload
_READ_AHEAD = 1 << 18
_NO_FILE = -1


class TornRecord(Exception):
    """A frame inside the committed part of a file is damaged: lost power, a bad disk, or somebody else's write."""

    def __init__(self, name: bytes, offset: int, reason: str):
        super().__init__(f"{os.fsdecode(name)}: damaged record at byte {offset}: {reason}")
        self.name = name
        self.offset = offset
        self.reason = reason


class FramedPayload(NamedTuple):
    """One payload and the bytes its frame occupies: ``start`` inclusive, ``end`` exclusive (the next record's start)."""

    start: int
    end: int
    payload: bytes


class Folder(Protocol):
    """What of Mercurial's vfs is needed to read: where a name of the store is on disk."""

    def join(self, path: bytes, /) -> bytes: ...


class AppendFile:
    """One append-only file in a store: ``vfs`` is ``repo.svfs``, whose modes new files get; for readers, any `Folder`.

    Where a method takes ``tr``, giving the caller's own open transaction shows its uncommitted records too; without it only
    committed ones are seen, whoever is writing meanwhile.
    """

    def __init__(self, vfs: Folder, name: bytes, magic: bytes):
        if len(magic) != 4:
            raise ValueError(f"{name!r}: magic must have 4 bytes, got {magic!r}")
        if not name.endswith(b".log") or b"/" in name:
            raise ValueError(f"{name!r}: expected a flat name that ends in .log")
        self.name = name
        self._vfs = vfs
        self._magic = magic

    def append(self, tr: Transaction, payloads: Iterable[bytes]) -> int:
        """Append records under ``tr`` and return the file's new size; call it in a finalizer, holding the store lock.

        The journal learns the old size before the file changes. Raises `TornRecord`, having written nothing, if the file's
        last record is damaged: a record behind it could never be read.
        """
        size = self.tail(tr)
        self.last(tr)
        frames = b"".join(map(self._frame, payloads))
        if not frames:
            return size
        tr.add(self.name, size)
        with self._opener()(self.name, b"ab") as file:
            file.write(frames)
        return size + len(frames)

    def tail(self, tr: Transaction | None = None) -> int:
        """The size of the committed part in bytes, 0 without a file; with ``tr`` the size of the file."""
        with self._open(tr) as (_file, end):
            return end

    def records(self, start: int = 0, tr: Transaction | None = None) -> Iterator[FramedPayload]:
        """The records from byte ``start`` (a record's start or end) up to what is committed when the first is asked for.

        Raises `TornRecord` at a damaged frame, after yielding those before it. A ``start`` behind the end yields nothing.
        """
        with self._open(tr) as (file, end):
            block, block_start = b"", start
            while start < end:
                position = start - block_start
                need = FRAME_BYTES
                if len(block) - position >= _HEAD.size:
                    need += _HEAD.unpack_from(block, position)[1]
                if len(block) - position < (wanted := min(need, end - start)):
                    wanted = min(max(wanted, _READ_AHEAD), end - start)
                    block, block_start = _read(file, start, wanted), start
                    if len(block) < wanted:
                        raise TornRecord(self.name, start, "the file became shorter")
                    continue
                record = self._unframe(block, position, start)
                yield record
                start = record.end

    def sound_records(self, tr: Transaction | None = None) -> Iterator[FramedPayload]:
        """As `records`, going on behind a damaged frame with the next sound one; holds the file in memory if it is damaged."""
        start = 0
        try:
            for record in self.records(tr=tr):
                yield record
                start = record.end
        except TornRecord:
            with self._open(tr) as (file, end):
                content = _read(file, 0, end)
            while (start := content.find(self._magic, start + 1)) != -1:
                with contextlib.suppress(TornRecord):
                    record = self._unframe(content, start, start)
                    yield record
                    start = record.end - 1

    def last(self, tr: Transaction | None = None, *, before: int | None = None) -> FramedPayload | None:
        """The last record (that ends at byte ``before``), found from its end: the cost does not grow with the file.

        None if there is none. Raises `TornRecord` if no sound record ends there.
        """
        with self._open(tr) as (file, end):
            if before is not None:
                if before > end:
                    raise TornRecord(self.name, end, f"byte {before} expected, the file is shorter")
                end = before
            if end == 0:
                return None
            if end < FRAME_BYTES:
                raise TornRecord(self.name, 0, "shorter than a frame")
            start = end - FRAME_BYTES - _SIZE.unpack(_read(file, end - _SIZE.size, _SIZE.size))[0]
            if start < 0:
                raise TornRecord(self.name, end, "the size at its end is too large")
            return self._unframe(_read(file, start, end - start), 0, start)

    def sync(self) -> None:
        """Return once the bytes written so far would survive a power cut; does nothing without a file."""
        with self._open(None) as (file, _end):
            if file != _NO_FILE:
                os.fdatasync(file)

    def mend(self, offset: int, payloads: Iterable[bytes]) -> None:
        """Put ``payloads`` where a damaged record starts, for good: an abort does not bring back what was there.

        Call it holding the store lock, before the first append of a transaction. A kill leaves the one file or the other.
        """
        opener = self._opener()
        with opener(self.name, b"rb") as damaged:
            sound = damaged.read(offset)
        replace(opener, self.name, sound + b"".join(map(self._frame, payloads))).close()

    def _opener(self) -> abstractvfs:
        """The store's vfs, which a writer has given."""
        return cast("abstractvfs", self._vfs)

    def _frame(self, payload: bytes) -> bytes:
        size = _SIZE.pack(len(payload))
        return b"".join((self._magic, size, _SIZE.pack(zlib.crc32(payload, zlib.crc32(size))), payload, size))

    def _unframe(self, block: bytes, position: int, start: int) -> FramedPayload:
        """The record whose frame begins at ``position`` of ``block``, which is byte ``start`` of the file."""
        if len(block) - position < FRAME_BYTES:
            raise TornRecord(self.name, start, "shorter than a frame")
        magic, size, crc = _HEAD.unpack_from(block, position)
        if magic != self._magic:
            raise TornRecord(self.name, start, f"expected {self._magic!r}, got {magic!r}")
        begin = position + _HEAD.size
        end = begin + size
        if end + _SIZE.size > len(block):
            raise TornRecord(self.name, start, f"{size} bytes announced, fewer found")
        payload = block[begin:end]
        sized = block[end : end + _SIZE.size]
        if sized != _SIZE.pack(size) or crc != zlib.crc32(payload, zlib.crc32(sized)):
            raise TornRecord(self.name, start, "checksum differs")
        return FramedPayload(start=start, end=start + FRAME_BYTES + size, payload=payload)

    @contextlib.contextmanager
    def _open(self, tr: Transaction | None) -> Iterator[tuple[int, int]]:
        """A descriptor for reading and the size of what ``tr`` may see; `_NO_FILE` and 0 if there is no file."""
        while True:
            try:
                file = os.open(self._vfs.join(self.name), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                yield _NO_FILE, 0
                return
            try:
                if (end := self._visible_size(file, tr)) is not None:
                    yield file, end
                    return
            finally:
                os.close(file)

    def _visible_size(self, file: int, tr: Transaction | None) -> int | None:
        """The committed size, or the whole size for the holder of ``tr``; None if the name means another file by now.

        Rules of this function, for a reader without a lock: (1) bytes are uncommitted exactly while the journal names the file
        with a smaller size; (2) so the journal is read between two looks at the file, and what it says is about the bytes seen
        only if both looks agree (an abort truncates or unlinks first and removes the journal afterwards, a commit touches only
        the journal); (3) bytes once committed never change, so they may be read at leisure afterwards.
        """
        while True:
            before = os.fstat(file)
            if tr is not None:
                return before.st_size
            limit = self._journalled_size()
            after = os.fstat(file)
            if after.st_nlink == 0:
                return None
            if (before.st_size, before.st_ctime_ns) == (after.st_size, after.st_ctime_ns):
                return after.st_size if limit is None else min(limit, after.st_size)

    def _journalled_size(self) -> int | None:
        """The size to which the running or abandoned transaction would truncate the file; None if it does not touch it."""
        try:
            with open(self._vfs.join(b"journal"), "rb") as journal:
                lines = journal.read().split(b"\n")
        except FileNotFoundError:
            return None
        sizes = [int(size) for name, _, size in (line.partition(b"\0") for line in lines[:-1]) if name == self.name]
        return min(sizes, default=None)


def _read(file: int, start: int, size: int) -> bytes:
    """Up to ``size`` bytes from ``start``; fewer only at the end of the file."""
    blocks = []
    while size > 0 and (block := os.pread(file, size, start)):
        blocks.append(block)
        start += len(block)
        size -= len(block)
    return b"".join(blocks)


def replace(opener: abstractvfs, name: bytes, content: bytes) -> IO[bytes]:
    """The file, open at its end, once it has this content on disk; until then it is what it was."""
    new = name + b".new"
    file = opener(new, b"w+")
    try:
        file.write(content)
        file.flush()
        os.fdatasync(file.fileno())
        opener.rename(new, name)
        sync_folder(opener)
    except BaseException:
        file.close()
        opener.tryunlink(new)
        raise
    return file


def sync_folder(opener: abstractvfs) -> None:
    """Names given or taken away in the opener's folder survive a power cut from now on."""
    folder = os.open(opener.join(b""), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

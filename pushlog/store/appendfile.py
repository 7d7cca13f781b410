# SPDX-License-Identifier: GPL-2.0-or-later
"""An append-only file of framed records that commit with Mercurial.

A record is there exactly if the Mercurial transaction that appended it committed: an abort, a kill and ``hg recover`` truncate
the file to what it was, because its size is in Mercurial's journal before its first new byte is written. Readers take no lock and
see committed records only. `frames` has the form of a record in the file; the file's users know what its payload means.

Name such a file flat in the store and let it end in ``.log``: a sub-folder does not survive a format upgrade, and ``.i`` and
``.d`` mean something to Mercurial. The file is not synced here: a power cut can take bytes that are in it. A `TornRecord` then
shows the loss, and `mend` removes it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol, cast

from mercurial import util
from mercurial.transaction import transaction as Transaction
from mercurial.vfs import abstractvfs

from . import frames
from .frames import FramedPayload, TornRecord
from .opening import WHOLE_LIMIT, open_regular, walk

if TYPE_CHECKING:

    class Folder(Protocol):
        """The part of Mercurial's vfs that says where a name of the store is on disk."""

        def join(self, path: bytes, /) -> bytes: ...


__all__ = ["WHOLE_LIMIT", "AppendFile", "FramedPayload", "TornRecord", "open_regular", "walk"]

# Bytes that are read at once.
_READ_AHEAD = 1 << 18
# Bytes that are written at once, and held in memory.
_WRITE_BLOCK = 1 << 20
# Digits of the size of a file in a journal: no file is larger, and Python reads no number of thousands of digits.
SIZE_DIGITS = 18
# Stands for the descriptor of a file that does not exist.
_NO_FILE = -1


class AppendFile:
    """One append-only file in a store.

    ``vfs`` is ``repo.svfs``, which gives new files their modes; for readers, it may be any `Folder`. A method that takes ``tr``,
    the caller's own open transaction, sees its uncommitted records too. Without it the method sees committed records only, even
    while another process writes. A payload of more than ``limit`` bytes is damage, and is not read.
    """

    def __init__(self, vfs: Folder, name: bytes, magic: bytes, *, limit: int | None = None):
        if len(magic) != 4:
            raise ValueError(f"{name!r}: magic must have 4 bytes, got {magic!r}")
        if not name.endswith(b".log") or b"/" in name:
            raise ValueError(f"{name!r}: expected a flat name that ends in .log")
        self.name = name
        self._vfs = vfs
        self._magic = magic
        self._limit = limit
        self._encode = functools.partial(frames.encode, magic)
        self._decode_frame = functools.partial(frames.decode, name, magic)

    def append(self, tr: Transaction, payloads: Iterable[bytes]) -> int:
        """Append records under ``tr`` and return the file's new size.

        Call it in a finalizer, holding the store lock. The journal learns the old size before the file changes. Raises
        `TornRecord`, having written nothing, if the file's last record is damaged: a record behind it could never be read.
        """
        size = self.tail(tr)
        self.last(tr)
        blocks = util.increasingchunks(map(self._encode, payloads), min=_WRITE_BLOCK, max=_WRITE_BLOCK)
        first = next(blocks, None)
        if first is None:
            return size
        tr.add(self.name, size)
        with self._find_vfs()(self.name, b"ab") as file:
            for block in itertools.chain([first], blocks):
                file.write(block)
                size += len(block)
        return size

    def reserve(self, tr: Transaction) -> None:
        """Write to the journal how to undo `append`.

        So one sync of the journal protects this file and others.
        """
        tr.add(self.name, self.tail(tr))

    def tail(self, tr: Transaction | None = None) -> int:
        """Return the committed size in bytes, 0 without a file; with ``tr`` the whole."""
        with self._open(tr) as (_file, end):
            return end

    def size_after_undo(self) -> int:
        """Return the size that a rollback of the last transaction leaves."""
        size = self._read_journalled_size(b"undo")
        return self.tail() if size is None else size

    def records(self, start: int = 0, tr: Transaction | None = None) -> Iterator[FramedPayload]:
        """Yield the records from byte ``start`` on; none if it is after the end.

        ``start`` is the start or the end of a record. The last record is the last that was committed when the caller asked for
        the first. Raises `TornRecord` at a damaged frame, after the records before it.
        """
        with self._open(tr) as (file, end):
            block, block_start = b"", start
            while start < end:
                position = start - block_start
                need = frames.FRAME_BYTES
                if len(block) - position >= frames.HEAD_BYTES:
                    need += self._check_size(frames.size_in_head(block, position), start)
                if len(block) - position < (wanted := min(need, end - start)):
                    wanted = min(max(wanted, _READ_AHEAD), end - start)
                    block, block_start = _read_block(file, start, wanted), start
                    if len(block) < wanted:
                        raise TornRecord(self.name, start, "the file became shorter")
                    continue
                record = self._decode_frame(block, position, start)
                yield record
                start = record.end

    def sound_records(self, tr: Transaction | None = None) -> Iterator[FramedPayload]:
        """Yield every sound record; a damaged file is held in memory."""
        start = 0
        try:
            for record in self.records(tr=tr):
                yield record
                start = record.end
        except TornRecord:
            with self._open(tr) as (file, end):
                content = _read_block(file, 0, end)
            while (start := content.find(self._magic, start + 1)) != -1:
                with contextlib.suppress(TornRecord):
                    record = self._decode_frame(content, start, start)
                    yield record
                    start = record.end - 1

    def last(self, tr: Transaction | None = None, *, before: int | None = None) -> FramedPayload | None:
        """Return the last record (that ends at byte ``before``), None without one.

        The cost does not grow with the file. Raises `TornRecord` if no sound record ends there.
        """
        with self._open(tr) as (file, end):
            if before is not None:
                if before > end:
                    raise TornRecord(self.name, end, f"byte {before} expected, the file is shorter")
                end = before
            if end == 0:
                return None
            if end < frames.FRAME_BYTES:
                raise TornRecord(self.name, 0, "shorter than a frame")
            size_at_end = _read_block(file, end - frames.SIZE_BYTES, frames.SIZE_BYTES)
            start = end - frames.FRAME_BYTES - self._check_size(frames.size_at_end(size_at_end), end)
            if start < 0:
                raise TornRecord(self.name, end, "the size at its end is too large")
            return self._decode_frame(_read_block(file, start, end - start), 0, start)

    def mend(self, offset: int, payloads: Iterable[bytes]) -> None:
        """Replace the file from a damaged record on by ``payloads``.

        An abort does not bring back what was there. Call it holding the store lock, before the first append of a
        transaction. A kill leaves the old file or the new one.
        """
        from . import disk

        opener = self._find_vfs()
        with opener(self.name, b"rb") as damaged:
            sound = damaged.read(offset)
        disk.replace(opener, self.name, sound + b"".join(map(self._encode, payloads))).close()

    def _find_vfs(self) -> abstractvfs:
        """Return the store's vfs, which a writer has given."""
        return cast("abstractvfs", self._vfs)

    def _check_size(self, size: int, position: int) -> int:
        """Return the size of a payload; raise TornRecord if it is too large."""
        if self._limit is not None and size > self._limit:
            raise TornRecord(self.name, position, f"a record of {size} bytes")
        return size

    @contextlib.contextmanager
    def _open(self, tr: Transaction | None) -> Iterator[tuple[int, int]]:
        """Yield a descriptor and the visible size; `_NO_FILE` and 0 without a file."""
        while True:
            try:
                file = open_regular(self._vfs.join(self.name), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                yield _NO_FILE, 0
                return
            try:
                if (end := self._find_visible_size(file, tr)) is not None:
                    yield file, end
                    return
            finally:
                os.close(file)

    def _find_visible_size(self, file: int, tr: Transaction | None) -> int | None:
        """Return the committed size, or the whole size with ``tr``.

        None if the name means another file by now. Rules of this function, for a reader without a lock: (1) bytes are
        uncommitted exactly while the journal names the file with a smaller size; (2) so the journal is read between two
        calls of fstat, and what it says is about the bytes seen only if the file was the same before and after (an abort
        truncates or unlinks first and removes the journal afterwards, a commit touches only the journal); (3) bytes once
        committed never change, so they may be read later; (4) the journal that was read is about the bytes only if the name still
        means the file: the repository may be moved, and change at its new place.
        """
        while True:
            before = os.fstat(file)
            if tr is not None:
                return before.st_size
            limit = self._read_journalled_size()
            after = os.fstat(file)
            try:
                named = os.lstat(self._vfs.join(self.name))
            except FileNotFoundError:
                return None
            if (named.st_dev, named.st_ino) != (after.st_dev, after.st_ino):
                return None
            if (before.st_size, before.st_ctime_ns) == (after.st_size, after.st_ctime_ns):
                return after.st_size if limit is None else min(limit, after.st_size)

    def _read_journalled_size(self, name: bytes = b"journal") -> int | None:
        """Return the size to which this journal's rollback truncates the file, or None.

        Raises `TornRecord` if the journal says no size, or is too large to be read: then it is not known what is committed.
        """
        try:
            with open(self._vfs.join(name), "rb", opener=open_regular) as journal:
                if (length := os.fstat(journal.fileno()).st_size) > WHOLE_LIMIT:
                    raise TornRecord(self.name, 0, f"the {name.decode()} has more than {WHOLE_LIMIT} bytes")
                lines = journal.read(length).split(b"\n")
        except FileNotFoundError:
            return None
        sizes = [size for named, _, size in (line.partition(b"\0") for line in lines[:-1]) if named == self.name]
        for size in sizes:
            if not size.isdigit() or len(size) > SIZE_DIGITS:
                raise TornRecord(self.name, 0, f"the {name.decode()} gives it the size {size[:40]!r}")
        return min(map(int, sizes), default=None)


def _read_block(file: int, start: int, size: int) -> bytes:
    """Return ``size`` bytes from ``start``, fewer only at the end of the file."""
    blocks = []
    while size > 0 and (block := os.pread(file, size, start)):
        blocks.append(block)
        start += len(block)
        size -= len(block)
    return b"".join(blocks)

# SPDX-License-Identifier: GPL-2.0-or-later
"""A bounded queue on disk: lines in append-only files.

`append` returns once its lines are synced. A line is the CRC-32 of a value, in eight hexadecimal digits, a blank, the value and a
newline; a value has no newline. Files are `NNNNNNNNNN.log` and read in this order; the queue removes a file when the log has all
of it. It remembers in memory alone what was read of a file, so a kill repeats the messages of one file at most (`SEGMENT_BYTES`,
and the batch that filled it).

After a kill in `append`, the last file may end with a torn line, of values that were not acknowledged; the next start cuts it. A
damaged line in front of sound ones is the disk's fault: the queue skips it, and keeps its file with the ending `.damaged`.
"""

import fcntl
import os
import re
import threading
import zlib
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import structlog

from hgext.vcsreplicator.log.blobs import sync_folder
from hgext.vcsreplicator.words.errors import BadConfig

from ...clients.lines import write_all
from .metrics import DAMAGED, QUEUED, SET_ASIDE

# Bytes after which a file is full, and the next is begun.
SEGMENT_BYTES = 4 * 1024 * 1024

# Bytes that one `read` returns at least, if there are as many.
READ_BYTES = 2 * 1024 * 1024

_NAME = re.compile(r"\d{10}\.(log|damaged)")
_LOCK, _ASIDE = "lock", "rejected.log"

logger = structlog.get_logger()


@dataclass(slots=True)
class _Segment:
    """A file of the queue, and how many of its bytes are synced."""

    path: Path
    size: int
    has_damage: bool = False


class DiskQueue:
    """The queue in `folder`, of at most `limit` bytes.

    One thread appends, and one reads. Raises BadConfig if the folder cannot be used, or another process uses it.
    """

    def __init__(self, folder: str, limit: int) -> None:
        self._folder, self._limit = Path(folder), limit
        self._guard = threading.Lock()
        # The last file, if it is appended to; None before the first append, and after a failed one.
        self._tail: int | None = None
        self._position = self._read_to = 0
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self._segments = self._open_segments()
            except BaseException:
                os.close(self._lock)
                raise
        except OSError as error:
            raise BadConfig(f"edge.queue: {folder}: cannot be used: {error.strerror}") from error
        self._size = sum(segment.size for segment in self._segments)
        QUEUED.set(self._size)

    @property
    def is_empty(self) -> bool:
        """Whether the log has all that was appended."""
        return not self._segments

    @property
    def room(self) -> int:
        """The number of bytes that the bound and the disk allow to append.

        Raises OSError if the disk cannot be asked.
        """
        disk = os.statvfs(self._folder)
        return min(self._limit - self._size, disk.f_bavail * disk.f_frsize)

    def append(self, values: Sequence[bytes]) -> int:
        """Append the first values, as many as the bound allows; return how many.

        These values are durable on return. Raises OSError if the disk fails; then none of them counts as appended.
        """
        lines, size = [], 0
        for value in values:
            line = _line_of(value)
            if self._size + size + len(line) > self._limit:
                break
            lines.append(line)
            size += len(line)
        if lines:
            with self._guard:
                self._append(b"".join(lines))
        return len(lines)

    def read(self) -> list[bytes]:
        """Return the oldest values; the same again until `drop`."""
        segment = self._segments[0]
        values: list[bytes] = []
        damaged = 0
        with open(segment.path, "rb") as file:
            self._read_to = file.seek(self._position)
            while self._read_to < segment.size and self._read_to - self._position < READ_BYTES:
                line = file.readline()
                self._read_to += len(line)
                if not line:  # shorter than it was: nothing more can be read
                    self._read_to, segment.has_damage = segment.size, True
                elif (value := _value_of(line)) is None:
                    damaged += 1
                else:
                    values.append(value)
        if damaged:
            segment.has_damage = True
            DAMAGED.inc(damaged)
            logger.error("queue damaged", file=str(segment.path), lines=damaged, kept="as .damaged")
        return values

    def drop(self) -> None:
        """Forget the values of the last `read`: the log has them."""
        with self._guard:
            self._position = self._read_to
            segment = self._segments[0]
            if self._position < segment.size:
                return
            if segment.has_damage:
                segment.path.rename(segment.path.with_suffix(".damaged"))
            else:
                segment.path.unlink()
            if len(self._segments) == 1:
                self._close_tail()
            self._position = self._read_to = 0
            self._count(-segment.size)
            self._segments.popleft()

    def set_aside(self, value: bytes) -> None:
        """Keep a value that the log refuses, in a file apart from the queue.

        If an operator renames that file to a file of the queue, the edge sends the value again after the next start.
        """
        path = self._folder / _ASIDE
        with open(path, "a+b", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            # A line that a kill or a full disk tore must not spoil the new line.
            file.write(b"\n" * _is_torn(file) + _line_of(value))
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self._folder)
        SET_ASIDE.inc()
        logger.error("message set aside: the log refuses it", file=str(path), size=len(value))

    def close(self) -> None:
        """Release the folder; what is queued stays for the next start."""
        self._close_tail()
        os.close(self._lock)

    def _open_segments(self) -> deque[_Segment]:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadConfig(f"edge.queue: {self._folder}: another edge uses it") from None
        known = sorted(path for path in self._folder.iterdir() if _NAME.fullmatch(path.name))
        self._next_number = int(known[-1].stem) + 1 if known else 1
        paths = [path for path in known if path.suffix == ".log"]
        if paths:
            _cut_torn_tail(paths[-1])
        found = deque(_Segment(path, path.stat().st_size) for path in paths)
        while found and not found[-1].size:
            found.pop().path.unlink()
        return found

    def _append(self, lines: bytes) -> None:
        is_new = self._tail is None or self._segments[-1].size >= SEGMENT_BYTES
        if is_new:
            self._begin_segment()
        assert self._tail is not None
        segment = self._segments[-1]
        try:
            write_all(self._tail, lines)
            os.fdatasync(self._tail)
            if is_new:
                sync_folder(self._folder)
        except OSError:
            # Its part on disk is unknown: cut it, and begin another file next time.
            with suppress(OSError):
                os.ftruncate(self._tail, segment.size)
            self._close_tail()
            raise
        segment.size += len(lines)
        self._count(len(lines))

    def _begin_segment(self) -> None:
        """Begin the next file.

        It is the last one, emptied once more, if a failed append left that empty: so failures make no more files.
        """
        self._close_tail()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        if self._segments and not self._segments[-1].size:
            self._tail = os.open(self._segments[-1].path, flags | os.O_TRUNC)
            return
        path = self._folder / f"{self._next_number:010}.log"
        self._tail = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
        self._next_number += 1
        self._segments.append(_Segment(path, 0))

    def _count(self, size: int) -> None:
        self._size += size
        QUEUED.set(self._size)

    def _close_tail(self) -> None:
        if self._tail is not None:
            os.close(self._tail)
            self._tail = None


def _line_of(value: bytes) -> bytes:
    return b"%08x %b\n" % (zlib.crc32(value), value)


def _value_of(line: bytes) -> bytes | None:
    """Return the value of a line; None if it is torn or damaged."""
    value = line[9:-1]
    is_sound = line[:9] == b"%08x " % zlib.crc32(value) and line.endswith(b"\n")
    return value if is_sound else None


def _is_torn(file: BinaryIO) -> bool:
    """Return whether a file, read to its end, ends without a newline."""
    if not file.tell():
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"


def _cut_torn_tail(path: Path) -> None:
    """Cut what follows the last sound line of the newest file."""
    end = sound_end = 0
    with open(path, "r+b") as file:
        for line in file:
            end += len(line)
            if _value_of(line) is not None:
                sound_end = end
        if end > sound_end:
            file.truncate(sound_end)
            os.fsync(file.fileno())
            logger.warning("torn tail cut", file=str(path), size=end - sound_end)

# SPDX-License-Identifier: GPL-2.0-or-later
"""JSON lines: one message a line, in a file or on standard output.

The file may be rotated at any time, by renaming, not by copying and truncating. Before each write the destination looks at the
path: if the file was renamed or removed (logrotate), it leaves that file and begins a new one.

In a file, a message is confirmed once its whole line is synced to disk. A line cut short by a crash or a full disk is removed
before the next is written, and its message is written again.
"""

import fcntl
import os
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO

from hgext.vcsreplicator.log.blobs import sync_folder
from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.shape import absolute

from .destination import DOCUMENTED, DeliveryOutcome, Destination
from .message import Message, to_text
from .window import PATIENCE, Delivery, Patience


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLinesSettings:
    """Settings of the destination `jsonlines`.

    `file` is an absolute path, created with mode 0640 less the umask; its folder must exist.
    """

    file: str
    types: tuple[str, ...] = DOCUMENTED
    start_at: str = "beginning"
    patience: Patience = PATIENCE

    def __post_init__(self) -> None:
        absolute(self, "file")

    def open(self, name: str, clock: Clock) -> Destination:
        return JsonLines(self.file)


@dataclass(frozen=True, slots=True, kw_only=True)
class StdoutSettings:
    """Settings of the destination `stdout`.

    It writes lines to standard output, for people and pipes; a message is confirmed when it is written.
    """

    types: tuple[str, ...] = DOCUMENTED
    start_at: str = "beginning"
    patience: Patience = PATIENCE

    def open(self, name: str, clock: Clock) -> Destination:
        return Stdout(sys.stdout.buffer)


def line(message: Message) -> bytes:
    """Return the line of a message, newline included."""
    content = {
        **message.envelope,
        "id": message.id,
        "previous": message.previous,
        "repository": message.repository,
        "sequence": message.sequence,
        "time": message.created,
    }
    if message.replay is not None:
        content["replay"] = message.replay
    return to_text(content).encode("ascii") + b"\n"


@dataclass(slots=True)
class JsonLines:
    """The destination `jsonlines`."""

    path: str
    _batch: list[tuple[int, bytes]] = field(default_factory=list)
    _file: int | None = None
    _name_synced: bool = False

    def start(self) -> None:
        """Open the file, or raise Unavailable."""
        try:
            self._open()
        except OSError as error:
            raise self._translate_error(error) from error

    def submit(self, delivery: Delivery) -> None:
        self._batch.append((delivery.number, line(delivery.message)))

    def outcomes(self, timeout: float) -> Sequence[DeliveryOutcome]:
        batch, self._batch = self._batch, []
        if not batch:
            return []
        try:
            self.append(b"".join(text for _, text in batch))
        except (OSError, Unavailable) as error:
            self.close()
            trouble = self._translate_error(error) if isinstance(error, OSError) else error
            return [DeliveryOutcome(number=number, error=trouble) for number, _ in batch]
        return [DeliveryOutcome(number=number) for number, _ in batch]

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def append(self, lines: bytes) -> None:
        """Append whole lines durably.

        Raises OSError or Unavailable, and then the file has none of them.
        """
        file = self._open()
        begin = os.fstat(file).st_size
        try:
            write_all(file, lines)
            os.fsync(file)
            if not self._name_synced:
                sync_folder(os.path.dirname(self.path))
                self._name_synced = True
        except OSError:
            os.ftruncate(file, begin)
            raise

    def _open(self) -> int:
        """Open the file that the path names now.

        Raises OSError, or Unavailable for a pipe or a device: it cannot be synced, so each attempt would write the line again. Also
        for a file that another process writes: each would cut lines of the other.
        """
        if self._file is not None and not self._is_current():
            self.close()
        if self._file is None:
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY, 0o640)
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                self.close()
                raise Unavailable(
                    f"{self.path}: is a pipe or a device, where no line can be synced; name a regular file"
                )
            self._lock_file(self._file)
            _drop_torn_line(self._file)
            self._name_synced = False
        return self._file

    def _lock_file(self, file: int) -> None:
        with suppress(OSError):  # a file system without locks
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                self.close()
                raise Unavailable(
                    f"{self.path}: another destination or process writes it; name another file"
                ) from error

    def _is_current(self) -> bool:
        assert self._file is not None
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._file))
        except FileNotFoundError:
            return False

    def _translate_error(self, error: OSError) -> Unavailable:
        return Unavailable(f"{self.path}: {error.strerror}; make it writable; the notifier tries again")


@dataclass(slots=True)
class Stdout:
    """The destination `stdout`."""

    stream: BinaryIO
    _batch: list[tuple[int, bytes]] = field(default_factory=list)

    def start(self) -> None:
        """Do nothing: standard output is always there."""

    def submit(self, delivery: Delivery) -> None:
        self._batch.append((delivery.number, line(delivery.message)))

    def outcomes(self, timeout: float) -> Sequence[DeliveryOutcome]:
        batch, self._batch = self._batch, []
        try:
            for _, text in batch:
                self.stream.write(text)
            self.stream.flush()
        except OSError as error:
            trouble = Unavailable(f"standard output: {error.strerror}")
            return [DeliveryOutcome(number=number, error=trouble) for number, _ in batch]
        return [DeliveryOutcome(number=number) for number, _ in batch]

    def close(self) -> None:
        """Do nothing: standard output is not ours to close."""


def write_all(file: int, data: bytes) -> None:
    """Write all of the data; raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _drop_torn_line(file: int) -> None:
    """Cut what follows the last newline, found from the end; all if there is none."""
    end = os.fstat(file).st_size
    begin = end
    while begin:
        step = min(begin, 65536)
        begin -= step
        found = os.pread(file, step, begin).rfind(b"\n")
        if found >= 0:
            begin += found + 1
            break
    if begin != end:
        os.ftruncate(file, begin)

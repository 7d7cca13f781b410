# SPDX-License-Identifier: GPL-2.0-or-later
"""A file of lines, appended to durably.

The file may be rotated at any time, by renaming, not by copying and truncating. Before each write the path is looked at: if the
file was renamed or removed (logrotate), that file is left and a new one begun. A line cut short by a crash or a full disk is
removed before the next is written.
"""

import fcntl
import os
import stat
from contextlib import suppress
from dataclasses import dataclass

from hgext.vcsreplicator.log.blobs import sync_folder
from hgext.vcsreplicator.words.errors import Unavailable


@dataclass(slots=True)
class LineFile:
    """The file at `path`, opened at the first use.

    It is created with mode 0640 less the umask.
    """

    path: str
    _file: int | None = None
    _name_synced: bool = False

    def append(self, lines: bytes) -> None:
        """Append whole lines durably.

        Raises OSError or Unavailable, and then the file has none of them.
        """
        file = self.open()
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

    def open(self) -> int:
        """Open the file that the path names now, and return its descriptor.

        Raises OSError, or Unavailable for a pipe or a device: it cannot be synced, so each attempt would write the line again. Also
        for a file that another process writes: each would cut lines of the other. And for a link, which who may write the folder
        may have put there, to another file of this user.
        """
        if self._file is not None and not self._is_current():
            self.close()
        if self._file is None:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
            try:
                self._file = os.open(self.path, flags, 0o640)
            except OSError as error:
                if not os.path.islink(self.path):
                    raise
                raise Unavailable(f"{self.path}: is a link; name the file itself") from error
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

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


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

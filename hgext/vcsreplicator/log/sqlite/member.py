# SPDX-License-Identifier: GPL-2.0-or-later
"""The members of a group on the embedded log: one has all partitions, the others stand by."""

import fcntl
import os
from pathlib import Path

from ...words.errors import Unavailable
from ..ownership import make_file


class SqliteMember:
    """A member of a group of processes of this machine.

    It has all `partitions` while it holds the lock of the file at `path`, which the kernel frees when its process ends.
    """

    def __init__(self, path: Path, partitions: int) -> None:
        self._path, self._partitions = path, frozenset(range(partitions))
        self._lock: int | None = None

    def share(self) -> frozenset[int]:
        if self._lock is None:
            try:
                self._lock = _lock_file(self._path)
            except BlockingIOError:
                return frozenset()
            except OSError as error:
                raise Unavailable(f"{self._path}: {error.strerror}") from error
        return self._partitions

    def close(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def _lock_file(path: Path) -> int:
    """Return the open file, locked; raises BlockingIOError if another process has it."""
    make_file(path)
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(opened)
        raise
    return opened

# SPDX-License-Identifier: GPL-2.0-or-later
"""How files and folders are opened that other accounts may have put there."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator

# Bytes at most of a file that is read whole, such as Mercurial's journal of a large push. An account may make a larger sparse
# file, which takes no room on the disk, and whose reader exhausts the memory.
WHOLE_LIMIT = 1 << 29


def open_regular(path: bytes | str, flags: int, place: int | None = None) -> int:
    """Open a file as ``os.open`` does, in the open folder ``place``; raise OSError for a link or a pipe at once.

    The owner of a repository may put either in place of any file: what another user's file says could get into a message.
    """
    return _open(path, flags | os.O_NOFOLLOW, place)


def open_linked(path: bytes | str, flags: int) -> int:
    """Open a file of an administrator, who may have put a link there, as `open_regular` does."""
    return _open(path, flags)


def _open(path: bytes | str, flags: int, place: int | None = None) -> int:
    file = os.open(path, flags | os.O_NONBLOCK, 0o666, dir_fd=place)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "Not a file", os.fsdecode(path))
    return file


@contextlib.contextmanager
def walk(place: int, folders: Iterable[bytes | str], *, makes: bool = False) -> Iterator[int]:
    """Open folder after folder, from an open one, and yield the last one, open.

    Other users may put a link in place of a folder at any time: none is followed, and OSError is raised. With ``makes`` missing
    folders are made.
    """
    with contextlib.ExitStack() as opened:
        for folder in folders:
            if makes:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder, dir_fd=place)
            place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
            opened.callback(os.close, place)
        yield place

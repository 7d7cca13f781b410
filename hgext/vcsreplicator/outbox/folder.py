# SPDX-License-Identifier: GPL-2.0-or-later
"""The files in a repository's store that the outbox writes outside transactions."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from typing import IO, TYPE_CHECKING

from pushlog.store.appendfile import WHOLE_LIMIT as WHOLE_LIMIT
from pushlog.store.appendfile import open_regular as open_regular
from pushlog.store.appendfile import walk as walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pushlog.store.appendfile import Folder

# Bytes that are read of a file: a foreign or damaged repository may hold a huge one.
FILE_LIMIT = 1 << 13
# The folders of a repository whose files Mercurial opens with it.
_CONTROL_FOLDERS = (".hg", ".hg/store", ".hg/cache")
# The ends of names of histories, logs and databases, which grow with a repository and of which parts are read.
_READ_IN_PARTS = (".i", ".d", ".nd", ".log", ".db", ".sqlite", "-journal", "-wal")


@contextlib.contextmanager
def open_below(top: str, folders: Iterable[str]) -> Iterator[int]:
    """Open folder after folder below `top`, and give the last one open.

    Raises OSError for a link in place of one.
    """
    opened = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with walk(opened, folders) as place:
            yield place
    finally:
        os.close(opened)


class Store:
    """The store of a repository that is not opened with Mercurial."""

    def __init__(self, folder: str) -> None:
        self._folder = os.fsencode(folder)

    def join(self, path: bytes) -> bytes:
        return os.path.join(self._folder, path)


def create_file(folder: Folder, path: bytes) -> IO[bytes]:
    """Create a file with the mode of the store's files, for the caller to close."""
    file = open(path, "wb", opener=open_regular)  # noqa: SIM115
    try:
        match_mode(folder, file.fileno())
    except BaseException:
        # The repository was moved meanwhile.
        file.close()
        raise
    return file


def replace_file(folder: Folder, name: bytes, content: bytes) -> None:
    """Replace the content of a file of the store in one step, without a sync."""
    path = folder.join(name)
    temporary = b"%s.%d.tmp" % (path, os.getpid())
    with create_file(folder, temporary) as file:
        file.write(content)
    os.replace(temporary, path)


def read_file(path: bytes, limit: int = FILE_LIMIT) -> bytes:
    """Return the content of a file, at most so many bytes; empty if it is missing."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            # Python takes memory for all that may be read.
            return file.read(limit if limit <= FILE_LIMIT else min(limit, os.fstat(file.fileno()).st_size))
    except FileNotFoundError:
        return b""


def refuse_repository_pipes(folder: str) -> None:
    """Raise OSError where a pipe lies in a repository's folder.

    Mercurial, which opens its files by their names, would wait for the pipe's writer.
    """
    for part in _CONTROL_FOLDERS:
        # If this user may not read the folder, Mercurial refuses it.
        with contextlib.suppress(FileNotFoundError, PermissionError), os.scandir(os.path.join(folder, part)) as entries:
            for entry in entries:
                # Mercurial's locks are links to nothing.
                if not (entry.is_file() or entry.is_dir()) and os.path.exists(entry.path):
                    raise OSError(errno.EINVAL, "Not a file", entry.path)


def refuse_endless_files(folder: str) -> None:
    """Raise OSError for a file too large for Mercurial to read whole.

    An account may make a sparse file, which takes no room on the disk, and exhausts the memory of the process that opens the
    repository. Mercurial writes no file so large.
    """
    for part in _CONTROL_FOLDERS:
        with contextlib.suppress(FileNotFoundError, PermissionError), os.scandir(os.path.join(folder, part)) as entries:
            for entry in entries:
                is_whole = not entry.name.endswith(_READ_IN_PARTS) and entry.is_file(follow_symlinks=False)
                if is_whole and entry.stat(follow_symlinks=False).st_size > WHOLE_LIMIT:
                    raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), entry.path)


def remove_folder(root: str, path: str) -> None:
    """Remove a folder below a root, or what can be removed of it.

    Users who may write to the root may put a link in place of a folder above it: then nothing is removed.
    """
    *folders, last = os.path.relpath(path, root).split(os.sep)
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Python's function recurses, and accounts may have made any number of folders within each other.
        with contextlib.suppress(OSError, RecursionError), walk(descriptor, folders) as place:
            shutil.rmtree(last, ignore_errors=True, dir_fd=place)
    finally:
        os.close(descriptor)


def match_mode(folder: Folder, descriptor: int) -> None:
    """Give a file the read and write permissions of the store, under any umask.

    The file of another user stays as it is.
    """
    now, wanted = os.fstat(descriptor), os.stat(folder.join(b"")).st_mode & 0o666
    if stat.S_IMODE(now.st_mode) != wanted and now.st_uid == os.geteuid():
        os.fchmod(descriptor, wanted)

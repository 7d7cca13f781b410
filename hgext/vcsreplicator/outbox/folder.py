# SPDX-License-Identifier: GPL-2.0-or-later
"""The files in a repository's store that the outbox writes outside transactions."""

from __future__ import annotations

import os
import stat
from typing import IO, TYPE_CHECKING

from pushlog.store.appendfile import open_regular as open_regular

if TYPE_CHECKING:
    from pushlog.store.appendfile import Folder


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


def read_file(path: bytes) -> bytes:
    """Return the content of a file, empty if it does not exist."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            return file.read()
    except FileNotFoundError:
        return b""


def match_mode(folder: Folder, descriptor: int) -> None:
    """Give a file the read and write permissions of the store, under any umask.

    The file of another user stays as it is.
    """
    now, wanted = os.fstat(descriptor), os.stat(folder.join(b"")).st_mode & 0o666
    if stat.S_IMODE(now.st_mode) != wanted and now.st_uid == os.geteuid():
        os.fchmod(descriptor, wanted)

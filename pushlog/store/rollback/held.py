# SPDX-License-Identifier: GPL-2.0-or-later
"""Folders that are held open, whose files are found without following a link.

Other accounts may write to the folders of a repository. A path that was checked can lead elsewhere a moment later, so here nothing
is opened by a path: a folder is open, and from it each part of a name is opened in turn.

Rule of this file: what is read is a regular file; what is written is new, or a regular file that is cut.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

from mercurial import error, vfs

from ..appendfile import walk
from .journalled import quote

if TYPE_CHECKING:
    from mercurial.vfs import abstractvfs

# Bytes of the largest file that is read: the journal of a transaction in a million files has a tenth.
LIMIT = 1 << 30
# Bytes that are copied at once.
_PART = 1 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# A pipe is opened without waiting for its other end, and refused.
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class HeldFolder(vfs.vfs):
    """A folder of Mercurial's that stays the same one when its path becomes another.

    Raises OSError if it cannot be opened. The caller closes it.
    """

    def __init__(self, base: bytes) -> None:
        super().__init__(base)
        self.descriptor = os.open(base, _FOLDER)

    def close(self) -> None:
        os.close(self.descriptor)


class Held:
    """A folder held open, in which files are found by the names that Mercurial uses."""

    def __init__(self, folder: abstractvfs) -> None:
        self._folder = folder
        self.base = folder.join(b"").rstrip(b"/")
        self._descriptor: int | None = None

    def open(self) -> None:
        """Open the folder; raises OSError."""
        if self._descriptor is None:
            if isinstance(self._folder, HeldFolder):
                self._descriptor = os.dup(self._folder.descriptor)
            else:
                self._descriptor = os.open(self.base, _FOLDER)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)

    def join(self, name: bytes) -> bytes:
        return self._folder.join(name)

    @contextlib.contextmanager
    def find(self, name: bytes) -> Iterator[tuple[int, bytes]]:
        """Give the open folder of a file, and the file's name there.

        Raises OSError, and Abort for a name that leads out of the folder or through what is not a folder.
        """
        path = self.join(name)
        *folders, last = split_below(self.base, path)
        with contextlib.ExitStack() as opened, _name_path(path):
            self.open()
            assert self._descriptor is not None
            try:
                place = opened.enter_context(walk(self._descriptor, folders))
            except OSError as problem:
                if problem.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise error.Abort(b"%s: a link or a file is in the way" % quote(name)) from None
                raise
            yield place, last

    def check(self, name: bytes) -> None:
        """Raise Abort unless there is a regular file or nothing."""
        with contextlib.suppress(OSError), self.find(name) as (place, last):
            state = os.stat(last, dir_fd=place, follow_symlinks=False)
            if not stat.S_ISREG(state.st_mode):
                raise _not_a_file(name)

    def read(self, name: bytes) -> bytes:
        """Return the content of a file, empty if it is missing; raises Abort, OSError."""
        try:
            with self._open_to_read(name) as file:
                content = file.read(LIMIT + 1)
        except FileNotFoundError:
            return b""
        if len(content) > LIMIT:
            raise error.Abort(b"%s is larger than %d bytes" % (quote(name), LIMIT))
        return content

    def remove(self, name: bytes) -> None:
        """Remove a file, which may be missing."""
        with contextlib.suppress(FileNotFoundError), self.find(name) as (place, last):
            os.unlink(last, dir_fd=place)

    def cut(self, name: bytes, size: int, *, is_watched: bool) -> None:
        """Cut a file to its size before the transaction; raises Abort if it is shorter."""
        try:
            with self.find(name) as (place, last), _open(place, last, os.O_RDWR, name) as file:
                before = os.fstat(file.fileno())
                if before.st_size >= size:
                    if before.st_size > size:
                        _cut_file(place, last, file, before, size)
                    _show_change(place, last, before if is_watched else None)
                    return
            length = before.st_size
        except FileNotFoundError:
            length = 0
        text = b"attempted to truncate %s to %d bytes, but it was already %d bytes\n"
        raise error.Abort(text % (name, size, length))

    def is_same(self, name: bytes, backup: bytes) -> bool:
        """Return whether a file is its own backup: Mercurial links before it appends."""
        with (
            contextlib.suppress(FileNotFoundError),
            self.find(name) as (place, last),
            self.find(backup) as (other, base),
        ):
            states = (os.stat(each, dir_fd=at, follow_symlinks=False) for each, at in ((last, place), (base, other)))
            return os.path.samestat(*states)
        return False

    def restore(self, name: bytes, backup: bytes, *, is_watched: bool) -> None:
        """Give a file the content and the permissions of its backup."""
        with self._open_to_read(backup) as content, self.find(name) as (place, last):
            before, state = None, os.fstat(content.fileno())
            with contextlib.suppress(FileNotFoundError):
                before = os.stat(last, dir_fd=place, follow_symlinks=False)
            _replace(place, last, content, state.st_mode, state.st_size)
            _show_change(place, last, before if is_watched else None)

    def _open_to_read(self, name: bytes) -> IO[bytes]:
        with self.find(name) as (place, last):
            return _open(place, last, os.O_RDONLY, name)


def split_below(base: bytes, path: bytes) -> list[bytes]:
    """Split the part of a path below a folder; raise Abort if it leads out."""
    parts = path[len(base) + 1 :].split(b"/")
    if not path.startswith(base + b"/") or not {b"", b".", b".."}.isdisjoint(parts):
        raise error.Abort(b"it names %s, outside %s" % (quote(path), base))
    return parts


def read_in(folder: HeldFolder, name: bytes) -> bytes:
    """Return the content of a file of an open folder, empty if it is missing.

    Raises Abort for what is no file, and OSError.
    """
    with contextlib.closing(Held(folder)) as held:
        return held.read(name)


@contextlib.contextmanager
def _name_path(path: bytes) -> Iterator[None]:
    """Have errors name the whole path, not its last part."""
    try:
        yield
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror, path) from problem


def _not_a_file(name: bytes) -> error.Abort:
    return error.Abort(b"%s is not a file" % quote(name))


def _open(place: int, last: bytes, flags: int, name: bytes) -> IO[bytes]:
    """Open a regular file of an open folder, or raise Abort or OSError."""
    try:
        descriptor = os.open(last, flags | _FILE, dir_fd=place)
    except OSError as problem:
        if problem.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise _not_a_file(name) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_a_file(name)
    return os.fdopen(descriptor, "rb" if flags == os.O_RDONLY else "r+b")


def _create(place: int, last: bytes, mode: int) -> IO[bytes]:
    """Create a file, with read and write permissions of this mode alone: no set-uid."""
    descriptor = os.open(last, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o600, dir_fd=place)
    os.fchmod(descriptor, mode & 0o666)
    return os.fdopen(descriptor, "wb")


def _cut_file(place: int, last: bytes, file: IO[bytes], state: os.stat_result, size: int) -> None:
    """Cut a file under this name alone: a clone on the same disk may have it, too."""
    if state.st_nlink == 1:
        os.ftruncate(file.fileno(), size)
        return
    _replace(place, last, file, state.st_mode, size)


def _replace(place: int, last: bytes, content: IO[bytes], mode: int, size: int) -> None:
    """Put the first bytes of an open file in place of a file, which stays as it is if there is no room for them."""
    made = b"." + last[:200] + b".cut"  # a name has at most 255 bytes
    with contextlib.suppress(FileNotFoundError):  # of a kill
        os.unlink(made, dir_fd=place)
    with _create(place, made, mode) as copy:
        while size and (part := content.read(min(size, _PART))):
            size -= copy.write(part)
    if size:
        raise OSError(errno.EIO, "is shorter than it was")
    os.rename(made, last, src_dir_fd=place, dst_dir_fd=place)


def _show_change(place: int, last: bytes, before: os.stat_result | None) -> None:
    """Have a change within the same second show in the file's time.

    Mercurial knows from it whether to read the file again. Only the owner may set it.
    """
    if before is None:
        return
    now = os.stat(last, dir_fd=place, follow_symlinks=False)
    if int(now.st_ctime) == int(before.st_ctime):
        later = (int(before.st_mtime) + 1) & 0x7FFFFFFF
        with contextlib.suppress(PermissionError):
            os.utime(last, (later, later), dir_fd=place, follow_symlinks=False)

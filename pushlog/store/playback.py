# SPDX-License-Identifier: GPL-2.0-or-later
"""The rollback of a journal, only inside the repository, following no link.

Mercurial's own joins the names of the journal to the folder and opens what it finds there. This one does the same steps in the same
order, from folders that it holds open, one part of a name after the other: no account can put a link in the way between a check and
its use. First it looks at every file, and refuses a journal whole. The journal goes last, so a rollback that is killed is repeated.

Rules of this file:

1. A file is opened by `_Held.find`, never by a path.
2. What is read is a regular file; what is written is new, or a regular file that is cut.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, TYPE_CHECKING

from mercurial import error, vfs
from mercurial.utils import stringutil

from . import journalled
from .journalled import Cut, Saved, quote

if TYPE_CHECKING:
    from mercurial.vfs import abstractvfs

    Report = Callable[[bytes], None]
    # Names whose change must show in their times, each with its location, as Mercurial lists them.
    Watched = Iterable[tuple[bytes, bytes]]

JOURNAL = b"journal"
# The list of backups of a journal.
BACKUPS = b"%s.backupfiles"
# Bytes of the largest journal that is read: that of a transaction in a million files has a tenth.
LIMIT = 1 << 30
# What an operator does about a journal that is refused.
HINT = b"it may be an attack: 'ls -l' shows whose it is; docs/push.md says what to do"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A pipe is opened without waiting for its other end, and refused.
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class HeldFolder(vfs.vfs):
    """A folder of Mercurial's that stays the same one when its path becomes another.

    Raises OSError if it cannot be opened. The caller closes it.
    """

    def __init__(self, base: bytes) -> None:
        super().__init__(base)
        self.descriptor = os.open(base, _FOLDER & ~os.O_NOFOLLOW)

    def close(self) -> None:
        os.close(self.descriptor)


class _Held:
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
                self._descriptor = os.open(self.base, _FOLDER & ~os.O_NOFOLLOW)

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
        *folders, last = parts = path[len(self.base) + 1 :].split(b"/")
        if not path.startswith(self.base + b"/") or not {b"", b".", b".."}.isdisjoint(parts):
            raise error.Abort(b"it names %s, outside %s" % (quote(name), self.base))
        with contextlib.ExitStack() as opened, _name_path(path):
            self.open()
            assert self._descriptor is not None
            place = self._descriptor
            for folder in folders:
                try:
                    place = os.open(folder, _FOLDER, dir_fd=place)
                except OSError as problem:
                    if problem.errno in (errno.ELOOP, errno.ENOTDIR):
                        raise error.Abort(b"%s: %s is not a folder" % (quote(name), quote(folder))) from None
                    raise
                opened.callback(os.close, place)
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

    def restore(self, name: bytes, backup: bytes, *, is_watched: bool) -> None:
        """Give a file the content and the permissions of its backup."""
        with self._open_to_read(backup) as content, self.find(name) as (place, last):
            before = None
            with contextlib.suppress(FileNotFoundError):
                before = os.stat(last, dir_fd=place, follow_symlinks=False)
                os.unlink(last, dir_fd=place)
            with _create(place, last, os.fstat(content.fileno()).st_mode) as file:
                shutil.copyfileobj(content, file)
            _show_change(place, last, before if is_watched else None)

    def _open_to_read(self, name: bytes) -> IO[bytes]:
        with self.find(name) as (place, last):
            return _open(place, last, os.O_RDONLY, name)


class Places:
    """The folders that a journal names, held open until `close`."""

    def __init__(self, store: abstractvfs, folders: Mapping[bytes, abstractvfs]) -> None:
        self.store = _Held(store)
        self._by_location = {b"": self.store, b"store": self.store}
        if b"plain" in folders:
            self._by_location[b"plain"] = _Held(folders[b"plain"])
        # That of the repository, where the transaction was made in a share of it.
        self._own = _Held(vfs.vfs(os.path.dirname(self.store.base)))

    def __enter__(self) -> Places:
        return self

    def __exit__(self, *_problem: object) -> None:
        for folder in {*self._by_location.values(), self._own}:
            folder.close()

    def find(self, location: bytes, name: bytes) -> tuple[_Held, bytes]:
        """Return the folder of a location, and the file's name in it; raises Abort."""
        if location not in self._by_location:
            raise error.Abort(b"it names a file in %s, which is no place of Mercurial's" % quote(location))
        folder, base = os.path.split(name)
        if (
            location == b"plain"
            and os.path.isabs(name)
            and os.path.realpath(folder) == os.path.realpath(self._own.base)
        ):
            return self._own, base
        return self._by_location[location], name


def read_in(folder: HeldFolder, name: bytes) -> bytes:
    """Return the content of a file of an open folder, empty if it is missing.

    Raises Abort for what is no file, and OSError.
    """
    with contextlib.closing(_Held(folder)) as held:
        return held.read(name)


def read_saved(places: Places, journal: bytes) -> list[Saved]:
    """Read the list of backups of a journal, or raise Abort."""
    with _explain_refusal(places, journal):
        return journalled.parse_saved(places.store.read(BACKUPS % journal))


def roll_back(places: Places, journal: bytes, report: Report, watched: Watched | None) -> None:
    """Roll back an abandoned transaction, as its journal says.

    Raises Abort, having changed nothing, for a journal that no transaction of Mercurial writes.
    """
    with _explain_refusal(places, journal):
        cuts = journalled.parse_cuts(places.store.read(journal))
        saved = journalled.parse_saved(places.store.read(BACKUPS % journal))
        journalled.check(cuts, saved)
    play(places, journal, report, cuts, saved, watched)


def play(
    places: Places, journal: bytes, report: Report, cuts: Iterable[Cut], saved: Iterable[Saved], watched: Watched | None
) -> None:
    """Cut, restore and remove what a journal names, then remove the journal.

    Raises Abort, having changed nothing, if a name leads out of the repository or to what is no file; raises Abort or OSError
    where a step fails.
    """
    sizes, known = dict(cuts), frozenset(watched or ())
    lines = [line for line in saved if not journalled.is_share_name(*line[:3])]
    with _explain_refusal(places, journal):
        for name in sizes:
            places.store.check(name)
        for location, name, backup, _is_optional in lines:
            for each in filter(None, (name, backup)):
                folder, found = places.find(location, each)
                folder.check(found)
    # A file that is both restored and cut is restored first.
    whole = {line.name: line for line in lines if line.location != b"plain" and line.name and line.backup}
    done: list[Saved] = []
    for name, size in sorted(sizes.items()):
        if name in whole:
            _restore_line(places, whole[name], report, known)
            done.append(whole[name])
        _cut_one(places.store, name, size, report, is_watched=(name, b"") in known)
    for line in lines:
        if line in done:
            continue
        try:
            _restore_line(places, line, report, known)
        except OSError as problem:
            # Files in the store are missing after a power cut only; a share may be gone, or closed to this user.
            if not line.is_optional or not (line.location == b"plain" or isinstance(problem, FileNotFoundError)):
                raise
        else:
            done.append(line)
    places.store.remove(BACKUPS % journal)
    places.store.remove(journal)
    for line in done:
        if line.name and line.backup:
            folder, backup = places.find(line.location, line.backup)
            with contextlib.suppress(OSError):
                folder.remove(backup)


def _cut_one(store: _Held, name: bytes, size: int, report: Report, *, is_watched: bool) -> None:
    if not size:
        store.remove(name)
        return
    try:
        store.cut(name, size, is_watched=is_watched)
    except OSError:
        report(b"failed to truncate %s\n" % name)
        raise


def _restore_line(places: Places, line: Saved, report: Report, known: frozenset[tuple[bytes, bytes]]) -> None:
    location, name, backup, _is_optional = line
    folder, target = places.find(location, name or backup)
    if not name or not backup:
        folder.remove(target)
        return
    try:
        folder.restore(target, places.find(location, backup)[1], is_watched=(name, location) in known)
    except OSError as problem:
        report(b"failed to recover %s (%s)\n" % (name, stringutil.forcebytestr(problem)))
        raise


@contextlib.contextmanager
def _explain_refusal(places: Places, journal: bytes) -> Iterator[None]:
    """Say which journal is refused, and what to do."""
    try:
        yield
    except error.Abort as problem:
        text = b"%s: %s; it is not rolled back" % (places.store.join(journal), problem.message)
        raise error.Abort(text, hint=HINT) from problem


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
    shorter = b"." + last + b".cut"
    with contextlib.suppress(FileNotFoundError):  # of a kill
        os.unlink(shorter, dir_fd=place)
    with _create(place, shorter, state.st_mode) as copy:
        shutil.copyfileobj(file, copy)
        copy.truncate(size)
    os.rename(shorter, last, src_dir_fd=place, dst_dir_fd=place)


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

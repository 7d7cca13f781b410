# SPDX-License-Identifier: GPL-2.0-or-later
"""The copy that `backup` makes: a folder with a manifest, and how it is checked.

`manifest.json` is written last. It says what the copy has, with a hash of itself and of `files.jsonl`, which has a line for each
file, folder and link below `parts`.
"""

import contextlib
import dataclasses
import errno
import grp
import hashlib
import io
import json
import os
import pwd
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pushlog.store.opening import open_linked

from ..hg.replica.place import hold_still
from ..log.sqlite.copying import copy_database
from ..outbox.folder import open_below, open_regular, walk
from ..words.errors import BadConfig, MalformedEvent, Refused, Unavailable, visible
from ..words.shape import from_json, to_json, within
from .backup_contents import Part, PartKind

_MANIFEST, _FILES, PARTS = "manifest.json", "files.jsonl", "parts"
_FORMAT = 1
# Seconds that a push may hold a repository.
_PATIENCE = 60
_CHUNK = 1 << 20
# Folders within each other that are copied: each takes a call and an open file, here and where a copy is removed.
_DEEPEST = 400
# Files beside a database that SQLite applies to it.
_JOURNALS = ("-journal", "-wal")
# Errors of the machine, which leave out no part of a copy but end it.
_OF_THE_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOMEM)
# What was left out of a copy is named so often, each time with at most so many characters: a manifest has a size.
_NAMED, _TEXT = 100, 1000
# Errors of calls that follow no link, and of reads that expect a file.
_OF_LINKS = (errno.ELOOP, errno.ENOTDIR, errno.EINVAL)
# Locks of Mercurial, which only this process holds while it copies.
_LOCKS = (".hg/wlock", ".hg/store/lock")


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedEntry:
    """A file, a link, or, with neither hash nor target, a folder; its name is below `parts`."""

    name: str
    mode: int
    user: str
    group: str
    size: int = 0
    sha256: str | None = None
    target: str | None = None

    def __post_init__(self) -> None:
        within(self, mode=(0, 0o7777))


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a copy has; `time` is in seconds since the epoch, when it was begun."""

    format: int
    time: float
    versions: dict[str, str]
    parts: tuple[Part, ...]
    left_out: tuple[str, ...]
    files: int
    size: int
    sha256: str


class CopyWriter:
    """A copy that is being written into the folder, and its entries.

    `left_out` are the repositories and files below a root that could not be copied, each with the reason.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.count = self.size = 0
        self.left_out: list[str] = []
        self._digest = hashlib.sha256()
        os.mkdir(os.path.join(folder, PARTS), 0o700)
        self._entries = open(os.path.join(folder, _FILES), "xb")  # noqa: SIM115 - for `close`

    def add(self, part: Part) -> bool:
        """Copy a part; return False if it is missing. Raises OSError, Refused or Unavailable."""
        try:
            if part.kind is PartKind.ROOT:
                _refuse_renames(part.path, lambda: self._add_top(part))
            elif part.kind is PartKind.BLOBS:
                self._add_top(part)
            else:
                self._add_file(part.path, part.name, part.kind)
        except FileNotFoundError:
            if os.path.lexists(part.path):
                raise
            return False
        return True

    def finish(self, **about: Any) -> Manifest:
        """Write the manifest, and sync all to the disk."""
        self._entries.flush()
        made = Manifest(format=_FORMAT, files=self.count, size=self.size, sha256="", **about)
        self._digest.update(to_json(made))
        made = replace(made, sha256=self._digest.hexdigest())
        with open(os.path.join(self._folder, _MANIFEST), "xb") as file:
            file.write(to_json(made))
        os.sync()  # a sync for each of a million files would take hours
        return made

    def close(self) -> None:
        self._entries.close()

    def _add_top(self, part: Part) -> None:
        try:
            with open_below(part.path, ()) as place:
                self._add_tree(place, part.path, part.name, part.kind)
        except OSError as error:
            if error.errno not in _OF_LINKS:
                raise
            raise Refused(
                f"{part.path}: {_describe(error)}; find out who did that, then run the backup again"
            ) from error

    def _add_tree(self, place: int, source: str, name: str, kind: PartKind) -> None:
        """Copy an open folder; what leaves it meanwhile is left out, and a repository is copied under its locks.

        Accounts may write there: what one of them exchanges for a link is not followed. Raises OSError then.
        """
        if name.count("/") > _DEEPEST:
            raise Refused(f"{source}: lies within more than {_DEEPEST} folders")
        os.mkdir(self._place(name), 0o700)
        self._note(name, os.fstat(place))
        with os.scandir(place) as found:
            # Deleted repositories go to `.vcsreplicator`, so that it is copied last.
            entries = sorted(found, key=lambda entry: (entry.name == ".vcsreplicator", entry.name))
        for entry in entries:
            inner, path = f"{name}/{entry.name}", f"{source}/{entry.name}"
            is_alone = kind is PartKind.ROOT and "/.hg/" not in inner  # a repository is copied whole or not at all
            is_locked = kind is PartKind.ROOT and entry.name == ".hg"
            leaving_out = self._leave_out(path, inner) if is_alone else contextlib.nullcontext()
            with leaving_out, contextlib.suppress(FileNotFoundError):
                if entry.is_symlink():
                    self._add_link(place, entry.name, inner)
                elif entry.is_dir():
                    locks = hold_still(source, _PATIENCE) if is_locked else contextlib.nullcontext()
                    with locks, walk(place, [entry.name]) as folder:
                        self._add_tree(folder, path, inner, kind)
                elif entry.is_file() and not entry.name.endswith("pushlog2.db-journal"):
                    is_pushlog = entry.name == "pushlog2.db" and source.endswith("/.hg")
                    self._add_file(entry.name, inner, PartKind.DATABASE if is_pushlog else kind, place)

    @contextlib.contextmanager
    def _leave_out(self, source: str, name: str) -> Iterator[None]:
        """Take back and name what the block fails to copy: no account keeps the repositories of others out of a copy."""
        at, digest, count, size = self._entries.tell(), self._digest.copy(), self.count, self.size
        try:
            yield
        except (OSError, BadConfig, Refused, Unavailable) as error:
            if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
                raise
            self._entries.seek(at)
            self._entries.truncate()
            self._digest, self.count, self.size = digest, count, size
            _remove(self._place(name))
            place, reason = source.removesuffix("/.hg"), _describe(error)
            if len(self.left_out) < _NAMED:
                text = visible(reason if reason.startswith(place) else f"{place}: {reason}")
                self.left_out.append(text if len(text) <= _TEXT else f"{text[: _TEXT // 2]}…{text[-_TEXT // 2 :]}")
            elif len(self.left_out) == _NAMED:
                self.left_out.append("and more that could not be copied")

    def _add_link(self, place: int, source: str, name: str) -> None:
        if not name.endswith(_LOCKS):
            target = os.readlink(source, dir_fd=place)
            os.symlink(target, self._place(name))
            self._note(name, os.stat(source, dir_fd=place, follow_symlinks=False), target=target)

    def _add_file(self, source: str, name: str, kind: PartKind, place: int | None = None) -> None:
        """Copy a file; in the open folder `place` a link is not followed."""
        target = self._place(name)
        with _open_file(source, place) as file:
            about = os.fstat(file.fileno())
            if kind is PartKind.DATABASE and place is not None:
                _copy_pushlog(file, source, place, target)
            elif kind is PartKind.DATABASE:
                copy_database(source, target)
            elif kind is not PartKind.BLOBS or not _link(file, target):
                _copy_content(file, target)
        size, sha256 = hash_file(target)
        self._note(name, about, size=size, sha256=sha256)

    def _place(self, name: str) -> str:
        return os.path.join(self._folder, PARTS, name)

    def _note(self, name: str, about: os.stat_result, **more: Any) -> None:
        entry = CopiedEntry(
            name=name,
            mode=stat.S_IMODE(about.st_mode),
            user=_name(pwd.getpwuid, about.st_uid),
            group=_name(grp.getgrgid, about.st_gid),
            **more,
        )
        line = to_json(entry) + b"\n"
        self._digest.update(line)
        self._entries.write(line)
        self.count += 1
        self.size += entry.size


def copy_file(source: str, target: str) -> None:
    """Copy a regular file into a new file that only its owner may read. Raises OSError."""
    with _open_file(source) as file:
        _copy_content(file, target)


def hash_file(path: str) -> tuple[int, str]:
    """Return size and SHA-256 of a regular file. Raises OSError."""
    with _open_file(path) as file:
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), digest.hexdigest()


def read_manifest(folder: str) -> Manifest:
    """Read the manifest of a copy; raise BadConfig if there is none that this release understands."""
    path = os.path.join(folder, _MANIFEST)
    try:
        with open(path, "rb", opener=open_regular) as file:
            text = file.read()
        found = json.loads(text).get("format")
        if found != _FORMAT:
            raise BadConfig(
                f"{path}: expected format {_FORMAT}, got {str(found)[:20]}; a newer release may have made it"
            )
        return from_json(Manifest, text)
    except OSError as error:
        raise BadConfig(f"{path}: {error.strerror}; expected a folder that vcsreplicator backup made") from error
    except (ValueError, RecursionError, AttributeError, MalformedEvent) as error:
        raise BadConfig(f"{path}: damaged: {error}; use another copy") from error


def read_entries(folder: str, manifest: Manifest) -> Iterator[CopiedEntry]:
    """Yield the entries of a copy, folders before what is in them; raise BadConfig for damage."""
    path, digest = os.path.join(folder, _FILES), hashlib.sha256()
    try:
        with open(path, "rb", opener=open_regular) as file:
            for line in file:
                digest.update(line)
                entry = from_json(CopiedEntry, line)
                if {"", ".", ".."} & {*entry.name.split("/")}:
                    raise BadConfig(f"{path}: expected a name below a part, got {entry.name[:80]!r}; use another copy")
                yield entry
    except OSError as error:
        raise BadConfig(f"{path}: {error.strerror}; use another copy") from error
    except MalformedEvent as error:
        raise BadConfig(f"{path}: damaged: {error}; use another copy") from error
    digest.update(to_json(replace(manifest, sha256="")))
    if digest.hexdigest() != manifest.sha256:
        raise BadConfig(f"{folder}: {_FILES} and {_MANIFEST} are not as they were written; use another copy")


def check_files(folder: str, manifest: Manifest) -> None:
    """Raise BadConfig that names the first file which is not as it was copied."""
    for _ in read_entries(folder, manifest):
        pass  # the names below are right
    for entry in read_entries(folder, manifest):
        path = os.path.join(folder, PARTS, entry.name)
        try:
            if entry.target is not None:
                is_right = os.readlink(path) == entry.target
            elif entry.sha256 is None:
                is_right = stat.S_ISDIR(os.lstat(path).st_mode)
            else:
                is_right = hash_file(path) == (entry.size, entry.sha256)
        except OSError as error:
            raise BadConfig(f"{path}: {error.strerror}; use another copy") from error
        if not is_right:
            raise BadConfig(f"{path}: is not what was copied; use another copy")


def as_data(manifest: Manifest) -> dict[str, Any]:
    """Return the manifest for programs."""
    return dataclasses.asdict(manifest)


def _open_file(path: str, place: int | None = None) -> io.BufferedReader:
    """Open a regular file, in the open folder `place` without following a link, for the caller to close."""
    file = open_linked(path, os.O_RDONLY) if place is None else open_regular(path, os.O_RDONLY, place)
    return open(file, "rb")


def _copy_content(file: io.BufferedReader, target: str) -> None:
    """Copy an open file into a new one, with its holes, which take no room on the disk.

    Raises OSError, also for a file larger than what is free there: with holes it may have any size, and is hashed whole.
    """
    source, size = file.fileno(), os.fstat(file.fileno()).st_size
    free = os.statvfs(os.path.dirname(target))
    if size > free.f_bavail * free.f_frsize:
        raise OSError(errno.EFBIG, f"{size} bytes are more than what is free for the copy", target)
    made = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(made, "wb"):
        os.ftruncate(made, size)
        at = 0
        while at < size:
            try:
                at = os.lseek(source, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                break  # a hole up to the end
            end = os.lseek(source, at, os.SEEK_HOLE)
            if not (chunk := os.pread(source, min(_CHUNK, end - at), at)):
                break  # cut meanwhile
            at += os.pwrite(made, chunk, at)


def _copy_pushlog(file: io.BufferedReader, name: str, place: int, target: str) -> None:
    """Copy the pushlog of a locked repository; SQLite, which follows links, gets copies of it and of its journals alone."""
    found = f"{target}.found"
    _copy_content(file, found)
    for ending in _JOURNALS:
        with contextlib.suppress(FileNotFoundError), _open_file(name + ending, place) as journal:
            _copy_content(journal, found + ending)
    try:
        copy_database(found, target)
    except (BadConfig, Unavailable) as error:
        raise Refused(f"its pushlog cannot be copied: {str(error.__cause__ or error).replace(found, name)}") from error
    for ending in ("", *_JOURNALS):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(found + ending)


def _link(file: io.BufferedReader, target: str) -> bool:
    """Link an open file whose content never changes; return False where that is not possible."""
    try:
        os.link(f"/proc/self/fd/{file.fileno()}", target, follow_symlinks=True)
    except OSError:
        return False
    return True


def _describe(error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)
    name = os.path.basename(error.filename or "")
    if error.errno in _OF_LINKS:
        return f"{name} in it became a link or a pipe while it was copied"
    return f"{name} in it: {error.strerror}"


def _remove(path: str) -> None:
    """Remove a file or a folder, or what can be removed of it."""
    with contextlib.suppress(OSError):
        os.unlink(path)
    shutil.rmtree(path, ignore_errors=True)


def _name(look_up: Any, number: int) -> str:
    try:
        return str(look_up(number)[0])
    except KeyError:
        return str(number)


def _refuse_renames(root: str, copy: Any) -> None:
    """Copy; raise Refused if a repository was renamed meanwhile, which the copy may have twice or not at all."""
    from ..relay.scan import find_repositories

    before = {*find_repositories(root)}
    copy()
    after = {*find_repositories(root)}
    gone: Sequence[str] = sorted(before - after)
    if gone and after - before:
        raise Refused(f"{gone[0]}: was renamed or deleted while others were made; run the backup again")

# SPDX-License-Identifier: GPL-2.0-or-later
"""Mercurial opens only regular files in a repository's `.hg`, and follows no link there.

An account that may write to a repository could put a pipe there, and the thread that opens it would wait for its writer: a request
of any reader, or a worker of the relay. It could put a link to a file of another user there, or to a folder: a web server would
give this file to its clients, and the next pusher would write to it what the account has pushed.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import os
import shutil
import stat
from typing import Any

from mercurial import error, streamclone, util

from ..seams import find_extension, wrap
from .opening import open_linked, open_regular

_CONTROL = b"/.hg/"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@functools.cache
def install() -> None:
    """Have Mercurial refuse them, by OSError; an hgrc that includes one is refused as Mercurial refuses such files."""
    wrap("mercurial.util", "posixfile", _open_file)
    vars(streamclone)["open"] = vars(util)["posixfile"]  # a stream clone opens files with Python's own function
    vars(util)["shutil"] = _Copying  # by it Mercurial copies what a transaction may have to put back
    # By it Mercurial gives new files and folders their modes, by name.
    vars(os)["chmod"] = functools.partial(_change_mode, os.chmod)
    wrap("mercurial.config", "config.read", _read_settings)
    wrap("mercurial.configuration.rcutil", "get_shared_vfs", _find_share)


@functools.cache
def guard_extensions() -> None:
    """Guard what evolve and largefiles open by themselves, where they are loaded.

    The caches of evolve are databases of SQLite: it goes on without a cache that is a link, or beside which a journal names another
    file. Largefiles opens its files with Python's own function.
    """
    if find_extension(b"evolve") is not None:
        wrap("hgext3rd.evolve.stablerangecache", "stablerangesqlbase._db", _connect)
        wrap("hgext3rd.evolve.obsdiscovery", "_obshashcache._db", _connect)
    if find_extension(b"largefiles") is not None:
        for module in ("lfutil", "localstore", "proto"):
            vars(importlib.import_module(f"hgext.largefiles.{module}"))["open"] = vars(util)["posixfile"]


def _connect(orig: Any, self: Any) -> Any:
    from . import connections  # a server over SSH answers before it loads this

    try:
        connections.refuse_foreign_files(os.fsdecode(self._path))
    except (OSError, connections.sqlite3.Error):
        return None
    return orig(self)


def _open_file(orig: Any, name: bytes | str, mode: bytes | str = b"r", *rest: Any, **named: Any) -> Any:
    if _CONTROL not in os.fsencode(name):
        return orig(name, mode, *rest, **named)
    opened: Any = open
    return opened(os.fsencode(name), os.fsdecode(mode), *rest, **named, opener=_open_inside)


def _open_inside(path: bytes, flags: int) -> int:
    try:
        folder, name = _open_folder(path)
        try:
            return open_regular(name, flags, folder)
        finally:
            os.close(folder)
    except OSError as problem:
        raise _name_path(problem, path) from problem


def _change_mode(orig: Any, path: Any, mode: int, **named: Any) -> None:
    """Change the mode of what has this name in a `.hg`; raise OSError for a link, which would give it to another file."""
    if named or isinstance(path, int) or _CONTROL not in os.fsencode(path):
        orig(path, mode, **named)
        return
    with contextlib.ExitStack() as opened:
        try:
            folder, name = _open_folder(os.fsencode(path))
            opened.callback(os.close, folder)
            found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            opened.callback(os.close, found)
            if stat.S_ISLNK(os.fstat(found).st_mode):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            orig(f"/proc/self/fd/{found}", mode)
        except OSError as problem:
            raise _name_path(problem, os.fsencode(path)) from problem


class _Copying:
    """The functions of `shutil` that Mercurial's `util` calls; files are opened as Mercurial opens them."""

    Error = shutil.Error
    copy, copymode, copystat = shutil.copy, shutil.copymode, shutil.copystat

    @staticmethod
    def copyfile(source: bytes, target: bytes) -> None:
        opened: Any = vars(util)["posixfile"]
        with opened(source, b"rb") as reading, opened(target, b"wb") as writing:
            shutil.copyfileobj(reading, writing)


def _open_folder(path: bytes) -> tuple[int, bytes]:
    """Open the folder of a path in a `.hg` from folder to folder: any check before could be out of date.

    Returns it, for the caller to close, and the name in it. A push opens some 75 files: no context manager, which would take as
    long as the kernel.
    """
    above, _, inside = path.partition(_CONTROL)
    *folders, name = inside.rstrip(b"/").split(b"/")
    place = os.open(above + _CONTROL, _FOLDER)
    try:
        for folder in folders:
            outer, place = place, os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=place)
            os.close(outer)
    except OSError:
        os.close(place)
        raise
    return place, name or b"."


def _name_path(problem: OSError, path: bytes) -> OSError:
    """Return an error that names the whole path, as callers expect it."""
    is_barred = problem.errno in (errno.ELOOP, errno.ENOTDIR)
    reason = "A link or a file is in the way" if is_barred else problem.strerror
    return OSError(problem.errno, reason, os.fsdecode(path))


def _find_share(orig: Any, control: Any, requirements: Any) -> Any:
    """Return the folder that a share names, if it is a `.hg`: in another one Mercurial would follow links."""
    found = orig(control, requirements)
    if os.path.basename(found.base) != b".hg":
        raise error.RepoError(
            b"%s: expected the .hg of a repository, got %s" % (control.join(b"sharedpath"), found.base)
        )
    return found


def _read_settings(orig: Any, self: Any, path: bytes, fp: Any = None, *rest: Any, **named: Any) -> Any:
    """Read a file of settings, which is open unless another file includes it."""
    if fp is not None:
        return orig(self, path, fp, *rest, **named)
    with open(path, "rb", opener=open_linked) as included:
        return orig(self, path, included, *rest, **named)

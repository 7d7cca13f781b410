# SPDX-License-Identifier: GPL-2.0-or-later
"""Which hgrc of a repository counts, where accounts may write to the repository.

Mercurial trusts an hgrc for its owner: that user wrote it. In a folder that a group may write, each account of the group can give
the name to another user's file, to a link, or to a file of the store that it may write, or that others wrote for it. No account
can make a file there that root owns, so only such an hgrc counts. Nor does the file `requires` load an extension.

A group with the name of the owner and without members is the owner's alone, as Debian makes one for each user: an account's own
clone counts as before, with any umask. Services have no clone of their own, so for them each group counts as others.
"""

from __future__ import annotations

import functools
import grp
import os
import pwd
import stat
from typing import Any

from mercurial import error

from pushlog import seams
from pushlog.store.opening import open_linked

# The attribute of a file that is read, and of its settings: the ui that trusts it, False for a repository's that is not trusted.
_TRUSTING = "_vcsreplicator_trusting"


# Whether this process is a service's.
_is_service = False


def install(*, is_service: bool = False) -> None:
    """Have Mercurial trust no hgrc that accounts may have put there, nor an hgrc that includes such a file.

    A warning names the file, as Mercurial's own does. What HGRCPATH names counts as before. Call it before a repository is opened.
    """
    global _is_service
    _is_service |= is_service
    _wrap()


@functools.cache
def _wrap() -> None:
    seams.wrap("mercurial.ui", "ui._trusted", _trust)
    seams.wrap("mercurial.config", "config.read", _read_settings)
    seams.wrap("mercurial.localrepo", "afterhgrcload", _load_no_extension)


def _trust(orig: Any, self: Any, fp: Any, f: bytes) -> bool:
    setattr(fp, _TRUSTING, False)
    if not orig(self, fp, f):
        return False
    if not _is_of_owner(fp.fileno(), f):
        if self._reportuntrusted:
            self.warn(b"not trusting file %s: accounts may have written it; have root replace it, with mode 0644\n" % f)
        return False
    setattr(fp, _TRUSTING, self)
    return True


def _read_settings(orig: Any, self: Any, path: bytes, fp: Any = None, *rest: Any, **named: Any) -> Any:
    """Read a file of settings; raise ConfigError if a trusted hgrc includes a file that is not trusted.

    An hgrc that is not trusted includes none, and errors quote nothing of it: it may be a link to another user's file, or include
    that file, or name a variable of this process.
    """
    ui = getattr(self, _TRUSTING, None)
    if ui is None:
        ui = getattr(fp, _TRUSTING, None)
        setattr(self, _TRUSTING, ui)
        try:
            return orig(self, path, fp, *rest, **named)
        except error.ConfigError:
            if ui is not False:
                raise
            raise error.ConfigError(b"it is not trusted, so expected settings alone, and no %include", path) from None
    if ui is False:
        raise error.ConfigError(b"an hgrc that is not trusted includes a file")
    with fp or open(path, "rb", opener=open_linked) as included:
        is_of_root = os.fstat(included.fileno()).st_uid == 0 and _is_of_owner(included.fileno(), path)
        if not (is_of_root or ui._trusted(included, path)):
            raise error.ConfigError(b"an hgrc of a repository includes this file, which is not trusted", path)
        return orig(self, path, included, *rest, **named)


def _load_no_extension(*_arguments: Any) -> None:
    """Load no extension for the file `requires`, which accounts may write: Mercurial refuses the repository."""


def _is_of_owner(file: int, path: bytes) -> bool:
    """Return whether the owner of an open file, or root, alone can have written it and put it there."""
    found = os.fstat(file)
    try:
        folder = os.open(os.path.dirname(path) or b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        above = os.fstat(folder)
        is_shared = _may_others_write(above) or above.st_uid not in (0, found.st_uid)
        # Through the folder, which may be another one by now.
        there = os.stat(os.path.basename(path), dir_fd=folder, follow_symlinks=not is_shared)
    except OSError:
        return False
    finally:
        os.close(folder)
    return os.path.samestat(there, found) and not _may_others_write(found) and not (is_shared and found.st_uid)


def _may_others_write(found: os.stat_result) -> bool:
    """Return whether users other than the owner may write."""
    if not found.st_mode & stat.S_IWGRP or found.st_mode & stat.S_IWOTH:
        return bool(found.st_mode & stat.S_IWOTH)
    if _is_service or found.st_uid != os.geteuid():
        return True
    try:
        group, owner = grp.getgrgid(found.st_gid), pwd.getpwuid(found.st_uid)
    except KeyError:
        return True
    return group.gr_name != owner.pw_name or bool(group.gr_mem)

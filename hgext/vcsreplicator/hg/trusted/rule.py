# SPDX-License-Identifier: GPL-2.0-or-later
"""Which hgrc of a repository counts, where accounts may write to the repository.

Mercurial trusts an hgrc for its owner: that user wrote it. In a folder that a group may write, each account of the group can give
the name to another user's file, or to a link, and to a file of the store that it may write, or had others write for it. Only a
file of root's in the folder itself cannot be made so.
"""

from __future__ import annotations

import functools
import os
import stat
from typing import Any

from mercurial import error

from pushlog import seams

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
# The attribute of a trusted file that is read, and of its settings: the ui that trusts it.
_TRUSTING = "_vcsreplicator_trusting"


@functools.cache
def install() -> None:
    """Have Mercurial trust no hgrc that accounts may have put there, nor one that includes such a file.

    A warning names the file, as Mercurial's own does. What HGRCPATH names counts as before. Call it before a repository is opened.
    """
    seams.wrap("mercurial.ui", "ui._trusted", _trust)
    seams.wrap("mercurial.config", "config.read", _read_settings)


def _trust(orig: Any, self: Any, fp: Any, f: bytes) -> bool:
    if not orig(self, fp, f):
        return False
    if not _is_of_owner(fp.fileno(), f):
        if self._reportuntrusted:
            self.warn(b"not trusting file %s: accounts may have written it; have root replace it, with mode 0644\n" % f)
        return False
    setattr(fp, _TRUSTING, self)
    return True


def _read_settings(orig: Any, self: Any, path: bytes, fp: Any = None, *rest: Any, **named: Any) -> Any:
    """Read a file of settings; raise ConfigError if a trusted hgrc includes one that is not."""
    ui = getattr(self, _TRUSTING, None)
    if ui is None:
        setattr(self, _TRUSTING, getattr(fp, _TRUSTING, None))
        return orig(self, path, fp, *rest, **named)
    from pushlog.store.appendfile import open_regular  # no push needs it at once

    with fp or open(path, "rb", opener=open_regular) as included:
        is_of_root = os.fstat(included.fileno()).st_uid == 0 and _is_of_owner(included.fileno(), path)
        if not (is_of_root or ui._trusted(included, path)):
            raise error.ConfigError(b"an hgrc of a repository includes this file, which is not trusted", path)
        return orig(self, path, included, *rest, **named)


def _is_of_owner(file: int, path: bytes) -> bool:
    """Return whether the owner of an open file, or root, alone can have written it and put it there."""
    found = os.fstat(file)
    try:
        folder = os.open(os.path.dirname(path) or b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        above = os.fstat(folder)
        is_shared = bool(above.st_mode & _OTHERS) or above.st_uid not in (0, found.st_uid)
        # Through the folder, which may be another one by now.
        there = os.stat(os.path.basename(path), dir_fd=folder, follow_symlinks=not is_shared)
    except OSError:
        return False
    finally:
        os.close(folder)
    return os.path.samestat(there, found) and not found.st_mode & _OTHERS and not (is_shared and found.st_uid)

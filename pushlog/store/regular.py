# SPDX-License-Identifier: GPL-2.0-or-later
"""Mercurial opens no pipe and no device in place of a file, in a process that serves many repositories.

An account that may write to a repository could put one there, and the thread that opens it would wait for its writer: a request
of any reader, or a worker of the relay, which other repositories need.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
from typing import Any

from ..seams import wrap
from .appendfile import open_regular


@functools.cache
def install() -> None:
    """Have Mercurial refuse them, by OSError; an hgrc that includes one is refused as Mercurial refuses such files."""
    wrap("mercurial.vfs", "vfs.__call__", _open_file)
    wrap("mercurial.config", "config.read", _read_settings)


def _open_file(orig: Any, self: Any, path: bytes, *rest: Any, **named: Any) -> Any:
    """Open a file; if there is none, or it may not be seen, Mercurial says so."""
    file = self.join(path)
    try:
        mode = os.stat(file).st_mode
    except OSError:
        mode = stat.S_IFREG
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "Not a file", os.fsdecode(file))
    return orig(self, path, *rest, **named)


def _read_settings(orig: Any, self: Any, path: bytes, fp: Any = None, *rest: Any, **named: Any) -> Any:
    """Read a file of settings, which is open unless another file includes it."""
    if fp is not None:
        return orig(self, path, fp, *rest, **named)
    with open(path, "rb", opener=open_regular) as included:
        return orig(self, path, included, *rest, **named)

# SPDX-License-Identifier: GPL-2.0-or-later
"""Caches of a mirror's repository, which may move away while they are written.

Mercurial makes the folders of a cache file that it writes. After a release that renamed or deleted the repository, they would be an
empty repository at the former path, which answers clients.
"""

import os
from contextlib import suppress
from typing import Any

from mercurial import vfs
from mercurial.localrepo import localrepository


class _StandingFolder(vfs.vfs):
    """A folder in which files are written while it is there; writers go on without."""

    def __call__(self, path: bytes, mode: bytes = b"rb", atomictemp: bool = False, **named: Any) -> Any:
        return super().__call__(path, mode, atomictemp=atomictemp, **{**named, "makeparentdirs": False})


def keep_in_place(repo: localrepository) -> None:
    """Have caches written, and their folders made, only where the repository is."""
    for opener in (repo.cachevfs, repo.wcachevfs):
        opener.__class__ = _StandingFolder
        opener.__dict__.pop("open", None)  # bound to the class before
        with suppress(OSError):
            os.mkdir(opener.base)

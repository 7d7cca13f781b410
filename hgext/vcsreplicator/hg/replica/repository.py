# SPDX-License-Identifier: GPL-2.0-or-later
"""Repositories of a mirror, opened in a long-lived process.

Their own configuration is not read, and few stay open.

Rules of this file:

1. Mercurial is made ready once (`prepare`), with the configuration that HGRCPATH names and nothing else: a repository's hgrc is
   other people's code, and the extensions it loads would stay loaded for the next repository.
2. An open repository is reused only while its folder is still the same one on disk; a folder can be swapped at any time.
3. Closed repositories are part of reference cycles. They are collected once there are as many of them as may be open: a collection
   takes longer than a push.
"""

import contextlib
import gc
import io
import os
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from mercurial import error, extensions
from mercurial import ui as uimod
from mercurial.localrepo import localrepository
from mercurial.ui import ui as Ui

from pushlog import store, streams, versions

from ...outbox.folder import refuse_repository_pipes
from ...words.errors import BadConfig
from .. import requirement
from ..serving import caches, left_locks, views


class _DiscardedOutput(io.BytesIO):
    """A file that discards what Mercurial prints on the way."""

    def write(self, text: Any, /) -> int:
        return len(text)


def prepare() -> Ui:
    """Make the ui of this process; raises BadConfig unless it is shielded."""
    if not os.environ.get("HGRCSKIPREPO") or not os.environ.get("HGRCPATH"):
        raise BadConfig("a worker of a mirror needs HGRCSKIPREPO and HGRCPATH in its environment")
    streams.refuse_pushed()
    store.complete_journals()
    left_locks.install()
    ui = uimod.ui.load()
    ui.fout = ui.ferr = _DiscardedOutput()
    extensions.loadall(ui)
    extensions.populateui(ui)
    requirement.understand()
    # None has work here, and Mercurial looks for them nine times in a transaction.
    ui.callhooks = False
    # To warm their caches; nothing is served from here, so there are no guards.
    views.register_views()
    ui.setconfig(b"vcsreplicator", b"role", b"mirror", b"mirror")
    return ui


_Identity = tuple[int, ...]


class OpenRepositories:
    """At most `size` open repositories; the least recently used is closed first."""

    def __init__(self, ui: Ui, size: int) -> None:
        self.ui = ui
        self._size = size
        self._open: OrderedDict[str, tuple[_Identity, localrepository]] = OrderedDict()
        self._closed = 0

    def open(self, folder: str) -> localrepository:
        """Open the unfiltered repository in `folder`, or raise Mercurial's RepoError.

        Raises OSError where a pipe lies, also in an open repository: Mercurial reads its files again.
        """
        identity = _read_identity(folder)
        refuse_repository_pipes(folder)
        known = self._open.get(folder)
        if known is not None and known[0] == identity:
            self._open.move_to_end(folder)
            return known[1]
        self.close(folder)
        repository = versions.factory.repository(self.ui, os.fsencode(folder)).unfiltered()
        caches.keep_in_place(repository)
        self._open[folder] = (identity, repository)
        while len(self._open) > self._size:
            self.close(next(iter(self._open)))
        if self._closed >= self._size:
            gc.collect()
            self._closed = 0
        return repository

    def create(self, folder: str) -> localrepository:
        """Make an empty repository in `folder`, which must not exist."""
        versions.factory.repository(self.ui, os.fsencode(folder), create=True).close()
        return self.open(folder)

    def close(self, folder: str) -> None:
        """Forget the repository of a folder that was moved, or that failed."""
        known = self._open.pop(folder, None)
        if known is not None:
            self._closed += 1
            with contextlib.suppress(Exception):
                known[1].close()


@contextlib.contextmanager
def locked(repo: localrepository) -> Iterator[None]:
    """Hold both locks within the block; roll back an abandoned transaction.

    Takes the locks without waiting, or raises LockHeld.
    """
    with repo.wlock(wait=False), repo.lock(wait=False):
        if repo.svfs.exists(b"journal"):
            repo.recover()
            repo.invalidateall()
        requirement.keep(repo)
        yield


def _read_identity(folder: str) -> _Identity:
    """Read values that change when a folder becomes another repository."""
    try:
        store = os.stat(os.path.join(folder, ".hg", "store"))
        requires = os.stat(os.path.join(folder, ".hg", "requires"))
    except FileNotFoundError as problem:
        raise error.RepoError(b"repository %s not found" % os.fsencode(folder)) from problem
    return store.st_dev, store.st_ino, requires.st_ino, requires.st_size, requires.st_mtime_ns

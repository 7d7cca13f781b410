# SPDX-License-Identifier: GPL-2.0-or-later
"""A check of every revision of every file, without a lock."""

import os
from dataclasses import replace
from typing import NamedTuple

from mercurial import verify
from mercurial.localrepo import localrepository

from ...mirror.settings import MirrorSettings
from ...mirror.task import Check, Checked
from ..text import text
from . import replicated
from .local import Halted, LocalRepository
from .repository import OpenRepositories
from .troubles import OUT_OF_MEMORY


def check(repositories: OpenRepositories, settings: MirrorSettings, wanted: Check) -> Checked:
    """Find damage in a repository; undecided if it changed meanwhile."""
    local = LocalRepository(folder=wanted.folder)
    try:
        local.find(settings, wanted.repository)
        if local.folder is None:
            # It may have been moved meanwhile, from a folder that was searched later to one that was searched before.
            local.folder = wanted.folder
            local.find(settings, wanted.repository)
    except Halted as damaged:
        return Checked(repository=wanted.repository, problem=str(damaged))
    if local.folder is None:
        return Checked(repository=wanted.repository, problem="it is not here any more")
    return _check_in_place(repositories, replace(wanted, folder=local.folder))


def _check_in_place(repositories: OpenRepositories, wanted: Check) -> Checked:
    lower = problem = None
    is_spent = is_other = False
    before = _observe_store(wanted.folder)
    try:
        repo = repositories.open(wanted.folder)
        repo.invalidateall()
        checkpoint = replicated.read(repo)
        if checkpoint is not None:
            is_other = checkpoint.repository != wanted.repository
            lower = checkpoint if checkpoint.seq < wanted.seq else None
        problem = _verify(repo)
    except MemoryError:
        problem, is_spent = OUT_OF_MEMORY, True
    except Exception as unreadable:
        problem = f"{type(unreadable).__name__}: {unreadable}"[:300]
    finally:
        repositories.close(wanted.folder)
    if is_spent:
        return Checked(repository=wanted.repository, problem=problem, is_undecided=True, is_spent=True)
    after = _observe_store(wanted.folder)
    if after != before or after.is_changing or is_other:
        return Checked(repository=wanted.repository, problem=None, is_undecided=True)
    return Checked(repository=wanted.repository, problem=problem, lower=lower)


class _StoreState(NamedTuple):
    """Values that change with a store: taking its lock changes its folder's time."""

    store: tuple[int, int, int] | None
    is_changing: bool


def _observe_store(folder: str) -> _StoreState:
    path = os.path.join(folder, ".hg", "store")
    is_changing = os.path.lexists(os.path.join(path, "journal"))
    try:
        found = os.stat(path)
    except OSError:
        return _StoreState(store=None, is_changing=is_changing)
    return _StoreState(store=(found.st_dev, found.st_ino, found.st_mtime_ns), is_changing=is_changing)


def _verify(repo: localrepository) -> str | None:
    verifier = _Verifier(repo)
    verifier.verify()
    return f"{verifier.errors} errors in the store, the first: {verifier.first}" if verifier.errors else None


class _Verifier(verify.verifier):
    """Mercurial's verifier, which keeps the first error instead of printing all."""

    first = ""

    def _err(self, linkrev: int | None, msg: bytes, filename: bytes | None = None) -> None:
        if linkrev is not None:
            self.badrevs.add(linkrev)
        self.errors += 1
        self.first = self.first or text(b": ".join(filter(None, (filename, msg))))[:300]

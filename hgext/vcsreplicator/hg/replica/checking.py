# SPDX-License-Identifier: GPL-2.0-or-later
"""A repository read through: every revision of every file against its hash, without a lock, while events are applied."""

import os
from dataclasses import replace
from typing import Any, NamedTuple

from mercurial import verify

from ...mirror.settings import MirrorSettings
from ...mirror.task import Check, Checked
from ..text import text
from . import replicated
from .here import Halted, Here
from .memory import OUT_OF_MEMORY
from .repository import OpenRepositories


def check(repositories: OpenRepositories, settings: MirrorSettings, wanted: Check) -> Checked:
    """What is wrong with the repository, wherever it is by now; undecided, and nothing else, if it changed while it was read."""
    here = Here(folder=wanted.folder)
    try:
        here.look(settings, wanted.repository)
        if here.folder is None:  # or it was moved from where was not looked yet to where was
            here.folder = wanted.folder
            here.look(settings, wanted.repository)
    except Halted as damaged:
        return Checked(repository=wanted.repository, problem=str(damaged))
    if here.folder is None:
        return Checked(repository=wanted.repository, problem="it is not here any more")
    return _check(repositories, replace(wanted, folder=here.folder))


def _check(repositories: OpenRepositories, wanted: Check) -> Checked:
    lower = problem = None
    is_spent = is_other = False
    before = _moment(wanted.folder)
    try:
        repo = repositories.open(wanted.folder)
        repo.invalidateall()
        level = replicated.read(repo)
        is_other = level is not None and level.repository != wanted.repository
        lower = level if level is not None and level.seq < wanted.seq else None
        problem = _problem(repo)
    except MemoryError:
        problem, is_spent = OUT_OF_MEMORY, True
    except Exception as unreadable:
        problem = f"{type(unreadable).__name__}: {unreadable}"[:300]
    finally:
        repositories.close(wanted.folder)
    if is_spent:
        return Checked(repository=wanted.repository, problem=problem, is_undecided=True, is_spent=True)
    after = _moment(wanted.folder)
    if after != before or after.is_changing or is_other:
        return Checked(repository=wanted.repository, problem=None, is_undecided=True)
    return Checked(repository=wanted.repository, problem=problem, lower=lower)


class _Moment(NamedTuple):
    """What differs after each change of a store, one that was rolled back too: it takes a lock, which is a file in its folder."""

    store: tuple[int, int, int] | None
    is_changing: bool


def _moment(folder: str) -> _Moment:
    path = os.path.join(folder, ".hg", "store")
    is_changing = os.path.lexists(os.path.join(path, "journal"))
    try:
        found = os.stat(path)
    except OSError:
        return _Moment(store=None, is_changing=is_changing)
    return _Moment(store=(found.st_dev, found.st_ino, found.st_mtime_ns), is_changing=is_changing)


def _problem(repo: Any) -> str | None:
    verifier = _Verifier(repo)
    verifier.verify()
    return f"{verifier.errors} errors in the store, the first: {verifier.first}" if verifier.errors else None


class _Verifier(verify.verifier):  # type: ignore[misc]
    """Mercurial's, which remembers the first error instead of printing all."""

    first = ""

    def _err(self, linkrev: Any, msg: bytes, filename: bytes | None = None) -> None:
        if linkrev is not None:
            self.badrevs.add(linkrev)
        self.errors += 1
        self.first = self.first or text(b": ".join(filter(None, (filename, msg))))[:300]

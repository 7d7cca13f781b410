# SPDX-License-Identifier: GPL-2.0-or-later
"""A replicated repository of a master: how to recognize it and silence it.

Also how to refuse a repository that is not replicated.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from mercurial import error
from mercurial.localrepo import localrepository

if TYPE_CHECKING:
    from ..settings import ExtensionSettings

    class MasterRepository(localrepository):
        """A repository below a root: `opening` gives its class these attributes."""

        replication_settings: ExtensionSettings
        replication_folder: str
        replication_path: str
        replication_root: str


SILENT = "_vcsreplicator_silent"
# The attribute of a transaction that holds its capture.
CAPTURE = "_vcsreplicator_capture"
# How the names of transactions begin that carry nothing but events: no hook of the site runs in them.
OWN = b"vcsreplicator-"
# The transaction of an event that `writing` prepared.
LIFECYCLE = OWN + b"event"
# The transaction of an event that an operator requested, behind what the repository lacks.
REQUEST = OWN + b"request"
NOT_CONFIGURED = (
    b"repository path not configured for replication",
    b"add its folder to [vcsreplicator-roots]",
)

_just_created: set[bytes] = set()


def note_just_created(path: bytes) -> None:
    """Note that this process made the repository at `path`."""
    _just_created.add(os.path.realpath(path))


def take_just_created(repo: localrepository) -> bool:
    """Return whether this process made the repository; True only once."""
    root = os.path.realpath(repo.root)
    if root not in _just_created:
        return False
    _just_created.discard(root)
    return True


def replicated(repo: localrepository) -> MasterRepository | None:
    """Return the unfiltered repository if its changes are announced."""
    unfiltered = repo.unfiltered()
    return cast("MasterRepository", unfiltered) if hasattr(unfiltered, "replication_path") else None


@contextlib.contextmanager
def silenced(repo: localrepository) -> Iterator[None]:
    """Let transactions write no event within the block; the caller writes one."""
    repo = repo.unfiltered()
    setattr(repo, SILENT, True)
    try:
        yield
    finally:
        setattr(repo, SILENT, False)


@contextlib.contextmanager
def without_hooks(repo: localrepository) -> Iterator[None]:
    """Run no hook within the block, which finishes what began long ago."""
    before, repo.ui.callhooks = repo.ui.callhooks, False
    try:
        yield
    finally:
        repo.ui.callhooks = before


def is_silenced(repo: localrepository) -> bool:
    """Return whether transactions of this repository write no event now."""
    return bool(getattr(repo.unfiltered(), SILENT, False))


def is_overlay(repo: localrepository) -> bool:
    """Return whether this repository is laid over another, whose store it has."""
    return repo.url().startswith((b"bundle:", b"union:"))


def not_configured() -> error.Abort:
    """Return the refusal of a repository outside the roots."""
    message, hint = NOT_CONFIGURED
    return error.Abort(message, hint=hint)


def is_share(repo: localrepository) -> bool:
    """Return whether this repository has the store of another."""
    return repo.sharedpath != repo.path


def folder_of(repo: localrepository) -> str:
    """Return the folder of a repository, for a share that of its store."""
    return os.path.dirname(os.fsdecode(os.path.realpath(repo.sharedpath)))

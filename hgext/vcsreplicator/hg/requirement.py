# SPDX-License-Identifier: GPL-2.0-or-later
"""An entry in `.hg/requires` that keeps out a Mercurial without this extension.

Changes by such a Mercurial would not be replicated. On a mirror, it would show unreleased changesets. Opt-in, because the entry
keeps out readers without the extension too. On a master (`[vcsreplicator] lock = yes`) a repository gets the entry when a process
first opens it. On a mirror (`lock = true` in `[mirror.NAME]`) the workers add it, under the locks that they take anyway, and remove
it where the setting is off. It says nothing about the content, so it is not replicated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from mercurial import error, scmutil
from mercurial import requirements as formats
from mercurial.localrepo import localrepository

from pushlog import seams, versions

LOCK = b"exp-vcsreplicator"
# Section and key by which a worker gets its mirror's setting; without them entries stay as they are.
MIRROR_LOCK = (b"vcsreplicator-mirror", b"lock")


def register(*, locking: bool) -> None:
    """Let this process open locked repositories.

    If it locks, format upgrades keep the entry (`tests/hg/master/lock.t`).
    """
    understand()
    if locking:
        seams.wrap("mercurial.upgrade_utils.actions", "preservedrequirements", _preserve_lock)
        seams.wrap("mercurial.upgrade_utils.actions", "supporteddestrequirements", _support_lock)


def understand() -> None:
    """Let this process open locked repositories, and serve them to other clients."""
    versions.supported_requirements().add(LOCK)
    formats.STREAM_IGNORABLE_REQUIREMENTS.add(LOCK)


def lock_out(repo: localrepository) -> None:
    """Add the entry if it is missing, or leave that to the process with the lock."""
    if LOCK in repo.requirements or repo.sharedpath != repo.path:
        return
    with contextlib.suppress(error.LockError, OSError), repo.wlock(wait=False), repo.lock(wait=False):
        scmutil.writereporequirements(repo, repo.requirements | {LOCK})


def keep(repo: localrepository) -> None:
    """Add or remove the entry as the setting says; the caller holds both locks."""
    wanted = dict(repo.ui.configitems(MIRROR_LOCK[0])).get(MIRROR_LOCK[1])
    if wanted is not None and (wanted == b"yes") != (LOCK in repo.requirements):
        scmutil.writereporequirements(repo, repo.requirements ^ {LOCK})


def let_in(repo: localrepository) -> None:
    """Remove the entry from a clone that copied it and is not replicated."""
    if LOCK in repo.requirements:
        with repo.wlock(), repo.lock():
            scmutil.writereporequirements(repo, repo.requirements - {LOCK})


def _preserve_lock(original: Callable[[localrepository], set[bytes]], repo: localrepository) -> set[bytes]:
    return original(repo) | ({LOCK} & repo.requirements)


def _support_lock(original: Callable[[localrepository], set[bytes]], repo: localrepository) -> set[bytes]:
    return original(repo) | {LOCK}

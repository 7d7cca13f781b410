# SPDX-License-Identifier: GPL-2.0-or-later
"""An entry in `.hg/requires` that keeps a Mercurial without this extension out: it would write past us, or show everything.

Opt-in, because it keeps readers without the extension out too. On a master (`[vcsreplicator] lock = yes`) a repository gets the
entry when a process first opens it. On a mirror (`lock = true` in `[mirror.NAME]`) the workers see to it, under the locks that they
take anyway, and take it away where the setting is off. It says nothing about the content, so it does not travel.
"""

from collections.abc import Callable
from typing import Any

from mercurial import error, scmutil
from mercurial import requirements as formats
from mercurial.repo import requirements

from pushlog import seams

LOCK = b"exp-vcsreplicator"
MIRROR_LOCK = (b"vcsreplicator-mirror", b"lock")
"""Section and key by which a worker knows its mirror's setting; without them entries stay as they are."""


def register(*, locking: bool) -> None:
    """Lets this process open what is locked; where it locks, the entry stays through format upgrades (`tests/hg/master/lock.t`)."""
    understand()
    if locking:
        from mercurial.upgrade_utils import actions  # which a push need not load

        seams.wrap(actions, "preservedrequirements", _preserved)
        seams.wrap(actions, "supporteddestrequirements", _supported)


def understand() -> None:
    """Lets this process open what is locked, and serve it to clients as what it is."""
    requirements.BASE_SUPPORTED.add(LOCK)
    formats.STREAM_IGNORABLE_REQUIREMENTS.add(LOCK)


def lock_out(repo: Any) -> None:
    """Adds the entry, if it is not there; left to the next one where somebody holds a lock."""
    if LOCK in repo.requirements or repo.sharedpath != repo.path:
        return
    try:
        with repo.wlock(wait=False), repo.lock(wait=False):
            scmutil.writereporequirements(repo, repo.requirements | {LOCK})
    except (error.LockError, OSError):
        return


def keep(repo: Any) -> None:
    """Gives a mirror's repository the entry or takes it away, as the worker's setting says; the caller holds both locks."""
    wanted = dict(repo.ui.configitems(MIRROR_LOCK[0])).get(MIRROR_LOCK[1])
    if wanted is not None and (wanted == b"yes") != (LOCK in repo.requirements):
        scmutil.writereporequirements(repo, repo.requirements ^ {LOCK})


def let_in(repo: Any) -> None:
    """Takes the entry away from a clone that copied it and is nobody's master."""
    if LOCK in repo.requirements:
        with repo.wlock(), repo.lock():
            scmutil.writereporequirements(repo, repo.requirements - {LOCK})


def _preserved(original: Callable[..., Any], repo: Any) -> Any:
    return original(repo) | ({LOCK} & repo.requirements)


def _supported(original: Callable[..., Any], repo: Any) -> Any:
    return original(repo) | {LOCK}

# SPDX-License-Identifier: GPL-2.0-or-later
"""Recovery from a kill: undoes or finishes it before anything else happens."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from mercurial import error
from mercurial.localrepo import localrepository

from ...outbox.file import Outbox
from ...words.errors import MalformedEvent
from .. import observe
from ..settings import ExtensionSettings
from .acts import intents

if TYPE_CHECKING:
    from .repository import MasterRepository

RACED = b"an abandoned transaction was in the way and is rolled back; please push again"


def recover_abandoned(repo: localrepository, guard: AbstractContextManager[object] | None = None) -> bool:
    """Roll back an abandoned transaction, and return whether there was one.

    A transaction whose process lives is left alone, since that process holds the lock. Called when a repository is opened, before
    anything is read, so that a push begins with the true state (`tests/hg/master/abandoned.t`). The lock is taken inside
    `guard`, which decides what becomes of a lock that cannot be taken; without one, the transaction is left alone.
    """
    lock = None
    with guard or contextlib.suppress(error.LockError, OSError):
        lock = repo.lock(wait=False)
    if lock is None:
        return False
    with lock:
        return bool(repo.svfs.exists(b"journal") and repo.recover())


def recover_before_change(repo: localrepository, transaction: bytes) -> None:
    """Roll back an abandoned transaction under the lock of a change.

    `transaction` is the name of the next transaction. Raises PushRaced or Abort for a push that has read the changesets rolled
    back: it must begin again.
    """
    if not repo.svfs.exists(b"journal"):
        return
    repo.ui.warn(b"abandoned transaction found; running recover\n")
    seen = observe.tip(repo)
    repo.recover()
    if observe.tip(repo) == seen:
        return
    # The command of old clients for phases and markers, which cannot race.
    if transaction.startswith(b"pushkey"):
        raise error.Abort(RACED)
    if transaction.startswith((b"unbundle", b"serve", b"push")):
        raise error.PushRaced(RACED)


def finish_interrupted(repo: MasterRepository, settings: ExtensionSettings) -> None:
    """Finish the act that a kill interrupted in this repository.

    The caller holds the lock. Raises Abort if the repository is to be moved, which happens once the lock is released.
    """
    root, intent = repo.replication_root, intents.read(repo.replication_root, repo.replication_path)
    if intent is None:
        return
    # Most transactions do not need them.
    from .acts import lifecycle, moving

    try:
        intents.confine(intent, root, settings.roots)
    except MalformedEvent as problem:
        raise intents.unusable(intents.file_of(root, intent.path), problem) from problem
    if not intent.concerns(Outbox(repo.svfs).newest()):
        # Its repository has been moved, this is another.
        intents.remove(root, intent.path)
        return
    repo.ui.warn(b"an interrupted %s is being finished\n" % intents.act_of(intent))
    lifecycle.finish(repo, intent)
    if intent.to is not None:
        repo._afterlock(lambda _success: moving.finish_move(root, intent))
        raise error.Abort(b"this repository was %s" % intent.kind.encode())

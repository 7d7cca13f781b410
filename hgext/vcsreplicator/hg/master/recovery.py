# SPDX-License-Identifier: GPL-2.0-or-later
"""The rollback of a transaction that a kill interrupted."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

from mercurial import error
from mercurial.localrepo import localrepository

from .. import observe

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

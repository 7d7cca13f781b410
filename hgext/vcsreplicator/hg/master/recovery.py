# SPDX-License-Identifier: GPL-2.0-or-later
"""The rollback of a transaction that a kill interrupted."""

from __future__ import annotations

import contextlib
import os
from contextlib import AbstractContextManager

from mercurial import error, vfs
from mercurial.localrepo import localrepository
from mercurial.transaction import transaction as Transaction
from mercurial.utils import stringutil

from .. import observe

RACED = b"an abandoned transaction was in the way and is rolled back; please push again"
# The part of the journal that names backups.
BACKUPS = b"journal.backupfiles"
# The end of the journal's line that names a share.
SHARE = b"/journal.share"


def name_share(repo: localrepository, tr: Transaction) -> None:
    """Have the journal name the share in which `tr` is made.

    Mercurial keeps the backups of bookmarks and of the state of the working copy in the share, but the journal in the store.
    Rolled back through another repository, the transaction would take the bookmarks of that one away. The line that the journal
    gets is that of a temporary file, which never exists.
    """
    # A name with line breaks becomes that of a share that is gone.
    tr.registertmp(repo.path.replace(b"\n", b"") + SHARE, location=b"plain")


def roll_back(repo: localrepository) -> None:
    """Roll back the abandoned transaction of this store, also one of a share.

    The caller holds the lock. A share that is gone has taken its bookmarks with it.
    """
    _drop_torn_line(repo)
    own = repo.vfs
    repo.vfs = vfs.vfs(_find_place(repo))
    try:
        repo.recover()
    finally:
        repo.vfs = own


def _drop_torn_line(repo: localrepository) -> None:
    """Drop the last line about backups if a power cut tore it.

    Mercurial writes the line before it touches the file, and cannot read a part of one.
    """
    content = repo.svfs.tryread(BACKUPS)
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        with repo.svfs(BACKUPS, b"ab") as file:
            file.truncate(len(whole))


def _find_place(repo: localrepository) -> bytes:
    """Find the `.hg` in which the abandoned transaction was made, perhaps a share's.

    A Mercurial without the extension names no share, but the backups are elsewhere. Then a folder is returned that does not exist,
    so that bookmarks stay as they are.
    """
    backups = []
    for line in repo.svfs.tryread(BACKUPS).split(b"\n"):
        location, name, backup = [*line.split(b"\0"), b"", b""][:3]
        if backup.endswith(SHARE):
            return os.path.dirname(backup)
        if location == b"plain" and name and backup:
            backups.append(backup)
    for place in (repo.sharedpath, repo.path):
        if all(os.path.exists(os.path.join(place, backup)) for backup in backups):
            return place
    return os.path.join(repo.sharedpath, b"journal.elsewhere")


def recover_at_opening(repo: localrepository) -> None:
    """Roll back an abandoned transaction of a repository that is being opened.

    A failure is a warning: readers continue, and the next change fails with it.
    """
    try:
        recover_abandoned(repo)
    except (OSError, error.Abort) as problem:
        reason = stringutil.forcebytestr(problem).strip()
        repo.ui.warn(b"%s: an abandoned transaction cannot be rolled back: %s\n" % (repo.root, reason))


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
        if not repo.svfs.exists(b"journal"):
            return False
        roll_back(repo)
        return True


def recover_before_change(repo: localrepository, transaction: bytes) -> None:
    """Roll back an abandoned transaction under the lock of a change.

    `transaction` is the name of the next transaction. Raises PushRaced or Abort for a push that has read the changesets rolled
    back: it must begin again.
    """
    repo.ui.warn(b"abandoned transaction found; running recover\n")
    seen = observe.tip(repo)
    roll_back(repo)
    if observe.tip(repo) == seen:
        return
    # The command of old clients for phases and markers, which cannot race.
    if transaction.startswith(b"pushkey"):
        raise error.Abort(RACED)
    if transaction.startswith((b"unbundle", b"serve", b"push")):
        raise error.PushRaced(RACED)

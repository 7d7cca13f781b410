# SPDX-License-Identifier: GPL-2.0-or-later
"""The rollback of a transaction that a kill interrupted."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager

from mercurial import error, vfs
from mercurial.localrepo import localrepository
from mercurial.transaction import transaction as Transaction
from mercurial.utils import stringutil

from pushlog.store.rollback import held, journalled, playback

from .. import observe

RACED = b"an abandoned transaction was in the way and is rolled back; please push again"


def name_share(repo: localrepository, tr: Transaction) -> None:
    """Have the journal name the share in which `tr` is made.

    Mercurial keeps the backups of bookmarks and of the state of the working copy in the share, but the journal in the store.
    A rollback through another repository would remove that repository's bookmarks. The line that the journal
    gets is that of a temporary file, which never exists.
    """
    # A name with line breaks counts as a share that is gone.
    tr.registertmp(repo.path.replace(b"\n", b"") + journalled.SHARE, location=b"plain")


def roll_back(repo: localrepository) -> None:
    """Roll back the abandoned transaction of this store, including one of a share.

    The caller holds the lock. A share that is gone has taken its bookmarks with it. Raises Abort for a journal that no transaction
    of Mercurial writes, or that names the folder of another repository.
    """
    own = repo.vfs
    with _open_place(repo) as place:
        repo.vfs = place
        try:
            repo.recover()
        finally:
            repo.vfs = own


@contextlib.contextmanager
def _open_place(repo: localrepository) -> Iterator[vfs.vfs]:
    """Open the `.hg` in which the abandoned transaction was made, perhaps a share's.

    A Mercurial without the extension names no share, but the backups are elsewhere. Then a folder is given that does not exist, so
    that bookmarks stay as they are.
    """
    share, backups = _read_place(repo)
    elsewhere = os.path.join(repo.sharedpath, b"journal.elsewhere")
    if share is not None:
        try:
            folder = held.HeldFolder(share)
        except FileNotFoundError:
            yield vfs.vfs(elsewhere)
            return
        with contextlib.closing(folder):
            _refuse_other_share(repo, folder)
            yield folder
        return
    for place in (repo.sharedpath, repo.path):
        if all(os.path.exists(os.path.join(place, backup)) for backup in backups):
            yield vfs.vfs(place)
            return
    yield vfs.vfs(elsewhere)


def _read_place(repo: localrepository) -> tuple[bytes | None, list[bytes]]:
    """Read which share the journal names, if any, and backups beside the store."""
    with playback.Places(repo.svfs, {}) as places:
        saved = playback.read_saved(places, playback.JOURNAL)
    shares = [os.path.dirname(line.backup) for line in saved if journalled.is_share_name(*line[:3])]
    backups = [line.backup for line in saved if line.location == b"plain" and line.name and line.backup]
    return (shares[0] if shares else None), backups


def _refuse_other_share(repo: localrepository, folder: held.HeldFolder) -> None:
    """Raise Abort unless an open folder is that of a share of this store, or its own.

    The accounts that may write to the store would otherwise name a folder in which only others may write.
    """
    state = os.fstat(folder.descriptor)
    if os.path.samestat(state, os.stat(repo.sharedpath)):
        return
    content = held.read_in(folder, b"sharedpath").removesuffix(b"\n")
    named = os.path.realpath(os.path.join(folder.base, content)) if content else b""
    if named != os.path.realpath(repo.sharedpath):
        raise error.Abort(
            b"%s names %s, which is no share of this repository; it is not rolled back"
            % (repo.svfs.join(playback.JOURNAL), journalled.quote(folder.base)),
            hint=playback.HINT,
        )


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

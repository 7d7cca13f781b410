# SPDX-License-Identifier: GPL-2.0-or-later
"""The repositories of a master, which capture every outermost transaction.

They refuse changes that no event can hold.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mercurial import error
from mercurial.localrepo import localrepository
from mercurial.transaction import transaction as Transaction
from mercurial.ui import ui as Ui

from ...outbox.file import Outbox
from ...relay.client import RelayLine
from ...words.path import REPLICA_FILE
from .. import requirement
from ..settings import ExtensionSettings, root_of
from ..text import path as path_text
from . import capture, creation, durability, formats, refusals, reporting, repository
from .repository import CAPTURE, LIFECYCLE

if TYPE_CHECKING:
    from .capture import Capture
    from .intents import Intent
    from .repository import MasterRepository

    # Finishes the act of a note.
    FinishAct = Callable[[MasterRepository, Intent, ExtensionSettings], None]

# Transactions that are kept and sent later also with `unavailable = refuse`: the rest of their act is done already.
KEPT = (LIFECYCLE, creation.TRANSACTION)


def set_up(repo: localrepository, settings: ExtensionSettings, finish_interrupted: FinishAct) -> None:
    """Give a repository below a root its behaviour; others only refuse pushes.

    Raises Abort for a mirror's: as a master's it would show what is not released.
    """
    folder = os.path.dirname(path_text(repo.sharedpath))
    path = settings.wire_path(folder)
    if path is None:
        if repo.svfs.exists(REPLICA_FILE):
            raise repository.is_of_mirror()
        if b"/.hg/" not in repo.root + b"/":
            repo.ui.setconfig(b"hooks", b"pretxnopen.vcsreplicator", _refuse_outside, b"vcsreplicator")
            repo.ui.setconfig(b"hooks", b"prepushkey.vcsreplicator", _refuse_outside, b"vcsreplicator")
        return
    if repository.is_overlay(repo):
        from . import overlay

        repo.__class__ = overlay.read_only(repo.__class__)
        return
    repo.ui.setconfig(b"ui", b"rollback", False, b"vcsreplicator")
    repo.ui.setconfig(b"hooks", b"precommit.vcsreplicator", _refuse_commit, b"vcsreplicator")
    formats.guard_content(repo)
    repo.__class__ = _with_capture(repo.__class__, folder, path, settings, finish_interrupted)
    if repo.svfs.exists(b"journal"):
        from . import recovery

        recovery.recover_abandoned(repo)
    if settings.lock:
        requirement.lock_out(repo)
    if creation.take_just_created(repo):
        announce_creation(repo)


def announce_creation(repo: localrepository) -> None:
    """Write the first event of a repository, unless a clone holds the lock."""
    try:
        lock = repo.lock(wait=False)
    except error.LockError:
        return
    with lock, repo.transaction(creation.TRANSACTION):
        pass


def after_clone(original: Any, *arguments: Any, **keywords: Any) -> Any:
    """Wrap `clone`: announce a copy of another repository's store.

    Such a copy is made without a transaction (`tests/hg/master/init.t`).
    """
    source, destination = original(*arguments, **keywords)
    repo = destination.local() if destination is not None else None
    if repo is not None and repository.replicated(repo) is None:
        requirement.let_in(repo.unfiltered())
    elif repo is not None and Outbox(repo.svfs).end() is None:
        announce_creation(repo.unfiltered())
    return source, destination


def _with_capture(
    base: type[localrepository], folder: str, path: str, settings: ExtensionSettings, finish_interrupted: FinishAct
) -> type[localrepository]:
    class replicatedrepository(base):  # type: ignore[misc, valid-type]
        """A repository that captures every outermost transaction."""

        announces_changes = True
        replication_path = path
        replication_root = root_of(settings, folder)
        replication_roots = settings.roots

        def transaction(self, desc: bytes, report: Any = None) -> Transaction:
            repo = self.unfiltered()
            if repo.currenttransaction() is not None or repository.is_silenced(repo):
                tr: Transaction = super().transaction(desc, report)
                return tr
            if desc != LIFECYCLE:
                _recover_before_change(repo, desc)
                if (intent := _read_intent(self.replication_root, path)) is not None:
                    finish_interrupted(repo, intent, settings)
            line = RelayLine.open(settings.relay, folder) if settings.relay else None
            try:
                if settings.unavailable == "refuse" and desc not in KEPT:
                    refusals.refuse_unavailable_log(Outbox(repo.svfs), line, settings.patience)
                captured = capture.compare_and_begin(
                    repo,
                    path,
                    settings,
                    lambda: creation.next_generation(self.replication_root, path),
                    transaction=desc,
                )
                tr = super().transaction(desc, report)
            except BaseException:
                _close(line)
                raise
            if desc != LIFECYCLE:
                # The relay checks for forks when the connection is opened, and may have found one since.
                tr.addvalidator(capture.FINALIZER, lambda _tr: refusals.refuse_fork(Outbox(repo.svfs)))
            _attach(tr, captured, line, folder)
            return tr

        def rollback(self, dryrun: bool = False, force: bool = False) -> int:
            raise error.Abort(b"a replicated repository cannot be rolled back", hint=b"use 'hg strip' or 'hg backout'")

    return replicatedrepository


def _recover_before_change(repo: MasterRepository, transaction: bytes) -> None:
    """Roll back an abandoned transaction; most changes do not load what does."""
    if repo.svfs.exists(b"journal"):
        from . import recovery

        recovery.recover_before_change(repo, transaction)


def _read_intent(root: str, path: str) -> Intent | None:
    """Read the note about a wire path; most changes do not load what does."""
    try:
        os.stat(creation.intent_file(root, path))
    except FileNotFoundError:
        return None
    from . import intents

    return intents.read(root, path)


def _attach(tr: Transaction, captured: Capture, line: RelayLine | None, folder: str) -> None:
    """Attach the capture to a transaction that has just been opened."""
    setattr(tr, CAPTURE, captured)
    repo, settings = captured.repo, captured.configuration
    if settings.durability == "store":
        durability.sync_before_change(repo, tr)
        tr.addfinalize(capture.FIRST, lambda tr: durability.reserve_and_sync(repo, tr))
    tr.addfinalize(capture.FINALIZER, captured.finalize)

    def finish_commit(_tr: Transaction) -> None:
        if captured.written:
            reporting.finish_commit(captured, line)

    def report(_tr: Transaction) -> None:
        if captured.written:
            repo._afterlock(lambda _success: reporting.report(captured, line, folder))
        else:
            _close(line)

    tr.addpostclose(capture.FIRST, finish_commit)
    tr.addpostclose(capture.FINALIZER, report)
    tr.addabort(capture.FINALIZER, lambda _tr: _close(line))


def _close(line: RelayLine | None) -> None:
    if line is not None:
        line.close()


def _refuse_outside(
    ui: Ui, repo: localrepository, txnname: bytes = b"serve", hooktype: bytes = b"", **_arguments: Any
) -> bool:
    """Refuse a push that would not be replicated.

    Users of this machine may change the repository. Clients' transactions are known by their names (`tests/hg/master/refused.t`);
    `prepushkey` is for the commands of old clients, outside of any transaction. Raises Abort when a transaction opens: over HTTP
    Mercurial does not send what a hook prints before.
    """
    if not txnname.startswith((b"serve", b"pushkey")):
        return False
    if hooktype == b"pretxnopen":
        raise repository.not_configured()
    ui.warn(b"%s\n(%s)\n" % repository.NOT_CONFIGURED)
    return True


def _refuse_commit(ui: Ui, repo: localrepository, **_arguments: Any) -> bool:
    ui.warn(b"cannot commit to replicating repositories; push instead\n")
    return True

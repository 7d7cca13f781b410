# SPDX-License-Identifier: GPL-2.0-or-later
"""The repositories of a master, set up as Mercurial opens them.

Their class captures every outermost transaction. The first one loads what captures it, so a server over SSH gives its first answer
before.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

from mercurial import error
from mercurial.localrepo import localrepository
from mercurial.transaction import transaction as Transaction
from mercurial.ui import ui as Ui

from pushlog import seams

from ..words.path import REPLICA_FILE
from .master import creation, repository, transactions
from .settings import ExtensionSettings, root_of

if TYPE_CHECKING:
    from .master.repository import MasterRepository

_finish_interrupted = seams.loading(f"{__package__}.master.acts.lifecycle", "finish_interrupted")


def set_up(repo: localrepository, settings: ExtensionSettings) -> None:
    """Give a repository below a root its behaviour; others only refuse pushes.

    Raises Abort for a mirror's: as a master's it would show what is not released.
    """
    if seams.find_extension(b"largefiles"):
        from .master import formats

        formats.guard_names()
    folder = os.path.dirname(os.fsdecode(repo.sharedpath))
    path = settings.wire_path(folder)
    if path is None:
        if repo.svfs.exists(REPLICA_FILE):
            raise error.Abort(
                b"this is a mirror's repository, and role = master would show what is not released",
                hint=b"set HGRCPATH to the mirror's configuration, with [vcsreplicator] role = mirror",
            )
        if b"/.hg/" not in repo.root + b"/":
            repo.ui.setconfig(b"hooks", b"pretxnopen.vcsreplicator", _refuse_outside, b"vcsreplicator")
            repo.ui.setconfig(b"hooks", b"prepushkey.vcsreplicator", _refuse_outside, b"vcsreplicator")
        return
    if repository.is_overlay(repo):
        from .master import overlay

        repo.__class__ = overlay.read_only(repo.__class__)
        return
    repo.ui.setconfig(b"ui", b"rollback", False, b"vcsreplicator")
    if settings.commits == "refuse":
        repo.ui.setconfig(b"hooks", b"precommit.vcsreplicator", _refuse_commit, b"vcsreplicator")
    if any(map(seams.find_extension, (b"lfs", b"largefiles"))):
        from .master import formats

        formats.guard_content(repo)
    repo.__class__ = _with_capture(repo.__class__, folder, path, settings)
    if repo.svfs.exists(b"journal"):
        from .master import recovery

        recovery.recover_at_opening(repo)
    if settings.lock:
        from . import requirement

        requirement.lock_out(repo)
    if repository.take_just_created(repo) and not repository.is_share(repo):
        transactions.announce_creation(repo)


def _with_capture(
    base: type[localrepository], folder: str, path: str, settings: ExtensionSettings
) -> type[localrepository]:
    class replicatedrepository(base):  # type: ignore[misc, valid-type]
        """A repository that captures every outermost transaction."""

        replication_settings = settings
        replication_folder = folder
        replication_path = path
        replication_root = root_of(settings, folder)

        def _pushlog_limit(self) -> None:
            """Show the whole pushlog: the limit is left from the time when the repository was a mirror's."""

        def transaction(self, desc: bytes, report: Any = None) -> Transaction:
            repo = self.unfiltered()
            if repo.currenttransaction() is not None:
                tr: Transaction = super().transaction(desc, report)
                return tr
            if repository.is_silenced(repo):
                return transactions.open_silenced(repo, functools.partial(super().transaction, desc, report))
            if desc != repository.LIFECYCLE:
                _finish_former(repo, desc)
            return transactions.open_captured(repo, functools.partial(super().transaction, desc, report), desc)

        def rollback(self, dryrun: bool = False, force: bool = False) -> int:
            raise error.Abort(b"a replicated repository cannot be rolled back", hint=b"use 'hg strip' or 'hg backout'")

    return replicatedrepository


def _finish_former(repo: MasterRepository, transaction: bytes) -> None:
    """Roll back an abandoned transaction, and finish an interrupted act.

    The modules that do this are loaded only if there is something to do.
    """
    if repo.svfs.exists(b"journal"):
        from .master import recovery

        recovery.recover_before_change(repo, transaction)
    root, path = repo.replication_root, repo.replication_path
    try:
        os.stat(creation.intent_file(root, path))
    except FileNotFoundError:
        return
    from .master import intents

    if (intent := intents.read(root, path)) is not None:
        _finish_interrupted(repo, intent)


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

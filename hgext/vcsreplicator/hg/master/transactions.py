# SPDX-License-Identifier: GPL-2.0-or-later
"""The opening of an outermost transaction of a master, with its capture.

A process that changes nothing does not load this module, nor those that it imports. It also announces new repositories.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mercurial import error
from mercurial.localrepo import localrepository
from mercurial.transaction import transaction as Transaction

from pushlog.store import disk
from pushlog.store.unhooked import open_unhooked

from ...outbox.file import Outbox
from ...relay.client import RelayLine
from .. import requirement
from . import capture, creation, durability, refusals, reporting, repository
from .repository import CAPTURE, LIFECYCLE, OWN

if TYPE_CHECKING:
    from .capture import Capture
    from .repository import MasterRepository

# Transactions that are kept and sent later even with `unavailable = refuse`: the rest of their act is done already.
KEPT = (LIFECYCLE, creation.TRANSACTION)


def open_captured(repo: MasterRepository, begin: Callable[[], Transaction], desc: bytes) -> Transaction:
    """Open a transaction by `begin`, and attach what writes its event."""
    settings = repo.replication_settings
    line = RelayLine.open(settings.relay, repo.replication_folder) if settings.relay else None
    captured = None
    try:
        if settings.unavailable == "refuse" and desc not in KEPT:
            refusals.refuse_unavailable_log(Outbox(repo.svfs), line, settings)
        captured = capture.compare_and_begin(repo, line, transaction=desc)
        tr = open_unhooked(repo, begin) if desc.startswith(OWN) else begin()
    except BaseException as problem:
        # Once captured, a hook of the site refuses, which is its right.
        if line is not None and captured is None and isinstance(problem, Exception):
            line.report_refusal(refusals.describe(problem))
        _close(line)
        raise
    if desc != LIFECYCLE:
        # The relay checks for forks when the connection is opened, and may have found one since.
        tr.addvalidator(capture.FINALIZER, lambda _tr: refusals.refuse_fork(Outbox(repo.svfs)))
    if repository.is_share(repo):
        from . import recovery

        recovery.name_share(repo, tr)
    _attach(tr, captured, line)
    return tr


def open_silenced(repo: MasterRepository, begin: Callable[[], Transaction]) -> Transaction:
    """Open a transaction of a strip by `begin`; it writes no event."""
    if repo.replication_settings.durability == "store":
        # What the strip adds again must be on disk before the transaction removes it.
        durability.sync_repository(repo)
    tr = begin()
    if repo.replication_settings.durability == "store":
        disk.request_sync(tr)
        durability.sync_before_change(repo, tr)
        tr.addfinalize(capture.FIRST, lambda _tr: durability.sync_journal(repo))
        tr.addfinalize(capture.FINALIZER, lambda _tr: durability.sync_repository(repo))
    return tr


def _attach(tr: Transaction, captured: Capture, line: RelayLine | None) -> None:
    """Attach the capture to a transaction that has just been opened."""
    setattr(tr, CAPTURE, captured)
    repo = captured.repo
    if repo.replication_settings.durability == "store":
        disk.request_sync(tr)  # of pushlog2.db
        durability.sync_before_change(repo, tr)
        tr.addfinalize(capture.FIRST, lambda tr: durability.reserve_and_sync(repo, tr))
    tr.addfinalize(capture.FINALIZER, captured.finalize)

    def finish_commit(_tr: Transaction) -> None:
        if captured.written:
            reporting.finish_commit(captured, line)

    def report(_tr: Transaction) -> None:
        if captured.written:
            repo._afterlock(lambda _success: reporting.report(captured, line))
        else:
            _close(line)

    tr.addpostclose(capture.FIRST, finish_commit)
    tr.addpostclose(capture.FINALIZER, report)
    tr.addabort(capture.FINALIZER, lambda _tr: _close(line))


def _close(line: RelayLine | None) -> None:
    if line is not None:
        line.close()


def announce_creation(repo: localrepository) -> None:
    """Write the first event of a repository, unless a clone holds the lock.

    A failure is only a warning: the repository exists, and the relay's scan or the next change writes its first event.
    """
    try:
        with repo.lock(wait=False), repo.transaction(creation.TRANSACTION):
            pass
    except error.LockError:
        return
    except Exception as problem:
        reason = refusals.describe(problem).encode("utf-8", "surrogateescape")
        repo.ui.warn(b"not announced yet, the relay or the next change does it: %s\n" % reason)


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

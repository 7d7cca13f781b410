# SPDX-License-Identifier: GPL-2.0-or-later
"""The recording of a push.

This module finds the pusher, and has the hooks that record the push inside its own transaction. It tells the pusher, too, why a
transaction could not begin.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mercurial import bundle2, encoding, error
from mercurial.localrepo import localrepository
from mercurial.ui import ui as Ui
from mercurial.utils import stringutil

from .settings import LANDING_OPTIONS, read_recorded
from .store.appendfile import TornRecord
from .store.connections import sqlite3
from .store.session import running_session, session_of
from .store.storage import Pushlog

if TYPE_CHECKING:
    from mercurial.context import changectx

# Why a change without a user gets no row, and so is refused.
NO_USER = b"authenticated user not found; refusing to write into pushlog"


def name_obstacle(orig: Callable[..., Any], repo: localrepository, cg: Any, *arguments: Any) -> Any:
    """Wrap `exchange.unbundle`: have a client read why a push could not begin.

    Raises Abort for a lock that another process holds, a lock that cannot be taken, and an abandoned transaction. For other errors
    a client over HTTP gets an empty answer.
    """
    try:
        return orig(repo, cg, *arguments)
    except (error.LockError, error.RepoError) as problem:
        refusal = _refuse_obstacle(problem)
        refusal.duringunbundle2 = isinstance(cg, bundle2.unbundle20)  # the form that it reads
        raise refusal from problem


def _refuse_obstacle(problem: error.LockError | error.RepoError) -> error.Abort:
    if isinstance(problem, error.LockHeld):
        host, _colon, process = (problem.locker or b"").rpartition(b":")
        holder = b"process %s on %s" % (process, host.partition(b"/")[0]) if host else b"another process"
        return error.Abort(
            b"%s holds the lock of the repository; nothing was pushed" % holder,
            hint=b"push again later; if this stays, the server's administrators look at that process",
        )
    if isinstance(problem, error.LockError):
        return error.Abort(
            b"the repository cannot be locked: %s; nothing was pushed" % stringutil.forcebytestr(problem.strerror),
            hint=b"the server's administrators let the account that serves pushes write to the repository",
        )
    return error.Abort(stringutil.forcebytestr(problem), hint=getattr(problem, "hint", None))


def record(ui: Ui, repo: localrepository, source: bytes | None = None, **_arguments: Any) -> bool:
    """Record a push in `pretxnchangegroup`; return True to refuse it, and say why."""
    if source not in read_recorded(ui):
        ui.note(b"(not updating pushlog since changesets come from %s)\n" % (source or b"nowhere"))
        return False
    user = pusher(ui, getattr(repo.ui, "environ", {}), encoding.environ)
    if not user:
        ui.write(b"%s\n(%s)\n" % (NO_USER, _name_variables(ui)))
        return True
    try:
        _record_push(repo, user)
    except (sqlite3.Error, OSError, TornRecord) as problem:
        return _refuse_push(ui, repo, str(problem))
    ui.write(b"recorded push in pushlog\n")
    return False


def record_commit(ui: Ui, repo: localrepository, node: bytes, **_arguments: Any) -> bool:
    """Have a changeset that is made here recorded, in `pretxncommit`.

    All that the transaction makes are one push, recorded when it is about to close, before hooks of the site: that raises Abort to
    refuse it.
    """
    tr = repo.currenttransaction()
    if tr is not None and _kind_of(repo.unfiltered()[node]) in read_recorded(ui):
        tr.addvalidator(b"000-pushlog", lambda _tr: _record_made(ui, repo))
    return False


def _kind_of(changeset: changectx) -> bytes:
    """Return how a changeset that is being made comes into being."""
    if b"rebase_source" in changeset.extra():
        return b"rebase"
    return b"merge" if len(changeset.parents()) > 1 else b"commit"


def _record_made(ui: Ui, repo: localrepository) -> None:
    user = pusher(ui, getattr(repo.ui, "environ", {}), encoding.environ)
    if not user:
        raise error.Abort(NO_USER, hint=_name_variables(ui))
    try:
        _record_push(repo, user)
    except (sqlite3.Error, OSError, TornRecord) as problem:
        reason = str(problem).encode("utf-8", "replace")
        raise error.Abort(b"error recording into pushlog (%s); please repeat the command" % reason) from problem
    ui.status(b"recorded push in pushlog\n")


def _name_variables(ui: Ui) -> bytes:
    return b"the server's environment has neither %s" % b" nor ".join(ui.configlist(b"pushlog", b"user-variables"))


def pusher(ui: Ui, request: Mapping[bytes, bytes], process: Mapping[bytes, bytes]) -> bytes:
    """Return the name to record, empty if there is none.

    The first of `user-variables` that is set names it: in the request, else in the process. USER is the account of the process
    alone; a landing account pushes for another user, whom AUTOLAND_REQUEST_USER names.
    """
    for variable in ui.configlist(b"pushlog", b"user-variables"):
        user = process.get(variable) if variable == b"USER" else request.get(variable) or process.get(variable)
        if user:
            is_account = variable == b"USER"
            prefix = ui.config(b"pushlog", b"userprefix" if is_account else b"remoteuserprefix")
            user = _resolve_landing(ui, user, process) if is_account else user
            return prefix + b":" + user if prefix else user
    return b""


def _resolve_landing(ui: Ui, user: bytes, process: Mapping[bytes, bytes]) -> bytes:
    """Return the user for whom an account pushes."""
    if user not in landing_accounts(ui):
        return user
    ui.write(b"autoland or landing worker push detected\n")
    return process.get(b"AUTOLAND_REQUEST_USER", user)


def landing_accounts(ui: Ui) -> set[bytes]:
    configured = dict(ui.configitems(b"pushlog"))
    accounts = {configured.get(option) for option in LANDING_OPTIONS}
    return {*ui.configlist(b"pushlog", b"landingusers"), *filter(None, accounts)}


def _record_push(repo: localrepository, user: bytes) -> None:
    log = Pushlog(repo)
    tr = log.open_transaction()
    session = session_of(log, tr)
    if nodes := session.list_unrecorded(tr):
        session.record(user.decode("utf-8", "replace"), int(time.time()), nodes)


def _refuse_push(ui: Ui, repo: localrepository, reason: str) -> bool:
    ui.write(b"error recording into pushlog (%s); please retry your push\n" % reason.encode("utf-8", "replace"))
    log = Pushlog(repo)
    if running_session(log) is None:
        log.open_transaction().addabort(b"pushlog", lambda _tr: ui.warn(b"rolling back pushlog\n"))
    return True

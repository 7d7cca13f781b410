# SPDX-License-Identifier: GPL-2.0-or-later
"""The recording of a push.

This module finds the pusher, and has the hook that records the push inside its own transaction.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from mercurial import encoding
from mercurial.localrepo import localrepository
from mercurial.node import hex
from mercurial.ui import ui as Ui

from .settings import LANDING_OPTIONS
from .store.appendfile import TornRecord
from .store.connections import sqlite3
from .store.session import running_session, session_of
from .store.storage import Pushlog


def record(ui: Ui, repo: localrepository, source: bytes | None = None, **_arguments: Any) -> bool:
    """Record a push in `pretxnchangegroup`; return True to refuse it, and say why."""
    if source not in (b"push", b"serve"):
        ui.note(b"(not updating pushlog since changesets come from %s)\n" % (source or b"nowhere"))
        return False
    user = pusher(ui, getattr(repo.ui, "environ", {}), encoding.environ)
    if not user:
        ui.write(b"authenticated user not found; refusing to write into pushlog\n")
        ui.write(b"(the server's environment has neither REMOTE_USER nor USER)\n")
        return True
    try:
        _record_push(repo, user)
    except (sqlite3.Error, OSError, TornRecord) as error:
        return _refuse_push(ui, repo, str(error))
    ui.write(b"recorded push in pushlog\n")
    return False


def pusher(ui: Ui, request: Mapping[bytes, bytes], process: Mapping[bytes, bytes]) -> bytes:
    """Return the name to record, empty if there is none.

    It is REMOTE_USER of the request, else of the process, else USER. A landing account pushes for another user, whom
    AUTOLAND_REQUEST_USER names.
    """
    remote = request.get(b"REMOTE_USER") or process.get(b"REMOTE_USER")
    if remote:
        return _add_prefix(ui.config(b"pushlog", b"remoteuserprefix"), remote)
    user = process.get(b"USER", b"")
    if not user:
        return b""
    if user in landing_accounts(ui):
        ui.write(b"autoland or landing worker push detected\n")
        user = process.get(b"AUTOLAND_REQUEST_USER", user)
    return _add_prefix(ui.config(b"pushlog", b"userprefix"), user)


def landing_accounts(ui: Ui) -> set[bytes]:
    configured = dict(ui.configitems(b"pushlog"))
    accounts = {configured.get(option) for option in LANDING_OPTIONS}
    return {*ui.configlist(b"pushlog", b"landingusers"), *filter(None, accounts)}


def _add_prefix(prefix: bytes | None, user: bytes) -> bytes:
    return prefix + b":" + user if prefix else user


def _record_push(repo: localrepository, user: bytes) -> None:
    repo = repo.unfiltered()
    log = Pushlog(repo)
    tr = log.open_transaction()
    session = session_of(log, tr)
    changelog = repo.changelog
    first = tr.changes[b"origrepolen"]
    if session.push is not None:
        first = changelog.rev(bytes.fromhex(session.push.nodes[-1])) + 1
    nodes = tuple(hex(changelog.node(revision)).decode("ascii") for revision in changelog.revs(start=first))
    session.record(user.decode("utf-8", "replace"), int(time.time()), nodes)


def _refuse_push(ui: Ui, repo: localrepository, reason: str) -> bool:
    ui.write(b"error recording into pushlog (%s); please retry your push\n" % reason.encode("utf-8", "replace"))
    log = Pushlog(repo)
    if running_session(log) is None:
        log.open_transaction().addabort(b"pushlog", lambda _tr: ui.warn(b"rolling back pushlog\n"))
    return True

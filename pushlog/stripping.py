# SPDX-License-Identifier: GPL-2.0-or-later
"""Changesets that are removed: strip, rollback and recovery.

Mercurial removes them in steps that a kill can separate, and completes a half-done strip at recovery. So the changesets at risk
are noted first. From then on the pushlog omits every noted changeset that the changelog lacks (see `pushlog.store.storage`).
"""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
from typing import Any

from mercurial.localrepo import localrepository
from mercurial.ui import ui as Ui
from mercurial.utils import stringutil

from . import versions
from .store.session import session_of
from .store.storage import Pushlog
from .store.unhooked import open_unhooked


def strip(orig: Any, ui: Ui, repo: localrepository, nodelist: Any, *arguments: Any, **options: Any) -> Any:
    """Wrap `repair.strip`: take changesets out of pushes, renumber the others."""
    log = Pushlog(repo)
    if not log.exists():
        return orig(ui, repo, nodelist, *arguments, **options)
    changelog = log.repo.changelog
    nodes = [nodelist] if isinstance(nodelist, bytes) else list(nodelist)
    log.write_note(min((changelog.rev(node) for node in nodes), default=len(changelog)))
    result = orig(ui, repo, nodelist, *arguments, **options)
    settle(ui, log)
    return result


def rollback(orig: Any, repo: localrepository, dryrun: bool = False, force: bool = False) -> Any:
    """Wrap `localrepository.rollback`: note removed changesets, except in a dry run."""
    log = Pushlog(repo)
    if dryrun or not log.exists():
        return orig(repo, dryrun, force)
    with repo.wlock(), repo.lock():
        log.write_note(_read_length_after_rollback(log), size=log.file.size_after_undo())
        result = orig(repo, dryrun, force)
        settle(repo.ui, log)
    return result


def _read_length_after_rollback(log: Pushlog) -> int:
    try:
        return int(log.repo.vfs.read(b"undo.desc").split(b"\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return len(log.repo.changelog)


def recover(orig: Any, repo: localrepository) -> bool:
    """Wrap `localrepository.recover`: a killed process may have left SQLite's journal, too, which no reader rolls back.

    Returns whether either was rolled back. A journal that SQLite must not follow is a warning, and stays.
    """
    log = Pushlog(repo)
    with repo.lock():
        is_recovered: bool = orig(repo)
        if not os.path.lexists(f"{log.path}-journal"):
            return is_recovered
        try:
            with contextlib.closing(log.open_for_writing(log.path)):
                if not is_recovered:  # or Mercurial has said already that a transaction is rolled back
                    repo.ui.status(b"rolling back interrupted change of pushlog2.db\n")
        except (sqlite3.Error, OSError) as problem:
            repo.ui.warn(b"pushlog2.db is not rolled back: %s\n" % stringutil.forcebytestr(problem))
            return is_recovered
    return True


def settle(ui: Ui, log: Pushlog) -> None:
    """Record removals permanently; leave a failure to the next writer."""
    repo = log.repo
    try:
        with repo.lock(), open_unhooked(repo, functools.partial(repo.transaction, b"pushlog")) as tr:
            derived = session_of(log, tr).derived
            for node in derived.removed:
                ui.status(b"changeset will be deleted from pushlog: %s\n" % node.encode())
            for node in derived.renumbered:
                ui.status(b"changeset rev will be updated in pushlog: %s\n" % node.encode())
    except sqlite3.Error as problem:
        ui.warn(b"pushlog2.db lags behind, the next push repairs it: %s\n" % str(problem).encode())
        return
    if derived.removed:
        names = ", ".join(derived.removed).encode()
        ui.log(b"pushlog", b"deleted %d changesets from pushlog: %s\n", len(derived.removed), names)
    if derived.renumbered:
        ui.log(b"pushlog", b"reordered %d changesets in pushlog\n", len(derived.renumbered))
    # Rolling back that transaction would bring the rows back.
    versions.remove_undo_files(repo)

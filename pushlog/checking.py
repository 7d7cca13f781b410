# SPDX-License-Identifier: GPL-2.0-or-later
"""The commands ``hg verifypushlog`` and ``hg repairpushlog``."""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mercurial import error, scmutil
from mercurial.i18n import _
from mercurial.localrepo import localrepository
from mercurial.ui import ui as Ui

from .store import boot, connections, database, disk, entry, progress, statements
from .store.appendfile import TornRecord
from .store.session import session_of
from .store.storage import Pushlog
from .store.unhooked import open_unhooked

# The topic of the bar while the file is read.
READING = b"reading pushlog.log"


def verifypushlog(ui: Ui, repo: localrepository, **options: Any) -> int:
    """Run `hg verifypushlog`; return 0 if the pushlog and the repository agree."""
    log = Pushlog(repo)
    log.create()
    since = _find_first_revision(log.repo, options.get("since"))
    errors = 0
    for message, is_error in problems(log, since):
        ui.warn(message)
        errors += is_error
    if errors:
        ui.warn(b"pushlog has errors\n")
        return 1
    with log.view() as connection:
        pushes = connection.execute("SELECT count(*) FROM pushlog").fetchone()[0]
    ui.status(b"pushlog contains all %d changesets across %d pushes\n" % (len(log.repo.changelog) - since, pushes))
    return 0


def _find_first_revision(repo: localrepository, name: bytes | None) -> int:
    revision = scmutil.revsingle(repo, name).rev() if name else 0
    if revision is None:
        raise error.InputError(_(b"--since: expected a changeset, got the working directory"))
    return max(0, revision)


def problems(log: Pushlog, since: int = 0) -> Iterator[tuple[bytes, bool]]:
    """Yield everything that is wrong, as (line for the user, whether it is an error).

    If the database is damaged, it yields that alone. Changesets before revision ``since`` need not be in a push.
    """
    damage = _check_database(log)
    if damage:
        remedy = b" (hg repairpushlog rebuilds it)" if log.file.tail() else b""
        yield b"pushlog2.db is damaged: %s%s\n" % (damage.encode(), remedy), True
        return
    recorded: set[str] = set()
    with log.view() as connection:
        for push in _show_all(log, connection):
            if not push.nodes:
                yield b"pushlog entry has no nodes: #%d\n" % push.id, False
            for node in push.nodes:
                if log.revision_of(node) is None:
                    yield b"changeset in pushlog entry #%d does not exist: %s\n" % (push.id, node.encode()), True
            recorded.update(push.nodes)
        for number, value in connection.execute(statements.NO_NODES):
            yield (
                b"pushlog entry #%s names what is no changeset: %s\n" % (str(number).encode(), value[:100].encode()),
                True,
            )
    yield from _find_missing(log, recorded, since)
    _pushes, torn = _read_file(log)
    if torn is not None:
        yield b"%s\n" % str(torn).encode(), True


def _find_missing(log: Pushlog, recorded: set[str], since: int) -> Iterator[tuple[bytes, bool]]:
    """Yield changesets in no push; those before the pushlog come in one line."""
    changelog = log.repo.changelog
    missing = [r for r in changelog.revs(start=since) if changelog.node(r).hex() not in recorded]
    older = next((place for place, revision in enumerate(missing) if revision != since + place), len(missing))
    if older > 1:
        first_recorded = since + older
        if first_recorded == len(changelog):
            step = b"hg pull brings the pushes of a server that has them; here they are recorded from the next one on"
        else:
            step = b"to check the others: hg verifypushlog --since %d" % first_recorded
        where = (since, first_recorded - 1, step)
        yield b"changesets from before the pushlog, in no push: revisions %d to %d (%s)\n" % where, True
        missing = missing[older:]
    for revision in missing:
        yield b"changeset does not exist in pushlog: %s\n" % changelog.node(revision).hex().encode(), True


def repairpushlog(ui: Ui, repo: localrepository, **options: Any) -> int:
    """Run `hg repairpushlog`; return 0 on success."""
    log = Pushlog(repo)
    with repo.lock():
        if log.file.tail() == 0:
            _complete_file(log)
            recorded = sum(1 for _record in log.file.records())
            ui.status(b"no pushlog.log: %d pushes recorded in it from pushlog2.db\n" % recorded)
            return 0
        before = _read_database(ui, log)
        after, torn = _read_file(log)
        if torn is not None:
            _complete_file(log)
            after, _torn = _read_file(log)
        _rebuild_database(log)
    changed = sorted(number for number in before.keys() | after.keys() if before.get(number) != after.get(number))
    for number in changed:
        ui.write(b"push #%d: %s\n" % (number, _name_change(before.get(number), after.get(number))))
    if changed:
        ui.status(b"pushlog2.db rebuilt: %d of %d pushes changed\n" % (len(changed), len(after)))
    else:
        ui.status(b"pushlog2.db rebuilt: nothing changed in %d pushes\n" % len(after))
    return 0


def _complete_file(log: Pushlog) -> None:
    """Record in the file what the database alone has; Abort if SQLite fails."""
    try:
        with open_unhooked(log.repo, functools.partial(log.repo.transaction, b"repairpushlog")) as tr:
            session_of(log, tr, reads_all=True)
    except sqlite3.Error as problem:
        raise error.Abort(b"cannot write pushlog2.db: %s" % str(problem).encode()) from problem


def _name_change(old: int | None, new: int | None) -> bytes:
    if old is None:
        return b"restored"
    return b"removed" if new is None else b"corrected"


@contextlib.contextmanager
def _connect(log: Pushlog) -> Iterator[sqlite3.Connection | None]:
    """Connect to the database alone, as it is; give None without one."""
    connection = connections.open_for_reading(log.path, timeout_ms=log.repo.ui.configint(b"pushlog", b"timeoutro"))
    with contextlib.nullcontext() if connection is None else contextlib.closing(connection):
        yield connection


def _check_database(log: Pushlog) -> str:
    """Return in one line what SQLite finds wrong; empty without a fault or a file."""
    try:
        with _connect(log) as connection:
            return "" if connection is None else connections.damage(connection)
    except sqlite3.OperationalError:
        # Locked, or unreadable: the command that reads the pushlog next reports it.
        return ""
    except sqlite3.DatabaseError as problem:
        return str(problem)


def _read_database(ui: Ui, log: Pushlog) -> dict[int, int]:
    """Return the hash of each push of the database by its id.

    Of a million pushes, the pushes themselves would need a gigabyte.
    """
    try:
        with _connect(log) as connection:
            return {} if connection is None else {push.id: hash(push) for push in _show_all(log, connection)}
    except sqlite3.DatabaseError as problem:
        ui.warn(b"pushlog2.db cannot be read: %s\n" % str(problem).encode())
        return {}


def _read_file(log: Pushlog) -> tuple[dict[int, int], TornRecord | None]:
    """Return the hash of each push of the file by its id, and the damage after them."""
    pushes: dict[int, int] = {}
    try:
        for fact in progress.show_facts(log, READING):
            if isinstance(fact, entry.Push):
                pushes[fact.id] = hash(fact)
            else:
                pushes.pop(fact.id, None)
    except TornRecord as torn:
        return pushes, torn
    return pushes, None


def _show_all(log: Pushlog, connection: sqlite3.Connection) -> Iterator[entry.Push]:
    """Yield all pushes of the database, with a bar."""
    return progress.show_pushes(log.repo.ui, b"reading pushlog2.db", connection, database.last_id(connection))


def _rebuild_database(log: Pushlog) -> None:
    """Replace the database by a complete one; an interrupt leaves the former."""
    new = log.path + ".new"
    Path(new).unlink(missing_ok=True)
    try:
        with contextlib.closing(log.open_for_writing(new, spills=True, synchronous="NORMAL")) as connection:
            with contextlib.suppress(TornRecord):
                for fact in progress.show_facts(log, b"writing pushlog2.db"):
                    database.apply(connection, fact, log.revision_of)
            database.set_state(connection, log.file.tail(), log.fingerprint())
            boot.note(connection, is_synced=True)
            connection.execute("COMMIT")
        Path(log.path + "-journal").unlink(missing_ok=True)  # it belongs to the old database
        os.replace(new, log.path)
        disk.sync_folder(os.fsencode(os.path.dirname(log.path)))
    except BaseException:
        Path(new).unlink(missing_ok=True)
        Path(new + "-journal").unlink(missing_ok=True)
        raise

# SPDX-License-Identifier: GPL-2.0-or-later
"""The check of ``.hg/pushlog2.db`` after a restart of the machine.

The restart may have been a power cut.

It reads the database and its file once as a whole, so its time grows with the number of pushes. It is necessary once in each boot,
and only for a database that was written without a sync before (`boot`): the first writer does it, or the first reader that owns
it. Until then other processes compare both for themselves, and take everything from the file if they differ.
"""

from __future__ import annotations

import contextlib
import os

from mercurial.transaction import transaction as Transaction

from . import boot, connections, database, entry, statements
from .connections import sqlite3
from .frames import TornRecord
from .storage import Pushlog

DERIVED_AGAIN = b"pushlog2.db lost a part of what pushlog.log has, in a restart of the machine; it is derived again\n"
# A reader does not wait for a push, which checks the database itself.
_TIMEOUT_MS = 1000
# Databases that this process compared and may not write, and what they were.
_sound: dict[str, tuple[int, ...]] = {}


def check(
    log: Pushlog, connection: sqlite3.Connection, tr: Transaction | None, state: tuple[int, int]
) -> tuple[int, int]:
    """Derive the tables again unless they agree with the file up to ``state``.

    Returns their state then. A database of another or a longer file is left as it is. Of an operator's edits that no push has
    recorded yet, those remain that the file knows nothing of; all remain if nothing was lost. Raises `sqlite3.DatabaseError` if
    the database is damaged, and `TornRecord` if the file is, with nothing changed.
    """
    if problem := connections.damage(connection):
        raise sqlite3.DatabaseError(problem)
    if not log.is_source_of(state, tr):
        return state
    edits = [database.fact(connection, number) for number in database.edited_ids(connection)]
    if not _find_difference(log, connection, tr, state[0], {fact.id for fact in edits}):
        return state
    for _fact in log.facts(0, tr):
        pass  # raises before anything is changed
    log.repo.ui.warn(DERIVED_AGAIN)
    database.clear(connection)
    for fact in log.facts(0, tr):
        database.apply(connection, fact, log.revision_of)
    state = log.file.tail(tr), log.fingerprint(tr)
    database.set_state(connection, *state)
    for fact in edits:
        if isinstance(fact, entry.Push) and database.push(connection, fact.id) is None:
            database.apply(connection, fact, log.revision_of)
        else:
            log.repo.ui.log(b"pushlog", b"edit of push %d dropped: pushlog2.db lost a part\n", fact.id)
    return state


def mend(log: Pushlog) -> None:
    """Check the database for a reader that owns and may write it.

    No lock of the repository is necessary: a writer of the file has the database's own. A journal of another user, left by a kill,
    could keep the owner out.
    """
    with contextlib.suppress(sqlite3.Error, OSError, TornRecord):
        # SQLite begins a transaction even where it cannot write.
        places = (log.path, os.path.dirname(log.path))
        if os.stat(log.path).st_uid != os.geteuid() or not all(os.access(place, os.W_OK) for place in places):
            return
        connection = connections.open_for_writing(log.path, timeout_ms=_TIMEOUT_MS, synchronous="NORMAL")
        with contextlib.closing(connection):
            state = database.state(connection)
            if state is None or not boot.is_suspect(connection):
                return
            if log.is_source_of(check(log, connection, None, state)):
                boot.note(connection, is_synced=True)
                connection.execute("COMMIT")


def is_sound(log: Pushlog, connection: sqlite3.Connection) -> bool:
    """Return whether a database that was not mended agrees with the file.

    It is compared once in this process, and again when it has changed.
    """
    state, status = database.state(connection), os.stat(log.path)
    if state is None:
        return False
    present = (status.st_ino, status.st_mtime_ns, status.st_size, *state)
    if _sound.get(log.path) == present:
        return True
    edited = set(database.edited_ids(connection))
    try:
        has_loss = (
            connections.damage(connection) != ""
            or not log.is_source_of(state)
            or _find_difference(log, connection, None, state[0], edited)
        )
    except (sqlite3.DatabaseError, TornRecord):
        return False
    if not has_loss:
        _sound[log.path] = present
    return not has_loss


def _find_difference(
    log: Pushlog, connection: sqlite3.Connection, tr: Transaction | None, position: int, edited: set[int]
) -> bool:
    """Return whether the tables differ from the file, other than by edits."""
    recorded, highest = dict[int, int](), 0
    for record in log.file.records(0, tr):
        if record.start >= position:
            break
        fact = log.fact_of(record)
        highest = max(highest, fact.id)
        if isinstance(fact, entry.Push):
            recorded[fact.id] = _hash_push(fact)
        else:
            recorded.pop(fact.id, None)
    for push in database.pushes(connection, 0, database.last_id(connection)):
        if recorded.pop(push.id, None) != _hash_push(push) and push.id not in edited:
            return True
    return (
        not edited.issuperset(recorded)
        or database.next_id(connection) <= highest
        or database.has_stray_changesets(connection)
        or any(log.revision_of(node) != revision for revision, node in connection.execute(statements.ALL_REVISIONS))
    )


def _hash_push(push: entry.Push) -> int:
    """Return a hash that does not depend on the order of the changesets.

    Here it is that of their revisions.
    """
    return hash((push.id, push.user, push.date, frozenset(push.nodes)))

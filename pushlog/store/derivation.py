# SPDX-License-Identifier: GPL-2.0-or-later
"""How a writer brings SQLite up to date with the pushlog's file.

It does so before it writes: rules 3 and 4 of `storage`.

The caller holds the store lock. SQLite is inside an immediate transaction that commits after Mercurial's. The caller's finalizer
changes the file, except where it is damaged.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator
from typing import Any

from mercurial import error
from mercurial.transaction import transaction as Transaction

from . import boot, connections, database, entry
from .connections import sqlite3
from .frames import OlderCopy, TornRecord, UnknownVersion
from .storage import FILE, Pushlog

SALVAGED = b"%s; what follows is taken from pushlog2.db, and the damaged rest is kept in pushlog-damaged.log\n"
RECOVERED = b"pushlog.log lost push %d in a restart of the machine; it is taken from pushlog2.db\n"
LOST = b"pushlog.log lacks push %d, which pushlog2.db has: it is an older copy"
LOST_HINT = (
    b"put the newest pushlog.log back; or move it away, and pushlog2.db counts; or 'hg repairpushlog' drops the push"
)


# A plain class: every push makes it anew, and a NamedTuple takes five times as long to make.
class Derived:
    """The differences found while bringing SQLite up to date.

    The file must record ``facts``, by push id. Before them it must record the pushes of ``adoption``, a pair (last, known): those
    of the database up to the id ``last`` that are not ``known``. There may be a million, so they are read only as they are written.
    ``removed`` are the changesets that the note calls removed; ``renumbered`` those whose revision number has changed.
    """

    def __init__(self) -> None:
        self.facts: dict[int, entry.Fact] = {}
        self.removed: list[str] = []
        self.renumbered: list[str] = []
        self.adoption: tuple[int, set[int]] | None = None


def derive(
    log: Pushlog, connection: sqlite3.Connection, tr: Transaction, note: dict[str, Any], *, reads_all: bool
) -> Derived:
    """Bring SQLite up to date with the file; collect the facts that the file lacks.

    They are an operator's edits, and the removals in the note. With ``reads_all`` the whole file is read, so that all damage is
    found. Raises Abort for a file of another version.
    """
    derived = Derived()
    # Pushes of which the file knows more than the operator who edited SQLite.
    late: set[int] = set()
    edits = [database.fact(connection, number) for number in database.edited_ids(connection)]
    state = database.state(connection)
    is_suspect = state is not None and boot.is_suspect(connection)
    try:
        if reads_all:
            collections.deque(log.facts(0, tr), maxlen=0)
        if state is None or log.file.tail(tr) == 0:
            _adopt_database(log, connection, tr, derived)
        else:
            if is_suspect:
                from . import restart

                state = restart.check(log, connection, tr, state)
                edits = [database.fact(connection, number) for number in database.edited_ids(connection)]
            kept = None if note.get("size") == log.file.tail(tr) else {fact.id for fact in edits}
            late, recovered = _apply_new_facts(log, connection, tr, state, kept)
            derived.facts.update({push.id: push for push in recovered})
    except UnknownVersion as other:
        hint = b"use the version that wrote it; or move the file away, and what pushlog2.db has counts"
        raise error.Abort(str(other).encode(), hint=hint) from other
    except TornRecord as torn:
        state = None if is_suspect else state
        _salvage_file(log, connection, tr, state)
        log.repo.ui.warn(SALVAGED % str(torn).encode())
    for fact in edits if state else ():
        if fact.id in late:
            log.repo.ui.log(b"pushlog", b"edit of push %d dropped: pushlog2.db was behind\n", fact.id)
            continue
        database.apply(connection, fact, log.revision_of)
        derived.facts[fact.id] = fact
    if note:
        _record_removed(log, connection, tr, note, derived)
    return derived


def _apply_new_facts(
    log: Pushlog, connection: sqlite3.Connection, tr: Transaction, state: tuple[int, int], kept: set[int] | None
) -> tuple[set[int], list[entry.Push]]:
    """Apply the facts after ``state``; return their push ids, and recovered pushes.

    If SQLite comes from another or a longer file, everything is applied again, and no ids are returned. That would lose pushes
    that SQLite alone has and that are not ``kept``: each is recovered if the file may have lost its end in a power cut; otherwise
    Abort is raised. If ``kept`` is None, the file is as a rollback left it, and nothing is lost.
    """
    is_descended = log.is_source_of(state, tr)
    facts = list(log.facts(state[0] if is_descended else 0, tr))
    lost: list[entry.Push] = []
    if not is_descended:
        if kept is not None:
            lost = list(_find_lost(log, connection, tr.changes[b"origrepolen"], facts, kept))
        known = {fact.id for fact in facts}
        for push in lost:
            if push.id in known or not boot.is_suspect(connection):
                raise error.Abort(LOST % push.id, hint=LOST_HINT) from OlderCopy()
            log.repo.ui.warn(RECOVERED % push.id)
        database.clear(connection)
    for fact in (*facts, *lost):
        database.apply(connection, fact, log.revision_of)
    return {fact.id for fact in facts} if is_descended else set(), lost


def find_older_copy(log: Pushlog) -> str | None:
    """Return why each push is refused, if the file is an older copy; None if it is not.

    The caller holds no lock: what it hears counts only if no other process was at work. Raises `sqlite3.Error`.
    """
    connection = connections.open_for_reading(log.path, timeout_ms=log.repo.ui.configint(b"pushlog", b"timeoutro"))
    if connection is None:
        return None
    with (
        contextlib.closing(connection),
        contextlib.suppress(TornRecord),
    ):  # a damaged file is mended, and refuses nothing
        state, tail = database.state(connection), log.file.tail()
        is_of_rollback = log.note().get("size") == tail
        if state is None or not tail or is_of_rollback or boot.is_suspect(connection) or log.is_source_of(state):
            return None
        kept, length = set(database.edited_ids(connection)), len(log.repo.changelog)
        for push in _find_lost(log, connection, length, list(log.facts()), kept):
            return f"{(LOST % push.id).decode()}; {LOST_HINT.decode()}"
    return None


def _find_lost(
    log: Pushlog, connection: sqlite3.Connection, length: int, facts: list[entry.Fact], kept: set[int]
) -> Iterator[entry.Push]:
    """Yield the pushes that SQLite alone has, with changesets that are among the first `length`.

    A rollback takes the changesets with it, so the file is an older copy then, or has lost its end. Which pushes of an older copy
    were undone on purpose is not known, so none of them is brought back without an operator.
    """
    latest = {fact.id: fact for fact in facts}
    named = {node for fact in latest.values() if isinstance(fact, entry.Push) for node in fact.nodes}
    for push in database.pushes(connection, 0, database.last_id(connection)):
        nodes = [
            node
            for node in (() if push.id in kept else push.nodes)
            if node not in named and (revision := log.revision_of(node)) is not None and revision < length
        ]
        if nodes:
            yield push.with_nodes(nodes)


def _adopt_database(log: Pushlog, connection: sqlite3.Connection, tr: Transaction, derived: Derived) -> None:
    """Take over a database that is not derived from the file; the file's facts win."""
    from . import progress

    used = database.next_id(connection) - 1
    last = database.last_id(connection)
    known = set[int]()
    for fact in log.facts(0, tr):
        database.apply(connection, fact, log.revision_of)
        known.add(fact.id)
    # Damage is found here, where callers expect it, and not when the pushes are written.
    collections.deque(progress.show_pushes(log.repo.ui, b"reading pushlog2.db", connection, last), maxlen=0)
    derived.adoption = last, known
    if used > max([last, *known]):
        derived.facts[used] = entry.Deleted(id=used)


def _salvage_file(log: Pushlog, connection: sqlite3.Connection, tr: Transaction, state: tuple[int, int] | None) -> None:
    """End the file where it is damaged, and record SQLite's pushes from there on.

    The damaged rest is kept beside the file. This is done at once and not with ``tr``, which can still be refused: SQLite alone
    would then know these pushes.
    """
    known: dict[int, entry.Fact] = {}
    derived_to, position = 0 if state is None else state[0], 0
    for record in log.file.sound_records(tr):
        try:
            fact = entry.decode(record.payload)
        except ValueError:
            continue
        if record.start == position:
            known[fact.id], position = fact, record.end
        if record.start >= derived_to:
            database.apply(connection, fact, log.revision_of)
    recorded = {push.id: push for push in database.pushes(connection, 0, database.last_id(connection))}
    lost: list[entry.Fact] = [push for number, push in recorded.items() if known.get(number) != push]
    lost += [
        entry.Deleted(id=number)
        for number, fact in known.items()
        if number not in recorded and isinstance(fact, entry.Push)
    ]
    log.repo.svfs.write(b"pushlog-damaged.log", log.repo.svfs.read(FILE)[position:])
    log.file.mend(position, map(entry.encode, lost))


def _record_removed(
    log: Pushlog, connection: sqlite3.Connection, tr: Transaction, note: dict[str, Any], derived: Derived
) -> None:
    """Take the removed changesets of the note out of their pushes; renumber the rest."""
    removed = [node for node in log.removed_nodes(tr) if database.push_id_of(connection, node) is not None]
    restated = database.restated_without(connection, removed)
    moved = database.renumber(connection, note.get("first", 0), log.revision_of)
    derived.removed = removed
    derived.renumbered = [node for node in moved if log.revision_of(node) is not None]
    for fact in restated:
        database.apply(connection, fact, log.revision_of)
        derived.facts[fact.id] = fact

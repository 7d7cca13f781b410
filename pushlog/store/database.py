# SPDX-License-Identifier: GPL-2.0-or-later
"""The SQLite form of the pushlog, ``.hg/pushlog2.db``.

This module reads pushes from its tables and writes them. It knows SQLite and nothing of Mercurial; `statements` has the schema,
`connections` opens the file.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeGuard

from . import statements
from .connections import execute_all, has_table, sqlite3
from .entry import Deleted, Fact, Push

# 40 hex digits to the revision number, None for an unknown changeset.
RevisionOf = Callable[[str], int | None]
# The largest number that SQLite holds.
LARGEST = (1 << 63) - 1
_NODE = "[0-9a-f]{40}"
# Compiled at first use, never in a push.
_compiled = functools.cache(re.compile)
# Pushes that are read at once.
_PAGE = 1000


def clear(connection: sqlite3.Connection) -> None:
    """Remove every push; ids once used stay used."""
    connection.execute("DELETE FROM changesets")
    connection.execute("DELETE FROM pushlog")


def overlay(connection: sqlite3.Connection, facts: Iterable[Fact], revision_of: RevisionOf) -> None:
    """Show ``facts`` to this connection, by views over the unchanged tables."""
    latest = {fact.id: fact for fact in facts}
    if not latest:
        return
    execute_all(connection, statements.LATE)
    for fact in latest.values():
        connection.execute("INSERT OR REPLACE INTO temp.late VALUES (?)", (fact.id,))
        connection.execute("DELETE FROM temp.late_pushlog WHERE id = ?", (fact.id,))
        connection.execute("DELETE FROM temp.late_changesets WHERE pushid = ?", (fact.id,))
        if isinstance(fact, Push):
            connection.execute("INSERT INTO temp.late_pushlog VALUES (?, ?, ?)", (fact.id, fact.user, fact.date))
            rows = [(fact.id, revision_of(node), node) for node in fact.nodes]
            connection.executemany("INSERT INTO temp.late_changesets VALUES (?, ?, ?)", rows)


def state(connection: sqlite3.Connection) -> tuple[int, int] | None:
    """Return position and fingerprint up to where the tables are derived, or None."""
    if not has_table(connection, "pushlog_state"):
        return None
    found: tuple[int, int] | None = connection.execute(statements.GET_STATE).fetchone()
    return found


def set_state(connection: sqlite3.Connection, position: int, fingerprint: int) -> None:
    """Note that the tables are derived up to ``position``, edits included."""
    execute_all(connection, statements.BOOKKEEPING)
    connection.execute(statements.CLEAR_STATE)
    connection.execute(statements.SET_STATE, (position, fingerprint))
    connection.execute(statements.FORGET_EDITS)


def edited_ids(connection: sqlite3.Connection) -> list[int]:
    """Return the ids that another program changed since the last `set_state`."""
    if not has_table(connection, "pushlog_edit"):
        return []
    return [number for (number,) in connection.execute(statements.EDITED)]


def apply(connection: sqlite3.Connection, fact: Fact, revision_of: RevisionOf) -> None:
    """Make the tables agree with ``fact``.

    Changesets that it names leave other pushes. If a changeset of another push has the revision number of one of these, from before
    a strip, it gets its present number.
    """
    connection.execute(statements.DELETE_CHANGESETS, (fact.id,))
    if isinstance(fact, Deleted):
        # So that SQLite, too, never uses this id again.
        connection.execute(statements.INSERT_PUSH, (fact.id, "", 0))
        connection.execute(statements.DELETE_PUSH, (fact.id,))
        return
    connection.execute(statements.INSERT_PUSH, (fact.id, fact.user, fact.date))
    rows = [(fact.id, revision_of(node), node) for node in fact.nodes]
    freed = connection.executemany(statements.FREE_REVISION, [row[1:] for row in rows]).rowcount
    connection.executemany(statements.REPLACE_CHANGESET, rows)
    if freed > 0:
        renumber(connection, 0, revision_of)


def insert_new(connection: sqlite3.Connection, push: Push, revision_of: RevisionOf) -> None:
    """Add a push; raise `sqlite3.IntegrityError` if another has a changeset of it."""
    connection.execute(statements.DELETE_CHANGESETS, (push.id,))
    connection.execute(statements.INSERT_PUSH, (push.id, push.user, push.date))
    connection.executemany(statements.INSERT_CHANGESET, [(push.id, revision_of(node), node) for node in push.nodes])


def renumber(connection: sqlite3.Connection, first: int, revision_of: RevisionOf) -> list[str]:
    """Renumber changesets from ``first`` on and return those that moved."""
    rows = [
        (row, node, old, revision_of(node))
        for row, node, old in connection.execute(statements.CHANGESETS_FROM, (first,))
    ]
    moved = [node for _row, node, old, new in rows if old != new]
    if moved:
        connection.execute(statements.CLEAR_REVISIONS_FROM, (first,))
        try:
            connection.executemany(statements.SET_REVISION, [(new, row) for row, _node, _old, new in rows])
        except sqlite3.IntegrityError:
            # The numbers below `first` are old ones, too.
            if first <= 0:
                raise
            moved += set(renumber(connection, 0, revision_of)).difference(moved)
    return moved


def next_id(connection: sqlite3.Connection) -> int:
    """Return the id after the highest ever used, or raise `sqlite3.OperationalError`."""
    highest: int = connection.execute(statements.HIGHEST_USED_ID).fetchone()[0]
    if highest >= LARGEST:
        raise sqlite3.OperationalError(f"no push id follows {highest}")
    return highest + 1


def first_emptied(connection: sqlite3.Connection) -> int | None:
    """Return the id of the first push without changesets, None if there is none.

    In that case it has read all pushes.
    """
    row = connection.execute(statements.FIRST_EMPTIED).fetchone()
    return None if row is None else row[0]


def last_id(connection: sqlite3.Connection) -> int:
    return int(connection.execute(statements.LAST_ID).fetchone()[0])


def count(connection: sqlite3.Connection) -> int:
    return int(connection.execute(statements.COUNT).fetchone()[0])


def push(connection: sqlite3.Connection, number: int) -> Push | None:
    row = connection.execute(statements.PUSH, (number,)).fetchone()
    if row is None:
        return None
    return Push(id=number, user=text(row[0]), date=epoch(row[1]), nodes=nodes(connection, number))


def nodes(connection: sqlite3.Connection, number: int) -> tuple[str, ...]:
    return tuple(node for (node,) in connection.execute(statements.NODES, (number,)) if is_node(node))


def any_node(connection: sqlite3.Connection, number: int, holds: Callable[[str], bool]) -> bool | None:
    """Return whether ``holds`` is true of a changeset; None if the push has none."""
    found = None
    for (node,) in connection.execute(statements.EACH_NODE, (number,)):
        if is_node(node):
            if holds(node):
                return True
            found = False
    return found


def fact(connection: sqlite3.Connection, number: int) -> Fact:
    return push(connection, number) or Deleted(id=number)


def all_nodes(connection: sqlite3.Connection) -> Iterator[str]:
    return (node for (node,) in connection.execute(statements.ALL_NODES))


def has_stray_changesets(connection: sqlite3.Connection) -> bool:
    """Return whether a changeset is in a push that does not exist."""
    return connection.execute(statements.STRAY).fetchone() is not None


def push_id_of(connection: sqlite3.Connection, node: str) -> int | None:
    row = connection.execute(statements.PUSH_OF_NODE, (node,)).fetchone()
    return None if row is None else row[0]


def pushes(connection: sqlite3.Connection, first: int, last: int) -> Iterator[Push]:
    """Yield the pushes ``first`` to ``last`` (inclusive), in bounded memory."""
    while page := page_of_pushes(connection, first, last):
        yield from page
        first = page[-1].id + 1


def page_of_pushes(connection: sqlite3.Connection, first: int, last: int) -> list[Push]:
    """Return one page of the pushes ``first`` to ``last``; empty if there are none."""
    if first > LARGEST:
        return []
    page = connection.execute(statements.PUSHES_BETWEEN, (first, last, _PAGE)).fetchall()
    if not page:
        return []
    return _with_changesets(page, connection.execute(statements.NODES_BETWEEN, (page[0][0], page[-1][0])))


def pushes_with(connection: sqlite3.Connection, ids: list[int]) -> list[Push]:
    """Return the pushes with these ids, in this order; fewer if some do not exist."""
    marks = ", ".join("?" * len(ids))
    rows = connection.execute(f"SELECT id, CAST(user AS BLOB), date FROM pushlog WHERE id IN ({marks})", ids).fetchall()
    in_order = f"SELECT pushid, node FROM changesets WHERE pushid IN ({marks}) ORDER BY pushid, rev"
    found = {push.id: push for push in _with_changesets(rows, connection.execute(in_order, ids))}
    return [found[number] for number in ids if number in found]


def _with_changesets(rows: list[tuple[int, bytes, object]], nodes: Iterable[tuple[int, object]]) -> list[Push]:
    """Make pushes of their rows and of changesets in the order of their push."""
    recorded: dict[int, list[str]] = {number: [] for number, _user, _date in rows}
    for number, node in nodes:
        if number in recorded and is_node(node):
            recorded[number].append(node)
    return [
        Push(id=number, user=text(user), date=epoch(date), nodes=tuple(recorded[number])) for number, user, date in rows
    ]


def restated_without(connection: sqlite3.Connection, removed: Iterable[str]) -> list[Fact]:
    """Return the pushes that contain ``removed`` changesets, without them."""
    gone = set(removed)
    return [
        found.with_nodes(node for node in found.nodes if node not in gone)
        for number in sorted(filter(None, {push_id_of(connection, node) for node in gone}))
        if (found := push(connection, number)) is not None
    ]


def users(connection: sqlite3.Connection) -> Iterator[bytes]:
    """Yield every user's stored bytes once, ascending, at a cost per user."""
    (user,) = connection.execute(statements.FIRST_USER).fetchone()
    while user is not None:
        yield user
        (user,) = connection.execute(statements.NEXT_USER, (user,)).fetchone()


def nodes_pushed_by(connection: sqlite3.Connection, users: Iterable[bytes]) -> Iterator[str]:
    for user in users:
        yield from (node for (node,) in connection.execute(statements.NODES_BY_USER, (user,)))


def nodes_pushed_between(
    connection: sqlite3.Connection, earliest: int, latest: int, matches: Callable[[int], bool]
) -> Iterator[str]:
    return (
        node for node, date in connection.execute(statements.NODES_BY_DATE, (earliest, latest)) if matches(epoch(date))
    )


def is_node(value: object) -> TypeGuard[str]:
    """Return whether a node column, which tools may write, holds a hash."""
    return isinstance(value, str) and _compiled(_NODE).fullmatch(value) is not None


def text(user: str | bytes | None) -> str:
    """Return a user column, which tools may write, as text."""
    return user.decode("utf-8", "replace") if isinstance(user, bytes) else str(user or "")


def epoch(date: object) -> int:
    """Return a date column, which tools may write, as epoch seconds, else 0."""
    if isinstance(date, float):
        return int(date) if math.isfinite(date) and abs(date) < LARGEST else 0
    return date if isinstance(date, int) else 0

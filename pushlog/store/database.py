# SPDX-License-Identifier: GPL-2.0-or-later
"""The SQLite form of the pushlog, ``.hg/pushlog2.db``: its schema and every statement that reads or writes it.

``pushlog`` and ``changesets`` are what tools read and operators edit. ``pushlog_state`` says up to which byte of the pushlog's
file the tables are derived from it; ``pushlog_edit`` collects, by triggers, the ids of pushes that somebody else changed.
This module knows SQLite and nothing of Mercurial.
"""

from __future__ import annotations

import math
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator

from .entry import Deleted, Fact, Push

RevisionOf = Callable[[str], int | None]  # 40 hex digits to the revision number, None for an unknown changeset

TABLES = """
CREATE TABLE IF NOT EXISTS changesets (pushid INTEGER, rev INTEGER, node text);
CREATE TABLE IF NOT EXISTS pushlog (id INTEGER PRIMARY KEY AUTOINCREMENT, user TEXT, date INTEGER);
CREATE UNIQUE INDEX IF NOT EXISTS changeset_node ON changesets (node);
CREATE UNIQUE INDEX IF NOT EXISTS changeset_rev ON changesets (rev);
CREATE INDEX IF NOT EXISTS changeset_pushid ON changesets (pushid);
CREATE INDEX IF NOT EXISTS pushlog_date ON pushlog (date);
CREATE INDEX IF NOT EXISTS pushlog_user ON pushlog (user);
"""

_EDITS = "".join(
    f"CREATE TRIGGER IF NOT EXISTS {table}_{event.lower()} AFTER {event} ON {table} BEGIN {statements} END;\n"
    for table, key in (("pushlog", "id"), ("changesets", "pushid"))
    for event, statements in (
        ("INSERT", f"INSERT OR IGNORE INTO pushlog_edit VALUES (NEW.{key});"),
        ("DELETE", f"INSERT OR IGNORE INTO pushlog_edit VALUES (OLD.{key});"),
        (
            "UPDATE",
            f"INSERT OR IGNORE INTO pushlog_edit VALUES (OLD.{key}); INSERT OR IGNORE INTO pushlog_edit VALUES (NEW.{key});",
        ),
    )
)
EDIT_TABLE = "CREATE TABLE IF NOT EXISTS pushlog_edit (pushid INTEGER PRIMARY KEY);"
BOOKKEEPING = f"""
CREATE TABLE IF NOT EXISTS pushlog_state (position INTEGER NOT NULL, fingerprint INTEGER NOT NULL);
{EDIT_TABLE}
{_EDITS}"""

HAS_TABLE = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
GET_STATE = "SELECT position, fingerprint FROM pushlog_state"
CLEAR_STATE = "DELETE FROM pushlog_state"
SET_STATE = "INSERT INTO pushlog_state VALUES (?, ?)"
EDITED = "SELECT pushid FROM pushlog_edit WHERE pushid IS NOT NULL ORDER BY pushid"
FORGET_EDITS = "DELETE FROM pushlog_edit"
ALL_IDS = "SELECT id FROM pushlog ORDER BY id"
HIGHEST_USED_ID = """
SELECT max(coalesce((SELECT max(id) FROM pushlog), 0), coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'pushlog'), 0))
"""
NO_NODES = """
SELECT pushid, quote(node) FROM changesets
WHERE typeof(node) != 'text' OR length(node) != 40 OR node GLOB '*[^0-9a-f]*' ORDER BY pushid
"""
FIRST_EMPTIED = """
SELECT id FROM pushlog WHERE NOT EXISTS (SELECT 1 FROM changesets WHERE pushid = pushlog.id) ORDER BY id LIMIT 1
"""  # changeset_pushid
LAST_ID = "SELECT coalesce(max(id), 0) FROM pushlog"
PUSH = "SELECT CAST(user AS BLOB), date FROM pushlog WHERE id = ?"  # primary key
EACH_NODE = "SELECT node FROM changesets WHERE pushid = ?"  # changeset_pushid
NODES = "SELECT node FROM changesets WHERE pushid = ? ORDER BY rev"  # changeset_pushid
PUSHES_BETWEEN = (
    "SELECT id, CAST(user AS BLOB), date FROM pushlog WHERE id >= ? AND id <= ? ORDER BY id LIMIT ?"  # primary key
)
NODES_BETWEEN = (
    "SELECT pushid, node FROM changesets WHERE pushid >= ? AND pushid <= ? ORDER BY pushid, rev"  # changeset_pushid
)
ALL_NODES = "SELECT node FROM changesets"
PUSH_OF_NODE = "SELECT pushid FROM changesets WHERE node = ?"  # changeset_node
INSERT_PUSH = "INSERT OR REPLACE INTO pushlog (id, user, date) VALUES (?, ?, ?)"
DELETE_PUSH = "DELETE FROM pushlog WHERE id = ?"
INSERT_CHANGESET = "INSERT INTO changesets (pushid, rev, node) VALUES (?, ?, ?)"
REPLACE_CHANGESET = "INSERT OR REPLACE INTO changesets (pushid, rev, node) VALUES (?, ?, ?)"
DELETE_CHANGESETS = "DELETE FROM changesets WHERE pushid = ?"
FREE_REVISION = "UPDATE changesets SET rev = NULL WHERE rev = ? AND node != ?"  # changeset_rev
CHANGESETS_FROM = "SELECT rowid, node, rev FROM changesets WHERE rev >= ? OR rev IS NULL ORDER BY rev"
CLEAR_REVISIONS_FROM = "UPDATE changesets SET rev = NULL WHERE rev >= ?"
SET_REVISION = "UPDATE changesets SET rev = ? WHERE rowid = ?"
NODES_BY_DATE = """
SELECT node, date FROM pushlog JOIN changesets ON pushid = id WHERE date >= ? AND date <= ?
"""  # pushlog_date, changeset_pushid
NODES_BY_USER = """
SELECT node FROM pushlog JOIN changesets ON pushid = id WHERE user = CAST(? AS TEXT)
"""  # pushlog_user, changeset_pushid
FIRST_USER = "SELECT CAST(min(user) AS BLOB) FROM pushlog"  # pushlog_user
NEXT_USER = "SELECT CAST(min(user) AS BLOB) FROM pushlog WHERE user > CAST(? AS TEXT)"  # pushlog_user
LARGEST = (1 << 63) - 1
_NODE = re.compile("[0-9a-f]{40}")
_PAGE = 1000


def open_for_writing(path: str, *, timeout_ms: int, mode: int | None = None) -> sqlite3.Connection:
    """A connection inside an immediate transaction, the file and its tables created if need be; raises `sqlite3.Error`.

    A new file gets ``mode``, or what the umask leaves, and may be written by its group.
    SQLite does not wait for the disk: the pushlog's file is the truth, and a database that a power cut damaged is derived again.
    """
    is_new = not os.path.exists(path)
    connection = sqlite3.connect(path, timeout=timeout_ms / 1000, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_spill = OFF")  # a spill would take the exclusive lock before the commit
        connection.execute("BEGIN IMMEDIATE")
        if is_new or not has_table(connection, "changesets") or not has_table(connection, "pushlog"):
            _execute_all(connection, TABLES)
            if has_table(connection, "pushlog_state"):  # a table is gone, and what was derived with it
                connection.execute(CLEAR_STATE)
        if has_table(connection, "pushlog_state"):
            connection.execute(EDIT_TABLE)  # dropped by somebody, it would make every insertion fail, in a trigger
        if is_new:
            os.chmod(path, (os.stat(path).st_mode if mode is None else mode & 0o666) | 0o020)
    except BaseException:
        connection.close()
        raise
    return connection


def open_for_reading(path: str, *, timeout_ms: int) -> sqlite3.Connection | None:
    """A connection inside a read transaction, None without the file or its tables; never creates anything.

    Raises `sqlite3.Error` for a file that cannot be read: damaged, locked for too long, or left in the middle of a commit on a
    read-only disk.
    """
    if not os.path.exists(path):
        return None
    uri = "file:" + path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    for mode in ("ro", "rw"):  # a hot journal left by a kill can be rolled back by a writable connection only
        connection = sqlite3.connect(
            f"{uri}?mode={mode}", uri=True, timeout=timeout_ms / 1000, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("BEGIN")
            if has_table(connection, "pushlog") and has_table(connection, "changesets"):
                return connection
        except sqlite3.OperationalError:
            connection.close()
            if mode == "rw":
                raise
            continue
        except BaseException:
            connection.close()
            raise
        connection.close()
        return None
    raise AssertionError("unreachable")


def in_memory() -> sqlite3.Connection:
    """An empty pushlog without a file, inside a transaction."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN")
    _execute_all(connection, TABLES)
    return connection


def _execute_all(connection: sqlite3.Connection, script: str) -> None:
    """As `executescript`, which would commit the running transaction first."""
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""


def damage(connection: sqlite3.Connection) -> str:
    """What SQLite finds wrong with its file, indexes included, in one line; empty if nothing is. Raises `sqlite3.DatabaseError` if
    it cannot go on.
    """
    found: str = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    return "" if found == "ok" else " ".join(found.split())


def clear(connection: sqlite3.Connection) -> None:
    """Remove every push; ids once used stay used."""
    connection.execute("DELETE FROM changesets")
    connection.execute("DELETE FROM pushlog")


LATE = """
CREATE TEMP TABLE IF NOT EXISTS late (id INTEGER PRIMARY KEY);
CREATE TEMP TABLE IF NOT EXISTS late_pushlog (id INTEGER PRIMARY KEY, user TEXT, date INTEGER);
CREATE TEMP TABLE IF NOT EXISTS late_changesets (pushid INTEGER, rev INTEGER, node TEXT);
CREATE TEMP VIEW IF NOT EXISTS pushlog AS
SELECT id, user, date FROM main.pushlog WHERE id NOT IN (SELECT id FROM temp.late)
UNION ALL SELECT id, user, date FROM temp.late_pushlog;
CREATE TEMP VIEW IF NOT EXISTS changesets AS
SELECT pushid, rev, node FROM main.changesets WHERE pushid NOT IN (SELECT id FROM temp.late)
UNION ALL SELECT pushid, rev, node FROM temp.late_changesets;
"""


def overlay(connection: sqlite3.Connection, facts: Iterable[Fact], revision_of: RevisionOf) -> None:
    """Let this connection see ``facts`` on top of the tables, which stay as they are: views of the same names hide them."""
    latest = {fact.id: fact for fact in facts}
    if not latest:
        return
    connection.execute("PRAGMA temp_store = MEMORY")
    _execute_all(connection, LATE)
    for fact in latest.values():
        connection.execute("INSERT OR REPLACE INTO temp.late VALUES (?)", (fact.id,))
        connection.execute("DELETE FROM temp.late_pushlog WHERE id = ?", (fact.id,))
        connection.execute("DELETE FROM temp.late_changesets WHERE pushid = ?", (fact.id,))
        if isinstance(fact, Push):
            connection.execute("INSERT INTO temp.late_pushlog VALUES (?, ?, ?)", (fact.id, fact.user, fact.date))
            rows = [(fact.id, revision_of(node), node) for node in fact.nodes]
            connection.executemany("INSERT INTO temp.late_changesets VALUES (?, ?, ?)", rows)


def has_table(connection: sqlite3.Connection, name: str) -> bool:
    return connection.execute(HAS_TABLE, (name,)).fetchone() is not None


def state(connection: sqlite3.Connection) -> tuple[int, int] | None:
    """(position in the pushlog's file, fingerprint of the last record before it); None for a database that is not derived."""
    if not has_table(connection, "pushlog_state"):
        return None
    found: tuple[int, int] | None = connection.execute(GET_STATE).fetchone()
    return found


def set_state(connection: sqlite3.Connection, position: int, fingerprint: int) -> None:
    """Say that the tables are derived from the file up to ``position`` and that no edit is unrecorded."""
    _execute_all(connection, BOOKKEEPING)
    connection.execute(CLEAR_STATE)
    connection.execute(SET_STATE, (position, fingerprint))
    connection.execute(FORGET_EDITS)


def edited_ids(connection: sqlite3.Connection) -> list[int]:
    """Ids of pushes that somebody changed in SQLite since the last `set_state`."""
    if not has_table(connection, "pushlog_edit"):
        return []
    return [number for (number,) in connection.execute(EDITED)]


def apply(connection: sqlite3.Connection, fact: Fact, revision_of: RevisionOf) -> None:
    """Make the tables say what ``fact`` says, taking changesets away from other pushes if it names them.

    A changeset of another push that stands under the number of one of these had it before a strip: it gets its present number.
    """
    connection.execute(DELETE_CHANGESETS, (fact.id,))
    if isinstance(fact, Deleted):
        connection.execute(INSERT_PUSH, (fact.id, "", 0))  # so that SQLite, too, never gives this id again
        connection.execute(DELETE_PUSH, (fact.id,))
        return
    connection.execute(INSERT_PUSH, (fact.id, fact.user, fact.date))
    rows = [(fact.id, revision_of(node), node) for node in fact.nodes]
    freed = connection.executemany(FREE_REVISION, [row[1:] for row in rows]).rowcount
    connection.executemany(REPLACE_CHANGESET, rows)
    if freed > 0:
        renumber(connection, 0, revision_of)


def insert_new(connection: sqlite3.Connection, push: Push, revision_of: RevisionOf) -> None:
    """Add a push, or more changesets to it; raises `sqlite3.IntegrityError` if another push has one of them, or its number."""
    connection.execute(DELETE_CHANGESETS, (push.id,))
    connection.execute(INSERT_PUSH, (push.id, push.user, push.date))
    connection.executemany(INSERT_CHANGESET, [(push.id, revision_of(node), node) for node in push.nodes])


def renumber(connection: sqlite3.Connection, first: int, revision_of: RevisionOf) -> list[str]:
    """Give every changeset from revision ``first`` on its present number; returns those whose number changed."""
    rows = [(row, node, old, revision_of(node)) for row, node, old in connection.execute(CHANGESETS_FROM, (first,))]
    moved = [node for _row, node, old, new in rows if old != new]
    if moved:
        connection.execute(CLEAR_REVISIONS_FROM, (first,))
        try:
            connection.executemany(SET_REVISION, [(new, row) for row, _node, _old, new in rows])
        except sqlite3.IntegrityError:  # the numbers below are old ones, too
            if first <= 0:
                raise
            moved += set(renumber(connection, 0, revision_of)).difference(moved)
    return moved


def next_id(connection: sqlite3.Connection) -> int:
    """One more than any id ever used; raises `sqlite3.OperationalError` if that is the largest."""
    highest: int = connection.execute(HIGHEST_USED_ID).fetchone()[0]
    if highest >= LARGEST:
        raise sqlite3.OperationalError(f"no push id follows {highest}")
    return highest + 1


def first_emptied(connection: sqlite3.Connection) -> int | None:
    """The first push without changesets; looks at every push if there is none."""
    row = connection.execute(FIRST_EMPTIED).fetchone()
    return None if row is None else row[0]


def last_id(connection: sqlite3.Connection) -> int:
    last: int = connection.execute(LAST_ID).fetchone()[0]
    return last


def push(connection: sqlite3.Connection, number: int) -> Push | None:
    row = connection.execute(PUSH, (number,)).fetchone()
    if row is None:
        return None
    return Push(id=number, user=text(row[0]), date=epoch(row[1]), nodes=nodes(connection, number))


def nodes(connection: sqlite3.Connection, number: int) -> tuple[str, ...]:
    return tuple(node for (node,) in connection.execute(NODES, (number,)) if is_node(node))


def any_node(connection: sqlite3.Connection, number: int, holds: Callable[[str], bool]) -> bool | None:
    """Whether this is so for a changeset of the push, the first one that is found mostly; None if it has none."""
    found = None
    for (node,) in connection.execute(EACH_NODE, (number,)):
        if is_node(node):
            if holds(node):
                return True
            found = False
    return found


def fact(connection: sqlite3.Connection, number: int) -> Fact:
    return push(connection, number) or Deleted(id=number)


def all_nodes(connection: sqlite3.Connection) -> Iterator[str]:
    return (node for (node,) in connection.execute(ALL_NODES))


def push_id_of(connection: sqlite3.Connection, node: str) -> int | None:
    row = connection.execute(PUSH_OF_NODE, (node,)).fetchone()
    return None if row is None else row[0]


def pushes(connection: sqlite3.Connection, first: int, last: int) -> Iterator[Push]:
    """The pushes with ids from ``first`` to ``last``, both included, ascending; memory stays bounded."""
    while page := page_of_pushes(connection, first, last):
        yield from page
        first = page[-1].id + 1


def page_of_pushes(connection: sqlite3.Connection, first: int, last: int) -> list[Push]:
    """Some of the first pushes from ``first`` to ``last``, ascending; none only if there are none."""
    if first > LARGEST:
        return []
    page = connection.execute(PUSHES_BETWEEN, (first, last, _PAGE)).fetchall()
    if not page:
        return []
    recorded: dict[int, list[str]] = {number: [] for number, _user, _date in page}
    for number, node in connection.execute(NODES_BETWEEN, (page[0][0], page[-1][0])):
        if number in recorded and is_node(node):
            recorded[number].append(node)
    return [
        Push(id=number, user=text(user), date=epoch(date), nodes=tuple(recorded[number])) for number, user, date in page
    ]


def pushes_with(connection: sqlite3.Connection, ids: list[int]) -> list[Push]:
    """The pushes with these ids, in this order; fewer if some do not exist."""
    marks = ", ".join("?" * len(ids))
    rows = {
        row[0]: row
        for row in connection.execute(f"SELECT id, CAST(user AS BLOB), date FROM pushlog WHERE id IN ({marks})", ids)
    }
    recorded: dict[int, list[str]] = {number: [] for number in rows}
    in_order = f"SELECT pushid, node FROM changesets WHERE pushid IN ({marks}) ORDER BY pushid, rev"
    for number, node in connection.execute(in_order, ids):
        if number in recorded and is_node(node):
            recorded[number].append(node)
    return [
        Push(id=number, user=text(rows[number][1]), date=epoch(rows[number][2]), nodes=tuple(recorded[number]))
        for number in ids
        if number in rows
    ]


def users(connection: sqlite3.Connection) -> Iterator[bytes]:
    """Every user once, ascending, as the bytes that are stored; the cost follows their number, not that of the pushes."""
    (user,) = connection.execute(FIRST_USER).fetchone()
    while user is not None:
        yield user
        (user,) = connection.execute(NEXT_USER, (user,)).fetchone()


def nodes_pushed_by(connection: sqlite3.Connection, users: Iterable[bytes]) -> Iterator[str]:
    for user in users:
        yield from (node for (node,) in connection.execute(NODES_BY_USER, (user,)))


def nodes_pushed_between(
    connection: sqlite3.Connection, earliest: int, latest: int, matches: Callable[[int], bool]
) -> Iterator[str]:
    return (node for node, date in connection.execute(NODES_BY_DATE, (earliest, latest)) if matches(epoch(date)))


def holds(number: int) -> bool:
    """Whether SQLite can be asked for this number, as an id or as a date; it refuses larger ones with an OverflowError."""
    return abs(number) <= LARGEST


def is_node(value: object) -> bool:
    """Whether a node column holds the hash of a changeset, and not what an operator's tool put there."""
    return isinstance(value, str) and _NODE.fullmatch(value) is not None


def text(user: str | bytes | None) -> str:
    """A user column as text, whatever an operator's tool put there."""
    return user.decode("utf-8", "replace") if isinstance(user, bytes) else str(user or "")


def epoch(date: object) -> int:
    """A date column as seconds, whatever an operator's tool put there."""
    if isinstance(date, float):
        return int(date) if math.isfinite(date) and abs(date) < LARGEST else 0
    return date if isinstance(date, int) else 0

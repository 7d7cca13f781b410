# SPDX-License-Identifier: GPL-2.0-or-later
"""Connections to ``.hg/pushlog2.db``: to write, to read, and to a copy in memory."""

from __future__ import annotations

# The module `sqlite3` without its conversion of dates, which each push would load besides.
import _sqlite3 as sqlite3
import contextlib
import os
import stat

from . import boot, statements
from .appendfile import open_regular

__all__ = ["damage", "execute_all", "has_table", "in_memory", "open_for_reading", "open_for_writing", "sqlite3"]

_INTERRUPTED = "%s was left in the middle of a change; 'hg recover' or the next push rolls it back"
# What ends a journal that names another file; ours never do.
_MAGIC = bytes.fromhex("d9d505f920a163d7")


def open_for_writing(
    path: str, *, timeout_ms: int, mode: int | None = None, spills: bool = False, synchronous: str = "OFF"
) -> sqlite3.Connection:
    """Connect inside an immediate transaction.

    Creates the file and its tables if need be. Raises `sqlite3.Error`. A new file gets ``mode``, or what the umask leaves, and
    its group may write it. ``synchronous`` is SQLite's. With "OFF" it does not wait for the disk, and a power cut may leave a
    part of a transaction, without a sign. With "NORMAL" it syncs the journal, then the database, and a transaction is there
    whole or not at all; a power cut may undo one, which the file has. "OFF" becomes "NORMAL" where everything was synced before,
    so that what `boot` notes is on disk before anything is written that a power cut may lose.
    """
    refuse_foreign_files(path)
    is_new = _make_file(path, mode)
    connection = sqlite3.connect(path, timeout=timeout_ms / 1000, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        if not spills:
            # A spill would take the exclusive lock before the commit.
            connection.execute("PRAGMA cache_spill = OFF")
        connection.execute("BEGIN IMMEDIATE")
        if synchronous == "OFF" and boot.noted(connection) == boot.ON_DISK:
            connection.execute("ROLLBACK")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("BEGIN IMMEDIATE")
        if is_new or not has_table(connection, "changesets") or not has_table(connection, "pushlog"):
            execute_all(connection, statements.TABLES)
            if has_table(connection, "pushlog_state"):
                # A table is gone, with its derived rows.
                connection.execute(statements.CLEAR_STATE)
        if has_table(connection, "pushlog_state"):
            # Without this table, which an operator can drop, the triggers would make every insertion fail.
            connection.execute(statements.EDIT_TABLE)
    except BaseException:
        connection.close()
        raise
    return connection


def open_for_reading(path: str, *, timeout_ms: int) -> sqlite3.Connection | None:
    """Connect inside a read transaction.

    Returns None without the file or its tables, and writes nothing. Raises `sqlite3.Error` for a file that cannot be read:
    damaged, locked for too long, or left in the middle of a commit, which the next writer undoes.
    """
    if not os.path.exists(path):
        return None
    if os.path.islink(path) or not os.path.isfile(path):
        # SQLite would read another repository's, and wait for the writer of a pipe.
        raise sqlite3.DatabaseError(f"{os.path.basename(path)} is not a file")
    uri = "file:" + path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    # A writable connection would roll back what a journal says, and remove the file that it names.
    connection = sqlite3.connect(
        f"{uri}?mode=ro", uri=True, timeout=timeout_ms / 1000, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("BEGIN")
        if has_table(connection, "pushlog") and has_table(connection, "changesets"):
            return connection
    except BaseException as problem:
        connection.close()
        if getattr(problem, "sqlite_errorcode", None) == sqlite3.SQLITE_READONLY_ROLLBACK:
            raise sqlite3.OperationalError(_INTERRUPTED % os.path.basename(path)) from problem
        raise
    connection.close()
    return None


def in_memory() -> sqlite3.Connection:
    """Connect to an empty pushlog without a file, inside a transaction."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("BEGIN")
    execute_all(connection, statements.TABLES)
    return connection


def execute_all(connection: sqlite3.Connection, script: str) -> None:
    """Execute a script without the commit that `executescript` begins with."""
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""


def damage(connection: sqlite3.Connection) -> str:
    """Return in one line what SQLite finds wrong, empty if nothing."""
    found: str = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    return "" if found == "ok" else " ".join(found.split())


def has_table(connection: sqlite3.Connection, name: str) -> bool:
    return connection.execute(statements.HAS_TABLE, (name,)).fetchone() is not None


def _make_file(path: str, mode: int | None) -> bool:
    """Make the database's file with its mode; return False if it is there, or cannot be made, which SQLite then says.

    A mode that is given by the name, later, would go to the file of a link that an account puts there meanwhile.
    """
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError:
        return False
    try:
        os.fchmod(file, (stat.S_IMODE(os.fstat(file).st_mode) if mode is None else mode & 0o666) | 0o020)
    finally:
        os.close(file)
    return True


def refuse_foreign_files(path: str) -> None:
    """Raise `sqlite3.OperationalError` for a link, and for a journal that names another file.

    SQLite would write to another database, or remove that file, with the rights of this user. An account that may write the
    repository can put either there.
    """
    if os.path.islink(path):
        raise sqlite3.OperationalError(f"{os.path.basename(path)} is a link; replace it by its file")
    with contextlib.suppress(FileNotFoundError), open(f"{path}-journal", "rb", opener=open_regular) as journal:
        journal.seek(max(0, journal.seek(0, os.SEEK_END) - len(_MAGIC)))
        if journal.read() == _MAGIC:
            raise sqlite3.OperationalError(f"{os.path.basename(path)}-journal names another file; remove the journal")

# SPDX-License-Identifier: GPL-2.0-or-later
"""Copies of SQLite databases that are in use, and what the copy of a log has."""

import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from ...words.errors import BadConfig, Refused, Unavailable
from ..ownership import refuse_foreign_journal
from . import statements as sql

# Seconds to wait for a process that writes.
_PATIENCE = 10.0


def copy_database(source: str, target: str) -> None:
    """Copy the database at one instant, even while services write, into the new file `target`.

    The copy needs no other file, and only its owner may read it. Raises OSError, Unavailable if the database is damaged or
    locked, and BadConfig for a journal that names another file.
    """
    os.stat(source)  # SQLite does not say that a file is missing
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        with closing(_connect(source, "mode=rw")) as reading, closing(_connect(target, "mode=rw")) as writing:
            reading.backup(writing)
    except sqlite3.Error as error:
        raise Unavailable(f"{source}: cannot be copied: {error}") from error


def read_ends(file: str, *, is_copy: bool) -> Mapping[str, int]:
    """Return how many records each topic of a log ever had; nothing is written beside a copy.

    A copy is read whole, to find damage. Raises BadConfig if it is damaged, or no log that this release can use.
    """
    try:
        with closing(_connect(file, "mode=ro&immutable=1" if is_copy else "mode=ro")) as log:
            [(application,)] = log.execute("PRAGMA application_id").fetchall()
            [(version,)] = log.execute("PRAGMA user_version").fetchall()
            if application != sql.APPLICATION_ID or not 0 < version <= len(sql.MIGRATIONS):
                raise BadConfig(f"{file}: expected a log with schema 1 to {len(sql.MIGRATIONS)}, got {version}")
            if is_copy and (damage := log.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise BadConfig(f"{file}: damaged: {damage}")
            return dict(log.execute(sql.ENDS).fetchall())
    except sqlite3.Error as error:
        raise BadConfig(f"{file}: cannot be read: {error}") from error


def refuse_open(file: str) -> None:
    """Raise Refused if a process has the database open; its journal is then merged into it.

    A file that is missing, or no database, is open in no service that can use it.
    """
    if not os.path.exists(file):
        return
    try:
        # Only the last connection may leave this mode.
        with closing(_connect(file, "mode=rw", patience=0)) as alone:
            alone.execute("PRAGMA journal_mode = DELETE").fetchall()
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
            raise Refused(f"{file}: a service has it open; stop all services first") from error


def _connect(file: str, options: str, patience: float = _PATIENCE) -> sqlite3.Connection:
    refuse_foreign_journal(file)
    uri = f"file:{quote(str(Path(file).absolute()))}?{options}"
    return sqlite3.connect(uri, uri=True, timeout=patience, isolation_level=None)

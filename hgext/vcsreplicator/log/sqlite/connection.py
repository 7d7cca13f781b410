# SPDX-License-Identifier: GPL-2.0-or-later
"""A connection to the embedded log's database, and its migrations.

It translates errors of the database for an operator.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from ...words.errors import BadConfig, NoRoom, Unavailable
from ..ownership import close_to_others, make_file, make_folder, refuse_foreign_journal, set_mode
from . import statements as sql

# The kinds of transactions. A reading one takes its snapshot as it begins.
WRITING, READING = "IMMEDIATE", "DEFERRED"


class Connection:
    """One connection; every sqlite3 error leaves as Unavailable, or NoRoom.

    Opening raises BadConfig for a journal that names another file.
    """

    def __init__(self, path: Path, patience: float, *, create: bool = False) -> None:
        self._path = path
        self._patience = patience
        self._version: object = None
        with self._translate_errors():
            refuse_foreign_journal(path)
            uri = f"file:{quote(str(path))}?mode={'rwc' if create else 'rw'}"
            self._sqlite = sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False)
            try:
                self._file = os.stat(path)
                for pragma in ("synchronous = FULL", "journal_size_limit = 67108864"):
                    self._execute_patiently(f"PRAGMA {pragma}", patience)
            except BaseException:
                self._sqlite.close()
                raise

    def current(self) -> bool:
        """Return whether the path still names the open file; Unavailable if it is gone."""
        with self._translate_errors():
            return os.path.samestat(self._file, os.stat(self._path))

    def has_changed(self) -> bool:
        """Return whether another connection wrote since the last deferred transaction."""
        with self._translate_errors():
            return self._read_version(self._patience) != self._version

    @contextmanager
    def transaction(self, kind: str, patience: float | None = None) -> Iterator[Self]:
        """Run the block in a transaction; roll it back if the block raises."""
        with self._translate_errors():
            patience = self._patience if patience is None else patience
            self._execute_patiently(f"BEGIN {kind}", patience)
            if kind == READING:  # take the snapshot here, where waiting for a recovery is possible
                self._version = self._read_version(patience)
            try:
                yield self
                self._execute_patiently("COMMIT", self._patience)
            except BaseException:
                if self._sqlite.in_transaction:
                    self._sqlite.execute("ROLLBACK")
                raise

    def rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        return self._sqlite.execute(statement, values).fetchall()

    def run(self, statement: str, *values: object) -> sqlite3.Cursor:
        return self._sqlite.execute(statement, values)

    def close(self) -> None:
        self._sqlite.close()

    def migrate(self, *, creates: bool) -> None:
        """Bring the database to our schema; create it only with `creates`.

        Raises BadConfig if it is not ours, or from a newer release, Unavailable if it is empty and not to be created.
        """
        # WAL writes into any file, even an empty one, which may be another program's or a copy that is just being restored.
        with self.transaction(READING):
            self._find_version(creates=creates)
        with self._translate_errors():
            [(mode,)] = self._execute_patiently("PRAGMA journal_mode = WAL", self._patience).fetchall()
        if mode != "wal":
            raise BadConfig(f"sqlite://{self._path}: expected a file system with shared memory (WAL), got mode {mode}")
        with self.transaction(WRITING):
            version = self._find_version(creates=creates)
            for statements in sql.MIGRATIONS[version:]:
                for statement in statements:
                    self.run(statement)
            if version < len(sql.MIGRATIONS):
                self.run(f"PRAGMA application_id = {sql.APPLICATION_ID}")
                self.run(f"PRAGMA user_version = {len(sql.MIGRATIONS)}")

    def _find_version(self, *, creates: bool) -> int:
        """Return the version of the schema; raise as `migrate` if it may not be changed."""
        [(application,)], [(version,)] = self.rows("PRAGMA application_id"), self.rows("PRAGMA user_version")
        [(tables,)] = self.rows(sql.TABLES)
        if application != sql.APPLICATION_ID and tables:
            raise BadConfig(f"sqlite://{self._path}: expected a log of vcsreplicator, got another SQLite database")
        if not tables and not creates:
            raise _describe_loss(self._path, "the log is empty")
        if version > len(sql.MIGRATIONS):
            raise BadConfig(
                f"sqlite://{self._path}: has schema {version}, expected at most {len(sql.MIGRATIONS)}; "
                "it was written by a newer release"
            )
        return int(version)

    def _read_version(self, patience: float) -> object:
        """Read a number that differs after each write of another connection."""
        return self._execute_patiently("PRAGMA data_version", patience).fetchone()

    def _execute_patiently(self, statement: str, patience: float) -> sqlite3.Cursor:
        """Execute a statement; wait up to `patience` seconds for other processes.

        SQLite's own wait sleeps up to 100 ms, while a commit takes one.
        """
        deadline = time.monotonic() + patience
        pause = 0.0002
        while True:
            try:
                return self._sqlite.execute(statement)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                    raise
            time.sleep(pause)
            pause = min(pause * 1.5, 0.005)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
                raise NoRoom(f"sqlite://{self._path}: no space left on its disk; free some space") from error
            raise Unavailable(f"sqlite://{self._path}: {error}{_describe_remedy(error)}") from error
        except OSError as error:
            raise Unavailable(f"sqlite://{self._path}: {error.strerror}; is its disk mounted?") from error


def _describe_remedy(error: sqlite3.Error) -> str:
    """Return the operator's next step, "" if none is known."""
    hints = {
        sqlite3.SQLITE_BUSY: "; another process keeps it locked",
        sqlite3.SQLITE_READONLY: "; check owner and mode of the file, its -wal and -shm files and its folder",
        sqlite3.SQLITE_CANTOPEN: "; check that it exists, and owner and mode of it and its folder",
        sqlite3.SQLITE_PERM: "; check owner and mode of the file",
        sqlite3.SQLITE_CORRUPT: "; stop all services, then restore it from a backup or `sqlite3 FILE .recover`",
        sqlite3.SQLITE_NOTADB: "; it was overwritten: stop all services and restore it from a backup",
        sqlite3.SQLITE_IOERR: "; check the disk; if its -wal file was removed, restart all services",
    }
    return hints.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, "")


def _describe_loss(path: Path, what: str) -> Unavailable:
    return Unavailable(
        f"sqlite://{path}: {what}; if it was there, stop all services and restore it "
        "(docs/operating.md, Restore); in a new installation run: vcsreplicator topics create"
    )


def prepare_database(path: Path, bells: Path, patience: float, *, creates: bool) -> None:
    """Bring the database to our schema, and create the folder of its bells.

    With `creates`, create a missing database too; else raise Unavailable, as the services that wait for a lost one would go on with
    an empty one. Other users may use none of the files; about the group the umask decides. Files that root makes belong to the
    owner of the folder, so that services of that user can use them; SQLite gives its `-wal` and `-shm` files owner and mode of the
    database. Raises BadConfig or Unavailable.
    """
    is_there = _find_file(path)
    if creates:
        # Not left to SQLite, which would ignore a umask that lets the group write. Errors are left to it: it says what is wrong.
        with suppress(OSError):
            make_file(path, 0o660)
    elif not is_there:
        raise _describe_loss(path, "the log is missing")
    close_to_others(path, f"{path}-wal", f"{path}-shm")
    with closing(Connection(path, patience, create=creates)) as connection:
        connection.migrate(creates=creates)
    try:
        try:
            make_folder(bells)
        except FileExistsError:
            if not bells.is_dir():
                raise
        mode = path.stat().st_mode & 0o666
        set_mode(bells, mode | (mode & 0o444) >> 2)
    except OSError as error:
        if not bells.is_dir():
            raise BadConfig(
                f"sqlite://{path}: expected a folder this user may write, to create the folder {bells.name} in it: "
                f"{error.strerror}"
            ) from error


def _find_file(path: Path) -> bool:
    """Return whether the file is there.

    Raises BadConfig if its folder is not, and Unavailable if that cannot be seen: what is there must not be called missing.
    """
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        if path.parent.is_dir():
            return False
        raise BadConfig(f"sqlite://{path}: expected the folder {path.parent} to exist") from None
    except OSError as error:
        raise Unavailable(f"sqlite://{path}: {error.strerror}; check owner and mode of the folders above it") from error
    return True

# SPDX-License-Identifier: GPL-2.0-or-later
"""The notifier's own SQLite files.

They are made for the right owner, and their errors are translated for an operator. What only an operator can change (no database,
no permission, a read-only place) is BadConfig; what may end by itself (a full disk, a lock, a disk that does not answer) is
Unavailable.
"""

import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from hgext.vcsreplicator.log import LARGEST
from hgext.vcsreplicator.log.ownership import close_to_others, make_file, name_owner, refuse_foreign_journal
from hgext.vcsreplicator.words.errors import BadConfig, MalformedEvent, ReplicationError, Unavailable
from hgext.vcsreplicator.words.passing import is_passing_for
from hgext.vcsreplicator.words.shape import from_json, plain

T = TypeVar("T")

# The path of an empty database that leaves no file.
NOWHERE = ":memory:"

# Seconds to wait for another connection's lock.
PATIENCE = 10.0


def is_there(path: str) -> bool:
    """Return whether the file exists, as far as this process may look.

    True also if it may not look, so that opening the file reports why.
    """
    try:
        os.stat(path)
    except OSError as error:
        return not isinstance(error, FileNotFoundError | NotADirectoryError)
    return True


class Database:
    """The database at `path`, made if it is missing, for one thread.

    `key` is its place in the configuration, which errors name. Raises BadConfig or Unavailable; once it is open, Unavailable alone.
    """

    def __init__(self, path: str, key: str, schema: str) -> None:
        self._key = key
        try:
            if path != NOWHERE:
                own(path)
                close_to_others(path, f"{path}-wal", f"{path}-shm")
                refuse_foreign_journal(path)
            self._connection = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
            try:
                self._connection.execute("PRAGMA journal_mode=WAL")
                self._connection.execute("PRAGMA synchronous=FULL")
                self._connection.executescript(schema)
            except BaseException:
                self._connection.close()
                raise
        except (OSError, sqlite3.Error) as error:
            raise trouble(error, key, path) from error

    def rows(self, statement: str, arguments: Sequence[Any] = ()) -> list[Any]:
        try:
            return self._connection.execute(statement, arguments).fetchall()
        except sqlite3.Error as error:
            raise Unavailable(f"{self._key}: {error}") from error

    def run(self, statement: str, arguments: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Execute a statement; outside `writing` it is durable on return."""
        try:
            return self._connection.execute(statement, arguments)
        except sqlite3.Error as error:
            raise Unavailable(f"{self._key}: {error}") from error

    def run_unsynced(self, statement: str, arguments: Sequence[Any] = ()) -> None:
        """Execute a statement, outside `writing`, that a power cut may undo.

        A power cut undoes none before it, nor does the end of the process undo it.
        """
        self.run("PRAGMA synchronous=NORMAL")
        try:
            self.run(statement, arguments)
        finally:
            self.run("PRAGMA synchronous=FULL")

    def run_all(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute a statement for each row of arguments, within `writing`."""
        try:
            self._connection.executemany(statement, rows)
        except sqlite3.Error as error:
            raise Unavailable(f"{self._key}: {error}") from error

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Make what the block runs one transaction, durable at its end."""
        self.run("BEGIN IMMEDIATE")
        try:
            yield
            self.run("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.rollback()
            raise

    def close(self) -> None:
        self._connection.close()


def read_storable(kind: type[T], value: bytes) -> T:
    """Read a record of the log whose text SQLite takes; raises MalformedEvent."""
    found = from_json(kind, value, limit=LARGEST)
    try:
        "".join(each for each in plain(found).values() if isinstance(each, str)).encode()
    except UnicodeEncodeError as error:
        raise MalformedEvent(f"{kind.__name__}: expected text without surrogates") from error
    return found


def own(path: str) -> None:
    """Create the file if it is missing, for the owner of its folder and the group.

    An administrator may be the first to use it. Other users may not read it, because headers of webhooks may be secret. Raises
    OSError.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    make_file(path)


@contextmanager
def alone(path: str, key: str, service: str) -> Iterator[None]:
    """Hold the lock of the database at `path` within the block.

    Two services would repeat each other's messages. Raises BadConfig if another process holds the lock.
    """
    try:
        own(f"{path}.lock")
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise trouble(error, key, f"{path}.lock") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadConfig(f"{key}: another {service} works with {path} already") from error
        except OSError as error:
            raise Unavailable(f"{key}: {path}.lock: cannot be locked: {error.strerror}") from error
        yield
    finally:
        os.close(lock)


def trouble(error: OSError | sqlite3.Error, key: str, path: str) -> ReplicationError:
    """Translate an error of SQLite or the system to BadConfig or Unavailable."""
    kind = Unavailable if is_passing_for(path, error) else BadConfig
    said = (error.strerror if isinstance(error, OSError) else None) or error
    remedy = name_owner(path) if isinstance(error, PermissionError) else ""
    return kind(f"{key}: {path}: cannot be used: {said}{remedy}")

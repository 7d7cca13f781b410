# SPDX-License-Identifier: GPL-2.0-or-later
"""How far each repository was followed: a small SQLite database. All its SQL is in this file."""

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence

from hgext.vcsreplicator.words.errors import BadConfig

from ..database import open_database, own, trouble
from .following import Followed

KEY = "poll.state"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS repositories (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    url TEXT NOT NULL UNIQUE,
    last INTEGER NOT NULL,
    tip TEXT NOT NULL DEFAULT ''
);
"""
_ADD = "INSERT INTO repositories (url, last) VALUES (?, ?) ON CONFLICT DO NOTHING"
_ALL = "SELECT number, url, last, tip FROM repositories"
_ONE = "SELECT number, url, last, tip FROM repositories WHERE url = ?"
_ADVANCE = "UPDATE repositories SET last = ?, tip = ? WHERE number = ?"
_REMOVE = "DELETE FROM repositories WHERE number = ?"


class PollDatabase:
    """The database, created when missing; used by the thread that opened it. Every call may raise Unavailable."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._db = open_database(path, KEY, _SCHEMA)

    def add(self, urls: Sequence[str], last: int) -> list[Followed]:
        """Give each repository that is new a number and this position; return all of these."""
        with self._transaction():
            self._db.executemany(_ADD, [(url, last) for url in urls])
            known = {row[1]: _followed(row) for row in self._db.execute(_ALL)}
        return [known[url] for url in urls]

    def advance(self, positions: Iterable[Followed]) -> None:
        """Remember these; durable on return."""
        with self._transaction():
            self._db.executemany(_ADVANCE, [(each.last, each.tip, each.number) for each in positions])

    def begin_anew(self, followed: Followed) -> Followed:
        """Give the repository at this URL a new number, with nothing sent."""
        with self._transaction():
            self._db.execute(_REMOVE, (followed.number,))
            self._db.execute(_ADD, (followed.url, 0))
            return _followed(self._db.execute(_ONE, (followed.url,)).fetchone())

    def close(self) -> None:
        """Free the database."""
        self._db.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise trouble(error, KEY, self._path) from error


@contextlib.contextmanager
def hold_alone(path: str) -> Iterator[None]:
    """Hold the state's lock for this process alone: two pollers would send everything twice. Raises BadConfig."""
    file = f"{path}.lock"
    try:
        own(file)
        lock = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise trouble(error, KEY, file) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadConfig(f"{KEY}: another poller works with {path} already") from error
        yield
    finally:
        os.close(lock)


def _followed(row: Sequence[object]) -> Followed:
    number, url, last, tip = row
    return Followed(number=int(str(number)), url=str(url), last=int(str(last)), tip=str(tip))

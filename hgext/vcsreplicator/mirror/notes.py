# SPDX-License-Identifier: GPL-2.0-or-later
"""The durable notes of a mirror: which repositories it follows apart, from where, and which it let go.

A note is written before the shared position passes an event of its repository, so an event is either before the position,
applied, or behind a note. SQLite, one file per mirror, written by the supervisor alone; an operator's wish to heal arrives in it.
"""

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..words.errors import BadConfig, Unavailable
from ..words.levels import Reason

_SCHEMA = """
CREATE TABLE IF NOT EXISTS detached (
    repository TEXT PRIMARY KEY, path TEXT NOT NULL, partition INTEGER NOT NULL, offset INTEGER NOT NULL,
    reason TEXT NOT NULL, note TEXT NOT NULL, since REAL NOT NULL, attempts INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS gone (
    repository TEXT PRIMARY KEY, path TEXT NOT NULL, incarnation TEXT NOT NULL, seq INTEGER NOT NULL, since REAL NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS wishes (repository TEXT PRIMARY KEY, since REAL NOT NULL) STRICT;
"""
_DETACHED = "SELECT repository, path, partition, offset, reason, note, since, attempts FROM detached"
_DETACH = "INSERT OR REPLACE INTO detached VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_REJOIN = "DELETE FROM detached WHERE repository = ?"
_GONE = "SELECT repository, path, incarnation, seq, since FROM gone"
_LET_GO = "INSERT OR REPLACE INTO gone VALUES (?, ?, ?, ?, ?)"
_FORGET = "DELETE FROM gone WHERE repository = ?"
_WISH = "INSERT OR REPLACE INTO wishes VALUES (?, ?)"
_WISHES = "SELECT repository FROM wishes"
_GRANTED = "DELETE FROM wishes WHERE repository = ?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Detached:
    """A repository followed apart: everything before `offset` of `partition` is applied, why it left, and how often healing
    was tried since."""

    repository: str
    path: str
    partition: int
    offset: int
    reason: Reason
    note: str
    since: float
    attempts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedRepository:
    """A repository deleted here by event `seq`; older events of it mean nothing any more."""

    repository: str
    path: str
    incarnation: str
    seq: int
    since: float


class Notes:
    """The notes in a file. Every method returns with its change durable, or raises Unavailable having changed nothing."""

    def __init__(self, file: Path) -> None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(file, isolation_level=None, timeout=30)
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise BadConfig(f"{file}: the mirror's notes cannot be written: {error}") from error

    def detached(self) -> list[Detached]:
        """All repositories followed apart."""
        with _translated():
            return [_detached(row) for row in self._database.execute(_DETACHED)]

    def gone(self) -> list[DeletedRepository]:
        """All repositories deleted here that the log may still name."""
        with _translated():
            rows = self._database.execute(_GONE).fetchall()
        return [DeletedRepository(repository=r, path=p, incarnation=i, seq=s, since=t) for r, p, i, s, t in rows]

    def detach(self, note: Detached) -> None:
        """From now on the repository is followed apart; replaces an older note."""
        values = (note.repository, note.path, note.partition, note.offset, note.reason.value)
        with _translated():
            self._database.execute(_DETACH, (*values, note.note, note.since, note.attempts))

    def rejoin(self, repository: str) -> None:
        """The repository is followed in the stream again."""
        with _translated():
            self._database.execute(_REJOIN, (repository,))

    def let_go(self, gone: DeletedRepository) -> None:
        """The repository is deleted here."""
        values = (gone.repository, gone.path, gone.incarnation, gone.seq, gone.since)
        with _translated():
            self._database.execute(_LET_GO, values)

    def forget(self, repository: str) -> None:
        """The log names a deleted repository no more."""
        with _translated():
            self._database.execute(_FORGET, (repository,))

    def wish(self, repository: str, now: float) -> None:
        """An operator asks that healing be tried again, also of what does not heal by itself."""
        with _translated():
            self._database.execute(_WISH, (repository, now))

    def wishes(self) -> list[str]:
        """The wishes that are not granted yet."""
        with _translated():
            return [repository for (repository,) in self._database.execute(_WISHES)]

    def granted(self, repository: str) -> None:
        """The wish is answered."""
        with _translated():
            self._database.execute(_GRANTED, (repository,))

    def close(self) -> None:
        """Frees the file."""
        self._database.close()


def _detached(row: tuple[str, str, int, int, str, str, float, int]) -> Detached:
    repository, path, partition, offset, reason, note, since, attempts = row
    return Detached(
        repository=repository,
        path=path,
        partition=partition,
        offset=offset,
        reason=Reason(reason),
        note=note,
        since=since,
        attempts=attempts,
    )


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise Unavailable(f"the mirror's notes: {error}") from error

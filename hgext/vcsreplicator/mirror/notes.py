# SPDX-License-Identifier: GPL-2.0-or-later
"""The durable notes of a mirror.

They are its detached repositories with their resume points, the deleted ones, and heal requests. A note is written before the
shared position passes an event of its repository, so an event is either before the position, applied, or behind a note. SQLite, one
file per mirror, written by the supervisor alone but for an operator's heal requests.
"""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, TypeVar

import structlog

from ..log.ownership import close_to_others, make_file, refuse_foreign_journal
from ..log.requests import COLUMNS, RequestTable
from ..words.errors import BadConfig, Unavailable
from ..words.records import Reason

T = TypeVar("T")
logger = structlog.get_logger()

# The kind of a heal request.
HEAL = "heal"

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS detached (
    repository TEXT PRIMARY KEY, path TEXT NOT NULL, partition INTEGER NOT NULL, offset INTEGER NOT NULL,
    reason TEXT NOT NULL, note TEXT NOT NULL, since REAL NOT NULL, attempts INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS gone (
    repository TEXT PRIMARY KEY, path TEXT NOT NULL, incarnation TEXT NOT NULL, seq INTEGER NOT NULL, since REAL NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS requests (id INTEGER PRIMARY KEY, repository TEXT NOT NULL, {COLUMNS}) STRICT;
CREATE INDEX IF NOT EXISTS requests_open ON requests (id) WHERE done_at IS NULL;
CREATE TABLE IF NOT EXISTS wishes (repository TEXT PRIMARY KEY, since REAL NOT NULL) STRICT;
"""
# The heal requests of a former release, which do not name who asked.
_FORMER_REQUESTS = "SELECT 1 FROM wishes"
_MOVE_FORMER_REQUESTS = f"""
BEGIN IMMEDIATE;
INSERT INTO requests (repository, kind, argument, who, asked_at) SELECT repository, '{HEAL}', '{{}}', 'unknown', since FROM wishes;
DELETE FROM wishes;
COMMIT;
"""
_DETACHED = "SELECT repository, path, partition, offset, reason, note, since, attempts FROM detached"
_DETACH = "INSERT OR REPLACE INTO detached VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_REJOIN = "DELETE FROM detached WHERE repository = ?"
_DELETED = "SELECT repository, path, incarnation, seq, since FROM gone"
_RECORD_DELETION = "INSERT OR REPLACE INTO gone VALUES (?, ?, ?, ?, ?)"
_FORGET = "DELETE FROM gone WHERE repository = ?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Detached:
    """A detached repository: its events before `offset` of `partition` are applied.

    `reason` and `note` say why it is detached, `attempts` how often healing was tried since.
    """

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
    """A repository that event `seq` deleted here; older events need no work."""

    repository: str
    path: str
    incarnation: str
    seq: int
    since: float


class Notes:
    """The notes in a file; `requests` has the heal requests.

    Every method returns with its change durable, or raises Unavailable having changed nothing.
    """

    def __init__(self, file: Path) -> None:
        try:
            file.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            make_file(file)
            close_to_others(file)
            refuse_foreign_journal(file)
            self._database = sqlite3.connect(file, isolation_level=None, timeout=30)
            self._database.row_factory = sqlite3.Row
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.executescript(_SCHEMA)
            if self._database.execute(_FORMER_REQUESTS).fetchone():
                self._database.executescript(_MOVE_FORMER_REQUESTS)
        except (OSError, sqlite3.Error) as error:
            raise BadConfig(f"{file}: the mirror's notes cannot be written: {error}") from error
        self.requests = RequestTable(self._run_statement, "repository")

    def detached(self) -> list[Detached]:
        return [Detached(**{**row, "reason": Reason(row["reason"])}) for row in self._run_statement(_DETACHED)]

    def deleted(self) -> list[DeletedRepository]:
        """Return all repositories deleted here that the log may still name."""
        return [DeletedRepository(**row) for row in self._run_statement(_DELETED)]

    def detach(self, note: Detached) -> None:
        """Write that the repository is detached from now on; replaces an older note."""
        self._run_statement(_DETACH, astuple(note))

    def rejoin(self, repository: str) -> None:
        """Remove the note: the repository follows the stream again."""
        self._run_statement(_REJOIN, (repository,))

    def record_deletion(self, deleted: DeletedRepository) -> None:
        self._run_statement(_RECORD_DELETION, astuple(deleted))

    def forget(self, repository: str) -> None:
        """Remove the note of a deletion that neither log nor disk contradicts."""
        self._run_statement(_FORGET, (repository,))

    def request_heal(self, repository: str, *, who: str, now: float) -> None:
        """Record an operator's request to heal the repository now."""
        self.requests.ask(repository, HEAL, {}, who=who, now=now)

    def close(self) -> None:
        self._database.close()

    def _run_statement(self, statement: str, arguments: Sequence[Any] = ()) -> list[Any]:
        try:
            return self._database.execute(statement, arguments).fetchall()
        except sqlite3.Error as error:
            raise Unavailable(f"the mirror's notes: {error}") from error


def try_to_write(change: Callable[[], T]) -> T | None:
    """Call `change` and return its result; log Unavailable, and return None."""
    try:
        return change()
    except Unavailable as error:
        logger.error("note not written", reason=str(error))
        return None

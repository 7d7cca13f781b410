# SPDX-License-Identifier: GPL-2.0-or-later
"""Operators' requests to destinations, and the destinations' status.

They are in one small SQLite database beside the notifier. A request (pause, resume, skip, replay) is a row that names who asked
and when. The daemon carries it out and writes the result into the same row, so the table is also the record. A request whose
daemon is killed in the middle is carried out again. All SQL of this database is in this file.
"""

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hgext.vcsreplicator.words.errors import Rejected

from .database import Database

_SCHEMA = """
CREATE TABLE IF NOT EXISTS requests (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    destination TEXT NOT NULL,
    kind TEXT NOT NULL,
    argument TEXT NOT NULL,
    who TEXT NOT NULL,
    asked_at REAL NOT NULL,
    done_at REAL,
    result TEXT,
    skipped TEXT,
    skipped_offset INTEGER
);
CREATE INDEX IF NOT EXISTS requests_open ON requests (destination, id) WHERE done_at IS NULL;
CREATE INDEX IF NOT EXISTS requests_pause ON requests (destination, id) WHERE kind IN ('pause', 'resume');
CREATE TABLE IF NOT EXISTS conditions (
    destination TEXT PRIMARY KEY,
    time REAL NOT NULL,
    content TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS repositories (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    repository TEXT NOT NULL UNIQUE
);
"""
_ASK = "INSERT INTO requests (destination, kind, argument, who, asked_at) VALUES (?, ?, ?, ?, ?)"
_OPEN = """SELECT id, destination, kind, argument, who, asked_at, done_at, result FROM requests
    WHERE destination = ? AND done_at IS NULL ORDER BY id"""
_ONE = "SELECT id, destination, kind, argument, who, asked_at, done_at, result FROM requests WHERE id = ?"
_ALL = "SELECT id, destination, kind, argument, who, asked_at, done_at, result FROM requests ORDER BY id DESC LIMIT ?"
_DONE = "UPDATE requests SET done_at = ?, result = ?, skipped = ?, skipped_offset = ? WHERE id = ?"
_SKIPPED = "SELECT skipped FROM requests WHERE destination = ? AND kind = 'skip' AND skipped_offset >= ?"
_LAST_PAUSE = """SELECT kind FROM requests WHERE destination = ? AND kind IN ('pause', 'resume') AND done_at IS NOT NULL
    ORDER BY id DESC LIMIT 1"""
_RECORD_CONDITION = """INSERT INTO conditions (destination, time, content) VALUES (?, ?, ?)
    ON CONFLICT (destination) DO UPDATE SET time = excluded.time, content = excluded.content"""
_NUMBER = "INSERT INTO repositories (repository) VALUES (?) ON CONFLICT DO NOTHING"
_NUMBER_OF = "SELECT number FROM repositories WHERE repository = ?"
_CONDITIONS = "SELECT destination, time, content FROM conditions ORDER BY destination"


# Prefixes of the results of requests that found nothing to do, and of failed ones.
NOTHING, FAILED = "nothing ", "failed: "


class Kind(enum.StrEnum):
    """What an operator may ask of a destination."""

    PAUSE = "pause"
    RESUME = "resume"
    SKIP = "skip"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationRequest:
    """One request of an operator.

    `kind` is one of Kind, or of a newer version. Times are seconds since the epoch.
    """

    id: int
    destination: str
    kind: str
    argument: Mapping[str, Any] | None
    who: str
    asked_at: float
    done_at: float | None
    result: str | None

    @property
    def members(self) -> Mapping[str, Any]:
        """What its kind needs. Raises Rejected if the argument cannot be read."""
        if self.argument is None:
            raise Rejected("the argument of the request cannot be read; ask again")
        return self.argument

    @property
    def has_failed(self) -> bool:
        """Whether the request failed, or found nothing to do."""
        return (self.result or "").startswith((NOTHING, FAILED))


class StateDatabase:
    """The database, made when missing; each thread opens its own connection.

    Opening it raises BadConfig or Unavailable; once it is open, methods raise Unavailable.
    """

    def __init__(self, path: str) -> None:
        self._db = Database(path, "notifier.state", _SCHEMA)

    def ask(self, destination: str, kind: Kind, argument: Mapping[str, Any], *, who: str, now: float) -> int:
        """Record the request and return its number; durable on return."""
        cursor = self._db.run(_ASK, (destination, kind.value, json.dumps(argument, sort_keys=True), who, now))
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def open_requests(self, destination: str) -> list[DestinationRequest]:
        """Return the requests that are not done, oldest first."""
        return [_request(row) for row in self._db.rows(_OPEN, (destination,))]

    def request(self, number: int) -> DestinationRequest:
        """Return one request by its number."""
        [row] = self._db.rows(_ONE, (number,))
        return _request(row)

    def requests(self, limit: int) -> list[DestinationRequest]:
        """Return the newest requests of all destinations, newest first."""
        return [_request(row) for row in self._db.rows(_ALL, (limit,))]

    def done(
        self, number: int, result: str, *, now: float, skipped: str | None = None, skipped_offset: int | None = None
    ) -> None:
        """Record the result of a request.

        For a skip, also record the message's id and the offset of its notice.
        """
        self._db.run(_DONE, (now, result, skipped, skipped_offset, number))

    def skipped(self, destination: str, position: int) -> set[str]:
        """Return the ids of skipped messages from a position on; none may be sent."""
        return {message for (message,) in self._db.rows(_SKIPPED, (destination, position))}

    def paused(self, destination: str) -> bool:
        """Return whether the last pause or resume that was carried out is a pause."""
        return self._db.rows(_LAST_PAUSE, (destination,)) == [(Kind.PAUSE.value,)]

    def record_condition(self, destination: str, content: Mapping[str, Any], *, now: float) -> None:
        """Record the status of a destination, for `destination list`."""
        self._db.run(_RECORD_CONDITION, (destination, now, json.dumps(content, sort_keys=True)))

    def conditions(self) -> dict[str, dict[str, Any]]:
        """Return the last status of each destination, with its `time`."""
        return {name: {**json.loads(content), "time": time} for name, time, content in self._db.rows(_CONDITIONS)}

    def replay_of(self, destination: str, number: int) -> tuple[int, int] | None:
        """Return how many records a replay has read, of how many, as last reported.

        None unless the replay is at work.
        """
        condition = self.conditions().get(destination, {})
        for replay in condition.get("replays", ()):
            if replay["request"] == number:
                return replay["read"], replay["total"]
        return None

    def repository_number(self, repository: str) -> int:
        """Return the number of a repository, durable on return.

        The repository gets it at the first call; no other repository ever gets it.
        """
        if not (rows := self._db.rows(_NUMBER_OF, (repository,))):
            self._db.run(_NUMBER, (repository,))
            rows = self._db.rows(_NUMBER_OF, (repository,))
        [(number,)] = rows
        return int(number)

    def close(self) -> None:
        """Free the database."""
        self._db.close()


def _request(row: Sequence[Any]) -> DestinationRequest:
    number, destination, kind, argument, who, asked_at, done_at, result = row
    return DestinationRequest(
        id=number,
        destination=destination,
        kind=kind,
        argument=_read_argument(argument),
        who=who,
        asked_at=asked_at,
        done_at=done_at,
        result=result,
    )


def _read_argument(text: str) -> Mapping[str, Any] | None:
    """Return the argument of a request; None if it cannot be read."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None

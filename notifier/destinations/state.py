# SPDX-License-Identifier: GPL-2.0-or-later
"""Operators' requests to destinations and their status, in a small SQLite file."""

import enum
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from hgext.vcsreplicator.log.requests import COLUMNS, RequestTable
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.shape import Count, Time, extensible

from ..clients.database import Database

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS requests (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    destination TEXT NOT NULL,
    {COLUMNS},
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
_SKIPPED = "SELECT skipped FROM requests WHERE destination = ? AND kind = 'skip' AND skipped_offset >= ?"
_LAST_PAUSE = """SELECT kind FROM requests WHERE destination = ? AND kind IN ('pause', 'resume')
    ORDER BY id DESC LIMIT 1"""
# The members of `RequestRecord`, in their order.
_RECORDS = """SELECT kind, argument, who, asked_at, done_at, result, skipped, skipped_offset FROM requests
    WHERE destination = ? ORDER BY id"""
_SAME = """SELECT id, done_at FROM requests WHERE destination = ? AND kind = ? AND who = ? AND asked_at = ?
    ORDER BY done_at IS NOT NULL, id"""
_RESTORE = """INSERT INTO requests (id, kind, argument, who, asked_at, done_at, result, skipped, skipped_offset, destination)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_BELOW = "SELECT min(id) - 1 FROM requests"
_RESTORE_ANSWER = (
    "UPDATE requests SET argument = ?, done_at = ?, result = ?, skipped = ?, skipped_offset = ? WHERE id = ?"
)
_RECORD_CONDITION = """INSERT INTO conditions (destination, time, content) VALUES (?, ?, ?)
    ON CONFLICT (destination) DO UPDATE SET time = excluded.time, content = excluded.content"""
_FORMER_NUMBERS = "SELECT repository, number FROM repositories"
_CONDITIONS = "SELECT destination, time, content FROM conditions ORDER BY destination"


class Kind(enum.StrEnum):
    """What an operator may ask of a destination."""

    PAUSE = "pause"
    RESUME = "resume"
    SKIP = "skip"
    REPLAY = "replay"
    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"
    PAUSE_SUBSCRIPTION = "pause-subscription"
    RESUME_SUBSCRIPTION = "resume-subscription"
    ROTATE_SUBSCRIPTION = "rotate-subscription"
    REDELIVER = "redeliver"
    TEST_SUBSCRIPTION = "test-subscription"


# The kinds that concern what a webhook destination keeps.
OF_WEBHOOKS = frozenset(
    {
        Kind.SUBSCRIBE,
        Kind.UNSUBSCRIBE,
        Kind.PAUSE_SUBSCRIPTION,
        Kind.RESUME_SUBSCRIPTION,
        Kind.ROTATE_SUBSCRIPTION,
        Kind.REDELIVER,
        Kind.TEST_SUBSCRIPTION,
    }
)
# The member of a request's argument that may hold secrets, in headers and keys: no answered request has it.
SUBSCRIPTION = "subscription"


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """A request of an operator. Topic `notifier`, key `request/DESTINATION/TIME-KIND`; `argument` is JSON.

    A skip has the id of the skipped message and the offset of its notice.
    """

    kind: str
    argument: str
    who: str
    asked_at: Time
    done_at: Time | None = None
    result: str | None = None
    skipped: str | None = None
    skipped_offset: Count | None = None


class StateDatabase(Database):
    """The database, made when missing; each thread opens its own connection.

    Opening it raises BadConfig or Unavailable; once it is open, methods raise Unavailable. A request of `requests` has one of Kind.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, "notifier.state", _SCHEMA)
        self.requests = RequestTable(self.rows, "destination")

    def list_records(self, destination: str) -> list[RequestRecord]:
        """Return all requests to a destination for the log, oldest first."""
        names = [member.name for member in fields(RequestRecord)]
        rows = self.rows(_RECORDS, (destination,))
        return [RequestRecord(**dict(zip(names, row, strict=True))) for row in rows]

    def restore_requests(self, destination: str, records: Iterable[RequestRecord]) -> None:
        """Add the requests that are missing here, and the missing answers; all or nothing.

        `records` come in the order of the log. One that is missing, and was answered there before another that is here, does not
        become the last one here: another machine's notifier carried it out before.
        """
        newer, is_here = list[RequestRecord](), False
        with self.writing():
            for each in reversed(list(records)):
                columns = tuple(getattr(each, member.name) for member in fields(each))
                known = self.rows(_SAME, (destination, each.kind, each.who, each.asked_at))
                if known and known[0][1] is None and each.done_at is not None:
                    self.run(_RESTORE_ANSWER, (each.argument, *columns[4:], known[0][0]))
                elif not known and is_here and each.done_at is not None:
                    self.run(_RESTORE, (self.rows(_BELOW)[0][0], *columns, destination))
                elif not known:
                    newer.append(each)
                is_here = is_here or bool(known)
            for each in reversed(newer):
                self.run(_RESTORE, (None, *(getattr(each, member.name) for member in fields(each)), destination))

    def find_request(self, destination: str, record: RequestRecord) -> int:
        """Return the number of a request that is here."""
        [(number, _)] = self.rows(_SAME, (destination, record.kind, record.who, record.asked_at))
        return int(number)

    def skipped(self, destination: str, position: int) -> set[str]:
        """Return the ids of skipped messages from a position on; none may be sent."""
        return {message for (message,) in self.rows(_SKIPPED, (destination, position))}

    def paused(self, destination: str) -> bool:
        """Return whether the last pause or resume is a pause.

        It takes effect before it is answered, which waits for the log.
        """
        return self.rows(_LAST_PAUSE, (destination,)) == [(Kind.PAUSE.value,)]

    def record_condition(self, destination: str, content: Mapping[str, Any], *, now: float) -> None:
        """Record the status of a destination, for `destination list`."""
        self.run(_RECORD_CONDITION, (destination, now, json.dumps(content, sort_keys=True)))

    def conditions(self) -> dict[str, dict[str, Any]]:
        """Return the last status of each destination, with its `time`."""
        found = {}
        for name, time, content in self.rows(_CONDITIONS):
            try:
                found[name] = {**json.loads(content), "time": time}
            except (TypeError, ValueError, RecursionError) as error:
                wrong = f"the status of {name!r} is damaged ({error}), expected a JSON object: restore the file"
                raise Unavailable(f"notifier.state: {wrong}") from error
        return found

    def replay_of(self, destination: str, number: int) -> tuple[int, int] | None:
        """Return how many records a replay has read, of how many, as last reported.

        None unless the replay is at work.
        """
        condition = self.conditions().get(destination, {})
        for replay in condition.get("replays", ()):
            if replay["request"] == number:
                return replay["read"], replay["total"]
        return None

    def former_numbers(self) -> dict[str, int]:
        """Return the numbers of repositories that were kept here before the log had them."""
        return dict(self.rows(_FORMER_NUMBERS))

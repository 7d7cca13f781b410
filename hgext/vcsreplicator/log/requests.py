# SPDX-License-Identifier: GPL-2.0-or-later
"""Operators' requests to a service, in a table of its SQLite database.

A request is a row of the table `requests` that names who asked and when. The service carries it out and writes the result into the
same row, so the table is also the record. A request whose service is killed in the middle is carried out again.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..words.errors import Rejected

# The columns of the table, but for its key `id`, and for the name of what a request concerns.
COLUMNS = """kind TEXT NOT NULL, argument TEXT NOT NULL, who TEXT NOT NULL, asked_at REAL NOT NULL,
    done_at REAL, result TEXT"""
# Prefixes of the results of requests that found nothing to do, and of failed ones.
NOTHING, FAILED = "nothing ", "failed: "


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """One request of an operator, which concerns `subject`; a row of the table.

    The service knows `kind`, or it is of a newer version. Times are seconds since the epoch.
    """

    id: int
    subject: str
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


class RequestTable:
    """The table, whose column `subject` names what a request concerns.

    `execute` executes a statement, durably, and returns its rows; its errors reach the caller.
    """

    def __init__(self, execute: Callable[[str, Sequence[Any]], list[Any]], subject: str) -> None:
        self._execute, self._subject = execute, subject
        self._select = f"SELECT id, {subject}, kind, argument, who, asked_at, done_at, result FROM requests"

    def ask(self, subject: str, kind: str, argument: Mapping[str, Any], *, who: str, now: float) -> int:
        """Record the request and return its number; durable on return."""
        insert = (
            f"INSERT INTO requests ({self._subject}, kind, argument, who, asked_at) VALUES (?, ?, ?, ?, ?) RETURNING id"
        )
        [(number,)] = self._execute(insert, (subject, kind, json.dumps(argument, sort_keys=True), who, now))
        return int(number)

    def list_open(self, subject: str | None = None) -> list[OperatorRequest]:
        """List the requests that are not done, of one subject or of all, oldest first."""
        if subject is None:
            return self._select_requests("WHERE done_at IS NULL ORDER BY id")
        return self._select_requests(f"WHERE {self._subject} = ? AND done_at IS NULL ORDER BY id", subject)

    def read(self, number: int) -> OperatorRequest:
        [request] = self._select_requests("WHERE id = ?", number)
        return request

    def list_newest(self, limit: int, subject: str | None = None) -> list[OperatorRequest]:
        """List the newest requests about a subject, by default about all, newest first."""
        wanted = f"WHERE {self._subject} = coalesce(?, {self._subject})"
        return self._select_requests(f"{wanted} ORDER BY id DESC LIMIT ?", subject, limit)

    def answer(self, number: int, result: str, *, now: float) -> None:
        """Record the result of a request; durable on return."""
        self._execute("UPDATE requests SET done_at = ?, result = ? WHERE id = ?", (now, result, number))

    def _select_requests(self, condition: str, *values: object) -> list[OperatorRequest]:
        return [
            OperatorRequest(number, subject, kind, _read_argument(argument), *rest)
            for number, subject, kind, argument, *rest in self._execute(f"{self._select} {condition}", values)
        ]


def _read_argument(text: str) -> Mapping[str, Any] | None:
    """Return the argument of a request; None if it cannot be read."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None

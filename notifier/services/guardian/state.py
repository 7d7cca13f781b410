# SPDX-License-Identifier: GPL-2.0-or-later
"""The guardian's memory, in one small SQLite database.

It has the filling of queues as last mailed to owners, deletions that began, reports that wait to be mailed, and when the last
complete round ended. All SQL of the database is in this file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...clients.database import Database
from .filling import Filling

_SCHEMA = """
CREATE TABLE IF NOT EXISTS levels (queue TEXT PRIMARY KEY, level INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS deletions (queue TEXT PRIMARY KEY, owner TEXT NOT NULL, messages INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS reports (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    owner TEXT NOT NULL,
    queue TEXT NOT NULL,
    what TEXT NOT NULL,
    messages INTEGER NOT NULL,
    time REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS rounds (id INTEGER PRIMARY KEY CHECK (id = 1), time REAL NOT NULL);
"""
_FILLINGS = "SELECT queue, level FROM levels"
_SET_FILLING = "INSERT INTO levels VALUES (?, ?) ON CONFLICT (queue) DO UPDATE SET level = excluded.level"
_FORGET = "DELETE FROM levels WHERE queue = ?"
_BEGIN_DELETION = """INSERT INTO deletions VALUES (?, ?, ?)
    ON CONFLICT (queue) DO UPDATE SET owner = excluded.owner, messages = excluded.messages"""
_DELETIONS = "SELECT queue, owner, messages FROM deletions ORDER BY queue"
_END_DELETION = "DELETE FROM deletions WHERE queue = ?"
_REPORT = "INSERT INTO reports (owner, queue, what, messages, time) VALUES (?, ?, ?, ?, ?)"
_REPORTS = "SELECT id, owner, queue, what, messages, time FROM reports ORDER BY owner, id"
_MAILED = "DELETE FROM reports WHERE id = ?"
_ADDRESS = "UPDATE reports SET owner = ? WHERE id = ?"
_END_ROUND = "INSERT INTO rounds VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET time = excluded.time"
_LAST_ROUND = "SELECT time FROM rounds"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReport:
    """A fact that an owner is to read; `time` in seconds since the epoch."""

    id: int
    owner: str
    queue: str
    what: str
    messages: int
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDeletion:
    """A deletion that began: whether the broker carried it out is unknown."""

    queue: str
    owner: str
    messages: int


class GuardianState:
    """The database; each method is one transaction, and raises Unavailable."""

    def __init__(self, path: str) -> None:
        """Open the database, or make it; raise BadConfig or Unavailable."""
        self._db = Database(path, "guardian.state", _SCHEMA)

    def fillings(self) -> dict[str, Filling]:
        """Return how full queues are as their owners know; other queues are fine."""
        return {queue: Filling(number) for queue, number in self._db.rows(_FILLINGS)}

    def record(self, queue: str, filling: Filling, report: tuple[str, str, int] | None, now: float) -> None:
        """Store how full a queue is, and with it the report (owner, what, messages)."""
        with self._db.writing():
            self._db.run(*((_SET_FILLING, (queue, filling)) if filling else (_FORGET, (queue,))))
            if report is not None:
                owner, what, messages = report
                self._db.run(_REPORT, (owner, queue, what, messages, now))

    def forget(self, queues: Sequence[str]) -> None:
        """Forget how full queues were that are gone."""
        with self._db.writing():
            self._db.run_all(_FORGET, [(queue,) for queue in queues])

    def begin_deletion(self, deletion: QueueDeletion) -> None:
        """Record a deletion, before the guardian asks the broker for it."""
        self._db.run(_BEGIN_DELETION, (deletion.queue, deletion.owner, deletion.messages))

    def deletions(self) -> list[QueueDeletion]:
        """Return the deletions that began and did not end."""
        rows = self._db.rows(_DELETIONS)
        return [QueueDeletion(queue=queue, owner=owner, messages=messages) for queue, owner, messages in rows]

    def end_deletion(self, deletion: QueueDeletion, what: str | None, now: float) -> None:
        """Forget the deletion.

        With `what`, the same transaction stores the report of it and forgets how full the queue was.
        """
        with self._db.writing():
            self._db.run(_END_DELETION, (deletion.queue,))
            if what is not None:
                self._db.run(_FORGET, (deletion.queue,))
                self._db.run(_REPORT, (deletion.owner, deletion.queue, what, deletion.messages, now))

    def reports(self) -> Mapping[str, list[QueueReport]]:
        """Return the reports that were not mailed, by owner."""
        found: dict[str, list[QueueReport]] = {}
        for id_, owner, queue, what, messages, time in self._db.rows(_REPORTS):
            report = QueueReport(id=id_, owner=owner, queue=queue, what=what, messages=messages, time=time)
            found.setdefault(owner, []).append(report)
        return found

    def forget_reports(self, reports: Sequence[QueueReport]) -> None:
        """Forget reports that the mail server took, or refused for good."""
        with self._db.writing():
            self._db.run_all(_MAILED, [(report.id,) for report in reports])

    def readdress(self, reports: Sequence[QueueReport], owner: str) -> None:
        """Give reports to another address."""
        with self._db.writing():
            self._db.run_all(_ADDRESS, [(owner, report.id) for report in reports])

    def end_round(self, now: float) -> None:
        self._db.run(_END_ROUND, (now,))

    def last_round(self) -> float | None:
        """Return when the last complete round ended; None if there was none."""
        rows = self._db.rows(_LAST_ROUND)
        return float(rows[0][0]) if rows else None

    def close(self) -> None:
        self._db.close()

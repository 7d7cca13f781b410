# SPDX-License-Identifier: GPL-2.0-or-later
"""How far each repository was followed: a small SQLite database, and all its SQL."""

from collections.abc import Iterable, Sequence
from typing import Any

from ...clients.database import Database
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
_SELECT_ALL = "SELECT number, url, last, tip FROM repositories"
_ADVANCE = "UPDATE repositories SET last = ?, tip = ? WHERE number = ?"
_BEGIN_ANEW = "REPLACE INTO repositories (url, last) VALUES (?, 0) RETURNING number, url, last, tip"


class PollDatabase(Database):
    """The database, created if missing; used by the thread that opened it.

    To open it raises BadConfig or Unavailable. Every other call may raise Unavailable.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, KEY, _SCHEMA)

    def add(self, urls: Sequence[str], last: int) -> list[Followed]:
        """Give each new repository a number and this position; return all of `urls`."""
        with self.writing():
            self.run_all(_ADD, [(url, last) for url in urls])
            known = {row[1]: _read_followed(row) for row in self.rows(_SELECT_ALL)}
        return [known[url] for url in urls]

    def advance(self, positions: Iterable[Followed]) -> None:
        """Store these positions; durable on return."""
        with self.writing():
            self.run_all(_ADVANCE, [(each.last, each.tip, each.number) for each in positions])

    def begin_anew(self, followed: Followed) -> Followed:
        """Give the repository at this URL a new number, with nothing sent."""
        [row] = self.rows(_BEGIN_ANEW, (followed.url,))
        return _read_followed(row)


def _read_followed(row: Sequence[Any]) -> Followed:
    number, url, last, tip = row
    return Followed(number=number, url=url, last=last, tip=tip)

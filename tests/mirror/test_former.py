# SPDX-License-Identifier: GPL-2.0-or-later
"""The notes of a former release of a mirror."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hgext.vcsreplicator.mirror.notes import DeletedRepository, Detached, Notes
from hgext.vcsreplicator.words.records import Reason

FORMER = """
CREATE TABLE IF NOT EXISTS detached (
    repository TEXT PRIMARY KEY, path TEXT NOT NULL, partition INTEGER NOT NULL, offset INTEGER NOT NULL,
    reason TEXT NOT NULL, note TEXT NOT NULL, since REAL NOT NULL, attempts INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS gone (
    repository TEXT PRIMARY KEY, path TEXT NOT NULL, incarnation TEXT NOT NULL, seq INTEGER NOT NULL, since REAL NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS wishes (repository TEXT PRIMARY KEY, since REAL NOT NULL) STRICT;
"""
REQUEST = "INSERT OR REPLACE INTO wishes VALUES (?, ?)"


@pytest.fixture
def former(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "mirror.db", isolation_level=None)) as database:
        database.executescript(FORMER)
        yield database


def test_notes_and_heal_requests_of_a_former_release_are_kept(former: sqlite3.Connection, tmp_path: Path) -> None:
    former.execute("INSERT INTO detached VALUES ('r', 'one', 0, 5, 'gap', 'seq 3 is missing', 1.0, 2)")
    former.execute("INSERT INTO gone VALUES ('d', 'two', 'i', 3, 1.0)")
    former.execute(REQUEST, ("r", 7.0))
    for _ in range(2):
        with closing(Notes(tmp_path / "mirror.db")) as notes:
            [request] = notes.requests.list_open()
            assert (request.subject, request.kind, request.asked_at, request.who) == ("r", "heal", 7.0, "unknown")
            detached = Detached(
                repository="r",
                path="one",
                partition=0,
                offset=5,
                reason=Reason.GAP,
                note="seq 3 is missing",
                since=1.0,
                attempts=2,
            )
            assert notes.detached() == [detached]
            assert notes.deleted() == [DeletedRepository(repository="d", path="two", incarnation="i", seq=3, since=1.0)]


def test_a_former_release_goes_on_with_the_notes(former: sqlite3.Connection, tmp_path: Path) -> None:
    with closing(Notes(tmp_path / "mirror.db")) as notes:
        notes.request_heal("r", who="dana", now=1.0)
    former.executescript(FORMER)
    former.execute(REQUEST, ("s", 2.0))
    with closing(Notes(tmp_path / "mirror.db")) as notes:
        assert [(request.subject, request.who) for request in notes.requests.list_open()] == [
            ("r", "dana"),
            ("s", "unknown"),
        ]

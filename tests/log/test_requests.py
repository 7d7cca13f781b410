# SPDX-License-Identifier: GPL-2.0-or-later
"""Requests of operators in a table, and their answers."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from hgext.vcsreplicator.log.requests import COLUMNS, RequestTable
from hgext.vcsreplicator.words.errors import Rejected


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as opened:
        opened.execute(f"CREATE TABLE requests (id INTEGER PRIMARY KEY, mirror TEXT NOT NULL, {COLUMNS})")
        yield opened


@pytest.fixture
def table(database: sqlite3.Connection) -> RequestTable:
    return RequestTable(lambda statement, values: database.execute(statement, values).fetchall(), "mirror")


def test_a_request_names_who_asked_and_when_until_it_is_answered(table: RequestTable) -> None:
    number = table.ask("alpha", "pause", {"why": "it is late"}, who="dana", now=1.0)
    [request] = table.list_open("alpha")
    assert request == table.read(number)
    assert (request.subject, request.kind, request.members) == ("alpha", "pause", {"why": "it is late"})
    assert (request.who, request.asked_at, request.done_at, request.result) == ("dana", 1.0, None, None)
    table.answer(number, "paused", now=2.0)
    assert (table.list_open(), table.list_open("alpha")) == ([], [])
    assert (table.read(number).done_at, table.read(number).result) == (2.0, "paused")


def test_open_requests_come_oldest_first_and_those_of_one_subject_alone(table: RequestTable) -> None:
    for name in ("alpha", "beta", "alpha"):
        table.ask(name, "pause", {}, who="dana", now=1.0)
    assert [request.id for request in table.list_open()] == [1, 2, 3]
    assert [request.id for request in table.list_open("alpha")] == [1, 3]
    assert [request.id for request in table.list_newest(2)] == [3, 2]
    assert [request.id for request in table.list_newest(2, "alpha")] == [3, 1]


@pytest.mark.parametrize(
    ("result", "has_failed"), [("paused", False), ("nothing skipped", True), ("failed: full", True)]
)
def test_an_answer_shows_whether_the_request_failed(table: RequestTable, result: str, has_failed: bool) -> None:
    number = table.ask("alpha", "pause", {}, who="dana", now=1.0)
    table.answer(number, result, now=2.0)
    assert table.read(number).has_failed is has_failed


@pytest.mark.parametrize("argument", ["{", "[]", "[" * 100_000])
def test_an_argument_that_cannot_be_read_is_a_reject(
    table: RequestTable, database: sqlite3.Connection, argument: str
) -> None:
    number = table.ask("alpha", "pause", {}, who="dana", now=1.0)
    database.execute("UPDATE requests SET argument = ?", (argument,))
    with pytest.raises(Rejected, match="ask again"):
        _ = table.read(number).members

# SPDX-License-Identifier: GPL-2.0-or-later
"""The worker's database: migrations that are killed, and data that no database takes as it is."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from hgext.vcsreplicator.words.errors import BadConfig, Unavailable
from notifier.clients.secret import Secret
from notifier.messages.pushes import QueuedPush
from notifier.services.work import database
from notifier.services.work.database import ChangesetRecord, RepositoryKey, WorkDatabase

pytestmark = pytest.mark.processes

# Migrates, and ends as at a kill after so many statements that make something.
KILLED = """
import os, sys
from sqlalchemy import Engine, event
from notifier.services.work.database import WorkDatabase

made = []

@event.listens_for(Engine, "after_cursor_execute")
def count(connection, cursor, statement, *_):
    made.append("CREATE" in statement)
    if sum(made) == int(sys.argv[2]):
        os._exit(9)

WorkDatabase(sys.argv[1]).migrate()
"""


@pytest.mark.sample(2)
@pytest.mark.parametrize("statements", [1, 2, 5, 11])
def test_migration_that_was_killed_begins_anew(tmp_path: Path, statements: int) -> None:
    url = f"sqlite:///{tmp_path}/work.db"
    assert subprocess.run([sys.executable, "-c", KILLED, url, str(statements)], check=False).returncode == 9
    with closing(WorkDatabase(url)) as made:
        made.migrate()
        made.check()


A_KEY = RepositoryKey(source="poll", number=1, url="http://127.0.0.1:1/x")


def test_password_that_is_corrected_in_its_file_is_used_without_a_restart(postgresql: Any, tmp_path: Path) -> None:
    place = tmp_path / "password"
    place.write_text("former\n")
    place.chmod(0o600)
    url = postgresql.database().replace(":test@", "@")
    with closing(WorkDatabase(url, Secret(file=str(place)))) as made:
        with pytest.raises(BadConfig, match="password authentication failed"):
            made.migrate()
        place.write_text("test\n")
        made.migrate()


def test_a_connection_to_a_server_that_became_read_only_is_not_used_again(postgresql: Any) -> None:
    """As after a failover: the former server goes on answering reads."""
    url = postgresql.database()
    with closing(WorkDatabase(url)) as made, closing(WorkDatabase(url)) as operator:
        made.migrate()
        with made.reading() as connection:
            demoted = connection.connection.dbapi_connection
            demoted.execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
            demoted.commit()
        with pytest.raises(Unavailable, match="read-only transaction"):
            made.record(A_KEY, [QueuedPush(id=1, date=1, user="dana", changesets=())])
        made.record(A_KEY, [QueuedPush(id=1, date=1, user="dana", changesets=())])
        with operator.reading() as connection:
            assert connection.scalar(text("SELECT count(*) FROM pushes")) == 1


STATES = ["57P01", "57P02", "57P03", "08000", "08003", "08006"]


@pytest.mark.parametrize("state", ["terminated", *STATES])
def test_a_connection_that_the_server_ended_is_not_used_again(postgresql: Any, state: str) -> None:
    """In the middle of a transaction; a proxy in front says some of the states, and keeps its client's connection."""
    url = postgresql.database()
    with closing(WorkDatabase(url)) as made, closing(WorkDatabase(url)) as operator:
        made.migrate()
        with made.reading() as connection:
            former = connection.scalar(PROCESS)
        with pytest.raises(Unavailable):
            lose(made, operator, state)
        with made.reading() as connection:
            assert connection.scalar(PROCESS) != former
        made.record(A_KEY, [QueuedPush(id=1, date=1, user="dana", changesets=())])


PROCESS = text("SELECT pg_backend_pid()")


def lose(database: WorkDatabase, operator: WorkDatabase, state: str) -> None:
    """Use a connection that an operator terminates, or whose server answers with this state."""
    with database.reading() as connection:
        process = connection.scalar(PROCESS)
        if state == "terminated":
            with operator.reading() as other:
                assert other.scalar(text(f"SELECT pg_terminate_backend({process}, 10000)"))
            connection.execute(PROCESS)
        connection.execute(text(f"DO $$ BEGIN RAISE EXCEPTION 'lost' USING ERRCODE = '{state}'; END $$"))


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_is_not_utf_8_is_refused_at_start(postgresql: Any, unique_name: str, encoding: str) -> None:
    with closing(WorkDatabase(postgresql.database())) as server, server.reading() as connection:
        raw = connection.connection.dbapi_connection
        raw.rollback()
        raw.autocommit = True
        raw.execute(f"CREATE DATABASE \"{unique_name}\" TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'")
    url = postgresql.url.rpartition("/")[0] + f"/{unique_name}"
    with (
        closing(WorkDatabase(url)) as made,
        pytest.raises(BadConfig, match=f"keeps texts in {encoding}, expected UTF8"),
    ):
        made.migrate()


def test_statement_that_waits_for_a_lock_ends_as_unavailable(postgresql: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "STATEMENT", "100ms")
    url = postgresql.database()
    with closing(WorkDatabase(url)) as made, closing(WorkDatabase(url)) as other:
        made.migrate()
        with other.writing() as connection:
            connection.execute(text("LOCK TABLE pushes"))
            with pytest.raises(Unavailable, match="statement timeout"):
                made.record(A_KEY, [QueuedPush(id=1, date=1, user="dana", changesets=())])


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", {"keepalive": 1, "idle": 30, "unacknowledged": 60_000, "statement": "1min"}),
        (
            "?keepalives_idle=7&tcp_user_timeout=8000&options=-c%20statement_timeout%3D9s",
            {"keepalive": 1, "idle": 7, "unacknowledged": 8000, "statement": "9s"},
        ),
    ],
    ids=["by default", "as the URL says"],
)
def test_dead_connection_to_postgresql_is_noticed(postgresql: Any, query: str, expected: dict[str, Any]) -> None:
    with closing(WorkDatabase(f"{postgresql.url}{query}")) as made, made.reading() as connection:
        raw = connection.connection.dbapi_connection
        with socket.socket(fileno=os.dup(raw.fileno())) as wire:
            found = {
                "keepalive": wire.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
                "idle": wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
                "unacknowledged": wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
            }
        assert {**found, "statement": connection.scalar(text("SHOW statement_timeout"))} == expected


# -- what is recorded


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/work.db"
    return str(request.getfixturevalue("postgresql").database())


@pytest.fixture
def filled(url: str) -> Iterator[WorkDatabase]:
    with closing(WorkDatabase(url)) as made:
        made.migrate()
        yield made


def a_push(number: int, user: str = "dana", *, date: int | None = None) -> QueuedPush:
    return QueuedPush(id=number, date=number if date is None else date, user=user, changesets=())


def test_old_message_does_not_bring_back_the_former_url_of_a_repository(filled: WorkDatabase) -> None:
    former, present = "https://hg.example/former", "https://hg.example/present"
    for number, place in ((1, former), (5, present), (3, former)):
        filled.record(replace(A_KEY, url=place), [a_push(number)])
    with filled.reading() as connection:
        assert connection.scalars(text("SELECT url FROM repositories")).all() == [present]
        assert connection.scalars(text("SELECT id FROM pushes ORDER BY id")).all() == [1, 3, 5]


def test_later_push_with_a_smaller_number_brings_the_present_url(filled: WorkDatabase) -> None:
    filled.record(A_KEY, [a_push(1000, date=1)])
    filled.record(replace(A_KEY, url="https://hg.example/present"), [a_push(901, date=2)])
    with filled.reading() as connection:
        assert connection.scalars(text("SELECT url FROM repositories")).all() == ["https://hg.example/present"]


def test_more_branches_and_pushes_than_one_statement_takes_are_recorded(
    filled: WorkDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "AT_ONCE", 3)
    nodes = [letter * 40 for letter in "12345678"]
    filled.add_changesets(
        [ChangesetRecord(node=node, author="a", date=1, description="", branch=node, files=()) for node in nodes]
    )
    for count in (2, 1):  # the second time each push has one changeset less
        pushes = [replace(a_push(each), changesets=tuple(nodes[each - 1 : each - 1 + count])) for each in range(1, 8)]
        filled.record(A_KEY, pushes)
    with filled.reading() as connection:
        members = connection.execute(text("SELECT push_id, node FROM push_changesets ORDER BY push_id")).all()
    assert [tuple(row) for row in members] == list(enumerate(nodes[:7], 1))
    assert filled.known(nodes) == set(nodes)


def test_text_that_is_no_unicode_is_recorded_with_a_replacement(filled: WorkDatabase) -> None:
    odd = "a\ud800\0b"
    node = "a" * 40
    filled.add_changesets([ChangesetRecord(node=node, author=odd, date=1, description=odd, branch=odd, files=(odd,))])
    filled.record(A_KEY, [a_push(1, odd)])
    with filled.reading() as connection:
        found = [
            *connection.execute(text("SELECT author, description FROM changesets")).one(),
            connection.scalar(text("SELECT name FROM branches")),
            connection.scalar(text("SELECT path FROM files")),
            connection.scalar(text('SELECT "user" FROM pushes')),
        ]
    assert found == ["a\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}b"] * 5

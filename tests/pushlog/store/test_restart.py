# SPDX-License-Identifier: GPL-2.0-or-later
"""After a power cut any page of SQLite that was not synced may be an old one: every push is there again, without an operator."""

import itertools
import os
import random
import sqlite3
from contextlib import closing

import pytest
from mercurial import error

from pushlog import checking
from pushlog.store import boot, database, derivation, disk, entry
from pushlog.store import restart as restart_module
from pushlog.store.session import session_of
from pushlog.store.storage import Pushlog
from testing.faults import SEED, told_with_seed

pytestmark = pytest.mark.processes

PAGE = 4096


@pytest.fixture
def restart(monkeypatch):
    """Let the machine have been started anew."""
    numbers = itertools.count(1 << 30)

    def restart(number=None):
        number = next(numbers) if number is None else number
        monkeypatch.setattr(boot, "number", lambda: number)

    restart()
    return restart


@pytest.fixture
def server(server, restart):
    """Three pushes of a boot of the test; in the files that tests share they are of the machine's."""
    server.sql(f"PRAGMA user_version = {boot.number()}")
    return server


def file(server):
    return server.folder / ".hg" / "pushlog2.db"


def noted(server):
    with closing(sqlite3.connect(file(server))) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]


def lose(server, *ids):
    """Remove the rows of pushes, and what tells that they were removed."""
    for number in ids:
        server.sql("DELETE FROM changesets WHERE pushid = ?", number)
        server.sql("DELETE FROM pushlog WHERE id = ?", number)
    server.sql("DELETE FROM pushlog_edit")


def asked(server):
    """What readers find, by push and by changeset."""
    rows = server.rows()
    with Pushlog(server.repository).view() as connection:
        found = {node: database.push_id_of(connection, node) for _user, nodes in rows.values() for node in nodes}
    return rows, found


def in_tables(server):
    """What tools find in the database."""
    with closing(sqlite3.connect(file(server))) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        pushes = connection.execute("SELECT id, user FROM pushlog ORDER BY id").fetchall()
        nodes = connection.execute("SELECT pushid, node FROM changesets ORDER BY pushid, rev").fetchall()
    return {number: (user, [node for push, node in nodes if push == number]) for number, user in pushes}


def mixed(before, after):
    """Every file that has some of the changed pages and lacks others, the changed ones last."""
    before = before.ljust(len(after), b"\0")
    starts = [
        start for start in range(0, len(after), PAGE) if before[start : start + PAGE] != after[start : start + PAGE]
    ]
    for taken in itertools.product((False, True), repeat=len(starts)):
        content = bytearray(after)
        for start, is_new in zip(starts, taken, strict=True):
            if not is_new:
                content[start : start + PAGE] = before[start : start + PAGE]
        yield bytes(content)


def drawn(contents, count):
    """The first, in which nothing is new, the last, in which everything is, and others by chance."""
    return [contents[0], *random.Random(SEED).sample(contents[1:-1], count or len(contents) - 2), contents[-1]]


COUNTS = pytest.mark.parametrize("count", [30, pytest.param(None, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])


@pytest.fixture
def torn(place, server, restart):
    """The database as a power cut during the last of a hundred pushes may have left it, in every way."""
    source, log = place("source"), Pushlog(server.repository)
    with log.repo.lock(), log.repo.transaction(b"test") as tr:
        session = session_of(log, tr)
        for number in range(4, 100):
            session.insert(entry.Push(id=number, user="bob", date=number, nodes=()))
    before = file(server).read_bytes()
    for name in (b"d", b"e", b"f"):
        source.commit(name)
    source.push_to(server)
    after = file(server).read_bytes()
    restart()
    return server, list(mixed(before, after))


@COUNTS
def test_a_reader_sees_every_push_whatever_pages_were_lost(torn, count):
    server, contents = torn
    expected = asked(server)
    mended = 0
    chosen = drawn(contents, count)
    for content in chosen:
        with told_with_seed(f"of {len(contents)}"):
            file(server).write_bytes(content)
            assert asked(server) == expected
            if noted(server) == boot.ON_DISK:
                rows = in_tables(server)
                rows.setdefault(100, expected[0][100])  # it may lag behind the file
                assert rows == expected[0]
                mended += 1
    assert 1 < mended < len(chosen)  # a reader leaves a database that SQLite calls damaged to the next writer


@COUNTS
def test_a_push_restores_every_push_whatever_pages_were_lost(torn, count):
    server, contents = torn
    expected, log = server.rows(), server.folder / ".hg" / "store" / "pushlog.log"
    facts = log.read_bytes()
    for content in drawn(contents, count):
        with told_with_seed(f"of {len(contents)}"):
            file(server).write_bytes(content)
            log.write_bytes(facts)
            record(server)
            assert in_tables(server) == {**expected, 101: ("carol", [])}
            file(server).unlink()
            assert server.rows() == {**expected, 101: ("carol", [])}


def record(server, user="carol"):
    """Record a push without changesets."""
    log = Pushlog(server.repository)
    with log.repo.lock(), log.repo.transaction(b"test") as tr:
        session_of(log, tr).record(user, 1500000000, ())


def test_a_restart_that_lost_nothing_keeps_edits_and_says_nothing(place, server, restart):
    server.sql("UPDATE pushlog SET user = 'eve' WHERE id = 1")
    restart()
    assert server.rows()[1][0] == "eve"
    restart()
    said = push(place)
    assert b"pushlog2.db" not in said
    file(server).unlink()
    assert server.rows()[1][0] == "eve"


def push(place, name=b"d"):
    """Push a changeset more, and return what the pusher reads."""
    source = place("source")
    source.commit(name)
    source.push_to(place("server"))
    return source.printed.getvalue()


def test_a_push_after_a_loss_says_once_that_it_derives_the_database_again(place, server, restart):
    lose(server, 2)
    restart()
    assert push(place).count(restart_module.DERIVED_AGAIN) == 1
    assert list(server.rows()) == [1, 2, 3, 4]
    lose(server, 2)
    assert restart_module.DERIVED_AGAIN not in push(place, b"e")


@pytest.mark.parametrize("reads_first", [True, False])
def test_changesets_pulled_in_another_order_are_no_loss(place, server, restart, reads_first):
    source, client = place("source"), place("client")
    first, newest = server.rows()[1][1][0], server.rows()[3][1][0]
    source.commit(b"d", onto=bytes.fromhex(first))
    late = source.commit(b"e", onto=bytes.fromhex(newest))
    source.push_to(server)
    client.pull_from(server, late)
    client.pull_from(server)
    assert client.rows()[4][1] == server.rows()[4][1][::-1]
    client.sql("UPDATE pushlog SET user = 'eve' WHERE id = 2")
    restart()
    if reads_first:
        assert client.rows()[2][0] == "eve"
    record(client)
    assert client.rows()[2][0] == "eve"


@pytest.mark.parametrize("reads_first", [True, False])
def test_a_loss_drops_edits_of_known_pushes_alone(server, restart, reads_first):
    expected = {**server.rows(), 8: ("operator", [])}
    lose(server, 2)
    server.sql("UPDATE pushlog SET user = 'eve' WHERE id = 3")
    server.sql("INSERT INTO pushlog VALUES (8, 'operator', 1)")
    restart()
    if reads_first:
        assert server.rows() == expected
    record(server)
    file(server).unlink()
    assert server.rows() == {**expected, 9: ("carol", [])}


@pytest.mark.parametrize("byte", [5, 120, -20])
@pytest.mark.parametrize("reads_first", [True, False])
def test_a_damaged_file_and_a_loss_in_the_database_together_lose_no_push(server, restart, reads_first, byte):
    expected, log = server.rows(), server.folder / ".hg" / "store" / "pushlog.log"
    content = bytearray(log.read_bytes())
    content[byte] ^= 1
    log.write_bytes(content)
    lose(server, 2 if byte == -20 else 3)
    restart()
    if reads_first and byte == -20:
        assert server.rows() == expected
    record(server)
    expected[4] = ("carol", [])
    assert server.rows() == expected
    file(server).unlink()
    assert server.rows() == expected


def test_a_damaged_record_beyond_the_databases_state_is_kept(place, server, restart):
    """The page that says up to where the tables are derived was lost, and a row before it, too."""
    with closing(sqlite3.connect(file(server))) as connection:
        state = connection.execute("SELECT position, fingerprint FROM pushlog_state").fetchone()
    record(server)
    push(place)
    expected, log = server.rows(), server.folder / ".hg" / "store" / "pushlog.log"
    content = bytearray(log.read_bytes())
    content[-20] ^= 1
    log.write_bytes(content)
    server.sql("UPDATE pushlog_state SET position = ?, fingerprint = ?", *state)
    lose(server, 2)
    restart()
    record(server)
    assert server.rows() == {**expected, 6: ("carol", [])}


def test_pushes_that_a_power_cut_took_from_the_file_are_recorded_again(place, server, restart):
    log = server.folder / ".hg" / "store" / "pushlog.log"
    older = log.read_bytes()
    push(place)
    expected = server.rows()
    log.write_bytes(older)
    restart()
    said = push(place, b"e")
    assert said.count(derivation.RECOVERED % 4) == 1
    rows = server.rows()
    assert {**expected, 5: rows[5]} == rows
    assert server.errors() == []
    file(server).unlink()
    assert server.rows() == rows


def test_a_push_of_another_file_is_not_replaced_after_a_restart(place, server, restart):
    log = server.folder / ".hg" / "store" / "pushlog.log"
    older, database = log.read_bytes(), file(server).read_bytes()
    push(place)
    newer = file(server).read_bytes()
    log.write_bytes(older)
    file(server).write_bytes(database)
    record(server)
    file(server).write_bytes(newer)
    restart()
    with pytest.raises(error.Abort, match=r"pushlog\.log lacks push 4, which pushlog2.db has"):
        record(server)


def test_the_id_of_a_deleted_push_is_not_used_again_after_a_loss(server, restart):
    server.sql("DELETE FROM changesets WHERE pushid = 3")
    server.sql("DELETE FROM pushlog WHERE id = 3")
    log = Pushlog(server.repository)
    with log.repo.lock(), log.repo.transaction(b"test") as tr:
        session_of(log, tr)
    server.sql("UPDATE sqlite_sequence SET seq = 2")
    restart()
    record(server)
    assert list(server.rows()) == [1, 2, 4]


@pytest.mark.parametrize(
    "loss",
    ["UPDATE changesets SET rev = 70 WHERE rev = 1", "UPDATE changesets SET pushid = 70, rev = NULL WHERE rev = 1"],
)
def test_changesets_without_their_push_or_its_number_are_put_right(server, restart, loss):
    before = in_tables(server)
    server.sql(loss)
    server.sql("DELETE FROM pushlog_edit")
    restart()
    assert server.rows() == before
    with closing(sqlite3.connect(file(server))) as connection:
        found = connection.execute("SELECT pushid, rev FROM changesets ORDER BY rev").fetchall()
    assert found == [(1, 0), (2, 1), (3, 2)]


def test_a_changeset_of_a_push_that_is_nowhere_leaves_the_database(server, restart):
    server.sql("INSERT INTO changesets VALUES (70, NULL, ?)", "7" * 40)
    server.sql("DELETE FROM pushlog_edit")
    restart()
    server.rows()
    with closing(sqlite3.connect(file(server))) as connection:
        assert connection.execute("SELECT max(pushid) FROM changesets").fetchone() == (3,)


def test_the_database_of_an_older_release_is_checked_by_the_next_writer(place, server):
    lose(server, 2)
    server.sql("PRAGMA user_version = 0")
    assert list(server.rows()) == [1, 3]
    push(place)
    assert list(server.rows()) == [1, 2, 3, 4]
    assert noted(server) == boot.number()


def test_a_system_that_does_not_tell_its_boots_checks_nothing(place, server, restart):
    lose(server, 2)
    restart(boot.UNKNOWN)
    push(place)
    assert list(server.rows()) == [1, 3, 4]
    assert noted(server) == boot.UNKNOWN


def synchronous(server):
    """How the next transaction without a sync of its own is committed, as SQLite numbers it."""
    log = Pushlog(server.repository)
    with log.repo.lock(), log.repo.transaction(b"test") as tr:
        session = session_of(log, tr)
        session.record("carol", 1500000000, ())
        return session.connection.execute("PRAGMA synchronous").fetchone()[0]


def test_only_the_first_commit_after_everything_was_on_disk_is_synced(server, restart):
    assert synchronous(server) == 0
    assert checking.repairpushlog(server.repository.ui, server.repository) == 0
    assert noted(server) == boot.ON_DISK
    assert [synchronous(server), synchronous(server)] == [1, 0]
    assert noted(server) == boot.number()
    restart()
    server.rows()
    assert noted(server) == boot.ON_DISK
    assert [synchronous(server), synchronous(server)] == [1, 0]
    restart()
    assert synchronous(server) == 0


def test_a_synced_transaction_notes_that_everything_is_on_disk(server):
    log = Pushlog(server.repository)
    with log.repo.lock(), log.repo.transaction(b"test") as tr:
        disk.request_sync(tr)
        session_of(log, tr).record("carol", 1500000000, ())
    assert noted(server) == boot.ON_DISK


def test_a_reader_does_not_wait_for_a_writer_to_check(server, restart, monkeypatch):
    monkeypatch.setattr(restart_module, "_TIMEOUT_MS", 1)
    expected = server.rows()
    lose(server, 2)
    restart()
    with closing(sqlite3.connect(file(server), isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert server.rows() == expected
    assert noted(server) != boot.ON_DISK
    assert server.rows() == expected
    assert noted(server) == boot.ON_DISK


@pytest.mark.parametrize("hinders", ["access", "owner"])
def test_a_process_that_may_not_write_compares_a_database_once(server, restart, monkeypatch, system, hinders):
    compared, find = [], restart_module._find_difference
    if hinders == "access":
        monkeypatch.setattr(os, "access", lambda *_: False)
    else:
        system.become(os.stat(file(server)).st_uid + 1)
    monkeypatch.setattr(
        restart_module, "_find_difference", lambda *given: compared.append(find(*given)) or compared[-1]
    )
    expected = server.rows()
    restart()
    assert [server.rows(), server.rows()] == [expected, expected]
    assert compared == [False]
    lose(server, 2)
    assert [server.rows(), server.rows()] == [expected, expected]
    assert compared == [False, True, True]


def test_a_boot_has_a_number_that_is_neither_of_the_others():
    assert boot.number() > 1 << 29 > max(boot.UNKNOWN, boot.ON_DISK)
    assert boot.number() < 1 << 31

# SPDX-License-Identifier: GPL-2.0-or-later
"""Several writers of one pushlog, and SQLite behind its file: no push is lost, in any order of writes."""

import json
import os
import sqlite3
import time

import pytest
from mercurial import error, exchange, repair

from pushlog import api, checking, stripping
from pushlog.store import database, entry
from pushlog.store.session import PushlogTransaction, session_of
from pushlog.store.storage import Pushlog
from pushlog.versions import factory

pytestmark = pytest.mark.processes


def lag(server, push):
    """Record a push as a process that was killed before SQLite's commit, or could not commit because of a reader."""
    log = Pushlog(server.repository)
    with log.repo.lock(), log.repo.transaction(b"test") as tr:
        log.file.append(tr, [entry.encode(push)])


def test_a_push_that_sqlite_lacks_outlasts_a_row_put_under_its_id(place, server):
    [_first, _second, (_user, [third])] = server.rows().values()
    server.sql("DELETE FROM changesets WHERE pushid = 3")
    server.sql("DELETE FROM pushlog WHERE id = 3")
    server.sql("DELETE FROM pushlog_edit")
    lag(server, entry.Push(id=3, user="bob", date=1500000000, nodes=(third,)))
    server.sql("INSERT INTO pushlog VALUES (3, 'operator', 1)")
    assert server.rows()[3] == ("bob", [third])
    place("source").commit(b"d")
    place("source").push_to(server)
    assert server.rows()[3] == ("bob", [third])
    assert len(server.rows()) == 4
    assert server.errors() == []


def test_an_edit_of_another_push_is_kept_when_sqlite_was_behind(place, server):
    [_first, _second, (_user, [third])] = server.rows().values()
    lag(server, entry.Push(id=3, user="bob", date=1500000000, nodes=(third,)))
    server.sql("UPDATE pushlog SET user = 'eve' WHERE id = 1")
    place("source").commit(b"d")
    place("source").push_to(server)
    assert [user for user, _nodes in server.rows().values()] == ["eve", "alice", "bob", "alice"]
    assert server.errors() == []


def test_a_push_moves_a_changeset_that_was_pushed_before(server):
    """Removed by a Mercurial without this extension, and pushed again."""
    log = Pushlog(server.repository)
    [_first, _second, (_user, [third])] = server.rows().values()
    with log.repo.lock(), log.repo.transaction(b"test") as tr:
        session_of(log, tr).record("bob", 1500000000, (third,))
    assert server.rows()[3] == ("alice", [])
    assert server.rows()[4] == ("bob", [third])
    (server.folder / ".hg" / "pushlog2.db").unlink()
    assert server.rows()[3] == ("alice", [])
    assert server.errors() == []


def strip(server, *nodes):
    repository = server.repository
    with repository.wlock(), repository.lock():
        repair.strip(repository.ui, repository, [bytes.fromhex(node) for node in nodes], backup=False)


@pytest.fixture
def branched(place, make_once):
    """Pushes 2 and 3 with a changeset each, push 4 with two, all of them beside each other; and all their changesets."""

    def push_branches():
        client, server = place("client"), place("server")
        base = client.commit(b"base")
        client.push_to(server)
        heads = [client.commit(name, onto=base) for name in (b"a", b"b", b"c", b"d")]
        for pushed in (heads[:1], heads[1:2], heads[2:]):
            client.push_to(server, *pushed)
        return heads

    heads = make_once(push_branches, "client", "server")
    return place("server"), heads


def test_a_strip_in_two_pushes_takes_nothing_from_a_push_between_them(branched):
    server, [a, b, c, d] = branched
    strip(server, a, c)
    assert [nodes for _user, nodes in server.rows().values()][1:] == [[], [b], [d]]
    assert server.errors() == []


def test_a_strip_that_sqlite_lacks_takes_nothing_from_a_push_between_them(branched):
    server, [a, b, c, d] = branched
    before = (server.folder / ".hg" / "pushlog2.db").read_bytes()
    strip(server, a, c)
    (server.folder / ".hg" / "pushlog2.db").write_bytes(before)
    (server.folder / ".hg" / "store" / "pushlog-strip.log").write_text(json.dumps({"first": 1, "nodes": [a, c]}))
    assert server.errors() == []
    log = Pushlog(server.repository)
    with log.repo.lock(), log.repo.transaction(b"test") as tr:
        session_of(log, tr)
    assert [nodes for _user, nodes in server.rows().values()][1:] == [[], [b], [d]]
    assert server.errors() == []


def test_a_strip_after_one_without_the_extension_stops_no_push(place, branched):
    server, [a, b, c, d] = branched
    files = [server.folder / ".hg" / "pushlog2.db", server.folder / ".hg" / "store" / "pushlog.log"]
    before = [file.read_bytes() for file in files]
    strip(server, a)
    for file, content in zip(files, before, strict=True):
        file.write_bytes(content)
    strip(server, d)
    place("client").push_to(server, a)
    assert [nodes for _user, nodes in server.rows().values()][1:] == [[], [b], [c], [a]]
    assert server.errors() == []


def damage(server, byte):
    file = server.folder / ".hg" / "store" / "pushlog.log"
    content = bytearray(file.read_bytes())
    content[byte] ^= 1
    file.write_bytes(content)


def test_a_refused_push_after_the_file_was_damaged_loses_no_push(place, server, monkeypatch):
    before = server.rows()
    damage(server, -20)
    place("source").commit(b"d")
    with monkeypatch.context() as patch:
        patch.setattr(PushlogTransaction, "record", refuse)
        with pytest.raises(error.Abort):
            place("source").push_to(server)
    assert server.rows() == before
    place("source").push_to(server)
    assert list(server.rows().values())[:-1] == list(before.values())
    (server.folder / ".hg" / "pushlog2.db").unlink()
    assert list(server.rows().values())[:-1] == list(before.values())
    assert server.errors() == []


def refuse(*_arguments):
    raise error.Abort(b"refused")


@pytest.mark.parametrize("byte", [5, 100, -20])
def test_a_repair_of_a_damaged_file_loses_no_push(place, server, byte):
    before = server.rows()
    damage(server, byte)
    repository = server.repository
    assert checking.repairpushlog(repository.ui, repository) == 0
    assert server.rows() == before
    (server.folder / ".hg" / "pushlog2.db").unlink()
    assert server.rows() == before
    assert server.errors() == []


@pytest.mark.parametrize("which", ["first", "last"])
def test_a_file_of_another_version_refuses_pushes_and_stays_as_it_is(place, server, which):
    before, file = server.rows(), server.folder / ".hg" / "store" / "pushlog.log"
    content = file.read_bytes()
    start = content.index(b"PLG1") if which == "first" else content.rindex(b"PLG1")
    file.write_bytes(content := content[:start] + b"PLG2" + content[start + 4 :])
    place("source").commit(b"d")
    repository = server.repository
    if which == "last":
        with pytest.raises(error.Abort, match="expected b'PLG1', got b'PLG2'"):
            place("source").push_to(server)
    with pytest.raises(error.Abort, match="expected b'PLG1', got b'PLG2'") as refused:
        checking.repairpushlog(repository.ui, repository)
    assert refused.value.hint.startswith(b"use the version that wrote it")
    assert file.read_bytes() == content
    assert server.rows() == before


def test_a_push_says_that_it_repairs_a_damaged_file_and_what_it_keeps(place, server):
    damage(server, -20)
    damaged = (server.folder / ".hg" / "store" / "pushlog.log").read_bytes()
    source = place("source")
    source.commit(b"d")
    source.push_to(server)
    said = source.printed.getvalue()
    line = b"; what follows is taken from pushlog2.db, and the damaged rest is kept in pushlog-damaged.log\n"
    assert said.count(line) == 1, said
    assert damaged.endswith((server.folder / ".hg" / "store" / "pushlog-damaged.log").read_bytes())


@pytest.mark.parametrize("makes_anew", [checking.repairpushlog, checking.verifypushlog])
def test_only_the_damaged_record_is_lost_without_the_database(place, server, makes_anew):
    before = server.rows()
    damage(server, 120)
    (server.folder / ".hg" / "pushlog2.db").unlink()
    repository = server.repository
    makes_anew(repository.ui, repository)
    place("source").commit(b"d")
    place("source").push_to(server)
    assert list(server.rows()) == [1, 3, 4]
    assert server.rows()[3] == before[3]
    [(_user, [second])] = [before[2]]
    assert server.errors() == [b"changeset does not exist in pushlog: %s\n" % second.encode()]


def empty_page(server, page):
    with open(server.folder / ".hg" / "pushlog2.db", "r+b") as file:
        file.seek(page * 4096)
        file.write(bytes(4096))


@pytest.mark.sample(3)
@pytest.mark.parametrize("page", range(11))
def test_a_damaged_page_of_a_database_is_told_and_repaired(place, server, page):
    before = server.rows()
    empty_page(server, page)
    [told] = server.errors()
    assert told.startswith(b"pushlog2.db is damaged: ")
    repository = server.repository
    assert checking.repairpushlog(repository.ui, repository) == 0
    assert server.errors() == []
    assert server.rows() == before


@pytest.mark.sample(3)
@pytest.mark.parametrize("page", range(11))
def test_a_push_derives_a_database_again_whatever_page_of_it_is_lost(place, server, page):
    before = server.rows()
    empty_page(server, page)
    place("source").commit(b"d")
    place("source").push_to(server)
    assert list(server.rows().values())[:-1] == list(before.values())
    assert list(server.rows()) == [1, 2, 3, 4]
    assert server.errors() == []


def test_a_damaged_page_of_a_database_to_adopt_is_told_in_one_line(server):
    database, file = server.folder / ".hg" / "pushlog2.db", server.folder / ".hg" / "store" / "pushlog.log"
    file.unlink()
    server.sql("DELETE FROM pushlog_state")
    for number in range(10, 400):
        server.sql(f"INSERT INTO pushlog (id, user, date) VALUES ({number}, '{number:0100}', 1)")
    whole, told = database.read_bytes(), set()
    for page in range(1, len(whole) // 4096):
        database.write_bytes(whole)
        empty_page(server, page)
        try:
            checking.repairpushlog(server.repository.ui, server.repository)
        except error.Abort as problem:
            told.add(problem.message.partition(b":")[0])
            assert not file.exists() or not file.stat().st_size, page
        else:
            file.unlink()
    assert told == {b"cannot write pushlog2.db"}


@pytest.mark.parametrize("table", ["pushlog", "changesets", "pushlog_edit", "pushlog_state"])
def test_a_push_brings_back_a_table_that_was_dropped(place, server, table):
    before = server.rows()
    server.sql(f"DROP TABLE {table}")
    place("source").commit(b"d")
    place("source").push_to(server)
    assert list(server.rows().values())[:-1] == list(before.values())
    assert server.errors() == []
    server.sql("UPDATE pushlog SET user = 'mallory' WHERE id = 1")
    place("source").commit(b"e")
    place("source").push_to(server)
    (server.folder / ".hg" / "pushlog2.db").unlink()
    assert server.rows()[1][0] == "mallory"


def test_a_copy_of_the_database_from_before_gets_what_it_lacks(place, server):
    database = server.folder / ".hg" / "pushlog2.db"
    copy, before = database.read_bytes(), server.rows()
    place("source").commit(b"d")
    place("source").push_to(server)
    rows = server.rows()
    database.write_bytes(copy)
    assert len(rows) == len(before) + 1
    assert server.rows() == rows
    place("source").commit(b"e")
    place("source").push_to(server)
    assert list(server.rows().values())[:-1] == list(rows.values())
    assert server.errors() == []


@pytest.fixture
def older(place, server):
    """The server, its file replaced by a copy from before its last push; and the file as it was."""
    file = server.folder / ".hg" / "store" / "pushlog.log"
    copy = file.read_bytes()
    place("source").commit(b"d")
    place("source").push_to(server)
    newest = file.read_bytes()
    file.write_bytes(copy)
    place("source").commit(b"e")
    return server, file, newest


def test_an_older_copy_of_the_file_refuses_pushes_instead_of_losing_one(place, older):
    server, file, newest = older
    with pytest.raises(error.Abort, match=r"pushlog\.log lacks push 4, which pushlog2.db has") as refused:
        place("source").push_to(server)
    assert b"hg repairpushlog" in refused.value.hint
    assert len(server.repository) == 4
    file.write_bytes(newest)
    place("source").push_to(server)
    assert list(server.rows()) == [1, 2, 3, 4, 5]
    assert server.errors() == []


@pytest.mark.usefixtures("unsettled")
@pytest.mark.parametrize("act", ["strip", "rollback"])
def test_an_older_copy_of_the_file_refuses_pushes_after_a_kill_too(place, older, act):
    server, file, newest = older
    older_copy = file.read_bytes()
    file.write_bytes(newest)
    fifth = place("source").commit(b"f")
    place("source").push_to(server)
    if act == "strip":
        strip(server, fifth)
    else:
        server.repository.rollback()
    settled, length = file.read_bytes(), len(server.repository)
    file.write_bytes(older_copy)
    with pytest.raises(error.Abort, match=r"pushlog\.log lacks push 4, which pushlog2.db has"):
        place("source").push_to(server)
    assert len(server.repository) == length
    file.write_bytes(settled)
    place("source").push_to(server)
    assert server.errors() == []


def test_without_the_older_copy_of_the_file_the_database_counts(place, older):
    server, file, _newest = older
    file.unlink()
    place("source").push_to(server)
    (server.folder / ".hg" / "pushlog2.db").unlink()
    assert list(server.rows()) == [1, 2, 3, 4, 5]
    assert server.errors() == []


def test_after_a_repair_an_older_copy_of_the_file_counts(place, older):
    server, _file, _newest = older
    repository = server.repository
    assert checking.repairpushlog(repository.ui, repository) == 0
    place("source").push_to(server)
    assert len(server.rows()) == 4
    assert len(server.errors()) == 1


def test_an_operators_row_is_recorded_where_the_files_are_strangers(place, server):
    node = server.commit(b"in no push")
    server.sql("UPDATE pushlog_state SET fingerprint = 0")
    server.sql("INSERT INTO pushlog VALUES (7, 'operator', 1)")
    server.sql("INSERT INTO changesets VALUES (7, 3, ?)", node)
    place("source").commit(b"d")
    place("source").push_to(server)
    assert server.rows()[7] == ("operator", [node])
    assert server.errors() == []


def test_a_rollback_takes_back_a_push_of_changesets_that_were_here_before(server):
    node = server.commit(b"in no push")
    before, log = server.rows(), Pushlog(server.repository)
    with log.repo.lock(), log.repo.transaction(b"test") as tr:
        session_of(log, tr).insert(entry.Push(id=4, user="bob", date=1, nodes=(node,)))
    assert server.rows()[4] == ("bob", [node])
    server.repository.rollback()
    assert server.rows() == before
    assert len(server.repository) == 4


def test_a_push_rolled_back_without_the_extension_stays_away(place, server, monkeypatch):
    fourth = place("source").commit(b"d")
    place("source").push_to(server)
    with monkeypatch.context() as without:
        without.setattr(stripping, "rollback", lambda orig, repo, *arguments: orig(repo, *arguments))
        server.repository.rollback()
    assert len(server.repository) == 3
    monkeypatch.setitem(os.environb, b"USER", b"bob")
    place("source").push_to(server)
    assert [push for push in server.rows().values() if fourth in push[1]] == [("bob", [fourth])]
    assert len(server.rows()) == 4
    assert server.errors() == []


def test_a_push_is_dated_by_the_clock_whatever_its_changesets_say(place, server):
    """The settings of `place` date changesets to 2017."""
    before = int(time.time())
    place("source").commit(b"d")
    place("source").push_to(server)
    with Pushlog(server.repository).view() as connection:
        assert before <= database.push(connection, 4).date <= time.time()


@pytest.fixture
def unsettled(monkeypatch):
    """Strips that are killed before the pushlog has recorded them."""
    with monkeypatch.context() as killed:
        killed.setattr(stripping, "settle", lambda *_: None)
        yield


def numbers_in_sqlite(server):
    connection = sqlite3.connect(server.folder / ".hg" / "pushlog2.db")
    rows = connection.execute("SELECT node, rev FROM changesets ORDER BY rev").fetchall()
    connection.close()
    return rows


def numbers_in_changelog(server):
    changelog = server.repository.unfiltered().changelog
    return [(changelog.node(revision).hex(), revision) for revision in changelog]


def test_a_second_strip_keeps_what_the_note_of_the_first_says(branched, unsettled):
    server, [a, b, c, d] = branched
    strip(server, d)
    strip(server, b)
    assert [nodes for _user, nodes in server.rows().values()][1:] == [[a], [], [c]]
    assert server.errors() == []


def test_a_second_strip_gives_new_numbers_from_the_first_one_s_on(branched, monkeypatch):
    server, [a, _b, _c, d] = branched
    with monkeypatch.context() as killed:
        killed.setattr(stripping, "settle", lambda *_: None)
        strip(server, a)
    strip(server, d)
    assert numbers_in_sqlite(server) == numbers_in_changelog(server)


def test_a_changeset_back_before_its_strip_can_be_in_another_push(place, branched, unsettled):
    server, [_a, _b, c, d] = branched
    strip(server, d)
    repository = server.repository
    remote = factory.peer(repository.ui, {}, os.fsencode(place("client").folder))
    with repository.wlock(), repository.lock(), repository.transaction(b"test") as tr:
        exchange.pull(repository, remote, heads=[bytes.fromhex(d)])
        api.record_replicated(repository, tr, 5, b"bob", 1500000000, [d.encode()])
    assert [nodes for _user, nodes in server.rows().values()][3:] == [[c], [d]]
    assert server.errors() == []


def test_a_masters_push_that_contradicts_those_here_is_refused(branched):
    server, [_a, _b, c, d] = branched
    repository = server.repository
    for number, nodes, line in (
        (1, [d.encode()], "pushlog: push 1 is recorded as another push already"),
        (9, [c.encode()], "pushlog: cannot record push 9: UNIQUE constraint failed"),
    ):
        with (
            pytest.raises(error.Abort, match=line),
            repository.wlock(),
            repository.lock(),
            repository.transaction(b"test") as tr,
        ):
            api.record_replicated(repository, tr, number, b"bob", 1500000000, nodes)
    assert server.errors() == []


def test_the_note_of_a_strip_outlives_a_commit_that_sqlite_refused(branched):
    server, [a, _b, _c, _d] = branched
    note = server.folder / ".hg" / "store" / "pushlog-strip.log"
    reader = sqlite3.connect(server.folder / ".hg" / "pushlog2.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM pushlog").fetchall()
    strip(server, a)
    assert note.exists()
    reader.close()
    log = Pushlog(server.repository)
    with log.repo.lock(), log.repo.transaction(b"test") as tr:
        session_of(log, tr)
    assert not note.exists()
    assert numbers_in_sqlite(server) == numbers_in_changelog(server)


def test_a_changeset_that_comes_later_is_in_the_push_that_named_it(place, server):
    [(_, [a]), (_, [b]), (_, [c])] = server.rows().values()
    d = place("source").commit(b"d")
    answer = b"1 alice 15 %s\n2 alice 15 %s %s\n3 alice 15 %s\nok\n" % tuple(map(str.encode, (a, b, d, c)))
    place("client").pull_from(server, answer=answer)
    assert place("client").rows()[2] == ("alice", [b])
    place("source").push_to(server)
    place("client").pull_from(server, answer=answer)
    assert place("client").rows()[2] == ("alice", [b, d])


def test_an_id_that_an_adopted_database_has_used_is_not_used_again(place, server):
    for table, key in (("changesets", "pushid"), ("pushlog", "id")):
        server.sql(f"DELETE FROM {table} WHERE {key} = 3")
    server.sql("DELETE FROM pushlog_state")
    (server.folder / ".hg" / "store" / "pushlog.log").unlink()
    repository = server.repository
    assert checking.repairpushlog(repository.ui, repository) == 0
    (server.folder / ".hg" / "pushlog2.db").unlink()
    place("source").commit(b"d")
    place("source").push_to(server)
    assert list(server.rows()) == [1, 2, 4]


def test_a_push_takes_the_number_of_a_changeset_that_has_another_one_now(place, branched):
    """After a strip without the extension every number behind it is another's."""
    server, [a, b, c, d] = branched
    files = [server.folder / ".hg" / "pushlog2.db", server.folder / ".hg" / "store" / "pushlog.log"]
    before = [file.read_bytes() for file in files]
    strip(server, a)
    for file, content in zip(files, before, strict=True):
        file.write_bytes(content)
    [base] = server.rows()[1][1]
    e = place("client").commit(b"e", onto=bytes.fromhex(base))
    place("client").push_to(server, e)
    assert [nodes for _user, nodes in server.rows().values()][1:] == [[], [b], [c, d], [e]]
    assert server.errors() == []


def test_an_interrupted_repair_leaves_the_former_database_alone(place, server, monkeypatch):
    folder = server.folder / ".hg"
    before = {path.name: path.read_bytes() for path in folder.glob("pushlog2.db*")}
    monkeypatch.setattr(checking.database, "set_state", interrupt)
    repository = server.repository
    with pytest.raises(KeyboardInterrupt):
        checking.repairpushlog(repository.ui, repository)
    assert {path.name: path.read_bytes() for path in folder.glob("pushlog2.db*")} == before


def interrupt(*_arguments):
    raise KeyboardInterrupt


@pytest.mark.parametrize("command", [checking.repairpushlog, checking.verifypushlog])
def test_a_repair_and_a_check_report_progress_in_both_stores(server, command, shown):
    repository = server.repository
    command(repository.ui, repository)
    assert {topic for topic, _position, _total in shown} >= {b"reading pushlog2.db", b"reading pushlog.log"}
    assert all(0 <= position <= total for _topic, position, total in shown)

# SPDX-License-Identifier: GPL-2.0-or-later
"""The attribute `pushlog` of a repository: what programs that were written for hg.mozilla.org's pushlog call."""

import inspect
import json
import os
import sqlite3
import subprocess
import urllib.request

import pytest
from mercurial import error, obsolete
from mercurial.node import hex

from pushlog import api
from pushlog.store.storage import Pushlog
from pushlog.versions import factory
from testing.warm_hg import shared_hg
from tests.pushlog.conftest import environment, set_branch

pytestmark = pytest.mark.processes

TIMES = {1: 1000, 2: 2000, 3: 3000, 4: 4000}


@pytest.fixture
def four(place, make_once):
    """Four pushes: of alice, of bob, two changesets of zoë on branch `side`, one of alice on `side` and `default`."""

    def push_four():
        source, there = place("source"), place("there")
        for push in ((b"a",), (b"b",), (b"side c", b"side d"), (b"side e", b"f")):
            for name in push:
                repository = source.repository
                set_branch(repository, b"side" if name.startswith(b"side") else b"default")
                source.commit(name)
            source.push_to(there)
        for number, when in TIMES.items():
            user = {2: "bob", 3: "zoë"}.get(number, "alice")
            there.sql("UPDATE pushlog SET user = ?, date = ? WHERE id = ?", user, when, number)

    make_once(push_four, "source", "there")
    return place("there").repository


def ids(repository, **conditions):
    return [push.pushid for push in repository.pushlog.pushes(**conditions)]


def nodes(repository):
    unfiltered = repository.unfiltered()
    return [unfiltered.changelog.node(revision) for revision in unfiltered.changelog.revs()]


def queries(monkeypatch):
    """A list that grows with each connection to a pushlog."""
    made, view = [], Pushlog.view

    def note(log):
        made.append(log)
        return view(log)

    monkeypatch.setattr(Pushlog, "view", note)
    return made


# What hg.mozilla.org's other extension does with the attribute, in other words.
EXTENSION = """
import json
from mercurial import registrar, revset, scmutil, smartset
from mercurial.hgweb import webcommands
revsetpredicate = registrar.revsetpredicate()
def relevant(repo, ctx):
    pushlog = getattr(repo, "pushlog", None)
    push = pushlog.pushfromchangeset(ctx) if pushlog else None
    revisions = {repo[node].rev() for node in push.nodes} if push else set()
    return {rev for rev in revisions if rev <= ctx.rev()} | {ctx.rev()}
@revsetpredicate(b"automationrelevant(set)", safe=True)
def select(repo, subset, x):
    found = set()
    for rev in revset.getset(repo, smartset.fullreposet(repo), x):
        found |= relevant(repo, repo[rev])
    return subset & smartset.baseset(found)
@webcommands.webcommand(b"automation")
def automation(web):
    repo, ctx = web.repo, scmutil.revsymbol(web.repo, web.req.qsparams[b"node"])
    revs = sorted(relevant(repo, ctx))
    with repo.pushlog.cache_data_for_nodes([repo[rev].node() for rev in revs]):
        pushes = [repo.pushlog.pushfromchangeset(repo[rev]) for rev in revs]
    last = next(repo.pushlog.pushes(reverse=True, limit=1, only_replicated=True))
    answer = {"users": [push.user.decode() for push in pushes], "nodes": len(pushes[0].nodes), "last": last.pushid}
    web.res.headers[b"Content-Type"] = b"application/json"
    web.res.setbodybytes(json.dumps(answer).encode())
    return web.res.sendresponse()
webcommands.automation = automation
"""


def test_an_extension_of_another_project_finds_pushes_on_a_server(four, tmp_path):
    (tmp_path / "automation.py").write_text(EXTENSION)
    with open(tmp_path / "hgrc", "a") as hgrc:
        hgrc.write(f"[extensions]\nautomation = {tmp_path}/automation.py\n")
    variables = {**environment(tmp_path), "HGENCODING": "UTF-8"}
    command = [shared_hg(variables), "serve", "-R", "there", "-a", "127.0.0.1", "-p", "0", "--print-url"]
    command += ["--accesslog", os.devnull]
    with subprocess.Popen(command, cwd=tmp_path, env=variables, stdout=subprocess.PIPE) as server:
        try:
            port = server.stdout.readline().decode().strip().rstrip("/").rpartition(":")[2]

            def ask(path):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=60) as answer:
                    return json.load(answer)

            assert ask("automation/3") == {"users": ["zoë", "zoë"], "nodes": 2, "last": 4}
            assert [entry["desc"] for entry in ask("json-log?rev=automationrelevant(3)")["entries"]] == [
                "side d",
                "side c",
            ]
            assert len(ask("json-pushes?startID=0")) == 4
        finally:
            server.terminate()


def test_a_push_is_a_named_tuple_of_what_mercurial_has_as_bytes(four):
    push = four.pushlog.pushfromnode(nodes(four)[2])
    assert push._fields == ("pushid", "user", "when", "nodes")
    assert push == (3, "zoë".encode(), 3000, [hex(node) for node in nodes(four)[2:4]])
    assert four.pushlog.pushfromchangeset(four[3]) == push
    assert four.pushlog.pushfromnode(b"\x01" * 20) is None


def test_a_user_is_in_the_encoding_that_mercurial_shows(four, monkeypatch):
    monkeypatch.setattr("mercurial.encoding.encoding", b"latin-1")
    assert four.pushlog.pushfromnode(nodes(four)[2]).user == "zoë".encode("latin-1")
    assert ids(four, users=["zoë".encode("latin-1")]) == ids(four, users=["zoë"]) == [3]


def test_a_repository_and_each_view_of_it_have_the_attribute(four):
    views = [four.unfiltered(), *(four.filtered(name) for name in (b"visible", b"served", b"immutable"))]
    assert [view.pushlog.push_count() for view in views] == [4] * 4


def test_a_peer_has_no_attribute(four):
    assert getattr(factory.peer(four.ui, {}, four.root), "pushlog", None) is None


def test_a_repository_on_another_machine_has_no_attribute(four):
    class Remote(type(four.unfiltered())):
        def local(self):
            return False

    four.unfiltered().__class__ = Remote
    assert getattr(four.unfiltered(), "pushlog", None) is None


def test_ids_and_counts_are_those_of_the_pushlog(four):
    assert (four.pushlog.lastpushid(), four.pushlog.last_push_id_replicated(), four.pushlog.push_count()) == (4, 4, 4)


def test_a_repository_without_a_pushlog_answers_and_stays_without(place):
    repository = place("empty").repository
    log = repository.pushlog
    assert (log.lastpushid(), log.last_push_id_replicated(), log.push_count()) == (0, 0, 0)
    assert list(log.pushes()) == list(log.pushes(only_replicated=True)) == []
    assert log.pushfromnode(b"\x01" * 20) is log.pushfromchangeset(repository[b"null"]) is None
    with log.cache_data_for_nodes([b"\x01" * 20]):
        assert log.pushfromnode(b"\x01" * 20) is None
    assert not Pushlog(repository).exists()


def test_pushes_come_oldest_first_or_in_reverse(four):
    assert ids(four) == [1, 2, 3, 4]
    assert ids(four, reverse=True) == [4, 3, 2, 1]
    assert ids(four, reverse=True, limit=2, offset=1) == [3, 2]
    assert (ids(four, limit=0), ids(four, offset=3), ids(four, offset=9)) == ([], [4], [])


@pytest.mark.parametrize("kind", ["id", "time", "node"])
def test_bounds_are_inclusive_unless_asked(four, kind):
    bound = {"id": lambda number: number, "time": TIMES.get, "node": lambda number: nodes(four)[number - 1]}[kind]
    start, end = {f"start_{kind}": bound(2)}, {f"end_{kind}": bound(3)}
    assert ids(four, **start, **end) == [2, 3]
    assert ids(four, **start, **end, **{f"start_{kind}_exclusive": True}) == [3]
    assert ids(four, **start, **end, **{f"end_{kind}_exclusive": True}) == [2]


@pytest.mark.parametrize("bound", ["start", "end"])
def test_an_id_and_a_node_as_one_bound_are_an_error(four, bound):
    with pytest.raises(ValueError, match=f"{bound}_id and {bound}_node"):
        four.pushlog.pushes(**{f"{bound}_id": 0, f"{bound}_node": nodes(four)[0]})


def test_conditions_are_met_together(four):
    assert ids(four, users=[b"alice", b"zo\xc3\xab"]) == [1, 3, 4]
    assert ids(four, users=[b"alice"], start_id=2) == ids(four, users=[b"alice"], start_time=2000.5) == [4]
    assert ids(four, users=[b"alice"], nodes=[nodes(four)[1]]) == []
    assert ids(four, users=[], nodes=[]) == [1, 2, 3, 4]


def test_a_changeset_may_have_any_form(four):
    node = nodes(four)[3]
    for form in (node, hex(node), node.hex(), hex(node)[:12], b"3"):
        assert ids(four, nodes=[form]) == [3]
    assert ids(four, nodes=[nodes(four)[0], nodes(four)[2], node]) == [1, 3]


def test_a_branch_leaves_its_own_changesets_of_a_push(four):
    found = list(four.pushlog.pushes(branch=b"side"))
    assert [(push.pushid, len(push.nodes)) for push in found] == [(3, 2), (4, 1)]
    assert ids(four, branch="side", offset=1, limit=1) == [4]
    assert ids(four, branch=b"default", reverse=True) == [4, 2, 1]
    assert ids(four, branch=b"none") == []


def test_an_unknown_changeset_is_a_lookup_error(four):
    for condition in ({"start_node": b"\x01" * 20}, {"nodes": [b"01" * 20]}):
        with pytest.raises(error.RepoLookupError, match="unknown revision"):
            ids(four, **condition)


def test_a_changeset_never_pushed_is_before_all_pushes_and_no_end(four, place):
    node = place("there").commit(b"made here")
    again = place("there").repository
    assert (ids(again, start_node=node), ids(again, nodes=[node])) == ([1, 2, 3, 4], [])
    with pytest.raises(error.RepoLookupError, match="never pushed"):
        ids(again, end_node=node)


def test_numbers_beyond_those_of_sqlite_bound_nothing(four):
    assert ids(four, start_id=-(1 << 70), end_id=1 << 70, end_time=1 << 70) == [1, 2, 3, 4]


def test_pushes_asks_nothing_before_its_first_push_is_taken(four, monkeypatch):
    monkeypatch.setattr("pushlog.attribute._BATCH", 2)
    made = queries(monkeypatch)
    found = four.pushlog.pushes(start_node=nodes(four)[0])
    assert inspect.isgenerator(found)
    assert not made
    assert next(found).pushid == 1
    taken = len(made)
    assert [push.pushid for push in found] == [2, 3, 4]
    assert len(made) == taken + 1  # the second batch


def test_a_push_that_comes_meanwhile_is_not_in_the_answer(four, place):
    found = four.pushlog.pushes()
    assert next(found).pushid == 1
    place("source").commit(b"late")
    place("source").push_to(place("there"))
    assert [push.pushid for push in found] == [2, 3, 4]


def test_a_push_without_changesets_is_a_push(four, place):
    place("there").strip(nodes(four)[4].hex())
    again = place("there").repository
    assert list(again.pushlog.pushes(start_id=4)) == [(4, b"alice", 4000, [])]
    assert ids(again, branch=b"side") == [3]


def test_a_hidden_changeset_has_its_push_in_each_view(place, four, tmp_path):
    with open(tmp_path / "hgrc", "a") as hgrc:
        hgrc.write("[experimental]\nevolution = all\n")
    repository = place("there").repository
    node = nodes(repository)[-1]
    unfiltered = repository.unfiltered()
    with unfiltered.lock(), unfiltered.transaction(b"test"):
        obsolete.createmarkers(unfiltered, [(unfiltered[node], ())])
    served = place("there").repository.filtered(b"served")
    assert node not in served
    assert served.pushlog.pushfromnode(node).nodes[-1] == hex(node)
    assert ids(served, nodes=[node]) == ids(served, nodes=[hex(node)]) == ids(served, start_node=node) == [4]
    assert ids(served, branch=b"default") == [1, 2, 4]


def test_cached_nodes_need_no_query_within_the_block_alone(four, monkeypatch):
    log, served = four.pushlog, four.filtered(b"served").pushlog
    wanted = [*nodes(four), b"\x01" * 20]
    expected = [log.pushfromnode(node) for node in wanted]
    made = queries(monkeypatch)
    with log.cache_data_for_nodes(iter(wanted)):
        taken = len(made)
        with served.cache_data_for_nodes([]):
            assert [served.pushfromnode(node) for node in wanted] == expected
        assert [log.pushfromchangeset(four[node]) for node in wanted[:-1]] == expected[:-1]
        assert len(made) == taken + 1  # the inner block's own
    assert log.pushfromnode(wanted[0]) == expected[0]
    assert len(made) == taken + 2


def test_a_limit_bounds_what_is_replicated_and_nothing_else(four):
    four.unfiltered()._pushlog_limit = lambda: 2
    assert (four.pushlog.last_push_id_replicated(), four.pushlog.lastpushid()) == (2, 4)
    assert (ids(four, only_replicated=True), ids(four, only_replicated=True, start_id=3), len(ids(four))) == (
        [1, 2],
        [],
        4,
    )


def test_an_unreadable_pushlog_is_one_line(four, place):
    path = place("there").folder / ".hg" / "pushlog2.db"
    (place("there").folder / ".hg" / "store" / "pushlog.log").unlink()
    path.write_bytes(b"rubbish")
    for ask in (four.pushlog.lastpushid, lambda: ids(four), lambda: four.pushlog.pushfromnode(nodes(four)[0])):
        with pytest.raises(error.Abort, match="cannot read the pushlog: "):
            ask()


@pytest.fixture
def unpushed(place):
    """A repository with three changesets, in no push."""
    there = place("written")
    for name in (b"a", b"b", b"c"):
        there.commit(name)
    return there


def record(there, pushes, *, fail=False):
    repository = there.repository
    with repository.lock(), repository.transaction(b"test") as tr:
        repository.pushlog.recordpushes(pushes, tr)
        if fail:
            raise error.Abort(b"stop")


def test_recorded_pushes_are_there_in_the_file_and_in_sqlite(unpushed):
    first, second, third = nodes(unpushed.repository)
    rows = [(7, b"bob", 1000, [first, hex(second)]), (None, "zoë", 2000, [third.hex()])]
    record(unpushed, rows)
    expected = [(7, b"bob", 1000, [hex(first), hex(second)]), (8, "zoë".encode(), 2000, [hex(third)])]
    assert list(unpushed.repository.pushlog.pushes()) == expected
    record(unpushed, expected)  # again
    (unpushed.folder / ".hg" / "pushlog2.db").unlink()
    assert list(unpushed.repository.pushlog.pushes()) == expected
    assert unpushed.errors() == []


def test_recorded_pushes_go_with_an_aborted_transaction(unpushed):
    node = nodes(unpushed.repository)[0]
    record(unpushed, [(1, b"bob", 1000, [node])])
    with pytest.raises(error.Abort, match="stop"):
        record(unpushed, [(2, b"bob", 1000, [nodes(unpushed.repository)[1]])], fail=True)
    assert ids(unpushed.repository) == [1]
    record(unpushed, [(None, b"bob", 1000, [nodes(unpushed.repository)[1]])])
    assert ids(unpushed.repository) == [1, 2]


def test_a_transaction_that_catches_a_refusal_records_nothing_of_it(unpushed):
    first, second, _third = nodes(unpushed.repository)
    repository = unpushed.repository
    with repository.lock(), repository.transaction(b"test") as tr:
        repository.pushlog.recordpushes([(1, b"bob", 1000, [first])], tr)
        assert api.has_fetched(repository)  # so a master has its mirrors fetch these rows
        for row, reason in (
            ((1, b"eve", 1000, [second]), "push 1 is recorded as another push already"),
            ((2, b"eve", 1000, [second, first]), "changeset .* of push 2 is in push 1"),
            ((2, b"eve", 1000, [b"\x01" * 20]), "unknown revision"),
            ((0, b"eve", 1000, [second]), "not the id of a push: 0"),
            ((1 << 70, b"eve", 1000, [second]), "cannot record pushes"),
            ((3, b"eve", 1 << 70, [second]), "cannot record pushes"),
        ):
            with pytest.raises((error.Abort, error.RepoLookupError), match=reason):
                repository.pushlog.recordpushes([row], tr)
    assert unpushed.rows() == {1: ("bob", [first.hex()])}
    with sqlite3.connect(unpushed.folder / ".hg" / "pushlog2.db") as connection:
        assert connection.execute("SELECT count(*) FROM changesets").fetchone() == (1,)


def test_pushes_are_recorded_in_the_running_transaction_alone(unpushed):
    repository = unpushed.repository
    with pytest.raises(error.ProgrammingError):
        repository.pushlog.recordpushes([], None)

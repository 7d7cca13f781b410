# SPDX-License-Identifier: GPL-2.0-or-later
"""A server's pushlog read by clients, in this process: from any rows a client takes all it can and reports the rest."""

import io
import os
from types import SimpleNamespace

import pytest
from mercurial import error, localrepo, phases, sshpeer, util
from mercurial import ui as ui_module

from pushlog import fetching, wire

pytestmark = pytest.mark.processes

LARGEST = (1 << 63) - 1


def nodes_of(server):
    return [node for _user, nodes in server.rows().values() for node in nodes]


BAD_ROWS = [
    b"",
    b"2",
    b"2 alice",
    b"x alice 1500000000 ",
    b"-2 alice 1500000000 ",
    b"%d alice 1500000000 " % (LARGEST + 1),
    b"2_0 alice 1500000000 ",
    b"2 alice yesterday ",
    b"2 alice %d " % (LARGEST + 1),
    b"2 alice 1500000000 None",
    b"2 al\xff 1500000000 " + b"A" * 40,
    b"1 alice 1500000000 ",
    b"2 alice 1500000000 " + b" ".join([b"f" * 40] * 2),
    b"9" * 5000 + b" alice 1500000000 ",
]


@pytest.mark.sample(4)
@pytest.mark.parametrize("bad", BAD_ROWS, ids=[repr(bad[:20]) for bad in BAD_ROWS])
def test_rows_after_an_unreadable_one_are_taken(place, server, bad):
    first, _second, third = nodes_of(server)
    rows = [b"1 alice 1500000000 " + first.encode(), bad, b"3 carol 1500000000 " + third.encode(), b"ok"]
    client = place("client")
    printed = client.pull_from(server, answer=b"".join(row + b"\n" for row in rows))
    assert client.rows() == {1: ("alice", [first]), 3: ("carol", [third])}
    assert "left out" in printed
    assert "added 2 pushes" in printed


def over_ssh(content):
    """A stream as a client over SSH has it: its `readline` takes no limit."""
    main, side = (os.pipe() for _ in range(2))
    for writing, sent in ((main[1], content), (side[1], b"")):
        with open(writing, "wb") as pipe:
            pipe.write(sent)
    return sshpeer.doublepipe(
        ui_module.ui.load(), util.bufferedinputpipe(open(main[0], "rb", 0)), open(side[0], "rb", 0)
    )


class OverHttp(io.BytesIO):
    """A stream as a client over HTTP has it before Mercurial 7.1: its `readline` takes no limit, either."""

    def readline(self):
        return super().readline()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the pipes are the stream's
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("stream", [OverHttp, over_ssh])
def test_a_row_without_an_end_is_read_up_to_a_limit(monkeypatch, stream):
    monkeypatch.setattr(fetching, "LONGEST", 3000)
    server = SimpleNamespace(
        _callstream=lambda _command, firstpush: stream(b"1\n" + b"2" * 2999 + b"\n" + b"3" * 20_000)
    )
    rows = fetching.receive_lines(server, 1)
    assert [next(rows), next(rows)] == [b"1", b"2" * 2999]
    with pytest.raises(error.Abort, match="a row of the server's pushlog is longer than 3000 bytes"):
        next(rows)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("statement", "user"),
    [
        ("UPDATE pushlog SET user = NULL WHERE id = 2", ""),
        ("UPDATE pushlog SET user = x'ff00' WHERE id = 2", "\ufffd\0"),
        ("UPDATE pushlog SET user = CAST(x'636166e9' AS TEXT) WHERE id = 2", "caf\ufffd"),
        ("UPDATE pushlog SET user = 'two' || char(10) || 'lines' || char(13) WHERE id = 2", "twolines"),
        ("UPDATE pushlog SET date = 'yesterday' WHERE id = 2", "alice"),
        ("UPDATE pushlog SET date = 9e999 WHERE id = 2", "alice"),
        ("UPDATE pushlog SET date = NULL WHERE id = 2", "alice"),
    ],
)
def test_a_row_with_rubbish_in_a_column_is_served_somehow(place, server, statement, user):
    first, second, third = nodes_of(server)
    server.sql(statement)
    client = place("client")
    client.pull_from(server)
    assert client.rows() == {1: ("alice", [first]), 2: (user, [second]), 3: ("alice", [third])}


@pytest.mark.parametrize("value", ["NULL", "x'00ff'", "'None'", "7", f"'{'G' * 40}'"])
def test_what_is_no_changeset_is_left_out_of_its_row(place, server, value):
    first, _second, third = nodes_of(server)
    server.sql(f"UPDATE changesets SET node = {value} WHERE pushid = 2")
    client = place("client")
    client.pull_from(server)
    assert client.rows() == {1: ("alice", [first]), 2: ("alice", []), 3: ("alice", [third])}
    assert any(line.startswith(b"pushlog entry #2 names what is no changeset: ") for line in server.errors())


def test_a_changeset_that_the_server_lacks_is_left_out_of_its_row(place, server):
    first, _second, third = nodes_of(server)
    server.sql("UPDATE changesets SET node = ? WHERE pushid = 2", "f" * 40)
    client = place("client")
    printed = client.pull_from(server)
    assert client.rows() == {1: ("alice", [first]), 2: ("alice", []), 3: ("alice", [third])}
    assert "not given by the server" in printed


def test_a_changeset_yet_to_be_pulled_keeps_its_row_for_later(place, server):
    first, second, third = nodes_of(server)
    client = place("client")
    printed = client.pull_from(server, first)
    assert f"received pushlog entry for unknown changeset {second}; ignoring" in printed
    assert client.rows() == {1: ("alice", [first])}
    client.pull_from(server)
    assert client.rows() == {1: ("alice", [first]), 2: ("alice", [second]), 3: ("alice", [third])}


def test_a_partial_pull_asks_for_what_its_first_push_lacks(place, server, monkeypatch):
    source = place("source")
    to_come = [source.commit(b"%d" % number) for number in range(30)]
    source.push_to(server)
    for number in range(30, 60):
        source.commit(b"%d" % number)
        source.push_to(server)
    asked = []

    def known(peer, nodes, orig=localrepo.localpeer.known):
        asked.extend(node.hex() for node in nodes)
        return orig(peer, nodes)

    monkeypatch.setattr(localrepo.localpeer, "known", known)
    monkeypatch.setattr(fetching, "_KNOWN_BATCH", 4)
    client = place("client")
    third = server.rows()[3][1][0]
    printed = client.pull_from(server, third)
    assert [
        node for node in asked if place("client").repository.changelog.hasnode(bytes.fromhex(node)) is False
    ] == to_come[:4]
    assert list(client.rows()) == [1, 2, 3]
    [warning] = [line for line in printed.splitlines() if "unknown changeset" in line]
    names = ", ".join(to_come[:10])
    assert warning == f"received pushlog entry for unknown changeset {names}, and 20 more; ignoring"


def test_hidden_changesets_before_the_first_that_is_to_come_end_no_answer(place, server):
    first, second, _third = nodes_of(server)
    server.sql("UPDATE changesets SET node = ? WHERE pushid = 1", "f" * 40)
    client = place("client")
    client.pull_from(server, second)
    assert client.rows() == {1: ("alice", []), 2: ("alice", [second])}
    assert first not in str(client.rows())


def test_a_pull_tells_how_many_pushes_came_also_if_none(place, server):
    client = place("client")
    assert "added 3 pushes\n" in client.pull_from(server)
    assert "added 0 pushes\n" in client.pull_from(server)


def test_a_pull_without_pushes_makes_the_database(place):
    place("source").commit(b"a")
    client = place("client")
    assert "added 0 pushes\n" in client.pull_from(place("source"))
    assert (client.folder / ".hg" / "pushlog2.db").exists()
    assert client.rows() == {}


@pytest.mark.parametrize("first", [b"-1", b"-%d" % (1 << 70), b"0"])
def test_an_id_below_the_first_asks_for_all(server, first):
    answer = b"".join(wire.stream_rows(server.repository, first))
    assert answer == b"".join(wire.stream_rows(server.repository, b"1"))
    assert wire.serve_pushlog(server.repository, None, first).data.count(b"\n") == 3


@pytest.mark.parametrize("first", [b"%d" % LARGEST, b"%d" % (LARGEST + 1), b"9" * 100])
def test_an_id_above_all_asks_for_none(server, first):
    assert b"".join(wire.stream_rows(server.repository, first)) == b"ok\n"
    assert wire.serve_pushlog(server.repository, None, first).data == b"1"


@pytest.mark.parametrize("first", [b"", b"x", b"1.5", b"9" * 5000, b"\xff"])
def test_an_id_that_is_no_number_is_an_error_in_the_answer(server, first):
    assert b"".join(wire.stream_rows(server.repository, first)).startswith(b"error ")
    assert wire.serve_pushlog(server.repository, None, first).data.startswith(b"0\n")


def test_the_last_possible_id_can_be_served_and_is_followed_by_none(place, server):
    server.sql("UPDATE pushlog SET id = ? WHERE id = 3", LARGEST)
    server.sql("UPDATE changesets SET pushid = ? WHERE pushid = 3", LARGEST)
    client = place("client")
    client.pull_from(server)
    assert list(client.rows()) == [1, 2, LARGEST]
    client.pull_from(server)
    source = place("source")
    source.commit(b"d")
    with pytest.raises(Exception, match="hook failed"):
        source.push_to(server)


def test_a_push_stripped_and_pushed_again_comes_with_its_new_row(place, server):
    first, second, third = nodes_of(server)
    client = place("client")
    client.pull_from(server)
    server.strip(third)
    place("source").push_to(server)
    client.pull_from(server)
    assert client.rows() == server.rows() == {
        1: ("alice", [first]), 2: ("alice", [second]), 3: ("alice", []), 4: ("alice", [third]),
    }  # fmt: skip
    assert client.errors() == []
    os.unlink(client.folder / ".hg" / "pushlog2.db")
    assert client.rows() == server.rows()


def test_an_emptied_push_stops_no_pull(place, server):
    first, second, third = nodes_of(server)
    server.strip(third)
    client = place("client")
    client.pull_from(server)
    assert client.rows() == {1: ("alice", [first]), 2: ("alice", [second]), 3: ("alice", [])}
    assert client.errors() == []
    place("source").push_to(server)
    client.pull_from(server)
    assert client.rows() == server.rows()
    assert client.errors() == []


@pytest.fixture
def branched(place):
    """Push 1 is a; push 2 is b and c upon it; push 3 is d upon a."""
    source, server = place("source"), place("server")
    root = source.commit(b"a")
    source.push_to(server)
    source.commit(b"b")
    source.commit(b"c")
    source.push_to(server)
    source.commit(b"d", onto=bytes.fromhex(root))
    source.push_to(server)
    return server


@pytest.mark.parametrize("place_in_push", [0, 1], ids=["all of it", "its last changeset"])
def test_a_push_that_lost_changesets_is_asked_for_when_they_return(place, branched, place_in_push):
    client = place("client")
    client.pull_from(branched)
    before = client.rows()
    client.strip(before[2][1][place_in_push])
    assert client.rows() != before
    client.pull_from(branched)
    assert client.rows() == before == branched.rows()
    assert client.errors() == []


def test_a_row_without_its_changesets_is_asked_for_when_they_come(place, branched):
    """An operator brings them back on the server."""
    rows = branched.rows()
    branched.strip(rows[2][1][0])
    client = place("client")
    client.pull_from(branched)
    assert client.rows()[2] == ("alice", [])
    place("source").push_to(branched)
    branched.sql("UPDATE changesets SET pushid = 2 WHERE pushid = 4")
    branched.sql("DELETE FROM pushlog WHERE id = 4")
    client.pull_from(branched)
    assert {number: (user, set(nodes)) for number, (user, nodes) in client.rows().items()} == {
        number: (user, set(nodes)) for number, (user, nodes) in rows.items()
    }
    assert client.errors() == []


@pytest.fixture
def publish(branched):
    """Make a changeset public on a server that shows public changesets alone."""
    (branched.folder / ".hg" / "hgrc").write_text("[server]\nview = immutable\n")

    def publish(node):
        repository = branched.repository.unfiltered()
        with repository.lock(), repository.transaction(b"test") as tr:
            phases.advanceboundary(repository, tr, phases.public, [bytes.fromhex(node)])

    return publish


def test_what_is_made_public_later_is_in_the_push_that_brought_it(place, branched, publish):
    """First push 1, then push 3, the first changeset of push 2, and its last one."""
    rows, client = branched.rows(), place("client")
    [first], [middle, last], [newest] = (rows[number][1] for number in (1, 2, 3))
    for node in (first, newest):
        publish(node)
        client.pull_from(branched)
    assert client.rows() == {1: rows[1], 3: rows[3]}
    publish(middle)
    client.pull_from(branched)
    assert client.rows() == {**rows, 2: ("alice", [middle])}
    publish(last)
    client.pull_from(branched)
    assert client.rows() == rows
    assert client.errors() == []


def test_what_is_made_public_is_found_before_a_push_without_changesets(place, branched, publish):
    rows, client = branched.rows(), place("client")
    publish(rows[3][1][0])
    client.pull_from(branched)
    client.strip(rows[3][1][0])
    publish(rows[2][1][1])
    client.pull_from(branched)
    assert client.rows() == rows


@pytest.fixture
def asked(monkeypatch):
    """The first push of each question for rows."""
    firsts, stream = [], wire.stream_rows
    monkeypatch.setattr(wire, "stream_rows", lambda repo, first: firsts.append(first) or stream(repo, first))
    return firsts


def test_a_client_of_two_servers_asks_each_for_new_rows_alone(place, asked):
    one, other, client = place("one"), place("other"), place("client")
    developer, colleague = place("developer"), place("colleague")
    developer.commit(b"root")
    developer.push_to(one)
    colleague.pull_from(one)
    for number in range(3):
        for committer, server in ((developer, one), (colleague, other)):
            committer.commit(b"%d" % number)
            committer.push_to(server)
    client.pull_from(one)
    client.pull_from(other)
    asked.clear()
    developer.commit(b"newest")
    developer.push_to(one)
    colleague.commit(b"newest too")
    colleague.push_to(other)
    assert "left out" not in client.pull_from(other) + client.pull_from(one)
    assert asked == [b"5", b"5"]


def test_changesets_that_no_push_brought_are_not_asked_for_again(place, branched, asked):
    client = place("client")
    client.pull_from(branched)
    branched.commit(b"on the server")
    asked.clear()
    client.pull_from(branched)
    assert asked == [b"4"]


def test_changesets_of_a_completed_row_are_not_asked_for_again(place, branched, asked):
    rows, client = branched.rows(), place("client")
    client.pull_from(branched, rows[1][1][0])
    asked.clear()
    client.pull_from(branched, rows[3][1][0])
    assert (asked, client.rows()) == ([b"2"], {1: rows[1]})
    client.pull_from(branched)
    assert client.rows() == rows


def test_a_pull_without_new_changesets_asks_once(place, branched, asked):
    client = place("client")
    branched.strip(branched.rows()[2][1][0])
    client.pull_from(branched)
    asked.clear()
    client.pull_from(branched)
    assert asked == [b"4"]


def test_of_two_servers_the_newer_id_keeps_a_changeset(place, server):
    first, second, third = nodes_of(server)
    client = place("client")
    client.pull_from(server, second)
    other = place("other")
    for number in range(3):
        place("source").push_to(other, nodes_of(server)[number])
    other.sql("UPDATE pushlog SET id = id + 10, user = 'bob'")
    other.sql("UPDATE changesets SET pushid = pushid + 10")
    client.pull_from(other)
    assert client.rows() == {
        1: ("alice", []), 2: ("alice", []), 11: ("bob", [first]), 12: ("bob", [second]), 13: ("bob", [third]),
    }  # fmt: skip
    assert client.errors() == []
    client.pull_from(server)
    assert client.errors() == []


def test_a_row_of_another_server_under_a_known_id_is_left_out_and_told(place, branched):
    client = place("client")
    client.pull_from(branched)
    lost = client.rows()[2][1]
    client.strip(lost[0])
    branched.sql("UPDATE pushlog SET user = 'eve' WHERE id = 2")
    printed = client.pull_from(branched)
    assert client.rows()[2] == ("alice", [])
    assert "push 2 is another push here" in printed


@pytest.mark.parametrize(
    ("announced", "printed"),
    [
        (b"2", b"this mirror is behind: it serves pushes up to 2, the newest here is 3\n"),
        *((value, b"") for value in (b"3", b"", b"\x1b[2J", b"1\n", b"-1", b"\xb2", b"9" * 5000, True, False)),
    ],
)
def test_only_a_number_of_a_server_is_printed(announced, printed):
    user_interface = ui_module.ui.load()
    user_interface.fout = out = io.BytesIO()
    remote = SimpleNamespace(capable=lambda name: announced)
    fetching.name_stale_mirror(user_interface, remote, newest=3)
    assert out.getvalue() == printed


def test_a_pull_shows_how_many_pushes_it_received_and_recorded(place, server, shown):
    place("client").pull_from(server)
    assert [step for step in shown if b"pushes" in step[0]] == [
        *((b"receiving pushes", done, None) for done in (1, 2, 3)),
        *((b"recording pushes", done, 3) for done in (1, 2, 3)),
    ]


def test_a_bar_of_received_pushes_ends_at_the_newest_of_the_server(place, server, shown):
    place("client").pull_from(server, capabilities={b"pushlog-last": b"4"})
    totals = [total for topic, _done, total in shown if topic == b"receiving pushes"]
    assert totals == [4, 4, 4]


@pytest.mark.parametrize("newest", [b"2", b"0", b"many", b"9" * 50])
def test_a_bar_of_received_pushes_is_no_longer_than_its_total(place, server, shown, newest):
    client = place("client")
    assert "added 3 pushes" in client.pull_from(server, capabilities={b"pushlog-last": newest})
    assert all(total is None or done <= total for _topic, done, total in shown)

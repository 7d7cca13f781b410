# SPDX-License-Identifier: GPL-2.0-or-later
"""`hg copypushlog`: the pushes of a server reach the database of another extension, all or none, and nothing else changes."""

import contextlib
import io
import os
import random
import shutil
import signal
import sqlite3
import subprocess
from datetime import UTC, datetime

import pytest
from mercurial import error, exchange

from pushlog import copying, wire
from pushlog.store.entry import Push
from pushlog.versions import factory
from testing.faults import SEED, told_with_seed
from testing.warm_hg import shared_hg
from tests.golden.make_repository import PUSHLOG_SCHEMA
from tests.pushlog.store.test_kills import Struck, warm_hg

pytestmark = pytest.mark.processes

SOURCE = b"http://hg:secret@there.example/x"
# What that extension makes, and what SQLite adds to it.
SCHEMA = {statement.strip() for statement in PUSHLOG_SCHEMA.split(";") if statement.strip()}
OF_SQLITE = {"CREATE TABLE sqlite_sequence(name,seq)"}
ERIN = ("erin", 1_400_000_000)


class Theirs:
    """A repository whose pushlog is `pushlog2.db` alone, as hg.mozilla.org's extension has it."""

    def __init__(self, place, server):
        self.place, self.server = place("theirs"), server
        self.folder, self.path = self.place.folder, self.place.folder / ".hg" / "pushlog2.db"
        if not self.path.exists():
            with self.database() as database:
                database.executescript(PUSHLOG_SCHEMA)

    @contextlib.contextmanager
    def database(self):
        with contextlib.closing(sqlite3.connect(self.path)) as database, database:
            yield database

    def pull(self, *nodes):
        """Changesets alone: a local path serves no pushlog."""
        local = self.place.repository
        remote = factory.peer(local.ui, {}, os.fsencode(self.server.folder))
        exchange.pull(local, remote, heads=[bytes.fromhex(node) for node in nodes] or None)

    def record(self, user, date, *nodes):
        """A push recorded as that extension does; its id."""
        index = self.place.repository.changelog.index
        with self.database() as database:
            number = database.execute("INSERT INTO pushlog (user, date) VALUES (?, ?)", (user, date)).lastrowid
            rows = [(number, index.get_rev(bytes.fromhex(node)), node) for node in nodes]
            database.executemany("INSERT INTO changesets (pushid, rev, node) VALUES (?, ?, ?)", rows)
        return number

    def rows(self):
        """Every push with its changesets in order of their revision numbers, which must be those of the repository."""
        index = self.place.repository.changelog.index
        with self.database() as database:
            pushes = {row[0]: (*row, []) for row in database.execute("SELECT id, user, date FROM pushlog ORDER BY id")}
            for number, revision, node in database.execute("SELECT pushid, rev, node FROM changesets ORDER BY rev"):
                assert index.get_rev(bytes.fromhex(node)) == revision
                pushes[number][-1].append(node)
        return list(pushes.values())

    def strip(self, node):
        """Strip a changeset as that extension does: its row goes, the others are renumbered, and its push stays."""
        plain = {**os.environ, "HGRCPATH": os.devnull}
        words = [
            shared_hg(plain),
            "--config",
            "extensions.strip=",
            "-R",
            self.folder,
            "strip",
            "-q",
            "--no-backup",
            node,
        ]
        subprocess.run(words, env=plain, check=True)
        index = self.place.repository.changelog.index
        with self.database() as database:
            database.execute("DELETE FROM changesets WHERE node = ?", (node,))
            rows = list(database.execute("SELECT node FROM changesets"))
            database.execute("UPDATE changesets SET rev = NULL")
            renumbered = [(index.get_rev(bytes.fromhex(left)), left) for (left,) in rows]
            database.executemany("UPDATE changesets SET rev = ? WHERE node = ?", renumbered)

    def schema(self):
        with self.database() as database:
            return {
                sql for (sql,) in database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
            } - OF_SQLITE

    def files(self):
        """The files of the store, and those of the pushlog beside it; without the lock."""
        folder = self.folder / ".hg"
        return {path.name for path in [*folder.glob("pushlog*"), *(folder / "store").iterdir()]}


def pushes_of(server):
    """The pushes of the server as rows of a database."""
    rows = [row.decode().split(" ") for row in wire.stream_rows(server.repository, b"0")][:-1]
    return [(int(number), user, int(date), [node.strip() for node in nodes]) for number, user, date, *nodes in rows]


def utc(date):
    return datetime.fromtimestamp(date, UTC).strftime("%Y-%m-%d %H:%M:%S +0000")


@pytest.fixture
def theirs(place, server, make_once):
    """It has the server's first push, and was not followed since."""

    def pull_first():
        theirs = Theirs(place, server)
        (_, user, date, nodes), *_ = pushes_of(server)
        theirs.pull(*nodes)
        theirs.record(user, date, *nodes)

    make_once(pull_first, "theirs")
    return Theirs(place, server)


@pytest.fixture
def copy(theirs, monkeypatch):
    """Copy the pushes of the server, or of this answer; what the command printed, with the text and hint of its Abort."""
    open_peer = factory.peer

    def copy(answer=None):
        body = b"".join(wire.stream_rows(theirs.server.repository, b"1")) if answer is None else answer
        local = theirs.place.repository
        remote = open_peer(local.ui, {}, os.fsencode(theirs.server.folder))
        remote.capable = lambda name: name == b"pushlog-stream" or type(remote).capable(remote, name)
        remote._callstream = lambda _command, firstpush: io.BytesIO(body)
        stopped = b""
        with monkeypatch.context() as patched:
            patched.setattr(factory, "peer", lambda *_: remote)
            try:
                assert copying.copypushlog(local.ui, local, SOURCE) == 0
            except error.Abort as problem:
                stopped = b"abort: %s\n(%s)\n" % (problem.message, problem.hint or b"")
        return (theirs.place.printed.getvalue() + stopped).decode()

    return copy


def test_pushes_come_with_their_ids_and_the_next_one_is_free(theirs, copy, server):
    theirs.pull()
    before = theirs.files()
    assert copy() == "copied 2 pushes into pushlog2.db\n"
    assert theirs.rows() == pushes_of(server)
    assert theirs.files() == before
    assert theirs.schema() == SCHEMA
    assert theirs.record(*ERIN) == 4


def test_a_copy_shows_how_far_it_is(theirs, copy, shown):
    theirs.pull()
    shown.clear()
    copy()
    assert shown == [(b"copying pushes", done, None) for done in (1, 2, 3)]


def test_what_was_copied_is_not_copied_again(theirs, copy):
    theirs.pull()
    copy()
    before = theirs.path.read_bytes()
    assert copy() == "copied 0 pushes into pushlog2.db\n"
    assert theirs.path.read_bytes() == before


def test_a_repository_without_a_database_gets_one(theirs, copy, server):
    theirs.pull()
    theirs.path.unlink()
    assert copy() == "copied 3 pushes into pushlog2.db\n"
    assert theirs.rows() == pushes_of(server)
    assert theirs.schema() == SCHEMA
    assert theirs.path.stat().st_mode & 0o020


def test_revisions_are_numbered_as_in_the_repository(place, theirs, copy, server):
    """A changeset that has number 3 at the server has number 1 here: here that of push 4 came first."""
    first = pushes_of(server)[0][-1][0]
    side = server.commit(b"side", onto=bytes.fromhex(first))
    place("source").pull_from(server)
    with contextlib.closing(sqlite3.connect(server.folder / ".hg" / "pushlog2.db")) as database, database:
        database.execute("INSERT INTO pushlog (id, user, date) VALUES (4, 'dana', 1500000000)")
        database.execute("INSERT INTO changesets VALUES (4, 3, ?)", (side,))
    theirs.pull(side)
    theirs.pull()
    copy()
    assert theirs.rows() == pushes_of(server)


def test_changesets_are_pulled_first(theirs, copy, server):
    before = theirs.rows()
    _, (_, _, _, [second]), _ = pushes_of(server)
    assert copy() == (
        f"abort: changeset {second} of push 2 is not here; nothing was copied\n"
        "(first pull from http://hg:***@there.example/x)\n"
    )
    assert theirs.rows() == before


def test_what_the_server_does_not_give_is_left_out_of_its_push(theirs, copy, server):
    theirs.pull()
    rows = pushes_of(server)
    answer = [*wire.stream_rows(server.repository, b"1")]
    answer[1] = answer[1].rstrip(b"\n") + b" " + b"f" * 40 + b"\n"
    for copied in (2, 0):
        assert copy(b"".join(answer)) == (
            f"pushes without the changesets that are not given by the server: 2\ncopied {copied} pushes into pushlog2.db\n"
        )
        assert theirs.rows() == rows


def test_a_changeset_that_the_server_never_had_stays_in_its_push(theirs, copy, server):
    own = theirs.place.commit(b"hidden at the server")
    with theirs.database() as database:
        database.execute("INSERT INTO changesets VALUES (1, 1, ?)", (own,))
    theirs.pull()
    copy()
    (number, user, date, nodes), *others = pushes_of(server)
    assert theirs.rows() == [(number, user, date, [*nodes, own]), *others]


def test_a_push_on_both_sides_stops_the_copy_until_it_was_pushed(theirs, copy, server):
    own = theirs.place.commit(b"on both sides")
    theirs.record(*ERIN, own)
    theirs.pull()
    before = theirs.path.read_bytes()
    _, (_, _, date, [second]), _ = pushes_of(server)
    told = copy()
    assert told.splitlines() == [
        f"push 2: here erin, 2014-05-13 16:53:20 +0000, {own[:12]}; there alice, {utc(date)}, {second[:12]}",
        "abort: 1 ids name other pushes here than at http://hg:***@there.example/x; nothing was copied",
        "(changesets that were pushed here too: push them there, strip them here, and copy again)",
    ]
    assert theirs.path.read_bytes() == before
    theirs.place.push_to(server, own)
    theirs.strip(own)
    theirs.pull()
    assert copy() == (
        "pushes that had no changesets here and are now those of http://hg:***@there.example/x: 2\n"
        "copied 3 pushes into pushlog2.db\n"
    )
    assert theirs.rows() == pushes_of(server)
    assert [own] in [nodes for *_, nodes in theirs.rows()]


def test_a_changeset_in_another_push_stops_the_copy(theirs, copy, server):
    theirs.pull()
    _, (_, user, date, [second]), (*_, [third]) = pushes_of(server)
    theirs.record(user, date, second, third)
    before = theirs.rows()
    told = copy()
    assert told.splitlines()[0].startswith(f"push 3: here changeset {third[:12]} is in push 2; there alice, ")
    assert "abort: 1 ids name other pushes here" in told
    assert theirs.rows() == before


def test_of_many_contradictions_the_first_are_shown(theirs, copy, server):
    answer = b"".join(b"%d carol 1500000000 \n" % number for number in range(1, 31)) + b"ok\n"
    for _ in range(29):
        theirs.record(*ERIN, os.urandom(20).hex())
    told = copy(answer).splitlines()
    assert len(told) == 12
    assert told[0].startswith("push 1: here alice, ")
    assert told[-2].startswith("abort: 30 ids name other pushes here")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"2 alice 1500000000 \n", "stream ended without trailer"),
        (b"2 alice 1500000000 \nerror database is locked\n", "database is locked"),
        (b"2 alice yesterday \nok\n", "not a number: b'yesterday'"),
    ],
)
def test_an_answer_that_cannot_be_read_copies_nothing(theirs, copy, answer, reason):
    before = theirs.rows()
    place = "http://hg:***@there.example/x"
    assert copy(answer) == f"abort: cannot read the pushlog of {place}: {reason}\n(nothing was copied)\n"
    assert theirs.rows() == before


def test_a_database_that_contradicts_its_repository_is_left_as_it_is(theirs, copy):
    theirs.pull()
    with theirs.database() as database:
        database.execute("INSERT INTO changesets VALUES (1, 2, ?)", ("e" * 40,))
    before = theirs.path.read_bytes()
    assert copy() == (
        "abort: cannot write pushlog2.db: UNIQUE constraint failed: changesets.rev\n"
        "(nothing was copied; hg verifypushlog names what is wrong)\n"
    )
    assert theirs.path.read_bytes() == before


def test_a_locked_database_is_waited_for_and_left_as_it_is(theirs, copy, monkeypatch):
    theirs.pull()
    (theirs.folder / ".hg" / "hgrc").write_text("[pushlog]\ntimeoutrw = 10\n")
    with theirs.database() as database:
        database.execute("BEGIN IMMEDIATE")
        assert copy() == "abort: cannot write pushlog2.db: database is locked\n(nothing was copied; try again)\n"
    assert len(theirs.rows()) == 1


def test_a_repository_with_a_file_of_its_own_is_refused(copy, theirs, server):
    shutil.rmtree(theirs.folder)
    shutil.copytree(server.folder, theirs.folder)
    assert copy() == (
        "abort: pushlog.log is the truth of this repository's pushlog; copypushlog is for a repository without it\n"
        "(here hg pull brings the pushes of a server)\n"
    )


def test_a_server_without_a_pushlog_is_named(theirs, server):
    local = theirs.place.repository
    with pytest.raises(error.Abort, match="source serves no pushlog"):
        copying.copypushlog(local.ui, local, os.fsencode(server.folder.with_name("source")))


A, B = "a" * 40, "b" * 40


def push(*, user: str = "erin", date: int = 5, nodes: tuple[str, ...] = (A,)) -> Push:
    return Push(id=7, user=user, date=date, nodes=nodes)


@pytest.mark.parametrize(
    ("here", "there", "united"),
    [
        (None, push(), push()),
        (push(), push(), push()),
        (push(nodes=()), push(), push()),
        (push(nodes=(), user="dana"), push(), push()),
        (push(), push(nodes=()), push()),
        (push(), push(nodes=(A, B)), push(nodes=(A, B))),
        (push(nodes=(A, B)), push(), push(nodes=(A, B))),
        (push(), push(nodes=(B,)), None),
        (push(), push(user="dana"), None),
        (push(), push(date=6), None),
        (push(), push(user="dana", nodes=()), None),
    ],
)
def test_what_is_one_push(here, there, united):
    assert copying.unite(here, there) == united


@pytest.mark.hunt
@pytest.mark.parametrize("share", [3, pytest.param(None, marks=pytest.mark.slow)], ids=["some", "all"])
def test_killed_at_a_system_call(tmp_path, theirs, server, share, told):
    theirs.pull()
    (tmp_path / "ssh").write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    (tmp_path / "ssh").chmod(0o755)
    remote = [*("--config", f"ui.ssh={tmp_path}/ssh"), *("--config", f"ui.remotecmd={warm_hg()}")]
    struck = Struck(tmp_path, "-R", "theirs", *remote, "copypushlog", f"ssh://x/{server.folder}")
    calls = struck.calls("theirs")
    assert len(calls) > 5, "the command does not seem to write"
    synced = [call for call in calls if call.name in ("fsync", "fdatasync") and "pushlog2.db" in call.text]
    assert synced, "a power cut would lose what was copied"
    kills, seen = 0, set()
    chosen = calls if share is None else random.Random(SEED).sample(calls, share)
    for call in chosen:
        kills += struck.meet(call) == -signal.SIGKILL
        with told_with_seed(f"killed at {call}"):
            seen.add(len(theirs.rows()))
            assert struck.run() == 0
            assert theirs.rows() == pushes_of(server)
            assert theirs.record(*ERIN) == 4
    told(f"killed at {kills} of {len(calls)} system calls")
    assert kills >= 0.9 * len(chosen)
    assert seen <= {1, 3}, "a part of the pushes"

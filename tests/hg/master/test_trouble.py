# SPDX-License-Identifier: GPL-2.0-or-later
"""Pushes while something around them is full, locked, read-only or closed: true words, nothing lost, well again by itself."""

import json
import os
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager, nullcontext

import pytest

from testing.builders.master.pushing import HG, KEPT, RECORDED, events, new_master, running_relay
from testing.faults.forks import await_fork, begin_fork
from testing.waiting import eventually

pytestmark = pytest.mark.processes

GUEST = 65534
# Root alone may become another user, and must lose its powers to be refused anything.
ROOT = os.geteuid() == 0


@pytest.fixture
def master(tmp_path):
    with new_master(f"log = sqlite://{tmp_path}/log.db") as master:
        yield master


def patience(master, seconds):
    master.configure(f"[vcsreplicator]\nacknowledge-timeout = {seconds}\n")


@contextmanager
def busy(database):
    """Another process is writing to a SQLite database."""
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@pytest.mark.parametrize("relaying", [True, False])
def test_pushes_are_kept_while_somebody_else_writes_to_the_log(master, log, tmp_path, relaying):
    master.create("one")
    patience(master, 1)
    # The relay ends once it is its turn to write, and not when its own patience is over, half a minute later.
    with running_relay(master.settings(), log) if relaying else nullcontext(), busy(tmp_path / "log.db"):
        for text in "ab":
            master.commit("one", text)
            assert KEPT in master.push("one")
    patience(master, 60)
    master.commit("one", "c")
    assert RECORDED in master.push("one")
    assert [event.seq for event in events(log)["one"]] == [1, 2, 3, 4]


def test_a_marker_that_cannot_be_written_stops_the_sending(master, log):
    master.create("one")
    in_the_way = master.root / "one/.hg/store/outbox.sent.new"
    in_the_way.mkdir()
    patience(master, 1)
    with running_relay(master.settings(), log):
        master.commit("one", "a")
        assert KEPT in master.push("one")
        assert [event.seq for event in events(log, repeats=True)["one"]] == [1]
        in_the_way.rmdir()
        eventually(lambda: not master.outbox("one").has_unsent())
    assert [event.seq for event in events(log, repeats=True)["one"]] == [1, 2]


def test_a_push_is_refused_while_the_pushlog_is_written_elsewhere(master, log):
    master.create("one")
    master.commit("one", "a")
    assert RECORDED in master.push("one")
    master.commit("one", "b")
    master.configure("[pushlog]\ntimeoutrw = 200\n")
    with busy(master.root / "one/.hg/pushlog2.db"):
        refused = master.push("one", check=False)
    assert "error recording into pushlog (database is locked); please retry your push" in refused
    assert master.operate("-R", str(master.root / "one"), "log", "-T", "{desc} ") == "a "
    assert RECORDED in master.push("one")
    assert [event.seq for event in events(log)["one"]] == [1, 2, 3]


@pytest.mark.parametrize(
    "damage",
    [lambda record: record[:-7], lambda record: record[:-30] + b"?" + record[-29:]],
    ids=["cut", "another byte"],
)
def test_a_damaged_outbox_is_one_line_and_the_repository_can_begin_anew(master, log, damage):
    master.create("one")
    outbox = master.root / "one/.hg/store/outbox.0001.log"
    outbox.write_bytes(damage(outbox.read_bytes()))
    master.commit("one", "a")
    for refused in (
        master.push("one", check=False),
        master.operate("-R", str(master.root / "one"), "replicateadopt", "--yes", check=False),
        master.operate("-R", str(master.root / "one"), "replicaterename", check=False),
    ):
        assert "this repository refuses changes: outbox.0001.log: damaged record at byte " in refused
        assert "move .hg/store/outbox.* away" in refused
        assert "Traceback" not in refused
    subprocess.run("mkdir ../away; mv one/.hg/store/outbox.* ../away", shell=True, check=True, cwd=master.root)
    assert RECORDED in master.push("one")
    anew = [event.type for event in events(log)["one"] if event.generation == 2]
    assert anew == ["created", "changed"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("how", ["unbundle", "pushkey-phase"])
def test_a_push_that_saw_what_is_rolled_back_now_is_told_to_begin_again(master, log, how):
    master.create("one")
    master.commit("one", "a")
    (master.folder / "die.py").write_text(
        "import os, signal\nfrom hgext.vcsreplicator.hg.master import durability\n"
        "durability.before_outbox = lambda *a: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    code = f"""
import os, subprocess
from mercurial import error, extensions, ui
from pushlog.versions import factory, initialize
initialize()
ui = ui.ui.load()
extensions.loadall(ui)
extensions.populateui(ui)
repo = factory.repository(ui, b"{master.root}/one").unfiltered()
die = "extensions.die={master.folder}/die.py"
subprocess.run(["{HG}", "-R", "{master.folder}/clone-one", "push", "-q", "{master.root}/one", "--config", die])
repo.invalidateall()
with repo.lock():
    seen = len(repo.changelog)
    try:
        with repo.transaction(b"{how}"):
            print("went on")
    except (error.PushRaced, error.Abort) as problem:
        print(seen, type(problem).__name__, bytes(problem).decode())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "HGRCPATH": str(master.folder / "master.hgrc")},
        capture_output=True,
        text=True,
        check=False,
    )
    kind = "Abort" if how.startswith("pushkey") else "PushRaced"
    words = "an abandoned transaction was in the way and is rolled back; please push again"
    assert done.stdout.splitlines()[-1:] == [f"1 {kind} {words}"], done.stderr
    master.operate("-R", str(master.root / "one"), "recover", check=False)
    assert RECORDED in master.push("one")


def test_a_push_into_a_read_only_store_is_refused_and_the_next_goes_on(master, log):
    master.create("one")
    master.commit("one", "a")
    store = master.root / "one/.hg/store"
    powerless = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if ROOT else []
    with running_relay(master.settings(), log):
        store.chmod(0o555)
        done = subprocess.run(
            [*powerless, HG, "-R", str(master.folder / "clone-one"), "push", "-q", store.parent.parent],
            env={**os.environ, "HGRCPATH": str(master.folder / "master.hgrc")},
            capture_output=True,
            text=True,
        )
        store.chmod(0o755)
        assert done.returncode != 0
        assert "Permission denied" in done.stderr
        assert "Traceback" not in done.stderr
        assert RECORDED in master.push("one")
    assert [event.seq for event in events(log)["one"]] == [1, 2]


@pytest.mark.parametrize(("groups", "admitted"), [([], False), ([0], True)])
def test_the_relay_hears_whoever_is_in_the_group_of_the_repositories(master, log, groups, admitted):
    master.create("one")
    master.folder.chmod(0o755)
    is_answered = admitted or not ROOT
    with as_nobody(lambda: ask(master) is is_answered, groups) as asked, running_relay(master.settings(), log):
        os.chmod(master.socket, 0o666)  # so that it is the relay that refuses
        assert asked() == 0


def ask(master):
    """Asks for what is sent already; whether the relay answered."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(60)
        peer.connect(master.socket)
        try:
            peer.sendall(json.dumps({"repository": str(master.root / "one")}).encode() + b'\n{"seq": 1}\n')
            return peer.recv(100) != b""
        except (BrokenPipeError, ConnectionResetError):
            return False


@contextmanager
def as_nobody(act, groups):
    """Gives a function that does it in another process, as another user where we may become one; 0 if it gave something true.

    The process begins here, before the relay: a process that is forked while a thread of this process holds the lock of an outbox
    holds it too, and the relay would wait for it.
    """
    begin, told = os.pipe()

    def become_and_act():
        os.close(told)
        if ROOT:
            os.setgroups(groups)
            os.setgid(GUEST)
            os.setuid(GUEST)
        if os.read(begin, 1):
            assert act()

    child = begin_fork(become_and_act)
    os.close(begin)
    ended = []

    def go():
        os.write(told, b".")
        ended.append(await_fork(child))
        return ended[0]

    try:
        yield go
    finally:
        os.close(told)
        if not ended:
            await_fork(child)

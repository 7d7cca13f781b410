# SPDX-License-Identifier: GPL-2.0-or-later
"""A power cut after the pusher heard "ok": what was never synced is gone, and the two durabilities show their difference.

A push runs under strace, which tells what was written and what was synced. Then every file of the repository that was written and
not synced afterwards is put back as it was before the push (a new one is removed), the worst that a disk may do.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hgext.vcsreplicator.hg.master.durability import MANY
from hgext.vcsreplicator.log import topics
from hgext.vcsreplicator.log.opening import open_log
from pushlog import versions
from testing.builders.master.pushing import HG, Master, events, running_relay
from testing.faults import SystemCalls
from testing.waiting import eventually

pytestmark = pytest.mark.processes

FILE = re.compile(r"^(?:\w+)\((?:\d+|AT_FDCWD)<([^>]*)>")
NAMED = re.compile(r'"(/[^"]*)"')
OPENED = re.compile(r"= \d+<([^>]*)>$")


def unsynced(calls, folder):
    """Files below `folder` with changes that no sync followed; and whether the commit itself (the journal going) was synced."""
    dirty, committed = set(), False
    for call in calls:
        names = NAMED.findall(call.text)
        if call.name in ("fsync", "fdatasync"):
            path = FILE.match(call.text)[1]
            dirty.discard(path)
            if path == f"{folder}/.hg/store":
                committed = True
        elif call.name == "syncfs":
            dirty.clear()
        elif call.name.startswith("rename"):
            source, target = names[-2:]
            if source in dirty:
                dirty.discard(source)
                dirty.add(target)
            if source == f"{folder}/.hg/store/journal":
                committed = False
        elif call.name.startswith("unlink") and names:
            dirty.discard(names[-1])
        elif call.name in ("write", "pwrite64", "ftruncate"):
            dirty.add(FILE.match(call.text)[1])
        elif call.name == "openat" and ("O_TRUNC" in call.text or "O_CREAT" in call.text) and OPENED.search(call.text):
            dirty.add(OPENED.search(call.text)[1])
    return {path for path in dirty if path.startswith(f"{folder}/.hg/")}, committed


@pytest.fixture
def pushed(tmp_path):
    """Pushes so many files more with this durability, then cuts the power; (master, what got lost)."""

    def push(durability, files=0, settings=""):
        master = Master(tmp_path / durability, f"relay = /nowhere\ndurability = {durability}").set_up()
        master.configure(settings)
        master.create("one")
        master.commit("one", "a")
        master.push("one")
        for number in range(files):
            (master.folder / "clone-one" / f"file-{number}").write_text("b")
        master.commit("one", "b")
        master.develop("-R", str(master.folder / "clone-one"), "bookmark", "here")
        before = tmp_path / f"{durability}-before"
        repository = master.root / "one"
        shutil.copytree(repository, before)
        calls = SystemCalls(log=tmp_path / "strace")
        argv = [HG, "-R", str(master.folder / "clone-one"), "push", "-B", "here", str(repository)]
        made = calls.made(argv, lambda argv: run(master, argv))
        lost, committed = unsynced(made, str(repository))
        assert committed
        for path in lost:
            old = before / Path(path).relative_to(repository)
            if old.exists():
                shutil.copy2(old, path)
            else:
                Path(path).unlink(missing_ok=True)
        return master, {str(Path(path).relative_to(repository / ".hg")) for path in lost}

    return push


def run(master, argv):
    environment = {**os.environ, "HGRCPATH": f"{master.folder}/master.hgrc", "USER": "dana"}
    subprocess.run(argv, env=environment, cwd=master.folder, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("files", [0, MANY], ids=["few", "many"])  # many are synced by one call
def test_with_store_a_power_cut_loses_nothing_of_a_push_that_was_accepted(pushed, files):
    master, lost = pushed("store", files)
    derived = ("cache/", "wcache/", "store/undo", "undo", "pushlog2.db")  # made again from what was synced
    assert not {name for name in lost if not name.startswith(derived)}
    one = str(master.root / "one")
    assert master.operate("-R", one, "log", "-T", "{desc}:{bookmarks}:{pushid}\n") == "b:here:2\na::1\n"
    assert "2 changesets" in master.operate("-R", one, "verify")


def test_with_store_a_power_cut_loses_nothing_of_an_index_of_files(pushed):
    lines = "[format]\nuse-fileindex-v1 = yes\n[storage]\nfileindex.slow-path = allow\n"
    master, lost = pushed("store", 3, lines)
    made = "fncache" if versions.is_older_than((7, 2)) else "fileindex-v1"  # an older Mercurial has no such format
    assert made in (master.root / "one/.hg/store/requires").read_text()
    assert not {name for name in lost if name.startswith(("store/fileindex", "store/fncache"))}
    assert "2 changesets" in master.operate("-R", str(master.root / "one"), "verify")


def test_with_outbox_a_power_cut_keeps_the_event(pushed, tmp_path):
    master, lost = pushed("outbox")
    assert "store/00changelog.i" in lost
    one = str(master.root / "one")
    assert master.operate("-R", one, "log", "-T", "{desc}\n") == "a\n"
    with open_log(f"sqlite://{tmp_path}/log.db", creates=True) as log:
        log.create(topics())
        with running_relay(master.settings(socket=f"/tmp/durability-{tmp_path.name}.sock"), log):
            refused = master.operate("-R", one, "bookmark", "-r", "0", "other", check=False)
            assert "it lost changesets, perhaps by damage: its newest event left 2 up to " in refused
            master.operate("-R", one, "replicateadopt", "--yes")
            eventually(lambda: len(events(log).get("one", ())) == 4, "the relay, which no pusher called, to send all")
        chain = events(log)["one"]
    assert [event.type.value for event in chain] == ["created", "changed", "changed", "sync"]
    assert chain[3].detail["reason"] == "adopted"

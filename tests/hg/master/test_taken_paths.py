# SPDX-License-Identifier: GPL-2.0-or-later
"""A repository without an outbox of its own, at a path that the log knows: a push to it would never be announced."""

import shutil
from collections.abc import Iterator

import pytest

from hgext.vcsreplicator.log import STATE, NewRecord, topics
from hgext.vcsreplicator.mirror.checkpoint import FILE, MAGIC, Checkpoint
from hgext.vcsreplicator.words.event import Event
from hgext.vcsreplicator.words.records import RepositoryState
from hgext.vcsreplicator.words.shape import to_json
from pushlog.store import frames
from testing.builders.log.memorylog import MemoryLog
from testing.builders.master.pushing import UNRELAYED, Master, events, new_master, running_relay
from testing.waiting import eventually

pytestmark = pytest.mark.processes

TAKEN = "this repository refuses changes: the log has another repository at one"


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    log.create(topics())
    return log


@pytest.fixture
def master() -> Iterator[Master]:
    """A master whose repository has a creation and a push in the log, and of which the outboxes and generations are gone."""
    with new_master("acknowledge-timeout = 20") as master:
        yield master


def push_once(master: Master, log: MemoryLog) -> Event:
    """Creates the repository, pushes to it, and writes what the aggregator says of it; the newest event."""
    with running_relay(master.settings(), log):
        master.create("one")
        master.commit("one", "first")
        master.push("one")
    newest = events(log)["one"][-1]
    names = {
        name: getattr(newest, name) for name in ("repository", "incarnation", "path", "generation", "seq", "digest")
    }
    state = RepositoryState(**names, event=newest.id, released=newest.seq, noticed=newest.seq, roster=1)
    log.append([NewRecord(topic=STATE, key=newest.repository, value=to_json(state))])
    return newest


def lose_outbox(master: Master) -> None:
    """What a copy of a repository's content, made on another machine, lacks."""
    shutil.rmtree(master.root / ".vcsreplicator")
    for file in (master.root / "one" / ".hg" / "store").glob("outbox.*"):
        file.unlink()


def leave_checkpoint(master: Master, newest: Event) -> None:
    """What a copy has that a mirror applied the event to."""
    names = {name: getattr(newest, name) for name in Checkpoint.list_members() if hasattr(newest, name)}
    names |= {"settings": Checkpoint.settings, "hgrc": None}
    checkpoint = Checkpoint(**names, length=newest.after.length, tip=newest.after.node, push=1)
    file = master.root / "one" / ".hg" / "store" / FILE.decode()
    file.write_bytes(frames.encode(MAGIC, to_json(checkpoint)))


def test_a_push_to_a_copy_at_a_path_that_the_log_knows_is_refused(master: Master, log: MemoryLog) -> None:
    push_once(master, log)
    lose_outbox(master)
    master.commit("one", "second")
    with running_relay(master.settings(scan=3600), log):
        # The relay saw the copy at its start; this push comes first.
        (master.root / "one" / ".hg" / "store" / "outbox.fork").unlink(missing_ok=True)
        assert TAKEN in master.push("one", check=False)
    assert master.operate("-R", str(master.root / "one"), "log", "-T", "{desc}\n") == "first\n"
    assert [event.path for event in events(log)["one"]] == ["one", "one"]


def test_a_relay_announces_no_copy_at_a_path_that_the_log_knows(master: Master, log: MemoryLog) -> None:
    push_once(master, log)
    lose_outbox(master)
    box = master.outbox("one")
    with running_relay(master.settings(), log):
        eventually(lambda: box.fork() is not None)
    assert box.newest() is None
    master.commit("one", "second")
    assert TAKEN in master.push("one", check=False)


def test_a_repository_that_was_made_while_no_relay_ran_is_not_sent(master: Master, log: MemoryLog) -> None:
    push_once(master, log)
    shutil.rmtree(master.root)
    master.root.mkdir()
    master.operate("init", str(master.root / "one"))
    master.commit("one", "second")
    assert UNRELAYED in master.push("one")
    with running_relay(master.settings(), log):
        eventually(lambda: master.outbox("one").fork() is not None)
        master.commit("one", "third")
        assert TAKEN in master.push("one", check=False)
    assert len(events(log, repeats=True)["one"]) == 2


def test_a_mirrors_copy_is_refused_also_while_no_relay_runs(master: Master, log: MemoryLog) -> None:
    newest = push_once(master, log)
    lose_outbox(master)
    master.commit("one", "second")
    refused = "it has no event yet, and it is unknown whether the log has another repository at its path"
    assert refused in master.push("one", check=False)
    leave_checkpoint(master, newest)
    assert "it is a copy from a mirror, and has no outbox" in master.push("one", check=False)


@pytest.mark.parametrize("copied", [pytest.param(False, marks=pytest.mark.slow), True])
def test_an_adopted_copy_continues_the_repository_of_its_path(copied: bool, master: Master, log: MemoryLog) -> None:
    newest = push_once(master, log)
    lose_outbox(master)
    if copied:
        leave_checkpoint(master, newest)
    master.commit("one", "second")
    with running_relay(master.settings(), log):
        if not copied:
            eventually(lambda: master.outbox("one").fork() is not None)
        master.operate("-R", str(master.root / "one"), "replicateadopt", "--yes")
        master.push("one")
    adopted, pushed = events(log)["one"][-2:]
    assert (adopted.repository, adopted.generation, adopted.seq) == (newest.repository, newest.generation, 1)
    assert adopted.detail is not None
    assert newest.incarnation in adopted.detail["replaces"]
    assert (pushed.incarnation, pushed.seq) == (adopted.incarnation, 2)

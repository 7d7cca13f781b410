# SPDX-License-Identifier: GPL-2.0-or-later
"""Commits on the master itself: refused, unless its configuration accepts them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import Log
from testing.builders.master.pushing import Master, events, new_master, running_relay

pytestmark = pytest.mark.processes

REFUSED = "cannot commit to replicating repositories; push instead"
ACCEPT = ("--config", "vcsreplicator.commits=accept", "--config", "extensions.rebase=", "--config", "extensions.share=")


@pytest.fixture
def master(log: Log) -> Iterator[Master]:
    with new_master("acknowledge-timeout = 60") as master, running_relay(master.settings(), log):
        master.operate("init", str(master.root / "one"))
        yield master


def commit(master: Master, folder: Path, text: str, *options: str) -> str:
    (folder / text).write_text(text)
    return master.operate("--cwd", str(folder), "commit", "-A", "-m", text, *options, check=False)


def share(master: Master) -> Path:
    folder = master.folder / "desk"
    master.operate("share", "-q", str(master.root / "one"), str(folder), *ACCEPT)
    return folder


def told(log: Log) -> list[tuple[str, int]]:
    """Of each event its type, and the changesets after it."""
    return [(event.type.value, event.after.length) for event in events(log)["one"]]


def test_a_commit_is_refused_in_the_repository_and_in_a_share(master: Master, log: Log) -> None:
    for folder in master.root / "one", share(master):
        assert REFUSED in commit(master, folder, "a")
        assert REFUSED in commit(master, folder, "b", "--config", "vcsreplicator.commits=refuse")
    assert told(log) == [("created", 0)]


def test_a_commit_is_an_event_where_the_master_accepts_it(master: Master, log: Log) -> None:
    assert "recorded push in replication log in " in commit(master, master.root / "one", "a", *ACCEPT)
    assert "recorded push in replication log in " in commit(master, share(master), "b", *ACCEPT)
    assert told(log) == [("created", 0), ("changed", 1), ("changed", 2)]


def test_a_rebase_without_markers_is_followed_by_the_event_of_its_strip(master: Master, log: Log) -> None:
    one = master.root / "one"
    for text in ("a", "b"):
        commit(master, one, text, *ACCEPT)
    master.operate("--cwd", str(one), "update", "-q", "0")
    commit(master, one, "c", *ACCEPT)
    master.operate("--cwd", str(one), "rebase", "-d", "1", *ACCEPT, "--config", "experimental.evolution=")
    assert told(log)[-2:] == [("changed", 4), ("stripped", 3)]


def test_a_commit_that_gets_a_row_is_announced_as_the_push_of_its_user(master: Master, log: Log) -> None:
    master.configure("[pushlog]\nrecord = push serve commit\n")
    commit(master, master.root / "one", "a", *ACCEPT)
    push = events(log)["one"][-1].changes.push
    assert push is not None
    assert (push.id, push.user) == (1, "dana")


def test_an_unknown_word_for_commits_is_named(master: Master) -> None:
    said = commit(master, master.root / "one", "a", "--config", "vcsreplicator.commits=allow")
    assert 'config: [vcsreplicator] commits: expected refuse or accept, got "allow"' in said


# A hook of a site that adds a changeset to each push, within its transaction.
ADDING = """
from mercurial import context
def add(ui, repo, source=None, **_arguments):
    if source == b"serve":
        content = lambda repo, made, path: context.memfilectx(repo, made, path, b"stamp")
        tip = repo.unfiltered().changelog.tip()
        context.memctx(repo, (tip, None), b"stamp", [b"stamp"], content, user=b"site").commit()
"""


@pytest.mark.parametrize("moment", ["pretxnchangegroup", "pretxnclose"])
def test_what_a_hook_adds_to_a_push_is_of_that_push_here_as_on_mirrors(master: Master, log: Log, moment: str) -> None:
    (master.folder / "site.py").write_text(ADDING)
    master.configure(
        f"[vcsreplicator]\ncommits = accept\n[hooks]\n{moment}.site = python:{master.folder}/site.py:add\n"
    )
    master.develop("init", str(master.folder / "clone-one"))
    master.commit("one", "a")
    master.push("one")
    [_, event] = events(log)["one"]
    assert event.changes.push is not None
    assert (event.changes.push.id, event.after.length) == (1, 2)
    assert master.operate("-R", str(master.root / "one"), "log", "-T", "{desc} {pushid}\n") == "stamp 1\na 1\n"

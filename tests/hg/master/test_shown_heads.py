# SPDX-License-Identifier: GPL-2.0-or-later
"""The heads that a notice names are those that a mirror shows, also where hidden changesets arrive with their markers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.words.event import read_disclosure
from testing.builders.master.pushing import Master, events, new_master, running_relay

pytestmark = pytest.mark.processes


@pytest.fixture
def master(log: Log) -> Iterator[Master]:
    with new_master("acknowledge-timeout = 60") as master, running_relay(master.settings(), log):
        master.configure("[phases]\npublish = no\n")
        master.create("one")
        yield master


def heads(log: Log) -> tuple[str, ...]:
    return read_disclosure(events(log)["one"][-1]).heads


def node(master: Master, description: str) -> str:
    clone = str(master.folder / "clone-one")
    return master.develop("-R", clone, "log", "--hidden", "-r", f"last(desc({description}))", "-T", "{node}")


def test_a_fork_by_bundle_names_no_head_that_its_markers_hide(master: Master, log: Log) -> None:
    clone = master.folder / "clone-one"
    master.commit("one", "base")
    master.commit("one", "former")
    (clone / "file").write_text("present")
    master.develop("-R", str(clone), "commit", "-q", "--amend", "-m", "present")
    bundle = str(master.folder / "all.hg")
    with_markers = ("--config", "experimental.evolution.bundle-obsmarker=yes", "--config", "devel.legacy.exchange=")
    master.develop("-R", str(clone), "--hidden", "bundle", "-q", "--all", "-t", "v2", bundle, *with_markers)
    master.operate("-R", str(master.root / "one"), "unbundle", "-q", bundle)
    former, present = node(master, "former"), node(master, "present")
    assert set(events(log)["one"][-1].changes.heads_added) == {former, present}
    assert heads(log) == (present,)


def test_a_secret_changeset_is_no_head(master: Master, log: Log) -> None:
    one = Path(master.root / "one")
    for text, options in (("base", ()), ("hidden", ("--secret",))):
        (one / "file").write_text(text)
        accept = ("--config", "vcsreplicator.commits=accept")
        master.operate("-R", str(one), "commit", "-q", "-A", "-m", text, *options, *accept)
    assert heads(log) == ()
    assert len(events(log)["one"][-1].changes.heads_added) == 1


def test_a_push_of_drafts_names_its_heads_as_before(master: Master, log: Log) -> None:
    master.commit("one", "base")
    master.push("one")
    assert heads(log) == events(log)["one"][-1].changes.heads_added == (node(master, "base"),)
    assert events(log)["one"][-1].detail is None

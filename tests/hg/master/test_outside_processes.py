# SPDX-License-Identifier: GPL-2.0-or-later
"""Pushes that a Mercurial took without the extension, the pushlog on: they are found later, and announced push by push."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import SERVICES, Log
from hgext.vcsreplicator.words.records import ServiceReport
from hgext.vcsreplicator.words.shape import from_json
from testing.builders.cluster import Cluster
from testing.builders.master.pushing import Master, events, new_master, running_relay
from testing.waiting import eventually

pytestmark = pytest.mark.processes

BLIND = ("--config", "extensions.vcsreplicator=!")


@pytest.fixture
def master(log: Log) -> Iterator[Master]:
    with new_master("acknowledge-timeout = 60") as master, running_relay(master.settings(), log):
        yield master


def blind_push(master: Master, name: str, *arguments: str) -> None:
    clone = str(master.folder / f"clone-{name}")
    said = master.operate("-R", clone, "push", "-f", *BLIND, *arguments, str(master.root / name))
    assert "recorded push in pushlog" in said


def newest_report(log: Log) -> ServiceReport:
    """What the relay reported last; nothing before its first report."""
    reader = log.reader({(SERVICES, 0): log.beginnings(SERVICES)[0]})
    try:
        records = reader.poll(0.5)
    finally:
        reader.close()
    return from_json(ServiceReport, records[-1].value or b"") if records else ServiceReport(time=0.0, version="")


def told(log: Log, name: str) -> list[tuple[str, int | None, int]]:
    """Of each event its type, the push that it carries, and how many changesets it adds."""
    return [
        (
            event.type.value,
            event.changes.push and event.changes.push.id,
            event.changes.added.count if event.changes.added else 0,
        )
        for event in events(log)[name]
    ]


def test_each_push_made_without_the_extension_is_an_event_of_its_own(master: Master, log: Log) -> None:
    master.create("one")
    master.commit("one", "a")
    master.push("one")
    master.commit("one", "b")
    master.commit("one", "c")
    blind_push(master, "one")
    clone = str(master.folder / "clone-one")
    master.develop("-R", clone, "update", "-q", "0")
    master.commit("one", "d")
    master.develop("-R", clone, "bookmark", "mark")
    blind_push(master, "one", "-B", "mark")
    master.commit("one", "e")
    master.push("one")
    assert told(log, "one") == [
        ("created", None, 0),
        ("changed", 1, 1),
        ("changed", 2, 2),
        ("changed", 3, 1),
        ("sync", None, 0),
        ("changed", 4, 1),
    ]
    second, third = events(log)["one"][2:4]
    assert (second.after.length, third.after.length) == (3, 4)
    assert [len(e.changes.heads_added) for e in (second, third)] == [1, 1]
    assert [len(e.changes.heads_removed) for e in (second, third)] == [1, 1]
    assert [place.entry.first for place in master.outbox("one").kept()] == [0, 0, 1, 3, 0, 4]


def test_a_push_without_the_extension_is_reported_until_it_is_announced(master: Master, log: Log) -> None:
    def reported() -> list[str]:
        return [trouble.text for trouble in newest_report(log).troubles]

    for name in ("one", "two"):
        master.create(name)
        master.commit(name, "a")
        master.push(name)
    master.commit("one", "b")
    blind_push(master, "one")
    [text] = eventually(reported)
    assert text.startswith(f"{master.root}/one: was changed without the extension, ")
    master.operate(*text.partition("hg ")[2].split())
    eventually(lambda: not reported())
    assert told(log, "one")[2:4] == [("changed", 2, 1), ("sync", None, 0)]


def test_what_no_push_brought_is_left_to_the_master(master: Master, log: Log) -> None:
    master.create("one")
    master.commit("one", "a")
    master.push("one")
    master.commit("one", "b")
    clone = str(master.folder / "clone-one")
    master.operate("-R", clone, "push", *BLIND, "--config", "extensions.pushlog=!", str(master.root / "one"))
    master.commit("one", "c")
    blind_push(master, "one")
    master.commit("one", "d")
    master.operate("-R", clone, "push", *BLIND, "--config", "extensions.pushlog=!", str(master.root / "one"))
    master.commit("one", "e")
    master.push("one")
    assert told(log, "one") == [
        ("created", None, 0),
        ("changed", 1, 1),
        ("changed", None, 1),
        ("changed", 2, 1),
        ("sync", None, 0),
        ("changed", 3, 1),
    ]


def test_a_history_that_was_rewritten_outside_is_announced_only_by_adoption(master: Master, log: Log) -> None:
    master.create("one")
    for text in "ab":
        master.commit("one", text)
        master.push("one")
    master.operate("-R", str(master.root / "one"), "strip", *BLIND, "--no-backup", "-q", "tip")
    master.develop("-R", str(master.folder / "clone-one"), "update", "-q", "0")
    master.commit("one", "c")
    blind_push(master, "one", "-r", ".")
    assert "this repository refuses changes: it lost changesets" in master.push("one", "-f", check=False)
    master.operate("-R", str(master.root / "one"), "replicateadopt", "--yes")
    master.commit("one", "d")
    master.push("one", "-r", ".")
    assert [event.type for event in events(log)["one"]] == ["created", "changed", "changed", "sync", "changed"]


def test_an_emptied_changelog_is_announced_by_no_change(master: Master, log: Log) -> None:
    master.create("one")
    for text in "ab":
        master.commit("one", text)
        master.push("one")
    one = master.root / "one"
    index = one / ".hg/store/00changelog.i"
    whole = index.read_bytes()
    os.truncate(index, 0)
    master.commit("one", "c")
    for answer in (master.push("one", check=False), master.operate("-R", str(one), "replicatesync", check=False)):
        assert (
            "this repository refuses changes: it lost changesets, perhaps by damage: its newest event left 2 up to "
            in answer
        )
        assert "and it has 0 up to 000000000000" in answer
        assert "docs/operating.md, Restore repositories" in answer
    assert "integrity errors encountered" in master.operate("-R", str(one), "verify", check=False)
    assert [event.type for event in events(log)["one"]] == ["created", "changed", "changed"]
    index.write_bytes(whole)
    master.push("one")
    assert [event.type for event in events(log)["one"]] == ["created", *["changed"] * 3]


def test_no_push_is_taken_onto_a_changelog_whose_content_was_cut(master: Master, log: Log) -> None:
    master.create("one")
    master.commit("one", "a")
    master.push("one")
    os.truncate(master.root / "one/.hg/store/00changelog.d", 20)
    master.commit("one", "b")
    assert "this repository refuses changes: partial read of revlog 00changelog.d; expected" in master.push(
        "one", check=False
    )
    assert [event.type for event in events(log)["one"]] == ["created", "changed"]


@pytest.mark.parametrize("damage", ["cut", "longer", "removed"])
def test_no_push_is_taken_into_a_file_that_is_not_as_its_index(master: Master, log: Log, damage: str) -> None:
    master.create("one")
    file, lines = master.folder / "clone-one/large", os.urandom(200_000).hex("\n", 20)
    for text in "ab":
        file.write_text(f"{lines}\n{text}\n")
        master.commit("one", text)
        master.push("one")
    contents = master.root / "one/.hg/store/data/large.d"
    whole = contents.read_bytes()
    damaged = {"cut": whole[:-5], "longer": whole + b"left", "removed": b""}[damage]
    contents.unlink()
    if damage != "removed":
        contents.write_bytes(damaged)
    file.write_text(f"{lines}\nc\n")
    master.commit("one", "c")
    said = master.push("one", check=False)
    assert f"data/large.d is damaged: it has {len(damaged)} bytes, and its index names {len(whole)}" in said
    assert "rollback completed" in said
    assert "hg verify" in said
    eventually(
        lambda: [trouble for trouble in newest_report(log).troubles if "data/large.d is damaged" in trouble.text]
    )
    assert [event.type for event in events(log)["one"]] == ["created", "changed", "changed"]
    contents.write_bytes(whole)
    master.push("one")
    assert "integrity errors" not in master.operate("-R", str(master.root / "one"), "verify")


def test_a_moved_repository_that_lost_changesets_is_not_renamed(master: Master) -> None:
    master.create("one")
    for text in "ab":
        master.commit("one", text)
        master.push("one")
    two = (master.root / "one").rename(master.root / "two")
    index = two / ".hg/store/00changelog.i"
    whole = index.read_bytes()
    os.truncate(index, len(whole) // 2)
    said = master.operate("-R", str(two), "replicaterename", check=False)
    assert "this repository refuses changes: it lost changesets" in said
    index.write_bytes(whole)
    assert "wrote rename message into replication log: two" in master.operate("-R", str(two), "replicaterename")


def test_mirrors_take_them_and_receivers_hear_of_each(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        clone = cluster.create("one")
        cluster.commit(clone, "a")
        cluster.push(clone)
        for text in "bc":
            cluster.commit(clone, text)
            cluster.hg("--cwd", clone, "push", *BLIND, cluster.repository("one"), on_master=True)
        cluster.commit(clone, "d")
        cluster.push(clone)

        def pushes() -> list[int]:
            lines = [line for line in cluster.lines() if line["type"] == "changegroup.1"]
            return [push["pushid"] for line in lines for push in line["data"]["pushlog_pushes"]]

        eventually(lambda: pushes() == [1, 2, 3, 4], "each push is announced, in order")
        told = cluster.cli("trace", "one")
        assert "diverged" not in told.stdout, told.stdout
        for name in ("alpha", "beta"):
            assert "diverged" not in cluster.output(f"mirror-{name}")


def bookmark(master: Master, name: str) -> None:
    """The next change of a repository that concerns no changesets, hence not the pushlog."""
    master.operate("-R", str(master.root / name), "bookmark", "-r", "0", "after")


def test_a_repository_that_does_not_publish_is_left_to_the_master(master: Master, log: Log) -> None:
    master.create("one")
    master.configure("[phases]\npublish = no\n")
    master.commit("one", "a")
    master.push("one")
    for text in "bc":
        master.commit("one", text)
        blind_push(master, "one")
    bookmark(master, "one")
    assert [event.type for event in events(log)["one"]] == ["created", "changed", "sync", "changed"]


def test_pushes_in_a_pushlog_that_cannot_be_read_are_left_to_the_master(master: Master, log: Log) -> None:
    master.create("one")
    master.commit("one", "a")
    master.push("one")
    for text in "bc":
        master.commit("one", text)
        blind_push(master, "one")
    folder = master.root / "one" / ".hg"
    (folder / "pushlog2.db").write_bytes(b"this is no database" * 1000)
    (folder / "store" / "pushlog.log").unlink()
    bookmark(master, "one")
    assert [event.type for event in events(log)["one"]] == ["created", "changed", "sync", "changed"]

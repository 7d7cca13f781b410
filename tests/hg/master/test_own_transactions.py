# SPDX-License-Identifier: GPL-2.0-or-later
"""Transactions that carry nothing but our events run no hook of the site, and their failure undoes nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.words.event import Type
from testing.builders.master.pushing import Master, events, new_master, running_relay
from testing.waiting import eventually

pytestmark = pytest.mark.processes

KINDS = (
    *("pretxnopen", "pretxnclose", "pretxnclose-bookmark", "pretxnclose-phase"),
    *("txnclose", "txnclose-bookmark", "txnclose-phase", "txnabort"),
)
# A site's hook that notes each call, and refuses all it can while a file exists.
SITE = """
import os
HERE = os.path.dirname(__file__)
def hook(hooktype=b"", txnname=b"", **_arguments):
    with open(os.path.join(HERE, "calls"), "a") as calls:
        print(hooktype.decode(), txnname.decode(), file=calls)
    if os.path.exists(os.path.join(HERE, "refusing")):
        raise KeyError("this repository has no changesets")
"""
# An extension of a site that wraps all transactions.
WRAPPER = """
from mercurial import extensions, localrepo
def fail(orig, repo, desc, *arguments, **keywords):
    if desc.startswith(b"vcsreplicator"):
        raise RuntimeError("the site's extension has no settings for %s" % repo.root.decode())
    return orig(repo, desc, *arguments, **keywords)
def extsetup(ui):
    extensions.wrapfunction(localrepo.localrepository, "transaction", fail)
"""


@pytest.fixture
def master() -> Iterator[Master]:
    with new_master() as master:
        (master.folder / "site.py").write_text(SITE)
        lines = (f"{kind}.site = python:{master.folder}/site.py:hook\n" for kind in KINDS)
        master.configure("[hooks]\n" + "".join(lines))
        yield master


def refuse(master: Master) -> None:
    (master.folder / "refusing").touch()
    (master.folder / "calls").unlink(missing_ok=True)


def calls(master: Master) -> list[str]:
    file = master.folder / "calls"
    return file.read_text().splitlines() if file.exists() else []


def newest(master: Master, name: str) -> str:
    event = master.outbox(name).newest()
    assert event is not None
    return f"{event.path} {event.seq}"


def test_a_hook_that_refuses_empty_repositories_lets_hg_init_pass(master: Master) -> None:
    refuse(master)
    said = master.operate("init", str(master.root / "one"))
    assert "site" not in said
    assert newest(master, "one") == "one 1"
    assert calls(master) == []


def test_no_hook_of_the_site_sees_an_event_that_is_written_alone(master: Master) -> None:
    master.create("one")
    master.commit("one", "a")
    master.push("one")
    blind = str(master.folder / "clone-one")
    master.operate("-R", str(master.root / "one"), "pull", "-q", blind, "--config", "extensions.vcsreplicator=!")
    one = str(master.root / "one")
    master.operate("clone", "-q", "-U", one, str(master.root / "copy"))
    assert not [call for call in calls(master) if "vcsreplicator" in call]
    refuse(master)
    master.operate("-R", one, "replicatesync")
    master.operate("-R", one, "replicatehgrc")
    master.operate("-R", one, "replicateadopt", "--yes")
    master.operate("-R", one, "replicaterename", "--yes", str(master.root / "two"))
    master.operate("-R", str(master.root / "two"), "replicatedelete", "--yes")
    assert calls(master) == []
    assert newest(master, "copy") == "copy 1"
    assert not (master.root / "two").exists()


def test_a_push_still_runs_every_hook_of_the_site(master: Master) -> None:
    master.create("one")
    master.commit("one", "a")
    (master.folder / "calls").unlink(missing_ok=True)
    master.push("one")
    push = {call.partition(" ")[0] for call in calls(master)}
    assert push == {*KINDS} - {"pretxnclose-bookmark", "txnclose-bookmark", "txnabort"}


def test_the_relay_runs_no_hook_of_the_machine(master: Master, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    old = master.root / "old"
    master.operate("init", str(old), "--config", "extensions.vcsreplicator=!")
    refuse(master)
    monkeypatch.setenv("HGRCPATH", str(master.folder / "master.hgrc"))
    with running_relay(master.settings(), log):
        eventually(lambda: "old" in events(log))
    assert calls(master) == []


def test_one_head_per_branch_does_not_stop_an_event(master: Master) -> None:
    old = str(master.root / "old")
    blind = ("--config", "extensions.vcsreplicator=!", "-R", old)
    master.operate("init", old, "--config", "extensions.vcsreplicator=!")
    for text in ("a", "b"):
        master.operate("-q", *blind, "update", "null")
        (Path(old) / text).write_text(text)
        master.operate("-q", *blind, "commit", "-A", "-m", text)
    master.configure("[experimental]\nsingle-head-per-branch = yes\n")
    master.operate("-R", old, "replicatesync")
    assert newest(master, "old") == "old 2"


def test_what_cannot_be_announced_now_is_made_and_announced_later(master: Master, log: Log) -> None:
    extension = master.folder / "wrapper.py"
    extension.write_text(WRAPPER)
    with_wrapper = ("--config", f"extensions.wrapper={extension}")
    master.operate("init", str(master.root / "source"))
    made = master.operate("init", str(master.root / "one"), *with_wrapper)
    cloned = master.operate("clone", "-U", str(master.root / "source"), str(master.root / "copy"), *with_wrapper)
    for said in made, cloned:
        assert "not announced yet, the relay or the next change does it: " in said
        assert "the site's extension has no settings for" in said
    assert master.outbox("one").newest() is None
    with running_relay(master.settings(), log):
        eventually(lambda: {"one", "copy"} <= {*events(log)})
    assert [events(log)[name][0].detail for name in ("one", "copy")] == [{"origin": "init"}] * 2


def test_hg_init_makes_nothing_if_its_root_takes_no_note(master: Master) -> None:
    notes = master.root / ".vcsreplicator/generations"
    notes.parent.mkdir(exist_ok=True)
    notes.write_text("as a full disk, it takes no file")
    said = master.operate("init", str(master.root / "one"), check=False)
    assert said.startswith("abort: ")
    assert "generations" in said
    assert not (master.root / "one").exists()


def test_hg_init_where_an_old_repository_is_makes_it_no_new_one(master: Master, log: Log) -> None:
    old = str(master.root / "old")
    master.operate("init", old, "--config", "extensions.vcsreplicator=!")
    assert "already exists" in master.operate("init", old, check=False)
    with running_relay(master.settings(), log):
        eventually(lambda: "old" in events(log))
    assert events(log)["old"][0].detail == {"origin": "adopted"}


def test_an_old_repository_where_a_new_one_was_is_adopted(master: Master, log: Log) -> None:
    one = master.root / "one"
    with running_relay(master.settings(), log):
        master.operate("init", str(one))
        master.operate("-R", str(one), "replicatedelete", "--yes")
        master.operate("init", str(one), "--config", "extensions.vcsreplicator=!")
        eventually(lambda: len(events(log)["one"]) == 3)
    # The two repositories may be in different partitions.
    found = sorted(events(log)["one"], key=lambda event: event.generation)
    assert [event.detail for event in found] == [{"origin": "init"}, None, {"origin": "adopted"}]
    assert [event.generation for event in found] == [1, 1, 2]


def test_a_repository_whose_outbox_was_moved_away_is_no_new_one(master: Master) -> None:
    one = str(master.root / "one")
    master.operate("init", one)
    for outbox in Path(one, ".hg/store").glob("outbox.*"):
        outbox.unlink()
    master.operate("-R", one, "replicatesync")
    assert next(master.outbox("one").kept()).entry.event.detail == {"origin": "adopted"}


def test_a_deletion_without_its_event_is_finished_by_the_relay(master: Master, log: Log) -> None:
    master.create("one")
    extension = master.folder / "wrapper.py"
    extension.write_text(WRAPPER.replace('"vcsreplicator"', '"vcsreplicator-event"'))
    delete = ("-R", str(master.root / "one"), "replicatedelete", "--yes")
    said = master.operate(*delete, "--config", f"extensions.wrapper={extension}")
    assert "the deletion is noted, the relay or the next change finishes it: the site's extension" in said
    assert "deleted from local host" not in said
    with running_relay(master.settings(), log):
        eventually(lambda: [event.type for event in events(log).get("one", ())][-1:] == [Type.DELETED])
    assert not (master.root / "one").exists()


def test_a_format_that_is_not_replicated_is_refused_before_hg_init_writes(master: Master) -> None:
    said = master.operate("init", str(master.root / "trees"), "--config", "experimental.treemanifest=yes", check=False)
    assert "this repository would use tree manifests, which is not replicated" in said
    assert not (master.root / "trees").exists()

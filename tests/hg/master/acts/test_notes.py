# SPDX-License-Identifier: GPL-2.0-or-later
"""A note of an interrupted act that names a place outside the roots moves nothing: neither the relay nor a push obeys it."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from mercurial import error

from hgext.vcsreplicator.hg.master import intents
from hgext.vcsreplicator.hg.master.acts import moving
from hgext.vcsreplicator.hg.master.intents import Intent
from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.outbox.file import Outbox, SentMark
from hgext.vcsreplicator.outbox.folder import Store, replace_file
from testing.builders.master.pushing import RECORDED, Master, new_master, running_relay
from testing.warm_hg import shared_python

pytestmark = pytest.mark.processes

LOOK = """
import sys
from hgext.vcsreplicator.hg.relaying import MasterRepositories
print(MasterRepositories({sys.argv[1]: ""}, "hg://master").finish(sys.argv[1]))
"""


@pytest.fixture
def master() -> Iterator[Master]:
    with new_master("acknowledge-timeout = 0.1") as master:
        yield master


def test_the_note_of_an_act_stays_while_its_repository_is_not_shown(master: Master) -> None:
    master.create("one")
    level = master.outbox("one").newest()
    assert level is not None
    root = str(master.root)
    members = {"repository": level.repository, "seq": level.seq, "path": "one", "folder": f"{root}/one"}
    intents.write(root, Intent(kind="renamed", to=f"{root}/two", to_path="two", to_root=root, **members))
    (master.root / "one" / ".hg").rename(master.root / "hidden")
    (master.root / "one" / ".hg").symlink_to(".hg")  # who looks gets ELOOP
    done = subprocess.run([shared_python(), "-c", LOOK, root], capture_output=True, text=True, check=True)
    assert "rename not finished: " in done.stdout
    assert intents.read(root, "one") is not None


def test_a_hostile_note_moves_no_repository_out_of_the_roots(master: Master) -> None:
    master.create("one")
    level = master.outbox("one").newest()
    assert level is not None
    root, elsewhere = str(master.root), master.folder / "elsewhere"
    note = Intent(
        kind="renamed",
        repository=level.repository,
        seq=level.seq - 1,
        path="one",
        folder=f"{root}/one",
        to=str(elsewhere),
        to_path="two",
        to_root=root,
    )
    intents.write(root, note)
    done = subprocess.run([shared_python(), "-c", LOOK, root], capture_output=True, text=True, check=True)
    assert "Intent.to: expected a folder below" in done.stdout
    master.commit("one", "a")
    assert "Intent.to: expected a folder below" in master.push("one", check=False)
    assert (master.root / "one").is_dir()
    assert not elsewhere.exists()


def test_a_link_in_place_of_a_folder_leads_no_move_out_of_the_roots(master: Master) -> None:
    """It is put there after the note was checked."""
    master.create("one")
    level = master.outbox("one").newest()
    assert level is not None
    root, elsewhere = str(master.root), master.folder / "elsewhere"
    elsewhere.mkdir()
    members = {"repository": level.repository, "seq": level.seq, "path": "one", "folder": f"{root}/one"}
    note = Intent(kind="renamed", to=f"{root}/team/two", to_path="team/two", to_root=root, **members)
    intents.confine(note, root, {root: ""})
    (master.root / "team").symlink_to(elsewhere)
    with pytest.raises(error.Abort, match="team/two: Not a directory"):
        moving.finish_move(root, note)
    assert list(elsewhere.iterdir()) == []
    (master.root / "team").unlink()
    moving.finish_move(root, note)
    assert (master.root / "team/two/.hg").is_dir()


@pytest.mark.parametrize("has_relay", [True, False])
def test_a_link_in_place_of_the_folder_of_deleted_ones_removes_nothing(
    has_relay: bool, log: Log, tmp_path: Path
) -> None:
    with new_master(*([] if has_relay else [f"log = sqlite://{tmp_path}/log.db"])) as master:
        private = master.folder / "private"
        (private / "letters").mkdir(parents=True)
        master.create("one")
        shutil.rmtree(master.root / ".vcsreplicator/deleted", ignore_errors=True)
        (master.root / ".vcsreplicator").mkdir(exist_ok=True)
        (master.root / ".vcsreplicator/deleted").symlink_to(private)
        master.commit("one", "first")
        with running_relay(master.settings(), log) if has_relay else contextlib.nullcontext():
            assert RECORDED in master.push("one")
        assert (private / "letters").exists()


def test_no_file_of_ours_is_written_through_a_link(master: Master) -> None:
    master.create("one")
    store, profile = master.root / "one/.hg/store", master.folder / "profile"
    profile.write_text("mine")
    folder = Store(str(store))
    sent = SentMark(seq=1, id="a" * 32, segment=1, end=1)
    for name, write in {
        "outbox.sent.new": lambda: Outbox(folder).move_sent(sent),
        f"outbox.sent.{os.getpid()}.tmp": lambda: replace_file(folder, b"outbox.sent", b"theirs"),
        "outbox.lock": lambda: contextlib.ExitStack().enter_context(Outbox(folder).sending(wait=False)),
    }.items():
        (store / name).unlink(missing_ok=True)
        (store / name).symlink_to(profile if "sent" in name else master.folder / "new")
        with pytest.raises(OSError, match="symbolic links"):
            write()
    assert profile.read_text() == "mine"
    assert not (master.folder / "new").exists()

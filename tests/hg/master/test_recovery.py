# SPDX-License-Identifier: GPL-2.0-or-later
"""Abandoned transactions of a master: those that an enemy made up are refused, by each process that would roll them back.

`tests/pushlog/store/rollback/test_playback.py` has every kind of name; `abandoned.t` has pushers that die.
"""

import contextlib
import os
import shutil
import sys
from pathlib import Path

import pytest
from mercurial import error
from structlog.testing import capture_logs

from hgext.vcsreplicator.hg.master import recovery
from hgext.vcsreplicator.hg.relaying import MasterRepositories
from hgext.vcsreplicator.log import Log
from pushlog.store.rollback import held
from testing.builders.master.pushing import Master, new_master, running_relay
from testing.faults.forks import await_fork, begin_fork
from testing.waiting import eventually

pytestmark = pytest.mark.processes

SLAY = """\
import os, signal
def reposetup(ui, repo):
    if repo.local():
        class killing(repo.__class__):
            def transaction(self, desc, report=None):
                tr = super().transaction(desc, report)
                die = lambda: os.kill(os.getpid(), signal.SIGKILL)
                tr.addfilegenerator(b'~~die', (), die, location=b'plain', post_finalize=True)
                return tr
        repo.__class__ = killing
"""
MINE = "mine\n"
REFUSED = "which no transaction of Mercurial writes; it is not rolled back"


@pytest.fixture
def master(tmp_path: Path) -> Master:
    made = Master(tmp_path, f"log = sqlite://{tmp_path}/log.db\nacknowledge = outbox").set_up()
    (tmp_path / "profile").write_text(MINE)
    made.create("one")
    made.commit("one", "first")
    made.push("one")
    return made


def control(master: Master, name: str) -> Path:
    return master.root / "one/.hg" / name


def leave(master: Master, *backups: bytes, cuts: bytes = b"") -> None:
    """What an account of the group leaves in a store that it may write to."""
    control(master, "store/journal").write_bytes(cuts)
    control(master, "store/journal.backupfiles").write_bytes(b"".join(line + b"\n" for line in (b"2", *backups)))
    for name in ("journal.backup.hgrc.bck", "store/journal.backup.fncache.bck"):
        control(master, name).write_text("[hooks]\nincoming = touch pwned\n")


def die_at(master: Master, name: str, *arguments: str) -> None:
    """A push that is killed before its commit, with all files written."""
    (master.folder / "slay.py").write_text(SLAY)
    kept = (master.folder / "master.hgrc").read_text()
    master.configure(f"[extensions]\nslay = {master.folder}/slay.py\nshare =\n")
    where = f"ssh://x/{master.root / name}"
    master.develop("-R", str(master.folder / "clone-one"), "push", *arguments, where, check=False)
    (master.folder / "master.hgrc").write_text(kept)
    assert control(master, "store/journal").exists()


def port(master: Master) -> MasterRepositories:
    return MasterRepositories({str(master.root): ""}, "hg://master")


OUTSIDE = b"plain\0../../../profile\0journal.backup.hgrc.bck\0000"
HGRC = b"plain\0hgrc\0journal.backup.hgrc.bck\0000"


@pytest.mark.parametrize("line", [OUTSIDE, HGRC], ids=["outside", "hgrc"])
def test_no_process_of_a_master_rolls_back_a_foreign_name(line: bytes, master: Master) -> None:
    leave(master, line)
    said = master.operate("-R", str(master.root / "one"), "log", "-T", "{desc}")
    assert REFUSED in said
    assert said.endswith("first")
    master.commit("one", "second")
    assert REFUSED in master.push("one", check=False)
    assert REFUSED in master.operate("-R", str(master.root / "one"), "recover", check=False)
    assert REFUSED in master.operate("-R", str(master.root / "one"), "bookmark", "x", check=False)
    with pytest.raises(error.Abort, match=REFUSED):
        port(master).recover(str(master.root / "one"))
    assert (master.folder / "profile").read_text() == MINE
    assert not control(master, "hgrc").exists()
    for name in ("journal", "journal.backupfiles"):
        control(master, f"store/{name}").unlink()
    assert REFUSED not in master.push("one")
    assert master.operate("-R", str(master.root / "one"), "log", "-r", "tip", "-T", "{desc}") == "second"


def test_the_relay_rolls_back_no_foreign_name_and_reports_it(log: Log) -> None:
    with new_master("acknowledge = outbox") as master:
        (master.folder / "profile").write_text(MINE)
        master.create("one")
        leave(master, OUTSIDE)
        with capture_logs() as lines, running_relay(master.settings(), log):
            told = f"{control(master, 'store/journal')}: it names"
            reasons = eventually(lambda: [line["reason"] for line in lines if line.get("reason", "").startswith(told)])
        assert REFUSED in reasons[0]
        assert (master.folder / "profile").read_text() == MINE


def test_the_next_pusher_rolls_back_what_another_account_left(master: Master) -> None:
    master.commit("one", "second")
    die_at(master, "one")
    if os.geteuid() == 0:
        for path in control(master, "").rglob("journal*"):
            os.chown(path, 12345, 12345)
    assert REFUSED not in master.push("one")
    assert master.operate("-R", str(master.root / "one"), "log", "-T", "{desc} ") == "second first "


def test_a_journal_that_names_a_strangers_folder_as_share_is_refused(master: Master) -> None:
    other = master.folder / "private"
    master.develop("init", str(other))
    (other / ".hg/bookmarks").write_text(MINE)
    share = b"plain\0\0" + os.fsencode(other / ".hg/journal.share") + b"\0000"
    leave(master, share, b"plain\0bookmarks\0\0000")
    with pytest.raises(
        error.Abort, match=r"private/\.hg', which is no share of this repository; it is not rolled back"
    ):
        port(master).recover(str(master.root / "one"))
    assert (other / ".hg/bookmarks").read_text() == MINE


def test_the_folder_of_a_share_is_the_one_that_was_checked(master: Master) -> None:
    shared, other = master.folder / "shared", master.folder / "private"
    master.operate("share", "--config", "extensions.share=", "-q", "-U", str(master.root / "one"), str(shared))
    for folder in (shared / ".hg", other):
        folder.mkdir(exist_ok=True)
        (folder / "bookmarks").write_text(MINE)
    leave(
        master,
        b"plain\0\0" + os.fsencode(shared / ".hg/journal.share") + b"\0000",
        b"plain\0bookmarks\0\0000",
    )
    repo = port(master).open(str(master.root / "one"))

    def swap(*_arguments: object, **_options: object) -> None:
        (shared / ".hg").rename(shared / "moved")
        (shared / ".hg").symlink_to(other)

    repo.ui.status = swap  # type: ignore[method-assign]
    with repo.lock():
        recovery.roll_back(repo)
    assert (other / "bookmarks").read_text() == MINE
    assert not (shared / "moved/bookmarks").exists()


@pytest.mark.parametrize(("swapped", "opened"), [("data/folder", b"folder"), ("data/folder/profile.i", b"profile.i")])
def test_a_link_that_is_put_in_the_way_during_a_rollback_is_not_followed(
    swapped: str, opened: bytes, master: Master
) -> None:
    store, other = control(master, "store"), master.folder / "private"
    for folder in (other, store / "data/folder"):
        folder.mkdir(parents=True)
        (folder / "profile.i").write_text("mine, and more")
    leave(master, cuts=b"data/folder/profile.i\0003\n")
    repo = port(master).open(str(master.root / "one"))

    def roll_back() -> None:
        # A hook cannot be removed again, hence the process. It runs before the system call.
        times = {b"folder": 2, b"profile.i": 1}[opened]

        def swap(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal times
            times -= event == "open" and arguments[0] == opened
            if times == 0:
                times = -1
                os.rename(store / swapped, f"{store / swapped}.away")
                os.symlink(other if opened == b"folder" else other / "profile.i", store / swapped)

        sys.addaudithook(swap)
        with contextlib.suppress(error.Abort), repo.lock():
            recovery.roll_back(repo)
        assert times == -1

    assert await_fork(begin_fork(roll_back)) == 0
    assert (store / swapped).is_symlink()
    assert (other / "profile.i").read_text() == "mine, and more"


def test_a_folder_held_open_stays_the_same_one(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/name").write_text("a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b/name").write_text("b")
    folder = held.HeldFolder(os.fsencode(tmp_path / "a"))
    shutil.move(tmp_path / "a", tmp_path / "moved")
    (tmp_path / "a").symlink_to("b")
    assert held.read_in(folder, b"name") == b"a"
    folder.close()

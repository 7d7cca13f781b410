# SPDX-License-Identifier: GPL-2.0-or-later
"""What the relay finds of damage to the files of a master's history."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mercurial import error, revlog
from mercurial.localrepo import localrepository

from hgext.vcsreplicator.hg import relaying
from hgext.vcsreplicator.hg.relaying import MasterRepositories
from hgext.vcsreplicator.words.errors import Unavailable
from testing.builders.master.pushing import Master, new_master
from testing.builders.mirror.author import Author

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def master() -> Iterator[Master]:
    """A master that does not publish, with a repository of two pushes."""
    with new_master("acknowledge = outbox") as master:
        master.configure("[phases]\npublish = no\n")
        master.create("one")
        for text in "ab":
            master.commit("one", text)
            master.push("one")
        yield master


def cut(file: Path) -> None:
    os.truncate(file, min(50, file.stat().st_size // 2))


def empty(file: Path) -> None:
    os.truncate(file, 0)


@pytest.mark.parametrize(
    ("name", "damages", "said"),
    [
        (
            "store/00changelog.i",
            (cut,),
            "a file of its history cannot be read: index 00changelog is corrupted; mirrors have",
        ),
        (
            "store/00changelog.i",
            (empty, Path.unlink),
            "it lost changesets, perhaps by damage: its newest event left 2 up to",
        ),
        ("store/00changelog.d", (cut, empty, Path.unlink), "a file of its history cannot be read: "),
        ("store/00manifest.i", (cut, empty, Path.unlink), "a file of its history cannot be read: "),
        ("store/phaseroots", (cut,), "a file of its history cannot be read: "),
        ("requires", (cut, empty, Path.unlink), "a file of its history cannot be read: "),
        ("store/requires", (cut, empty, Path.unlink), "a file of its history cannot be read: "),
    ],
)
def test_damage_to_a_masters_history_is_named(
    master: Master, name: str, damages: tuple[Callable[[Path], None], ...], said: str
) -> None:
    port, one = MasterRepositories({str(master.root): ""}, "hg://master"), master.root / "one"
    assert port.find_refusal(str(one)) is None
    file = one / ".hg" / name
    for damage in damages:
        shutil.copy(file, master.folder / "sound")
        damage(file)
        found = port.find_refusal(str(one))
        shutil.copy(master.folder / "sound", file)
        assert found
        assert found.startswith(said)
        assert "docs/operating.md, Restore repositories" in found


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # of a split
@pytest.mark.parametrize("damage", [cut, empty, Path.unlink])
def test_damage_to_a_masters_manifests_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(revlog, "_maxinline", 100)
    author = Author(tmp_path, "one")
    for _ in range(3):
        author.push()
    port = MasterRepositories({str(tmp_path): ""}, "hg://master")
    assert port.find_refusal(str(author.folder)) is None
    damage(author.folder / ".hg/store/00manifest.d")
    found = port.find_refusal(str(author.folder))
    assert found
    assert found.startswith("a file of its history cannot be read: ")


def test_what_a_strip_cuts_while_it_is_read_is_no_damage(master: Master, monkeypatch: pytest.MonkeyPatch) -> None:
    port, one = MasterRepositories({str(master.root): ""}, "hg://master"), master.root / "one"
    lock = one / ".hg/store/lock"

    def strip(repo: localrepository) -> None:
        lock.symlink_to("host:1")
        raise error.LookupError(b"0" * 20, b"00manifest", b"no node")

    monkeypatch.setattr(relaying.observe, "read_newest", strip)
    try:
        with pytest.raises(Unavailable, match="another process works there"):
            port.find_refusal(str(one))
    finally:
        lock.unlink()


@pytest.mark.parametrize("name", ["store/pushlog.log", "pushlog2.db"])
def test_a_lost_pushlog_that_the_next_push_repairs_is_no_refusal(master: Master, name: str) -> None:
    port, one = MasterRepositories({str(master.root): ""}, "hg://master"), master.root / "one"
    shutil.move(one / ".hg" / name, master.folder / "sound")
    try:
        assert port.find_refusal(str(one)) is None
    finally:
        shutil.move(master.folder / "sound", one / ".hg" / name)

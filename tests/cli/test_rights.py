# SPDX-License-Identifier: GPL-2.0-or-later
"""The rights that `setup` gives as root in a folder to which others write, while they put links in the way."""

import contextlib
import os
import stat
import subprocess
from pathlib import Path

import pytest

from hgext.vcsreplicator.cli import rights
from hgext.vcsreplicator.cli.setup import machine
from hgext.vcsreplicator.cli.setup.machine import Machine
from hgext.vcsreplicator.cli.setup.plan import GiveRights, describe
from hgext.vcsreplicator.cli.setup.repositories import Problem, ProblemKind, examine
from hgext.vcsreplicator.words.errors import Refused
from testing.faults.system import System

CLOSED = 0o600


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder and a file of root's, which no repository has."""
    folder = tmp_path / "outside"
    (folder / "a").mkdir(parents=True, mode=0o700)
    (folder / "a/secret").touch(mode=CLOSED)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with the repository `team/a`."""
    (tmp_path / "repos/team/a/.hg/store").mkdir(parents=True)
    return tmp_path / "repos"


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process stands for the user who owns all repositories."""
    monkeypatch.setattr(machine, "find_owner", lambda name: (os.geteuid(), os.getegid()))


def give(root: Path) -> None:
    Machine().perform(GiveRights(str(root), (str(root / "team/a"),), "shown"))


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}


def test_a_repository_is_given_with_all_but_its_hgrc(root: Path) -> None:
    folder = root / "team/a"
    for name, mode in (("hgrc", 0o664), ("requires", 0o600), ("store/00changelog.i", 0o640)):
        (folder / ".hg" / name).touch()
        (folder / ".hg" / name).chmod(mode)
    (folder / "run").touch()
    (folder / "run").chmod(0o4700)
    give(root)
    found = {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    assert (found[".hg/hgrc"], found[".hg/requires"], found[".hg/store/00changelog.i"]) == (0o664, 0o660, 0o660)
    assert found["run"] == 0o770
    assert found[".hg/store"] & 0o2070 == 0o2070


@pytest.mark.parametrize(
    "place", ["team", "team/a", "team/a/.hg", "team/a/.hg/store", "team/a/.hg/requires", "team/a/.hg/hgrc"]
)
def test_setup_gives_nothing_outside_a_repository_by_a_link(place: str, root: Path, outside: Path) -> None:
    is_file = place.endswith(("hgrc", "requires"))
    for name in ("hgrc", "requires"):
        (root / "team/a/.hg" / name).touch()
    (outside / "a/secret").chmod(0o660 if place.endswith("hgrc") else CLOSED)
    before = modes(outside)
    (root / place).rename(root / "away")
    (root / place).symlink_to(outside / "a/secret" if is_file else outside)
    with pytest.raises(OSError) if place in ("team", "team/a") else contextlib.nullcontext():
        give(root)
    assert modes(outside) == before


def test_an_hgrc_that_is_a_link_is_named_and_not_changed(root: Path, outside: Path) -> None:
    (root / "team/a/.hg/requires").write_text("revlogv1\nstore\n")
    (root / "team/a/.hg/store/00changelog.i").touch()
    (outside / "a/secret").chmod(0o666)
    (root / "team/a/.hg/hgrc").symlink_to(outside / "a/secret")
    found = {problem.kind: problem.reason for problem in examine(str(root), None).problems}
    assert "link" in found[ProblemKind.CODE]
    assert ProblemKind.HGRC not in found


def test_a_name_that_steers_a_terminal_is_shown_with_escapes() -> None:
    folder = "/repos/\x1b]0;x\x07"
    problem = Problem(kind=ProblemKind.RIGHTS, reason="x", folders=(folder,))
    shown = str(problem) + describe(GiveRights("/repos", (folder,), problem.remedy))
    assert shown.isprintable()
    assert "\\x1b" in shown


def test_folders_within_a_thousand_folders_are_refused_in_a_line(root: Path) -> None:
    store = root / "team/a/.hg/store"
    (root / "team/a/.hg/requires").write_text("revlogv1\nstore\n")
    (store / "00changelog.i").write_bytes(b"12345")
    deepest = os.open(store, os.O_RDONLY)
    for _ in range(1100):  # a path would be too long
        os.mkdir("d", dir_fd=deepest)
        above, deepest = deepest, os.open("d", os.O_RDONLY, dir_fd=deepest)
        os.close(above)
    os.close(deepest)
    try:
        assert examine(str(root), None).size >= 5
        with pytest.raises(Refused, match="its folders are too deep"):
            give(root)
    finally:
        subprocess.run(["rm", "-rf", str(store)], check=True)  # pytest's own removal recurses


@pytest.mark.parametrize("mode", [0o644, 0o664])
@pytest.mark.parametrize("name", ["hgrc", "hgrc-not-shared"])
def test_setup_makes_no_hgrc_of_an_account_count(name: str, mode: int, root: Path, system: System) -> None:
    """An account can give the name to a file of another user, with hooks that run in each push."""
    for each in (name, "requires"):
        (root / "team/a/.hg" / each).touch()
        (root / "team/a/.hg" / each).chmod(mode)
    given = system.note_owners()
    give(root)
    changed = {path for path, *_ in given}
    assert str(root / "team/a/.hg" / name) not in changed
    assert stat.S_IMODE((root / "team/a/.hg" / name).stat().st_mode) == mode
    assert str(root / "team/a/.hg/requires") in changed


@pytest.mark.parametrize(("setting", "is_refused"), [("0", True), ("1", False), (None, False)])
def test_nothing_is_given_where_accounts_link_files_of_root(
    setting: str | None, is_refused: bool, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hard link in a repository is the file itself."""
    monkeypatch.setattr(rights, "_PROTECTED", tmp_path / "protected_hardlinks")
    if setting is not None:
        (tmp_path / "protected_hardlinks").write_text(f"{setting}\n")
    with pytest.raises(Refused, match="sysctl -w fs") if is_refused else contextlib.nullcontext():
        give(root)
    assert bool((root / "team/a/.hg").stat().st_mode & stat.S_ISGID) is not is_refused

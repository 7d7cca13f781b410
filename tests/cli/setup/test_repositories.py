# SPDX-License-Identifier: GPL-2.0-or-later
"""What `setup` finds wrong with repositories that a host already has, before it makes anything."""

import grp
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from mercurial import ui as uimod

from hgext.vcsreplicator.cli.setup import repositories
from hgext.vcsreplicator.cli.setup.repositories import Examination, ProblemKind, examine
from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.hg.relaying import MasterRepositories
from pushlog.versions import factory, initialize
from testing.faults.system import System

OWN_GROUP = grp.getgrgid(os.getegid()).gr_name


def make(root: Path, *paths: str) -> None:
    """Empty repositories that a group shares."""
    initialize()
    for path in paths:
        folder = root / path
        folder.parent.mkdir(parents=True, exist_ok=True)
        factory.repository(uimod.ui.load(), os.fsencode(folder), create=True)
        for place in (folder, folder / ".hg", folder / ".hg/store"):
            place.chmod(0o2775)
        for file in (folder / ".hg/store").iterdir():
            file.chmod(file.stat().st_mode | 0o020)


def kinds(examined: Examination) -> dict[ProblemKind, list[str]]:
    """The names of the repositories with each kind of problem."""
    found: dict[ProblemKind, list[str]] = {}
    for problem in examined.problems:
        found.setdefault(problem.kind, []).extend(os.path.basename(folder) for folder in problem.folders)
    return found


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group of this process stands for that of the relay."""
    monkeypatch.setattr(repositories, "HG", OWN_GROUP)


@pytest.mark.usefixtures("shared")
def test_repositories_of_a_host_are_grouped_by_what_is_wrong(tmp_path: Path) -> None:
    make(tmp_path, "good", "lfs", "hooked", "open", "private", "static/x", "Twin", "twin", "-dashed")
    with (tmp_path / "lfs/.hg/store/requires").open("a") as file:
        file.write("largefiles\n")
    (tmp_path / "hooked/.hg/hgrc").write_text("[hooks]\n# none\npretxnclose.x = true\n")
    (tmp_path / "open/.hg/hgrc").write_text("[web]\nname = x\n")
    (tmp_path / "open/.hg/hgrc").chmod(0o664)
    (tmp_path / "private/.hg/store").chmod(0o700)
    examined = examine(str(tmp_path), None)
    assert kinds(examined) == {
        ProblemKind.FORMAT: ["lfs"],
        ProblemKind.CODE: ["hooked"],
        ProblemKind.HGRC: ["hooked", "open"] if os.geteuid() else ["open"],
        ProblemKind.RIGHTS: ["private"],
        ProblemKind.UNSERVED: ["x"],
        ProblemKind.TWINS: ["Twin", "twin"],
        ProblemKind.NAME: ["-dashed"],
    }
    assert (len(examined.folders), examined.replicable) == (9, 7)
    [rights] = [str(each) for each in examined.problems if each.kind is ProblemKind.RIGHTS]
    assert rights.startswith(f"1 repository ({tmp_path}/private): the group {OWN_GROUP} may not write all of it")
    assert rights.endswith(f"; vcsreplicator rights {OWN_GROUP}:{OWN_GROUP} {tmp_path}/private")


@pytest.mark.usefixtures("shared")
def test_a_repository_that_an_account_spoilt_ends_no_setup(tmp_path: Path) -> None:
    make(tmp_path, "good", "spoilt")
    (tmp_path / "spoilt/.hg/requires").write_text("shared\nstore\n")
    (tmp_path / "spoilt/.hg/sharedpath").write_bytes(b"a\0b")
    examined = examine(str(tmp_path), None)
    assert kinds(examined) == {ProblemKind.FORMAT: ["spoilt"]}
    assert examined.replicable == 1


@pytest.mark.usefixtures("shared")
def test_the_command_that_setup_shows_gives_the_rights(tmp_path: Path) -> None:
    make(tmp_path, "a", "b")
    for name in ("a", "b"):
        (tmp_path / name / ".hg/store").chmod(0o700)
    [problem] = examine(str(tmp_path), None).problems
    assert "2 repositories" in str(problem)
    command = problem.remedy.replace(f"{OWN_GROUP}:{OWN_GROUP}", f"{os.geteuid()}:{os.getegid()}")
    program.main(command.split()[1:], standalone_mode=False)
    assert examine(str(tmp_path), None).problems == ()


def test_all_repositories_lack_a_group_that_is_not_made_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repositories, "HG", "no-such-group")
    make(tmp_path, "a")
    assert kinds(examine(str(tmp_path), None)) == {ProblemKind.RIGHTS: ["a"]}


@pytest.mark.usefixtures("shared")
def test_a_mirror_without_room_for_all_repositories_is_named(tmp_path: Path, system: System) -> None:
    make(tmp_path / "repos", "a")
    (tmp_path / "repos/a/.hg/store/00changelog.i").write_bytes(b"x" * 1000)
    (tmp_path / "repos/a/.hg/store/00changelog.i").chmod(0o664)
    system.measure_disks(lambda _: SimpleNamespace(f_frsize=1, f_blocks=9999, f_bfree=1999, f_bavail=999))
    examined = examine(str(tmp_path / "repos"), str(tmp_path / "copies"))
    assert examined.size > 1000
    [reason] = [problem.reason for problem in examined.problems if problem.kind is ProblemKind.ROOM]
    assert re.fullmatch(r"\d\.\d kB, and the disk of /.* has room for 999 bytes", reason)


def test_a_root_that_is_missing_has_nothing_wrong(tmp_path: Path) -> None:
    assert examine(str(tmp_path / "none"), str(tmp_path)).problems == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[hooks]\nx = y\n", True),
        ("[extensions]\n\n; no\nx =\n", True),
        ("[hooks]\n# x = y\n[web]\nname = x\n", False),
        (f"[hooks]{chr(10) * 100_000}{' ' * 100_000}", False),
        ("[hooks] of mine\nx = y\n", True),
        ("[hooks]\n#\x0c[web]\nx = y\n", True),
        ("%include elsewhere\n", True),
        ("no section\n", True),
    ],
)
def test_an_hgrc_that_runs_code_is_told_from_one_that_does_not(text: str, expected: bool) -> None:
    assert MasterRepositories.runs_code(text.encode()) is expected

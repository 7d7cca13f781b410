# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's look for repositories."""

import errno
import os
from pathlib import Path

import pytest

from hgext.vcsreplicator.relay.scan import find_repositories
from testing.faults.system import System


def make(folder: Path) -> Path:
    """What a look sees of a repository that Mercurial finished making."""
    (folder / ".hg" / "store").mkdir(parents=True)
    (folder / ".hg" / "requires").write_text("share-safe\n")
    (folder / ".hg" / "store" / "requires").write_text("revlogv1\n")
    return folder


def test_repositories_in_dotted_folders_and_inside_others_are_found(tmp_path: Path) -> None:
    made = {make(tmp_path / name) for name in ("a", "a/b", "a/b/deep/c", ".secret/repo", "team/.d")}
    make(tmp_path / ".vcsreplicator" / "deleted" / "e")
    make(tmp_path / "a" / ".hg" / "strip-backup" / "f")
    assert sorted(find_repositories(str(tmp_path))) == sorted(map(str, made))


def test_what_cannot_be_read_is_reported_unless_it_is_gone(tmp_path: Path, system: System) -> None:
    closed, gone = str(make(tmp_path / "closed")), str(make(tmp_path / "gone"))
    made = {str(make(tmp_path / name)) for name in ("half", "open")}
    control = f"{make(tmp_path / 'open' / 'control')}/.hg/store"
    system.refuse(errno.ENOENT, "os.scandir", "os.stat", at=gone)
    for path in (closed, f"{control}*"):
        system.refuse(errno.EACCES, "os.scandir", "os.stat", at=path)
    os.unlink(tmp_path / "half" / ".hg" / "requires")
    errors: list[OSError] = []
    assert set(find_repositories(str(tmp_path), errors.append)) == made - {str(tmp_path / "half")}
    assert sorted(error.filename for error in errors) == [closed, control]
    assert list(find_repositories(str(tmp_path / "none"), errors.append)) == []
    assert errors[-1].filename == str(tmp_path / "none")


@pytest.mark.timeout(10)
def test_a_pipe_in_place_of_the_requirements_is_reported(tmp_path: Path) -> None:
    requires = make(tmp_path / "a") / ".hg" / "requires"
    requires.unlink()
    os.mkfifo(requires)
    errors: list[OSError] = []
    assert list(find_repositories(str(tmp_path), errors.append)) == []
    assert [error.filename for error in errors] == [str(requires)]

# SPDX-License-Identifier: GPL-2.0-or-later
"""The move of a repository's folder is made below the roots or refused in a line."""

import os
from pathlib import Path

import pytest
from mercurial import error

from hgext.vcsreplicator.hg.master.acts import moving
from hgext.vcsreplicator.hg.master.intents import Intent


def intent(root: Path, to: str) -> Intent:
    names = {"kind": "renamed", "repository": "a" * 32, "seq": 1, "path": "one", "to_path": to, "to_root": str(root)}
    return Intent(folder=str(root / "one"), to=str(root / to), **names)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root/one/.hg").mkdir(parents=True)
    (tmp_path / "victim").mkdir()
    return tmp_path / "root"


def test_a_move_past_a_link_is_refused_in_a_line(root: Path) -> None:
    (root / "link").symlink_to(root.parent / "victim")
    with pytest.raises(error.Abort, match=f"cannot move {root}/one to {root}/link/two: Not a directory"):
        moving.move(str(root), intent(root, "link/two"))
    assert os.listdir(root / "one") == [".hg"]
    assert os.listdir(root.parent / "victim") == []


def test_a_move_onto_another_repository_is_refused_in_a_line(root: Path) -> None:
    (root / "two/.hg").mkdir(parents=True)
    with pytest.raises(error.Abort, match=f"cannot move {root}/one to {root}/two: Directory not empty"):
        moving.move(str(root), intent(root, "two"))


def test_a_folder_that_was_moved_already_is_left_where_it_is(root: Path) -> None:
    moving.move(str(root), intent(root, "more/two"))
    moving.move(str(root), intent(root, "more/two"))
    assert os.listdir(root / "more/two") == [".hg"]

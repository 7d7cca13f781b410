# SPDX-License-Identifier: GPL-2.0-or-later
"""Of several folders with one repository a mirror follows the one where it belongs, in any order."""

import os
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from hgext.vcsreplicator.mirror.checkpoint import before_first
from hgext.vcsreplicator.mirror.copies import choose
from hgext.vcsreplicator.mirror.settings import MirrorSettings
from hgext.vcsreplicator.mirror.task import FoundRepository

REPOSITORY, OLD, NEW = "a" * 32, "b" * 32, "c" * 32


def found(folder: Path, *, seq: int, path: str = "proj", incarnation: str = OLD) -> FoundRepository:
    former = (OLD,) if incarnation == NEW else ()
    checkpoint = replace(before_first(REPOSITORY, incarnation, path, 1), seq=seq, former=former)
    return FoundRepository(folder=str(folder), checkpoint=checkpoint, serving=0)


def check(root: Path, *folders: FoundRepository) -> None:
    """The first one is chosen."""
    settings = MirrorSettings(name="alpha", root=str(root))
    assert [choose(order, settings) for order in permutations(folders) if choose(order, settings) != folders[0]] == []


def test_the_one_at_its_path_is_followed_though_a_copy_is_as_far(tmp_path: Path) -> None:
    check(tmp_path, found(tmp_path / "proj", seq=5), found(tmp_path / "proj.bak", seq=5), found(tmp_path / "a", seq=6))


def test_of_two_in_their_places_the_further_one_is_followed(tmp_path: Path) -> None:
    check(tmp_path, found(tmp_path / "new", seq=7, path="new"), found(tmp_path / "proj", seq=5))


def test_one_that_waits_for_its_release_is_where_it_belongs(tmp_path: Path) -> None:
    check(tmp_path, found(tmp_path / "~vcsreplicator/waiting" / REPOSITORY, seq=5), found(tmp_path / "proj.bak", seq=5))


def test_one_whose_new_path_waits_for_its_release_is_where_it_belongs(tmp_path: Path) -> None:
    renamed = replace(found(tmp_path / "proj", seq=7, path="new"), serving=6, served_path="proj")
    check(tmp_path, renamed, found(tmp_path / "older", seq=3, path="older"))


@pytest.mark.parametrize("name", ["proj", "proj.bak"])
def test_the_newer_history_is_followed_wherever_it_is(tmp_path: Path, name: str) -> None:
    check(tmp_path, found(tmp_path / name, seq=1, incarnation=NEW), found(tmp_path / "old", seq=9))


def test_a_folder_that_a_link_at_the_path_leads_to_is_at_its_path(tmp_path: Path) -> None:
    (tmp_path / "b/x").mkdir(parents=True)
    os.symlink(tmp_path / "b", tmp_path / "a")
    check(tmp_path, found(tmp_path / "b/x", seq=5, path="a/x"), found(tmp_path / "c", seq=5, path="a/x"))

# SPDX-License-Identifier: GPL-2.0-or-later
"""Wire paths."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgext.vcsreplicator.words.errors import MalformedEvent
from hgext.vcsreplicator.words.path import check_path, twin, wire_path


@pytest.mark.parametrize("path", ["try", "integration/autoland", "users/größe/a.b-c_d+e", "R&D 2/x", "a" * 200])
def test_ordinary_paths_are_taken(path: str) -> None:
    assert check_path(path) == path


@pytest.mark.parametrize(
    "path",
    ["", "/etc", "../x", "a/../b", "a//b", "a/", ".", "a/.hg/store", "a/.HG", "-R", "a/-x", "~root", "a\\b", "a\0b", "a\nb", "a/b.",
     "a/b ", " a", "x" * 2000, "x" * 241, "a/\u202eb", "a/\udc80"],
)  # fmt: skip
def test_paths_that_could_leave_the_root_or_confuse_a_program_are_refused(path: str) -> None:
    with pytest.raises(MalformedEvent, match="repository path"):
        check_path(path)


@given(st.text(max_size=60))
def test_a_path_that_is_taken_stays_below_its_root(path: str) -> None:
    try:
        check_path(path)
    except MalformedEvent:
        return
    assert os.path.normpath("/root/" + path) == "/root/" + path
    assert not {".hg", ".."} & set(path.lower().split("/"))


def test_twins_are_paths_that_some_file_system_takes_for_one() -> None:
    assert twin("Stra\u00dfe") == twin("STRASSE")
    assert twin("e\u0301") == twin("\u00e9")
    assert twin("a") != twin("b")


def test_the_longest_root_names_the_repository_on_the_wire() -> None:
    roots = {"/repos": "", "/repos/users/": "people", "/other": "moz"}
    assert wire_path("/repos/a/b", roots) == "a/b"
    assert wire_path("/repos/users/x", roots) == "people/x"
    assert wire_path("/other/x", roots) == "moz/x"
    assert wire_path("/repos", roots) is None
    assert wire_path("/reposx/a", roots) is None

# SPDX-License-Identifier: GPL-2.0-or-later
"""A root on a disk that takes two names for one is refused in one line, and nothing stays of the question."""

import os
from pathlib import Path

import pytest

from hgext.vcsreplicator.log.names import expect_exact_names
from hgext.vcsreplicator.words.errors import BadConfig
from testing.faults.folding import ignore_case


def test_a_disk_that_ignores_case_is_refused_in_one_line(tmp_path: Path) -> None:
    root = ignore_case(tmp_path / "root")
    with pytest.raises(BadConfig) as refused:
        expect_exact_names(str(root), "relay.roots")
    assert str(refused.value).startswith(
        f"relay.roots: {root} is on a disk that does not distinguish names that differ"
    )
    assert "\n" not in str(refused.value)


def test_a_disk_that_normalises_unicode_is_refused(tmp_path: Path) -> None:
    (tmp_path / "~probe\u0301").symlink_to("~prob\u00e9")
    with pytest.raises(BadConfig, match="differ only in case or Unicode form"):
        expect_exact_names(str(tmp_path), "relay.roots")


@pytest.mark.parametrize("is_left", [False, True])
def test_a_disk_that_tells_names_apart_is_as_it_was(tmp_path: Path, is_left: bool) -> None:
    if is_left:
        (tmp_path / "~prob\u00e9").mkdir()  # by a kill
    expect_exact_names(str(tmp_path), "relay.roots")
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_missing_is_not_refused_and_not_made(tmp_path: Path) -> None:
    expect_exact_names(str(tmp_path / "missing"), "relay.roots")
    assert os.listdir(tmp_path) == []

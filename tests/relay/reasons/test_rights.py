# SPDX-License-Identifier: GPL-2.0-or-later
"""The command that gives repositories to a user and a group, run as an operator runs it."""

import os
import stat
import subprocess
from pathlib import Path

from hgext.vcsreplicator.relay.reasons.rights import give_repositories


def test_repositories_without_an_hgrc_are_given_by_a_command_that_succeeds(tmp_path: Path) -> None:
    """A shell that stops at the first failure would leave what comes after it."""
    names = ("a", "with space")
    for name in names:
        (tmp_path / name / ".hg/store").mkdir(parents=True)
    hgrc = tmp_path / "a/.hg/hgrc"
    hgrc.touch()
    command = give_repositories([str(tmp_path / name) for name in names], f"{os.geteuid()}:{os.getegid()}")
    subprocess.run(["sh", "-c", command], check=True)
    shared = stat.S_ISGID | stat.S_IWGRP
    assert all((tmp_path / name / ".hg/store").stat().st_mode & shared == shared for name in names)
    assert not hgrc.stat().st_mode & stat.S_IWGRP


def test_the_command_changes_no_file_that_a_link_in_place_of_an_hgrc_names(tmp_path: Path) -> None:
    (tmp_path / "a/.hg/store").mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.touch()
    outside.chmod(0o664)
    (tmp_path / "a/.hg/hgrc").symlink_to(outside)
    command = give_repositories([str(tmp_path / "a")], f"{os.geteuid()}:{os.getegid()}")
    subprocess.run(["sh", "-c", command], check=True)
    assert stat.S_IMODE(outside.stat().st_mode) == 0o664

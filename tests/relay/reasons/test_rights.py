# SPDX-License-Identifier: GPL-2.0-or-later
"""The command that gives repositories to a user and a group, run as an operator runs it."""

import os
import shlex
import stat
from pathlib import Path

import pytest

from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.log.ownership import name_group, name_user
from hgext.vcsreplicator.relay.reasons.rights import give_repositories
from hgext.vcsreplicator.words.errors import Refused


def owner() -> str:
    return f"{name_user(os.geteuid())}:{name_group(os.getegid())}"


def run(command: str) -> None:
    _, *words = shlex.split(command)
    program.main(words, standalone_mode=False)


def test_repositories_without_an_hgrc_are_given_by_a_command_that_succeeds(tmp_path: Path) -> None:
    names = ("a", "with space")
    for name in names:
        (tmp_path / name / ".hg/store").mkdir(parents=True)
    hgrc = tmp_path / "a/.hg/hgrc"
    hgrc.touch()
    command = give_repositories([str(tmp_path / name) for name in names], owner())
    run(command)
    shared = stat.S_ISGID | stat.S_IWGRP
    assert all((tmp_path / name / ".hg/store").stat().st_mode & shared == shared for name in names)
    assert not hgrc.stat().st_mode & stat.S_IWGRP


def test_the_command_changes_no_file_that_a_link_in_place_of_an_hgrc_names(tmp_path: Path) -> None:
    (tmp_path / "a/.hg/store").mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.touch()
    outside.chmod(0o664)
    (tmp_path / "a/.hg/hgrc").symlink_to(outside)
    command = give_repositories([str(tmp_path / "a")], owner())
    run(command)
    assert stat.S_IMODE(outside.stat().st_mode) == 0o664


def test_the_command_gives_nothing_through_a_link_above_a_repository(tmp_path: Path) -> None:
    """Accounts may write in the folder above, and root types the command."""
    (tmp_path / "outside/a").mkdir(parents=True)
    (tmp_path / "outside/a/secret").touch(mode=0o600)
    (tmp_path / "team").symlink_to(tmp_path / "outside")
    with pytest.raises(Refused, match="expected a folder without a link above it"):
        run(give_repositories([str(tmp_path / "team/a")], owner()))
    assert stat.S_IMODE((tmp_path / "outside/a/secret").stat().st_mode) == 0o600


def test_an_owner_that_this_machine_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no-such-user: expected a user of this machine"):
        run(give_repositories([str(tmp_path)], "no-such-user"))

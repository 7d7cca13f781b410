# SPDX-License-Identifier: GPL-2.0-or-later
"""A deletion reaches all mirrors, so it is sure that the repository is not there."""

import errno
from pathlib import Path

import pytest

from hgext.vcsreplicator.relay.gone import deletion
from hgext.vcsreplicator.words.errors import Refused
from testing.builders.aggregator.states import some_state
from testing.faults.system import System


def refuse(tmp_path: Path) -> None:
    deletion.refuse_present({str(tmp_path): ""}, some_state(path="group/one"))


def test_a_repository_perhaps_in_an_unreadable_folder_is_not_forgotten(tmp_path: Path, system: System) -> None:
    for name in (".snapshot", "other"):
        (tmp_path / name).mkdir()
    refuse(tmp_path)
    with (
        system.refuse(errno.EACCES, "os.lstat", at="*/group/one*"),
        pytest.raises(Refused, match=r"/group/one cannot be read \(Permission denied\)"),
    ):
        refuse(tmp_path)
    system.refuse(errno.EACCES, "os.scandir", at=f"{tmp_path}/.snapshot")
    refuse(tmp_path)
    system.refuse(errno.EACCES, "os.scandir", at=f"{tmp_path}/other")
    with pytest.raises(Refused, match=r"/other cannot be read \(Permission denied\), and the repository may be there"):
        refuse(tmp_path)


def test_a_deleted_repository_stays_while_the_disk_does_not_show_it(tmp_path: Path) -> None:
    (deleted := tmp_path / ".vcsreplicator" / "deleted").mkdir(parents=True)
    name = some_state().repository
    (deleted / name).symlink_to(name)  # who looks gets ELOOP
    with pytest.raises(Refused, match=rf"/deleted/{name} cannot be read \(Too many levels of symbolic links\)"):
        refuse(tmp_path)

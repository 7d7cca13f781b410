# SPDX-License-Identifier: GPL-2.0-or-later
"""The notes that a master keeps below its root, where accounts of a group may write."""

from pathlib import Path

import pytest

from hgext.vcsreplicator.hg.master import creation
from testing.faults.system import System


def test_a_link_that_comes_once_a_folder_of_notes_is_made_changes_no_mode(tmp_path: Path, system: System) -> None:
    for name, mode in (("root", 0o2775), ("home", 0o700)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)

    def exchange(root: str) -> None:
        [made] = Path(root).iterdir()
        made.rmdir()
        made.symlink_to(tmp_path / "home")

    system.watch(exchange, "os.open", at=str(tmp_path / "root"))
    with pytest.raises(OSError, match="Not a directory"):
        creation.make_folder(str(tmp_path / "root"), "intents")
    assert (tmp_path / "home").stat().st_mode & 0o7777 == 0o700

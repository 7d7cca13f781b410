# SPDX-License-Identifier: GPL-2.0-or-later
"""What root makes for a service."""

import os
import stat
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import ownership
from testing.faults.permission import under


@pytest.mark.parametrize(("umask", "expected"), [(0, 0o640), (0o022, 0o640), (0o077, 0o600)])
def test_no_other_user_may_use_what_a_service_makes(tmp_path: Path, umask: int, expected: int) -> None:
    with under(umask):
        ownership.make_file(tmp_path / "notes.db")
        ownership.make_folders(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "notes.db").stat().st_mode) == expected
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o777 & ~umask
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o770 & ~umask


def test_each_folder_that_root_makes_belongs_to_its_parents_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[str, int]] = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fchown", lambda made, user, _: given.append((os.readlink(f"/proc/self/fd/{made}"), user)))
    ownership.make_folders(tmp_path / "a" / "b")
    owner = tmp_path.stat().st_uid
    assert given == [(f"{tmp_path}/a", owner), (f"{tmp_path}/a/b", owner)]
    ownership.make_folders(tmp_path / "a" / "b")
    assert len(given) == 2

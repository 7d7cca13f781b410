# SPDX-License-Identifier: GPL-2.0-or-later
"""What root makes for a service."""

import os
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import ownership


def test_each_folder_that_root_makes_belongs_to_the_owner_of_the_one_above(
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

# SPDX-License-Identifier: GPL-2.0-or-later
"""A mirror that cannot work where its settings say ends at its start."""

import errno
import os
from pathlib import Path

import pytest

from hgext.vcsreplicator.mirror.service import lock_folder
from hgext.vcsreplicator.mirror.settings import MirrorSettings
from hgext.vcsreplicator.words.errors import BadConfig


@pytest.mark.parametrize("state", [None, "state"])
def test_a_mirror_that_cannot_move_a_folder_from_its_state_to_its_root_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str | None
) -> None:
    root = tmp_path / "root"
    settings = MirrorSettings(name="alpha", root=str(root), state=state and str(tmp_path / state))
    with lock_folder(settings):
        assert [name for name in os.listdir(root) if name != "~vcsreplicator"] == []

    def rename(old: str, new: str) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), old, None, new)

    monkeypatch.setattr(os, "rename", rename)
    with (
        pytest.raises(BadConfig, match=r"mirror\.alpha\.state: .* another file system .* expected"),
        lock_folder(settings),
    ):
        pass
    assert os.listdir(settings.folder) == ["lock"]


def test_a_mirror_whose_disk_is_full_at_its_start_waits_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rename(old: str, new: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), old, None, new)

    monkeypatch.setattr(os, "rename", rename)
    with lock_folder(MirrorSettings(name="alpha", root=str(tmp_path))):
        pass

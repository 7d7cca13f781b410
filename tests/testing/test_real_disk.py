# SPDX-License-Identifier: GPL-2.0-or-later
"""A power cut takes what was not synced, leaves what was, and ends who used the disk."""

import os
import subprocess
from pathlib import Path

import pytest

from testing.faults.real_disk import RealDisk

pytestmark = [pytest.mark.slow, pytest.mark.processes]


def write(path: Path, *, syncs: bool) -> None:
    with path.open("wb") as file:
        file.write(b"written")
        file.flush()
        if syncs:
            os.fsync(file.fileno())


def test_a_power_cut_takes_what_was_not_synced(tmp_path: Path) -> None:
    with RealDisk(tmp_path / "image", tmp_path / "root", size=16 << 20) as disk:
        for number in range(3):
            write(disk.root / f"synced-{number}", syncs=True)
            write(disk.root / f"forgotten-{number}", syncs=False)
            with subprocess.Popen(["sleep", "100"], cwd=disk.root) as user:
                disk.cut()
            assert user.returncode == -9
            synced = {f"synced-{each}" for each in range(number + 1)}
            assert {path.name for path in disk.root.iterdir()} == synced
            assert {path.read_bytes() for path in disk.root.iterdir()} == {b"written"}
    assert not (tmp_path / "root").is_mount()
    assert str(tmp_path) not in Path("/proc/mounts").read_text()

# SPDX-License-Identifier: GPL-2.0-or-later
"""What an installation leaves behind when it has ended."""

import subprocess
from pathlib import Path

import pytest

from testing.checks.agreement import left_behind

pytestmark = pytest.mark.processes


def test_a_process_that_ends_soon_is_not_left_behind(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "0.3"], cwd=tmp_path):
        assert left_behind(tmp_path) == []


def test_a_process_that_stays_is_left_behind(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"], cwd=tmp_path) as process:
        try:
            assert left_behind(tmp_path, timeout=0.2) == [process.pid]
        finally:
            process.kill()

# SPDX-License-Identifier: GPL-2.0-or-later
"""The measured servers do what they are asked for, which shows only when something is measured."""

import subprocess
import sys
from pathlib import Path

import pytest

from testing.bench import scan, serving

pytestmark = pytest.mark.processes


def test_a_measured_mirror_takes_changes_and_answers(tmp_path: Path) -> None:
    place = str(tmp_path / "made")
    serving.make(place, 5)
    with serving.Server(place, "mirror") as server:
        server.change(1)
        for request in server.requests:
            wall, spent = server.ask(request)
            assert wall > 0
            assert spent > 0
        assert server.release() > 0


def test_every_step_of_a_push_that_is_measured_exists() -> None:
    """In a process of its own: the extension of the steps changes how Mercurial loads extensions."""
    find = "from testing.bench.push_steps import STEPS, place; print([place(*step[1:])[1] for step in STEPS])"
    found = subprocess.run([sys.executable, "-c", find], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "compare_and_begin" in found.stdout


def test_a_measured_look_at_repositories_finds_what_is_to_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "COUNT", 3)
    assert all(row.samples for row in scan.rows())

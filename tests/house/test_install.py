# SPDX-License-Identifier: GPL-2.0-or-later
"""What a user without root hears when something is missing: one line, the packages, and the way round."""

import os
import subprocess
from pathlib import Path

import pytest

from testing.services.cache import CHECKOUT

SCRIPT = CHECKOUT / "testing" / "install_debian.sh"


@pytest.fixture
def bare_machine(tmp_path: Path) -> dict[str, str]:
    """An environment with no program but `id`, which says that we are not root."""
    (tmp_path / "id").write_text("#!/bin/sh\necho 1000\n")
    (tmp_path / "id").chmod(0o755)
    return {"PATH": str(tmp_path)}


def missing(what: str, environment: dict[str, str]) -> str:
    result = subprocess.run(["/bin/sh", str(SCRIPT), what], env=environment, capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_without_root_the_missing_packages_are_named_in_one_line(bare_machine: dict[str, str]) -> None:
    said = missing("services", bare_machine)
    for package in ("default-jre-headless", "maven", "chromium-driver", "strace"):
        assert package in said
    assert "VCSREPLICATOR_TEST_KAFKA" in said


def test_a_service_that_runs_elsewhere_needs_no_package(bare_machine: dict[str, str]) -> None:
    said = missing("services", {**bare_machine, "VCSREPLICATOR_TEST_KAFKA": "kafka.example:9092"})
    assert "maven" not in said
    assert "chromium" in said


def test_a_python_without_venv_is_named(bare_machine: dict[str, str]) -> None:
    assert "python3" in missing("python", bare_machine)


@pytest.mark.parametrize(
    ("goals", "target"), [("venv", "installed"), ("demo", "installed"), ("venv test", "installed-for-tests")]
)
def test_one_target_installs_whichever_goals_are_made_at_once(tmp_path: Path, goals: str, target: str) -> None:
    command = ["make", "--dry-run", "--jobs=2", f"VENV={tmp_path}/venv", *goals.split()]
    environment = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}  # of a `make check`
    planned = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=True).stdout
    assert planned.count("installing into") == 1
    assert f"touch {tmp_path}/venv/{target}\n" in planned

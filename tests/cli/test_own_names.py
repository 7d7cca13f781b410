# SPDX-License-Identifier: GPL-2.0-or-later
"""Other software that has the short names of our packages: one line, before anything else happens."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from testing.services.cache import CHECKOUT

pytestmark = pytest.mark.processes


def say(path: Path, *words: str) -> tuple[int, str]:
    """Exit code and standard error of a verb, with a folder before all others on Python's path."""
    (path / "x.toml").write_text('log = "sqlite:///nowhere/log.db"\n')
    (path / "x.toml").chmod(0o640)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", *words, "--config", str(path / "x.toml")],
        env={**os.environ, "PYTHONPATH": str(path)},
        cwd="/",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("name", ["pushlog", "notifier"])
def test_no_verb_runs_with_a_namesake_of_our_package(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").touch()
    code, text = say(tmp_path, "status")
    assert code == 78
    expected = f"vcsreplicator: package {name}: expected that in {CHECKOUT}, Python finds {tmp_path}/{name}.py; install"
    assert text.startswith(expected)
    assert text.count("\n") == 1


def test_config_check_refuses_a_namesake_of_our_hooks(tmp_path: Path) -> None:
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks/__init__.py").touch()
    code, text = say(tmp_path, "config", "check")
    assert code == 78
    assert f"package hooks: expected that in {CHECKOUT}, Python finds {tmp_path}/hooks/__init__.py; install" in text


def test_config_check_names_the_distribution_that_overlays_our_hooks(tmp_path: Path) -> None:
    metadata = tmp_path / "other-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (metadata / "top_level.txt").write_text("hooks\n")
    code, text = say(tmp_path, "config", "check")
    assert code == 78
    assert "package hooks: other installs files in it, too; install vcsreplicator in an environment of its own" in text

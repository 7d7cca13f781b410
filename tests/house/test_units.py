# SPDX-License-Identifier: GPL-2.0-or-later
"""The units of systemd in docs/: systemd understands them, they wait for their file systems, and know the exit codes."""

import shutil
import subprocess
from pathlib import Path

import pytest

from hgext.vcsreplicator.cli import VERBS
from hgext.vcsreplicator.service import EXIT_CONFIG, EXIT_FENCED
from testing.services.cache import CHECKOUT

UNITS = sorted((CHECKOUT / "docs/systemd").glob("*.service"))


def values(unit: Path, key: str) -> list[str]:
    """What the unit says under this key."""
    lines = [line.partition("=") for line in unit.read_text().splitlines()]
    return [value for name, _, text in lines if name == key for value in text.split()]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_restarts_all_but_what_must_stay_down(unit: Path) -> None:
    assert values(unit, "Restart") == ["always"]
    assert values(unit, "RestartPreventExitStatus") == [str(EXIT_FENCED), str(EXIT_CONFIG)]
    assert values(unit, "StartLimitIntervalSec") == ["0"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_waits_for_the_folders_that_it_writes(unit: Path) -> None:
    written = {path.removeprefix("-") for path in values(unit, "ReadWritePaths")} - {"/var/log/vcsreplicator"}
    assert set(values(unit, "RequiresMountsFor")) == written


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_a_verb_that_exists(unit: Path) -> None:
    program, verb, *_ = values(unit, "ExecStart")
    assert program.endswith("/vcsreplicator")
    assert verb in VERBS


def test_a_stop_of_the_worker_is_no_signal_to_its_mercurial() -> None:
    assert values(CHECKOUT / "docs/systemd/vcsreplicator-work.service", "KillMode") == ["mixed"]


def test_systemd_understands_every_unit(tmp_path: Path) -> None:
    """As they are but for users and programs, which this machine has not; nothing to ask where there is no systemd."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return
    for unit in UNITS:
        lines = unit.read_text().replace("/opt/vcsreplicator/bin/vcsreplicator", "/bin/true").splitlines()
        kept = [line for line in lines if not line.startswith(("User=", "Group="))]
        (tmp_path / unit.name).write_text("\n".join(kept) + "\n")
    asked = [analyze, "verify", *(str(tmp_path / unit.name) for unit in UNITS)]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert str(tmp_path) not in done.stderr
    assert done.returncode == 0, done.stderr

# SPDX-License-Identifier: GPL-2.0-or-later
"""The units of systemd in docs/: systemd understands them, they wait for their file systems, and know the exit codes."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hgext.vcsreplicator.cli.verbs import VERBS
from hgext.vcsreplicator.service import EXIT_CONFIG
from testing.services.cache import CHECKOUT

UNITS = sorted((CHECKOUT / "docs/systemd").glob("*.service"))
# What others may do with the files that a unit makes, where they may do anything.
UMASKS = {
    "vcsreplicator-relay": "0007",  # who pushes writes the outboxes too, as a member of the group
    "vcsreplicator-mirror@": "0022",  # the web server, another user, reads the repositories
    "vcsreplicator-web": "0027",  # as `hg` on a master, where the group reads what was pushed
}


def values(unit: Path, key: str) -> list[str]:
    """What the unit says under this key."""
    lines = [line.partition("=") for line in unit.read_text().splitlines()]
    return [value for name, _, text in lines if name == key for value in text.split()]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_restarts_all_but_what_must_stay_down(unit: Path) -> None:
    assert values(unit, "Restart") == ["always"]
    assert values(unit, "RestartPreventExitStatus") == [str(EXIT_CONFIG)]
    assert values(unit, "StartLimitIntervalSec") == ["0"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_ends_no_service_that_still_reads_the_log_or_waits_for_it(unit: Path) -> None:
    if values(unit, "Type") == ["notify"]:
        assert values(unit, "TimeoutStartSec") == ["infinity"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_waits_for_the_folders_that_it_writes(unit: Path) -> None:
    used = [*values(unit, "ReadWritePaths"), *values(unit, "ReadOnlyPaths")]
    used_here = {path.removeprefix("-") for path in used} - {"/var/log/vcsreplicator"}
    assert set(values(unit, "RequiresMountsFor")) == used_here


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_a_verb_that_exists(unit: Path) -> None:
    program, verb, *_ = values(unit, "ExecStart")
    assert program.endswith("/vcsreplicator")
    assert verb in VERBS


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_leaves_no_core_and_limits_memory_calls_sockets_files(unit: Path) -> None:
    assert values(unit, "LimitCORE") == ["0"]
    assert values(unit, "MemoryDenyWriteExecute") == ["yes"]
    assert values(unit, "RestrictAddressFamilies") == ["AF_UNIX", "AF_INET", "AF_INET6"]
    assert values(unit, "SystemCallFilter")[:1] == ["@system-service"]
    assert values(unit, "UMask") == [UMASKS.get(unit.stem, "0077")]


@pytest.mark.parametrize("name", ["edge", "web", "decode", "poll", "work"])
def test_units_that_read_what_strangers_write_have_their_own_users(name: str) -> None:
    """Users that own no repository, no key, and no secret but what these services need."""
    unit = CHECKOUT / f"docs/systemd/vcsreplicator-{name}.service"
    assert values(unit, "User") == ["vcsreplicator-web" if name in ("edge", "web") else "vcsreplicator-work"]
    written = values(unit, "ReadWritePaths")
    assert not {"-/var/lib/vcsreplicator", "/var/lib/vcsreplicator", "/repos"} & set(written)


def test_systemd_rates_no_unit_as_exposed() -> None:
    """0 is closed, 10 is open."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return
    asked = [analyze, "security", "--offline=true", "--threshold=20", "--no-pager", *(str(unit) for unit in UNITS)]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    rated = re.findall(r"Overall exposure level for (\S+): (\d+\.\d)", done.stdout)
    assert len(rated) == len(UNITS), done.stderr
    assert [(unit, exposure) for unit, exposure in rated if float(exposure) > 2.0] == []
    assert done.returncode == 0


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("name", ["relay", "web", "notifier"])
def test_all_services_of_the_demo_run_within_the_limits_of_a_unit(name: str, tmp_path: Path) -> None:
    """As another user than root, who would give files to their folders' owners."""
    unit = CHECKOUT / f"docs/systemd/vcsreplicator-{name}.service"
    done = subprocess.run(
        [
            *("unshare", "--user", "--map-user=1000", "--map-group=1000"),
            *(sys.executable, "-m", "testing.confined", str(unit)),
            *(sys.executable, "-m", "hgext.vcsreplicator.cli", "demo", "--dir", str(tmp_path / "demo")),
        ],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '"type": "changegroup.1"' in done.stdout


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

# SPDX-License-Identifier: GPL-2.0-or-later
"""The commands of docs/install.md and docs/by-hand.md, typed in their order below a folder, and what they made."""

import configparser
import itertools
import json
import os
import re
import shlex
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from testing.services.cache import CHECKOUT
from tests.house.shown import PAGES, problem
from tests.house.test_blocks import parse_ours

pytestmark = pytest.mark.processes

# The package, then the steps, then the first push.
_BEFORE, _, _AFTER = PAGES["docs/install.md"].partition("## The first push")
PAGE = _BEFORE + PAGES["docs/by-hand.md"] + _AFTER
# Programs that change the machine, or that the page installs: each only notes how it was called.
NOTED = ("apt", "useradd", "usermod", "systemctl", "pip", "vcsreplicator")
NOTE = """#!/bin/sh
{python} -S -c 'import json, sys; print(json.dumps(sys.argv[1:]))' {name} "$@" >> {folder}/called
"""
# What is run besides, under the rights of the test's user.
RUN = {
    "sudo": """{note}shift 2; exec "$@"\n""",
    "ssh": """{note}shift; PATH={folder}/usr/local/bin:$PATH exec sh -c "$*"\n""",
    "hg": """{note}echo "$HGRCPATH" >> {folder}/hgrcs\n""",
    "python": """shift 3; exec {folder}/opt/vcsreplicator/bin/hg "$@"\n""",
    # Without the owners, which the test's user cannot set.
    "install": """{note}for word do shift; case $word in -o|-g) skip=1;; *) [ "$skip" ] || set -- "$@" "$word"; skip=;; esac; done
exec /usr/bin/install "$@"\n""",
}
PLACES = re.compile(r"(?<![\w.}])/(etc|opt|repos|var|usr/local|srv)\b")


@dataclass(frozen=True, slots=True)
class Machine:
    """A folder in which the commands of the page ran, and what was called."""

    folder: Path
    called: list[list[str]]

    def of(self, program: str) -> list[list[str]]:
        """The arguments of each call of a program."""
        return [words for name, *words in self.called if name == program]


def make_programs(folder: Path) -> str:
    """Write the programs that stand for the machine's; the PATH on which they are."""
    bin, ours = folder / "bin", folder / "opt/vcsreplicator/bin"
    for place in (bin, ours, folder / "etc/systemd/system", folder / "usr/local/bin"):
        place.mkdir(parents=True)
    for name in (*NOTED, *RUN):
        note = NOTE.format(python=sys.executable, name=name, folder=folder) if name != "python" else "#!/bin/sh\n"
        program = (ours if name in ("pip", "vcsreplicator", "hg", "python") else bin) / name
        program.write_text(note + RUN.get(name, "").format(note="", folder=folder))
        program.chmod(0o755)
    return f"{bin}:{ours}:/usr/bin:/bin"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    folder = tmp_path_factory.mktemp("machine")
    environment = {"PATH": make_programs(folder)}
    for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        script = PLACES.sub(rf"{folder}/\1", block).replace("/usr/bin/python3 -m venv", "test -d")
        done = subprocess.run(
            ["bash", "-e", "-c", script],
            cwd=CHECKOUT,
            env=environment,
            input="secret\n",
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{block}\n{done.stderr}"
    called = [json.loads(line) for line in (folder / "called").read_text().splitlines()]
    return Machine(folder, called)


def test_the_commands_of_the_page_install_what_units_need(machine: Machine) -> None:
    assert [words for words in machine.called if problem(shlex.join(words)) not in ("", None)] == []
    for words in machine.of("vcsreplicator"):
        parse_ours(words)
    enabled = {words[-1] for words in machine.of("systemctl") if words[:2] == ["enable", "--now"]}
    installed = {path.stem for path in (machine.folder / "etc/systemd/system").iterdir()}
    assert len(enabled) > 3
    assert {re.sub(r"@.*", "@", name) for name in enabled} <= installed
    extras = {word for words in machine.of("pip") for word in re.findall(r"\[(.+)\]", words[-1])}
    assert extras <= set(re.findall(r"^(\w+) = \[", (CHECKOUT / "pyproject.toml").read_text(), re.MULTILINE))


def owners(machine: Machine) -> dict[str, tuple[str, str]]:
    """Owner and mode of each place that `install` made, as the command says."""
    found = {}
    for words in machine.of("install"):
        options = dict(itertools.pairwise(words))
        for place in words:
            if place.startswith(str(machine.folder)):
                found[place.removeprefix(str(machine.folder))] = (options.get("-o", "root"), options.get("-m", "0755"))
    return found


def test_folders_of_the_page_belong_to_the_users_of_their_units(machine: Machine) -> None:
    made, users = owners(machine), {words[-1] for words in machine.of("useradd")}
    for unit in sorted((CHECKOUT / "docs/systemd").glob("*.service")):
        parsed = configparser.RawConfigParser(strict=False)
        parsed.optionxform = str  # type: ignore[assignment,method-assign]
        parsed.read_string(unit.read_text())
        service = parsed["Service"]
        assert service["User"] in users, unit.name
        # What begins with - is for installations that share it.
        written = {path for path in service.get("ReadWritePaths", "").split() if not path.startswith("-")}
        assert {made[path][0] for path in written if path in made} <= {service["User"]}, unit.name
    # As the table of users says.
    assert made["/repos"] == ("hg", "2775")
    assert made["/var/lib/vcsreplicator"] == ("vcsreplicator", "0711")
    assert made["/var/lib/vcsreplicator/edge"] == ("vcsreplicator-web", "0750")
    assert made["/var/lib/vcsreplicator/work"] == ("vcsreplicator-work", "0750")
    assert made["/etc/vcsreplicator/pulse.password"] == ("vcsreplicator", "0600")
    assert {words[words.index("-u") + 1] for words in machine.of("sudo")} <= users
    for place, (_, mode) in made.items():
        assert stat.S_IMODE(os.stat(machine.folder / place[1:]).st_mode) == int(mode, 8), place


def test_accounts_and_the_first_repository_use_the_masters_hgrc(machine: Machine) -> None:
    assert [words for words in machine.of("usermod") if words[:3] == ["-a", "-G", "hg"]]
    assert ["config", "--source", "vcsreplicator.role"] in machine.of("hg")
    assert ["init", f"{machine.folder}/repos/first"] in machine.of("hg")
    assert set((machine.folder / "hgrcs").read_text().split()) == {f"{machine.folder}/etc/mercurial/master.hgrc"}

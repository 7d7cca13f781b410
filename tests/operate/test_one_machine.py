# SPDX-License-Identifier: GPL-2.0-or-later
"""The host of docs/one-machine.md: made by its `setup` in a folder that stands for the machine, with units started by hand."""

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hgext.vcsreplicator.cli.setup.machine import RECORD
from hgext.vcsreplicator.demo.layout import PROGRAM
from hgext.vcsreplicator.demo.ports import free_port
from notifier.publishing.settings import DEFAULT_STATE
from testing.services.cache import CHECKOUT
from testing.waiting import PATIENCE, eventually
from testing.warm import warm_starts
from testing.warm_hg import shared_hg
from tests.house.shown import PAGES
from tests.operate.test_installing import make_programs

pytestmark = pytest.mark.processes

PAGE = PAGES["docs/one-machine.md"]
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SETUP = re.compile(r"^.*vcsreplicator (setup .*)$", re.MULTILINE)
PLACES = re.compile(r"(?<![\w.}])/(etc|opt|repos|run|srv|tmp|usr/local|var)\b")
PORTS = re.compile(r"(?<=127\.0\.0\.1:)(\d{4})\b")
# The last block, which an operator repeats until the push is announced.
LOOK = "vcsreplicator trace first"


@dataclass(slots=True)
class Host:
    """The machine that the folder stands for: what its commands printed, and the services that its units run."""

    folder: Path
    environment: Mapping[str, str]
    running: ExitStack
    ports: dict[str, int] = field(default_factory=dict)
    printed: list[str] = field(default_factory=list)
    units: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    def place(self, text: str) -> str:
        """The text with the folders and ports of this host."""
        # By default the notifier's state is in a folder of the machine that runs this test.
        text = text.replace("[notifier.", f'[notifier]\nstate = "{DEFAULT_STATE}"\n[notifier.', 1)
        text = text.replace(os.path.dirname(sys.executable), "/opt/vcsreplicator/bin")
        text = PLACES.sub(rf"{self.folder}/\1", text)
        return PORTS.sub(lambda found: str(self.ports.setdefault(found[0], free_port())), text)

    def enter(self, block: str) -> str:
        """Type the commands, and start the units that they enable; what was printed."""
        script = self.place(SETUP.sub("", block))
        done = subprocess.run(
            ["bash", "-e", "-c", script], cwd=CHECKOUT, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
        for words in self.called():
            for name in words[3:] if words[:3] == ["systemctl", "enable", "--now"] else ():
                if name not in self.units:
                    self.start(name)
        return done.stdout + done.stderr

    def set_up(self, command: str) -> None:
        """Run `setup` below the folder, then type what it leaves to an operator; its files get the places of this host."""
        words = shlex.split(command)
        done = subprocess.run(
            [*PROGRAM, *words, "--prefix", str(self.folder)], env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        for file in json.loads((self.folder / RECORD[1:]).read_text())["made"]:
            if file.startswith("file "):
                written = self.folder / file.removeprefix("file /")
                written.write_text(self.place(written.read_text()))
        for line in re.findall("^left to you: (.*)$", done.stdout, re.MULTILINE):
            self.printed.append(self.enter(line))

    def called(self) -> list[list[str]]:
        """The commands that would change the machine."""
        noted = self.folder / "called"
        return [json.loads(line) for line in noted.read_text().splitlines()] if noted.exists() else []

    def start(self, name: str) -> None:
        """Start a unit as systemd would, and wait until it is ready."""
        unit = self.units[name] = self.read_unit(name)
        for folder in unit.get("RuntimeDirectory", ()):
            (self.folder / "run" / folder).mkdir(parents=True, exist_ok=True)
        _, *words = unit["ExecStart"][-1].split()
        variables = dict(word.split("=", 1) for line in unit.get("Environment", ()) for word in line.split())
        output = self.folder / f"{name}.log"
        with output.open("w") as printing:
            process = subprocess.Popen(
                [*PROGRAM, *words], env={**self.environment, **variables}, stdout=printing, stderr=subprocess.STDOUT
            )
        self.running.callback(process.wait)
        self.running.callback(process.kill)
        eventually(lambda: '"event": "ready"' in output.read_text(), f"{name} is ready")

    def read_unit(self, name: str) -> dict[str, list[str]]:
        """The values of each key, of the unit and of what was added to it; an empty value forgets the earlier ones."""
        units = self.folder / "etc/systemd/system"
        kind, at, instance = name.partition("@")
        texts = [(units / f"{kind}{at}.service").read_text()]
        texts += [file.read_text() for file in sorted((units / f"{kind}{at}.service.d").glob("*.conf"))]
        found: dict[str, list[str]] = {}
        for line in "\n".join(texts).replace("%i", instance).splitlines():
            key, is_set, value = line.partition("=")
            if is_set and not line.startswith("#"):
                found[key] = [*found.get(key, ()), value] if value else []
        return found


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """The host after all commands of the page but the last, which look at the push."""
    folder = tmp_path_factory.mktemp("host")
    environment = {"PATH": make_programs(folder), "USER": "dana", "HOME": str(folder)}
    environment["VCSREPLICATOR_CONFIG"] = str(folder / "etc/vcsreplicator.toml")
    for name, command in (
        ("vcsreplicator", " ".join(PROGRAM)),
        ("hg", shared_hg()),
        ("python", sys.executable),
    ):
        (folder / "opt/vcsreplicator/bin" / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    (folder / "tmp").mkdir()
    with ExitStack() as running, warm_starts():
        host = Host(folder, environment, running)
        for block in BLOCK.findall(PAGE):
            if LOOK not in block:
                host.printed.append(host.enter(block))
            for command in SETUP.findall(block):
                host.set_up(command)
        yield host


def test_a_host_made_by_the_page_announces_its_first_push(host: Host) -> None:
    assert "recorded push in replication log in " in host.printed[-1]
    [look] = [block for block in BLOCK.findall(PAGE) if LOOK in block]
    notices = host.folder / "var/lib/vcsreplicator/notices.jsonl"
    eventually(lambda: '"changegroup.1"' in notices.read_text(), "the notice")
    looked = eventually(
        lambda: "lines: passed\n" in (text := host.enter(look)) and text,
        "the trace says that the destination has passed it",
        every=0.5,
    )
    [notice] = [json.loads(line) for line in looked.splitlines() if line.startswith("{")]
    assert (notice["type"], notice["data"]["repo_url"]) == ("changegroup.1", "https://hg.example/first")
    assert "\nOK - " in looked
    page = f"http://127.0.0.1:{host.ports['8080']}/first/json-pushes"
    with urllib.request.urlopen(page, timeout=PATIENCE) as answer:
        assert json.load(answer)["1"]["user"] == "dana"


def test_the_checks_of_the_page_find_both_roles_and_nothing_missing(host: Host) -> None:
    checks = "".join(text for text in host.printed if "the log answers" in text)
    assert re.findall(r"role (\w+)", checks) == ["master", "mirror"]
    assert not re.search(r"missing|may not|no hgrc checked", checks)


def test_units_of_the_page_run_with_additions_that_setup_wrote(host: Host) -> None:
    assert len(host.units) == 7
    for name, unit in host.units.items():
        assert unit["User"][-1] == ("vcsreplicator-web" if name == "vcsreplicator-web-alpha" else "hg"), name
    assert ["usermod", "-a", "-G", "hg", "dana"] in host.called()


def test_each_web_server_of_the_page_has_the_hgrc_of_its_repositories(host: Host) -> None:
    served = {
        re.findall(r"--root (\S+)", unit["ExecStart"][-1])[0]: re.findall(r"HGRCPATH=(\S+)", unit["Environment"][-1])[0]
        for name, unit in host.units.items()
        if name.startswith("vcsreplicator-web")
    }
    files = {root: os.path.relpath(file, host.folder) for root, file in served.items()}
    assert files == {
        f"{host.folder}/repos": "etc/mercurial/master.hgrc",
        f"{host.folder}/srv/alpha": "etc/mercurial/mirror.hgrc",
    }

# SPDX-License-Identifier: GPL-2.0-or-later
"""The runbook as an operator uses it: its entries, and the commands of each, typed as they stand on the page."""

import fnmatch
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from testing.builders.cluster import Cluster
from testing.builders.notifier.endpoint import Endpoint, Reply
from testing.services.cache import CHECKOUT
from testing.services.existing import own
from testing.services.rabbitmq import RabbitMQ
from testing.waiting import eventually

COMMAND = re.compile(
    r"`((?:vcsreplicator|hg|systemctl start|systemctl status|journalctl|sqlite3|cp|mv|rm|chown|rabbitmqctl|rabbitmq-plugins"
    r"|redis-cli)(?: [^`]+)?)`"
)
METRIC = re.compile(r"`(vcsreplicator_\w+)")
PLACEHOLDER = re.compile(r"\b[A-Z][A-Z-]*[A-Z]\b")


def entries() -> dict[str, str]:
    """The text of every entry: alerts by name, `alarm NAME`, `reason NAME` and `exit CODE` by the rows of their tables."""
    text = (CHECKOUT / "docs/runbook.md").read_text()
    found = dict(re.findall(r"^### (\w+)$(.*?)(?=^##)", text, re.MULTILINE | re.DOTALL))
    for heading, kind in (("| alarm |", "alarm"), ("| reason |", "reason"), ("| code |", "exit")):
        _, _, rest = text.partition(heading)
        rows = rest.partition("\n\n")[0].splitlines()[2:]
        found |= {f"{kind} {row.split('|')[1].strip(' `')}": row for row in rows}
    return found


def operation(name: str, page: str = "operating") -> str:
    """The text of a section of a page, by default of the one about backup and restore."""
    _, _, rest = (CHECKOUT / f"docs/{page}.md").read_text().partition(f"## {name}\n")
    assert rest, name
    return rest.partition("\n## ")[0]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command printed, and its exit code."""

    code: int
    text: str


@dataclass(slots=True)
class Entry:
    """One entry under test: `type` runs its commands, with what stands for the words in capitals."""

    cluster: Cluster
    name: str
    text: str
    typed: set[str] = field(default_factory=set)
    # What commands need that are not this project's.
    environment: Mapping[str, str] = field(default_factory=dict)
    # Metrics that were read.
    read: set[str] = field(default_factory=set)

    @property
    def commands(self) -> set[str]:
        return set(COMMAND.findall(self.text))

    @property
    def untyped(self) -> set[str]:
        """Commands of the entry that did not run; a command that another one begins with is only a mention of it."""
        return {
            command for command in self.commands if not any(f"{done} ".startswith(f"{command} ") for done in self.typed)
        }

    @property
    def unread(self) -> set[str]:
        """Metrics of the entry that were not read."""
        return set(METRIC.findall(self.text)) - self.read

    def metric(self, where: str, name: str) -> float:
        """The sum of a metric of the entry, of a service or at an address; AssertionError if it does not stand there."""
        assert f"`{name}" in self.text, f"{self.name} does not name {name}"
        self.read.add(name)
        address = where if ":" in where else tomllib.loads(self.cluster.config.read_text())["listen"][where]
        return read_metric(address, name)

    def type(self, command: str, **filled: object) -> Answer:
        """Run this command of the entry; AssertionError if it does not stand there."""
        assert command in self.commands, f"{self.name} says {sorted(self.commands)}"
        self.typed.add(command)
        words = [PLACEHOLDER.sub(lambda found: str(filled[found[0]]), word) for word in shlex.split(command)]
        if words[0] in ("systemctl", "journalctl"):
            return self._ask_systemd(words, str(filled.get("unit")))
        if words[:2] == ["vcsreplicator", "rights"]:  # root needs no services' file for it
            words[:1] = [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli"]
        if words[0] != "vcsreplicator":
            environment = {**self.cluster.about["master"]["env"], **self.environment}
            if words[0] == "hg":
                words[0] = self.cluster.program(environment)
            done = subprocess.run(words, env=environment, cwd=self.cluster.folder, capture_output=True, text=True)
        else:
            done = self.cluster.cli(*words[1:])
        assert "Traceback" not in done.stderr, done.stderr
        return Answer(done.returncode, done.stdout + done.stderr)

    def _ask_systemd(self, words: list[str], unit: str) -> Answer:
        """What systemd would do with our units, each of which is a role of the cluster."""
        if words[1] == "start":
            self.cluster.start(unit)
            return Answer(0, "")
        wanted = words[-1].removeprefix("vcsreplicator-").replace("@", "-")
        roles = fnmatch.filter(self.cluster.roles, wanted)
        assert roles, f"no unit {words[-1]}"
        if words[0] == "journalctl":
            return Answer(0, "".join(map(self.cluster.output, roles)))
        down = [role for role in roles if not self.cluster.running(role)]
        return Answer(3 if down else 0, "".join(f"{role} failed\n" for role in down))

    def do(self, command: str, **filled: object) -> str:
        """Run this command, which must succeed; what it printed."""
        answer = self.type(command, **filled)
        assert answer.code == 0, f"{command}: exit {answer.code}\n{answer.text}"
        return answer.text

    def until(self, command: str, words: str, **filled: object) -> str:
        """Type this command until it prints these words; all of what it printed."""
        return eventually(
            lambda: words in (text := self.type(command, **filled).text) and text, f"{command} says {words}", every=0.5
        )

    def until_ok(self) -> None:
        """Type `vcsreplicator check` until it says that all is well."""
        seen: list[str] = []

        def is_ok() -> bool:
            answer = self.type("vcsreplicator check")
            seen[:] = [answer.text]
            return answer.code == 0 and answer.text.startswith("OK")

        try:
            eventually(is_ok, "vcsreplicator check prints OK", every=0.5, timeout=90)
        except AssertionError as error:
            error.add_note(seen[0])
            raise


@dataclass(slots=True)
class OnCall:
    """A healthy installation to break: two mirrors, a file and a webhook as destinations, each service with its metrics."""

    cluster: Cluster
    endpoint: Endpoint
    made: int = 0
    # Closes what entries opened for all.
    opened: ExitStack = field(default_factory=ExitStack)
    _broker: Any = None

    @property
    def broker(self) -> Any:
        """A RabbitMQ of these tests alone, from the first use on."""
        if self._broker is None:
            self._broker = self.opened.enter_context(own(RabbitMQ))
        return self._broker

    def repository(self) -> str:
        """The name of a new repository with one push, announced."""
        self.made += 1
        name = f"r{self.made}"
        self.cluster.create(name)
        self.push(name)
        self.wait_announced(name)
        return name

    def push(self, name: str) -> str:
        """One more push; what the pusher read."""
        clone = self.cluster.folder / "work" / name
        self.cluster.commit(clone, "more")
        return self.cluster.push(clone)

    def announced(self, name: str) -> set[str]:
        """Heads of the repository that were announced."""
        lines = [line for line in self.cluster.lines() if line["type"] == "changegroup.1"]
        return {
            head for line in lines if line["data"]["repo_url"].endswith(f"/{name}") for head in line["data"]["heads"]
        }

    def wait_announced(self, name: str) -> None:
        """Wait for the notice of the newest push."""
        clone = self.cluster.folder / "work" / name
        tip = self.cluster.hg("--cwd", clone, "log", "-r", ".", "-T", "{node}")
        eventually(lambda: tip in self.announced(name), f"the notice of {name}")

    def metric(self, role: str, name: str) -> float:
        """The sum of a metric's samples, as Prometheus reads them."""
        return read_metric(self.address(role), name)

    def address(self, role: str) -> str:
        """Where the service listens."""
        return str(tomllib.loads(self.cluster.config.read_text())["listen"][role])

    def detached(self, mirror: str, name: str) -> list[str]:
        """Reasons for which the mirror detached the repository, by its log lines."""
        lines = [line for line in self.cluster.output(f"mirror-{mirror}").splitlines() if '"detached"' in line]
        found = [json.loads(line) for line in lines]
        return [line["reason"] for line in found if (line["event"], line.get("path")) == ("detached", name)]

    def recover(self) -> None:
        """Start what a failed test left dead or stopped, for the tests after it."""
        for role in self.cluster.roles:
            if self.cluster.running(role):
                os.kill(self.cluster.pid(role), signal.SIGCONT)
            else:
                self.cluster.start(role)
        self.endpoint.reply = lambda request: Reply()
        if (away := self.cluster.folder / "away").exists():
            away.rename(self.cluster.folder / "late")

    @contextmanager
    def entry(self, name: str) -> Iterator[Entry]:
        """An entry, of which all commands must have run at the end."""
        entry = Entry(self.cluster, name, entries()[name])
        yield entry
        assert not entry.untyped, f"{name}: not typed: {entry.untyped}"
        assert not entry.unread, f"{name}: not read: {entry.unread}"


def read_metric(address: str, name: str) -> float:
    """The sum of a metric's samples at this address, as Prometheus reads them."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    bare, _, labels = name.partition("{")
    assert f"# TYPE {bare.removesuffix('_total')}" in text, f"{address} has no {name}"
    wanted = re.escape(f"{{{labels}") if labels else "(?:{.*})?"
    return sum(float(value) for value in re.findall(rf"^{bare}{wanted} (\S+)$", text, re.MULTILINE))

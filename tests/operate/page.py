# SPDX-License-Identifier: GPL-2.0-or-later
"""The runbook as an operator uses it: its entries, and the commands of each, typed as they stand on the page."""

import os
import re
import shlex
import signal
import subprocess
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from hgext.vcsreplicator.words.levels import Reason
from testing.builders.cluster import Cluster
from testing.builders.endpoint import Endpoint, Reply
from testing.services.cache import CHECKOUT
from testing.waiting import eventually

COMMAND = re.compile(r"`((?:vcsreplicator|hg|systemctl start|sqlite3|cp)(?: [^`]+)?)`")
PLACEHOLDER = re.compile(r"\b[A-Z][A-Z-]+\b")


def entries() -> dict[str, str]:
    """The text of every entry: alerts by name, `alarm NAME`, `reason NAME` and `exit CODE` by the rows of their tables."""
    text = (CHECKOUT / "docs/runbook.md").read_text()
    found = dict(re.findall(r"^### (\w+)$(.*?)(?=^##)", text, re.MULTILINE | re.DOTALL))
    for heading, kind in (("| alarm |", "alarm"), ("| reason |", "reason"), ("| code |", "exit")):
        _, _, rest = text.partition(heading)
        rows = rest.partition("\n\n")[0].splitlines()[2:]
        found |= {f"{kind} {row.split('|')[1].strip(' `')}": row for row in rows}
    return found


def operation(name: str) -> str:
    """The text of a section of the page about backup and restore."""
    _, _, rest = (CHECKOUT / "docs/operating.md").read_text().partition(f"## {name}\n")
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

    @property
    def commands(self) -> set[str]:
        return set(COMMAND.findall(self.text))

    @property
    def untyped(self) -> set[str]:
        """Commands of the entry that did not run; a command that another one begins with is only a mention of it."""
        return {
            command for command in self.commands if not any(f"{done} ".startswith(f"{command} ") for done in self.typed)
        }

    def type(self, command: str, **filled: object) -> Answer:
        """Run this command of the entry; AssertionError if it does not stand there."""
        assert command in self.commands, f"{self.name} says {sorted(self.commands)}"
        self.typed.add(command)
        words = [PLACEHOLDER.sub(lambda found: str(filled[found[0]]), word) for word in shlex.split(command)]
        if words[0] == "systemctl":
            self.cluster.start(str(filled["unit"]))
            return Answer(0, "")
        if words[0] != "vcsreplicator":
            environment = self.cluster.about["master"]["env"]
            done = subprocess.run(words, env=environment, cwd=self.cluster.folder, capture_output=True, text=True)
        else:
            done = self.cluster.cli(*words[1:])
        assert "Traceback" not in done.stderr, done.stderr
        return Answer(done.returncode, done.stdout + done.stderr)

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
        with urllib.request.urlopen(f"http://{self.address(role)}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        assert f"# TYPE {name.removesuffix('_total')}" in text, f"{role} has no {name}"
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))

    def address(self, role: str) -> str:
        """Where the service listens."""
        return str(tomllib.loads(self.cluster.config.read_text())["listen"][role])

    def detached(self, mirror: str) -> list[str]:
        """Reasons that the mirror's log lines gave so far."""
        output = self.cluster.output(f"mirror-{mirror}")
        known = {reason.value for reason in Reason}
        return [reason for reason in re.findall(r'"reason": ?"([a-z-]+)"', output) if reason in known]

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
        assert not entry.untyped, f"{name}: not typed"

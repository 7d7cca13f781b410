# SPDX-License-Identifier: GPL-2.0-or-later
"""Load: developers who commit, amend, move bookmarks and push to a master, over HTTP and `hg serve --stdio`, until told to stop.

A push that fails is retried until its outcome is known: exit code 0, or "no changes found" because an earlier attempt
was accepted after all. What the pusher was told is written down; it decides what must be announced.
"""

import os
import random
import shlex
import stat
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from testing.builders.cluster import Cluster
from testing.builders.developer import Developer, Killed

# Seconds after which a push that is refused repeatedly is given up: nothing that is broken on purpose stays so for long.
PATIENCE = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A push of which the pusher was told that it is in: repository, the new head, how many attempts were cut short before.

    `is_recorded` says that the pusher was told that the log has it, too, `is_kept` that it is kept and will be sent. `began` and
    `ended` are by the monotonic clock.
    """

    repository: str
    head: str
    attempts: int
    is_recorded: bool
    is_kept: bool = False
    began: float = 0.0
    ended: float = 0.0


@dataclass(slots=True)
class Load:
    """What was pushed, by all pushers; read it once they have ended."""

    accepted: list[Accepted] = field(default_factory=list)
    # Nodes that a newer push makes obsolete: they may be hidden at any time.
    amended: set[str] = field(default_factory=set)
    failed: list[str] = field(default_factory=list)
    # What an operator did: the types of the messages that follow, each with its path; and the repositories that it left.
    acted: list[tuple[str, str]] = field(default_factory=list)
    living: set[str] = field(default_factory=set)


class Pusher(threading.Thread):
    """One developer with clones of some repositories."""

    def __init__(self, cluster: Cluster, names: Sequence[str], load: Load, stop: threading.Event, seed: str) -> None:
        super().__init__(name=f"pusher-{names[0]}")
        self._cluster, self._names, self._load, self._stop_asked = cluster, names, load, stop
        self._random = random.Random(seed)
        # Held while changesets are made: a test that kills this developer in the middle of a push, and not of an amend, holds it.
        self.working = threading.Lock()
        self.developer = Developer(cluster.folder, developer_environment(cluster), is_warm=False)

    def run(self) -> None:
        try:
            with self.developer:
                with self.working:
                    clones = {name: self._clone(name) for name in self._names}
                while not self._stop_asked.is_set():
                    name = self._random.choice(self._names)
                    with self.working:
                        head = self._work(name, clones[name])
                    self._push(name, clones[name], head)
                    self._stop_asked.wait(self._random.uniform(0, 0.3))
        except Exception as error:
            self._load.failed.append(f"{self.name}: {type(error).__name__}: {error}")

    def _clone(self, name: str) -> Path:
        """Every second repository is worked with over `hg serve --stdio`; those publish nothing, so that amending is possible."""
        clone = self._cluster.folder / "work" / name
        clone.parent.mkdir(parents=True, exist_ok=True)
        source = f"ssh://master/{name}" if is_draft(name) else self._cluster.master_url + name
        self._must("init", clone)
        (clone / ".hg/hgrc").write_text(f"[paths]\ndefault = {source}\n")
        return clone

    def _work(self, name: str, clone: Path) -> str:
        """Something to push; the new head."""
        chance = self._random.random()
        old = self._must("--cwd", clone, "log", "-r", ".", "-T", "{node}").strip("0")
        if is_draft(name) and chance < 0.2 and old:
            (clone / "amended").write_text(str(chance))
            self._load.amended.add(old)
            self._must("--cwd", clone, "commit", "-q", "--amend", "-A", "-m", f"amended {chance}")
        else:
            for number in range(self._random.choice((1, 1, 1, 2, 5))):
                with (clone / "file").open("a") as file:
                    file.write(f"{chance} {number}\n" * 20)
                self._must("--cwd", clone, "commit", "-q", "-A", "-m", f"change {chance} {number}")
        if self._random.random() < 0.3:
            self._must("--cwd", clone, "bookmark", "-q", "-f", f"book{self._random.randrange(3)}")
        return self._must("--cwd", clone, "log", "-r", ".", "-T", "{node}")

    def _push(self, name: str, clone: Path, head: str) -> None:
        """Pushes until told how it stands. A bookmark goes with the push that it is on."""
        books = self._must("--cwd", clone, "log", "-r", head, "-T", "{bookmarks}").split()
        flags = [word for book in books for word in ("-B", book)]
        attempts, began = 0, time.monotonic()
        while True:
            attempts += 1
            try:
                code, output = self.developer.hg("--cwd", clone, "push", "-f", "-r", head, *flags)
            except Killed:
                continue
            if code == 0 or (code == 1 and "no changes found" in output and "abort:" not in output):
                is_recorded = "recorded push in replication log" in output
                is_kept = "is kept and will be sent" in output
                told = Accepted(
                    repository=name,
                    head=head,
                    attempts=attempts,
                    is_recorded=is_recorded,
                    is_kept=is_kept,
                    began=began,
                    ended=time.monotonic(),
                )
                self._load.accepted.append(told)
                return
            if "hg recover" in output:
                self.developer.hg("--cwd", clone, "recover")
            if time.monotonic() > began + PATIENCE:
                raise AssertionError(f"{name}: refused for {PATIENCE:g} s, at last: {output}")
            time.sleep(self._random.uniform(0.05, 0.3))

    def _must(self, *arguments: str | Path) -> str:
        """What a command prints that works; again if its process is killed, or the master is away."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                code, output = self.developer.hg(*arguments)
            except Killed:
                continue
            if code == 0 or (code == 1 and "nothing changed" in output):
                return output
            if "hg recover" in output:
                self.developer.hg(*arguments[:2], "recover")
            if time.monotonic() > end:
                raise AssertionError(f"hg {' '.join(map(str, arguments))}: exit {code}: {output}")
            time.sleep(0.2)


def is_draft(name: str) -> bool:
    """Whether the repository takes drafts and is reached over `hg serve --stdio`."""
    return int(name[-1]) % 2 == 1


def create(cluster: Cluster, names: Sequence[str]) -> None:
    """The repositories on the master."""
    for name in names:
        cluster.hg("init", cluster.repository(name), on_master=True)
        if is_draft(name):
            write_durably(cluster.repository(name) / ".hg/hgrc", "[phases]\npublish = no\n")


def write_durably(file: Path, text: str) -> None:
    """Write a file that a power cut leaves as it is."""
    with file.open("w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def developer_environment(cluster: Cluster) -> dict[str, str]:
    """Of a developer without extensions, who reaches `ssh://master/NAME` by a serving process of the master on this machine."""
    shell = cluster.folder / "ssh"
    if not shell.exists():
        environment = cluster.about["master"]["env"]
        master = " ".join(shlex.quote(f"{name}={value}") for name, value in environment.items())
        shell.write_text(
            "#!/bin/sh\n# ssh HOST 'hg -R NAME serve --stdio'\nset -- $2\n"
            f'exec env -i {master} {cluster.program(environment)} -R {shlex.quote(str(cluster.master_root))}/"$3" serve --stdio\n'
        )
        shell.chmod(shell.stat().st_mode | stat.S_IXUSR)
    settings = cluster.folder / "developer.hgrc"
    settings.write_text(
        f"[ui]\nssh = {shell}\nusername = Dana <dana@example.com>\ntimeout = 30\n[experimental]\nevolution = all\n"
    )
    own = os.path.dirname(sys.executable)
    return {**cluster.about["master"]["env"], "HGRCPATH": str(settings), "PATH": f"{own}:{os.environ['PATH']}"}

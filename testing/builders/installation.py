# SPDX-License-Identifier: GPL-2.0-or-later
"""An installation on three brokers, whose aggregators and notifiers have machines of their own, with pushers and a consumer.

with here.cluster, here.pushing():
    since = here.lose("notifier-1", folder=folder)
    seconds = here.consumer.gap(since)
"""

import itertools
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.status.follower import read_picture
from hgext.vcsreplicator.words.roster import MirrorState
from testing.builders.cluster import Cluster
from testing.builders.load import Load, Pusher
from testing.services.guard import descendants
from testing.services.kafka.cluster import KafkaCluster
from testing.waiting import eventually

# Seconds to wait for what follows a loss.
PATIENCE = 180.0


class Paced(Pusher):
    """A pusher that takes turns with others, `per_second` of them; `began` has when each head was pushed first."""

    def __init__(
        self, first: float, per_second: float, turns: Iterator[int], began: dict[str, float], *given: Any
    ) -> None:
        super().__init__(*given)
        self._first, self._per_second, self._turns, self._began = first, per_second, turns, began

    def _work(self, name: str, clone: Path) -> str:
        time.sleep(max(0.0, self._first + next(self._turns) / self._per_second - time.monotonic()))
        head = super()._work(name, clone)
        self._began[head] = time.monotonic()
        return head


@dataclass(slots=True)
class Consumer:
    """Reads the lines of these files as they come; `arrived` has the time of each."""

    files: list[Path]
    began: dict[str, float]
    arrived: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    _read: dict[Path, int] = field(default_factory=dict)

    def follow(self) -> None:
        while not self.over.wait(0.02):
            self.look()

    def look(self) -> list[dict[str, Any]]:
        """Read what is new; all lines so far."""
        for path in self.files:
            with suppress(FileNotFoundError), path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                *lines, rest = file.read().split(b"\n")
                self._read[path], now = file.tell() - len(rest), time.monotonic()
                self.arrived += [(now, json.loads(line)) for line in lines]
        return [line for _, line in self.arrived]

    def gap(self, since: float) -> float:
        """Seconds between the last message before a loss, and the first of a push that began after it."""

        def later() -> list[float]:
            found = ((at, head) for at, line in self.arrived for head in line["data"].get("heads", ()))
            return [at for at, head in found if self.began.get(head, 0.0) > since][:1]

        before = max(at for at, _ in self.arrived if at <= since)
        return eventually(later, "a message of a later push", timeout=PATIENCE)[0] - before


class Installation:
    """A cluster whose aggregators and notifiers have machines, with pushers and a consumer at work.

    At least `pushes` are made, `per_second` of them at most.
    """

    def __init__(
        self, kafka: KafkaCluster, folder: Path, *, pushes: int, repositories: int, per_second: float, pushers: int = 3
    ) -> None:
        self.kafka, self._pushes, self._per_second, self._pushers = kafka, pushes, per_second, pushers
        self.cluster = Cluster(folder, "--log", kafka.url)
        self.names = [f"repository-{number}" for number in range(repositories)]
        self.load, self.began = Load(), dict[str, float]()
        self.consumer = Consumer([self.cluster.notices], self.began)
        self.pushers: list[Paced] = []
        services = self.cluster.about["services"]
        self._alone = {role: services.pop(role) for role in ("aggregator", "notifier")}
        self.prepare(1)

    def prepare(self, number: int) -> list[str]:
        """Give the aggregator and the notifier of this number their machines; the roles."""
        made = {f"{role}-{number}": service for role, service in self._alone.items()}
        self.cluster.about["services"] |= {name: self.on_a_machine(name, service) for name, service in made.items()}
        return list(made)

    def on_a_machine(self, name: str, service: dict[str, Any]) -> dict[str, Any]:
        return on_a_machine(self.cluster, name, service)

    @contextmanager
    def pushing(self) -> Iterator[None]:
        """Push until the block is over and all pushes were made."""
        stop, start, turns = threading.Event(), time.monotonic(), itertools.count()
        for number in range(self._pushers):
            given = (self.cluster, self.names[number :: self._pushers], self.load, stop, f"machines-{number}")
            self.pushers.append(Paced(start, self._per_second, turns, self.began, *given))
        reading = threading.Thread(target=self.consumer.follow)
        for thread in (reading, *self.pushers):
            thread.start()
        try:
            yield
            self.wait_for_pushes(1.0)
        finally:
            stop.set()
            for pusher in self.pushers:
                pusher.join()
            self.consumer.over.set()
            reading.join()

    def wait_for_pushes(self, part: float) -> None:
        """Wait until this part of the pushes was accepted."""
        wanted = self._pushes * part
        eventually(lambda: len(self.load.accepted) >= wanted or self.load.failed, "pushes", timeout=2 * PATIENCE)
        assert not self.load.failed

    def lose(self, *roles: str, folder: Path) -> float:
        """Kill all processes of a machine, and remove its folder; the time of the loss."""
        since = time.monotonic()
        for pid in map(self.cluster.pid, roles):
            kill_all([pid, *descendants(pid)])
        self.cluster.kill(*roles)
        shutil.rmtree(folder.rename(folder.with_name(f"lost-{folder.name}")), ignore_errors=True)
        return since

    def act(self) -> None:
        """Rename, strip and delete under the pushes."""
        old, new = self.names[0], "renamed-0"
        here, stripped, deleted = (self.cluster.repository(name) for name in (old, self.names[2], "deleted-2"))
        self.cluster.hg("-R", here, "replicaterename", "--yes", self.cluster.repository(new), on_master=True)
        hgrc = self.cluster.folder / "work" / old / ".hg/hgrc"
        hgrc.write_text(f"[paths]\ndefault = {self.cluster.master_url}{new}\n")
        self.names[0] = new
        self.cluster.hg("-R", stripped, "strip", "--no-backup", "tip", "--config", "extensions.strip=", on_master=True)
        self.cluster.hg("-R", deleted, "replicatedelete", "--yes", on_master=True)

    def run(self, *arguments: str) -> None:
        done = self.cluster.cli(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr

    def fill_again(self, name: str, log: Log) -> None:
        """Bring a mirror back, whose machine was lost."""
        (self.cluster.folder / "repos" / name).mkdir()
        self.run("bootstrap", name)
        self.cluster.start(f"mirror-{name}", f"web-{name}")

        eventually(
            lambda: (mirror := read_picture(log).roster.mirror(name)) and mirror.state is MirrorState.ACTIVE,
            f"{name} is active",
            timeout=PATIENCE,
        )

    def promote(self, log: Log) -> float:
        """Make alpha the master once it has all that the log has; the time of the command that did it."""
        eventually(lambda: not read_picture(log).measure_lags("alpha"), "alpha is caught up", timeout=PATIENCE)
        self.cluster.stop("mirror-alpha", "web-alpha")
        self.cluster.move_master(self.cluster.folder / "repos/alpha")

        def tried() -> float | None:
            begun, done = time.monotonic(), self.cluster.cli("promote", "alpha", "--yes")
            assert done.returncode == 0 or "wait 60 s" in done.stdout + done.stderr, done.stdout + done.stderr
            return begun if done.returncode == 0 else None

        begun = eventually(tried, "the promotion", timeout=PATIENCE, every=2.0)
        assert begun is not None
        self.cluster.start("relay", "web-master")
        return begun


def on_a_machine(cluster: Cluster, name: str, service: dict[str, Any]) -> dict[str, Any]:
    """The service with a file, a name of its machine and processes of its own, which no other process sees."""
    folder = cluster.folder / "machines" / name
    folder.mkdir(parents=True)
    config, common = folder / "vcsreplicator.toml", cluster.config.read_text()
    lines = common.replace(f"{cluster.folder}/notifier.db", f"{folder}/notifier.db").splitlines()
    config.write_text("\n".join(line for line in lines if not line.startswith("aggregator = ")))
    alone = ["--user", "--map-root-user", "--pid", "--mount-proc", "--uts", "--fork", "--kill-child"]
    start = ["sh", "-c", f'hostname {name} && exec "$@"', "sh"]
    argv = [str(config) if word == str(cluster.config) else word for word in service["argv"]]
    return {**service, "argv": ["unshare", *alone, *start, *argv]}


def kill_all(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

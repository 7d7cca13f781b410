# SPDX-License-Identifier: GPL-2.0-or-later
"""A real cluster for tests and benchmarks: what `vcsreplicator demo --prepare` sets up, run by its argument vectors alone.

    with Cluster(folder) as cluster:          # everything runs and is ready
        cluster.hg("init", cluster.repository("x"), on_master=True)
        cluster.stop("mirror-alpha")

Every service is a process group of its own and is killed at the end of the block, also after an error.
"""

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hgext.vcsreplicator.demo.supervisor import leashed
from testing.builders.developer import Developer
from testing.warm import warm_starts
from testing.warm_hg import shared_hg

START_TIMEOUT = 60.0


class Cluster:
    """A prepared cluster in `folder`, started when entered; `options` are those of `vcsreplicator demo`.

    `warm` services and their workers are forks of a Python that has imported everything: a test that kills their children spares
    those of which `is_stem` is true. A benchmark wants cold ones.
    """

    def __init__(self, folder: Path, *options: str, warm: bool = True) -> None:
        self.folder = folder
        self._is_warm = warm
        self._start = warm_starts if warm else contextlib.nullcontext
        ready = folder / "ready.json"
        program = [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", "demo", "--prepare"]
        words = [*program, "--dir", str(folder), "--ready", str(ready), *options]
        with self._start():
            done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise AssertionError(f"demo --prepare failed:\n{done.stdout}{done.stderr}")
        self.about: dict[str, Any] = json.loads(ready.read_text())
        self.master_root = Path(self.about["master"]["root"])
        self.master_url: str = self.about["master"]["url"]
        self.log_url: str = self.about["log"]
        self.config = folder / "vcsreplicator.toml"
        self.notices = folder / "notices.jsonl"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._dana: Developer | None = None

    def __enter__(self) -> Self:
        try:
            self.start(*self.roles)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(self.account())
        self.close()

    def account(self) -> str:
        """Of each service whether it runs, and what it wrote last: what a failed test wants to know."""
        parts = []
        for role, process in self._processes.items():
            code = process.poll()
            state = "runs" if code is None else f"ended with {code}"
            parts.append(f"{role} {state}; its last words:\n{self.output(role)[-1500:]}")
        return "\n".join(parts)

    @property
    def roles(self) -> list[str]:
        return list(self.about["services"])

    def start(self, *roles: str) -> None:
        """Starts these services and returns when all say that they are ready."""
        listeners = {role: self._spawn(role) for role in roles}
        end = time.monotonic() + START_TIMEOUT
        try:
            for role, listener in listeners.items():
                self._wait_until_ready(role, listener, end)
        finally:
            for listener in listeners.values():
                listener.close()

    def stop(self, *roles: str) -> list[int]:
        """Asks these services to stop, and waits; their exit codes."""
        for role in roles:
            self._processes[role].terminate()
        return [self._processes[role].wait(60) for role in roles]

    def kill(self, *roles: str) -> None:
        """SIGKILL to the service's main process, as the kernel would."""
        for role in roles:
            self._processes[role].kill()
            self._processes[role].wait()

    def revive(self, *roles: str) -> None:
        """Starts these services again, as what watches over them would: without waiting until they are ready."""
        for role in roles:
            self._spawn(role).close()

    def exit_code(self, role: str) -> int | None:
        """How the service's main process ended, None while it runs."""
        return self._processes[role].poll()

    def pid(self, role: str) -> int:
        return self._processes[role].pid

    def running(self, role: str) -> bool:
        return self._processes[role].poll() is None

    def output(self, role: str) -> str:
        return (self.folder / "output" / f"{role}.log").read_text(errors="replace")

    def close(self) -> None:
        """Ends every process of the cluster."""
        if self._dana is not None:
            self._dana.close()
            self._dana = None
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        end = time.monotonic() + 15
        for process in self._processes.values():
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()

    def repository(self, name: str) -> Path:
        return self.master_root / name

    def hg(self, *arguments: str | Path, on_master: bool = False, check: bool = True, **env: str) -> str:
        """What hg prints; with `on_master` as an administrator there, else as a developer without extensions."""
        base = {**self.about["master"]["env"], "HGUSER": "Dana <dana@example.com>", "USER": "dana@example.com"}
        if not on_master:
            base["HGRCPATH"] = os.devnull
        if on_master or env or threading.current_thread() is not threading.main_thread():
            environment = {**base, **env}
            done = subprocess.run(
                [self.program(environment), *map(str, arguments)],
                env=environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            code, text = done.returncode, done.stdout.decode(errors="replace")
        else:  # kept open: most of what a start costs is Python's
            self._dana = self._dana or Developer(self.folder, base)
            code, text = self._dana.hg(*arguments)
        if check and code:
            raise AssertionError(f"hg {' '.join(map(str, arguments))}: exit {code}\n{text}")
        return text

    def program(self, environment: Mapping[str, str]) -> str:
        """The `hg` for callers with this environment: warm as the services are."""
        return shared_hg(environment) if self._is_warm else "hg"

    def move_master(self, root: Path) -> None:
        """Write files and services as an operator does to make a mirror's folder the master's, at the addresses of the old one."""
        for file in (self.config, self.folder / "master.hgrc", self.folder / "ssh"):
            if file.exists():
                text = file.read_text().replace(str(self.master_root), str(root))
                file.write_text(text.replace("hg://master.example", "hg://alpha.example"))
        argv = self.about["services"]["web-master"]["argv"]
        argv[argv.index(str(self.master_root))] = str(root)
        self.about["mirrors"] = [mirror for mirror in self.about["mirrors"] if mirror["root"] != str(root)]
        self.master_root = root

    def create(self, name: str) -> Path:
        """A new repository on the master and a clone of it to work in; the clone's path."""
        self.hg("init", self.repository(name), on_master=True)
        clone = self.folder / "work" / name
        clone.parent.mkdir(parents=True, exist_ok=True)
        self.hg("clone", "-q", self.master_url + name, clone)
        return clone

    def commit(self, clone: Path, text: str) -> str:
        """A changeset that changes one file; its node."""
        with (clone / "file.txt").open("a") as file:
            file.write(text + "\n")
        self.hg("--cwd", clone, "commit", "-q", "-A", "-m", text)
        return self.hg("--cwd", clone, "log", "-r", ".", "-T", "{node}")

    def push(self, clone: Path, *arguments: str) -> str:
        return self.hg("--cwd", clone, "push", *arguments)

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`vcsreplicator ARGUMENTS --config …`."""
        words = [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", *arguments, "--config", str(self.config)]
        with warm_starts():
            return subprocess.run(words, capture_output=True, text=True, check=False)

    def lines(self) -> list[dict[str, Any]]:
        """What the JSON-lines destination wrote so far."""
        if not self.notices.exists():
            return []
        whole = self.notices.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def _spawn(self, role: str) -> socket.socket:
        service = self.about["services"][role]
        where = str(self.folder / "run" / f"{role}.t")
        Path(where).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        listener.bind(where)
        with open(self.folder / "output" / f"{role}.log", "ab") as output, self._start():
            self._processes[role] = subprocess.Popen(
                leashed(service["argv"]),
                env={**service["env"], "NOTIFY_SOCKET": where},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return listener

    def _wait_until_ready(self, role: str, listener: socket.socket, end: float) -> None:
        listener.settimeout(0.1)
        while True:
            try:
                if b"READY=1" in listener.recv(4096):
                    return
            except TimeoutError:
                pass
            if not self.running(role) or time.monotonic() > end:
                raise AssertionError(f"{role} did not become ready:\n{self.output(role)[-3000:]}")


def in_order(numbers: Iterable[int]) -> bool:
    """Whether each number is larger than the one before."""
    numbers = list(numbers)
    return all(first < second for first, second in itertools.pairwise(numbers))

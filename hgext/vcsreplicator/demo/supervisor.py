# SPDX-License-Identifier: GPL-2.0-or-later
"""Keeps the services of a local cluster running and stops all of them in the end; leaves no process behind.

Each service leads a process group of its own, tells that it is ready in systemd's way, and is ended by the kernel if this
process dies. One that dies is started again after a short pause, unless its exit code says that it must stay down.
"""

import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..service import EXIT_CONFIG, EXIT_FENCED
from ..words.errors import Unavailable
from ..words.retry import Backoff
from .layout import Service

STAYS_DOWN = (EXIT_FENCED, EXIT_CONFIG)
# Run by the new process itself: what is done between fork and exec (`preexec_fn`) can hang where there are threads.
_LEASH = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)  # PR_SET_PDEATHSIG, SIGTERM
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


@dataclass(slots=True, kw_only=True)
class _Child:
    service: Service
    notify: socket.socket
    process: subprocess.Popen[bytes] | None = None
    ready: bool = False
    down: bool = False
    starts: int = 0
    restart_at: float = field(default=0.0)


class DemoSupervisor:
    """Starts, watches and stops; its methods belong to one thread, `stop` may be called from any."""

    def __init__(self, services: Sequence[Service], folder: Path, changed: Callable[[], None] = lambda: None) -> None:
        self._folder = folder
        self._changed = changed
        self._backoff = Backoff(first=0.2, longest=5.0)
        self._selector = selectors.DefaultSelector()
        self._children = [_Child(service=service, notify=self._listen(service.role)) for service in services]
        for child in self._children:
            self._selector.register(child.notify, selectors.EVENT_READ, child)

    def start(self, *, timeout: float = 60.0) -> None:
        """Starts everything and returns when all are ready; raises Unavailable naming the service that is not."""
        for child in self._children:
            self._spawn(child)
        end = time.monotonic() + timeout
        while waiting := [child for child in self._children if not child.ready]:
            dead = [child for child in waiting if child.process is not None and child.process.poll() is not None]
            if dead or time.monotonic() > end:
                role = (dead or waiting)[0].service.role
                raise Unavailable(f"{role} did not become ready; its last words: {self._last_words(role)}")
            self._hear(0.1)

    def run(self, stop: threading.Event) -> None:
        """Restarts what dies until `stop` is set."""
        while not stop.is_set():
            self._hear(0.1)
            for child in self._children:
                self._revive(child)

    def pids(self) -> dict[str, int | None]:
        """Role → process id, None while it is down."""
        return {
            child.service.role: child.process.pid if child.process and child.process.poll() is None else None
            for child in self._children
        }

    def stop(self, *, timeout: float = 15.0) -> None:
        """Asks every service to stop, kills what has not after `timeout` seconds, and everything it started."""
        running = [child.process for child in self._children if child.process is not None]
        for process in running:
            _signal(process, signal.SIGTERM, group=False)
        end = time.monotonic() + timeout
        for process in running:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
        for process in running:
            _signal(process, signal.SIGKILL, group=True)
            process.wait()
        for child in self._children:
            child.notify.close()
            Path(self._notify_path(child.service.role)).unlink(missing_ok=True)
        self._selector.close()

    def _spawn(self, child: _Child) -> None:
        role = child.service.role
        with open(self._folder / "output" / f"{role}.log", "ab") as output:
            child.process = subprocess.Popen(
                leashed(child.service.argv),
                env={**child.service.env, "NOTIFY_SOCKET": self._notify_path(role)},
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        child.starts += 1
        self._changed()

    def _revive(self, child: _Child) -> None:
        if child.down or child.process is None or child.process.poll() is None:
            return
        now = time.monotonic()
        if not child.restart_at:
            _signal(child.process, signal.SIGKILL, group=True)
            child.ready = False
            child.down = child.process.returncode in STAYS_DOWN
            child.restart_at = now + self._backoff.delay(child.starts)
            self._changed()
        elif now >= child.restart_at:
            child.restart_at = 0.0
            self._spawn(child)

    def _hear(self, timeout: float) -> None:
        for key, _ in self._selector.select(timeout):
            if b"READY=1" in key.data.notify.recv(4096):
                key.data.ready = True

    def _listen(self, role: str) -> socket.socket:
        where = self._notify_path(role)
        Path(where).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        listener.bind(where)
        return listener

    def _notify_path(self, role: str) -> str:
        inside = str(self._folder / "run" / f"{role}.ready")
        return inside if len(inside.encode()) < 100 else f"/tmp/vcsreplicator-{os.getpid()}-{role}.ready"

    def _last_words(self, role: str) -> str:
        lines = (self._folder / "output" / f"{role}.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "(none)"


def leashed(command: Sequence[str]) -> list[str]:
    """The command, in a process that the kernel asks to stop when the thread that started it is gone."""
    return [sys.executable, "-I", "-S", "-c", _LEASH, str(os.getpid()), *command]


def _signal(process: subprocess.Popen[bytes], number: int, *, group: bool) -> None:
    try:
        if group:
            os.killpg(process.pid, number)
        elif process.poll() is None:
            process.send_signal(number)
    except ProcessLookupError:
        pass

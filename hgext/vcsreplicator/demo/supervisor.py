# SPDX-License-Identifier: GPL-2.0-or-later
"""Keeps the services of a local installation running; leaves no process behind.

Each service leads a process group of its own, reports that it is ready as systemd expects, and is ended by the kernel if this
process dies. A service that dies is restarted after a short pause, unless its exit code says that it must stay down.
"""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..service import EXIT_CONFIG
from ..words.errors import Unavailable
from ..words.retry import Backoff
from .layout import Service, choose_socket

# Seconds in which all services must become ready, and stop.
START_LIMIT, STOP_LIMIT = 60.0, 15.0
# Run by the new process itself, because `preexec_fn` (between fork and exec) can hang in a program with threads.
# prctl(1, 15) is PR_SET_PDEATHSIG with SIGTERM.
_LEASH = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


@dataclass(slots=True, kw_only=True)
class _Child:
    service: Service
    notify: socket.socket
    process: subprocess.Popen[bytes] | None = None
    is_ready: bool = False
    is_down: bool = False
    starts: int = 0
    restart_at: float = 0.0


class DemoSupervisor:
    """A supervisor of services, for one thread; any thread may set the event `stop`."""

    def __init__(self, services: Sequence[Service], folder: Path) -> None:
        self._folder = folder
        self._backoff = Backoff(first=0.2, longest=5.0)
        self._selector = selectors.DefaultSelector()
        self._children = [_Child(service=service, notify=self._listen(service.role)) for service in services]
        for child in self._children:
            self._selector.register(child.notify, selectors.EVENT_READ, child)

    def start(self) -> None:
        """Start all services; raises Unavailable naming the first that fails."""
        for child in self._children:
            self._spawn(child)
        end = time.monotonic() + START_LIMIT
        while waiting := [child for child in self._children if not child.is_ready]:
            dead = [child for child in waiting if child.process is not None and child.process.poll() is not None]
            if dead or time.monotonic() > end:
                role = (dead or waiting)[0].service.role
                lines = (self._folder / "output" / f"{role}.log").read_text(errors="replace").split("\n")
                said = next((line for line in reversed(lines) if line.strip()), "(none)")
                raise Unavailable(f"{role} did not become ready; its last line: {said}")
            self._receive_ready(0.1)

    def run(self, stop: threading.Event, report: Callable[[Mapping[str, int | None]], None]) -> None:
        """Restart services that die until `stop` is set; report each change."""
        while not stop.is_set():
            self._receive_ready(0.1)
            for child in self._children:
                if self._revive_service(child):
                    report(self.pids())

    def pids(self) -> dict[str, int | None]:
        """Return the process id of each role, None while it is down."""
        return {
            child.service.role: child.process.pid if child.process and child.process.poll() is None else None
            for child in self._children
        }

    def stop(self) -> None:
        """Stop all services; after STOP_LIMIT kill them and their children."""
        running = [child.process for child in self._children if child.process is not None]
        for process in running:
            process.terminate()
        end = time.monotonic() + STOP_LIMIT
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
        for process in running:
            _kill_group(process)
            process.wait()
        for child in self._children:
            child.notify.close()
            Path(choose_socket(self._folder, f"{child.service.role}.ready")).unlink(missing_ok=True)
        self._selector.close()

    def _spawn(self, child: _Child) -> None:
        role = child.service.role
        with open(self._folder / "output" / f"{role}.log", "ab") as output:
            child.process = subprocess.Popen(
                leashed(child.service.argv),
                env={**child.service.env, "NOTIFY_SOCKET": choose_socket(self._folder, f"{role}.ready")},
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        child.starts += 1

    def _revive_service(self, child: _Child) -> bool:
        """Start a dead service again once that is due; return whether its state changed."""
        if child.is_down or child.process is None or child.process.poll() is None:
            return False
        now = time.monotonic()
        if not child.restart_at:
            _kill_group(child.process)
            child.is_ready = False
            child.is_down = child.process.returncode == EXIT_CONFIG
            child.restart_at = now + self._backoff.delay(child.starts)
            return True
        if now >= child.restart_at:
            child.restart_at = 0.0
            self._spawn(child)
            return True
        return False

    def _receive_ready(self, timeout: float) -> None:
        for key, _ in self._selector.select(timeout):
            if b"READY=1" in key.data.notify.recv(4096):
                key.data.is_ready = True

    def _listen(self, role: str) -> socket.socket:
        where = choose_socket(self._folder, f"{role}.ready")
        Path(where).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        listener.bind(where)
        return listener


def leashed(command: Sequence[str]) -> list[str]:
    """Wrap the command: the kernel stops it when the thread that started it is gone."""
    return [sys.executable, "-I", "-S", "-c", _LEASH, str(os.getpid()), *command]


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)

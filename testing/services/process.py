# SPDX-License-Identifier: GPL-2.0-or-later
"""A service as a process: started and known to answer, killed, paused, restarted with its data, stopped without a trace.

Rules of this file: every process runs under `guard.py`, so a killed test run leaves nothing behind; a service that does not
come up is an error that shows the end of its own log, never a skip.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from hgext.vcsreplicator.demo.ports import free_port
from testing.services import guard

# Seconds until a service must answer; a loaded machine of two cores needs a third of it.
PATIENCE = 90.0


class ServiceMissing(RuntimeError):
    """A service that tests need cannot be started; one line says what is missing and how to get it."""


class Service(ABC):
    """One real service. Subclasses say how it starts (`command`, `environment`) and when it answers (`answers`)."""

    name: str

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-"))
        self.port = free_port()
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """How clients reach it."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """What to run; called at each start."""

    def environment(self) -> Mapping[str, str]:
        """Variables added to ours."""
        return {}

    @abstractmethod
    def answers(self) -> bool:
        """Whether a client would be served now; may raise OSError instead of saying no."""

    @property
    def log_file(self) -> Path:
        """What the service printed."""
        return self.folder / "service.log"

    @property
    def running(self) -> bool:
        return self._guard is not None and self._guard.poll() is None

    @property
    def guard_pid(self) -> int:
        """The process above all of the service's; gone once they are."""
        if self._guard is None:
            raise RuntimeError(f"{self.name} is not running")
        return self._guard.pid

    def start(self) -> Self:
        """Start it and return once it answers."""
        guarded = [sys.executable, "-SE", guard.__file__, str(os.getpid()), str(self.folder), *self.command()]
        with self.log_file.open("ab") as log:
            self._guard = subprocess.Popen(
                guarded,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment()},
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C is for the tests, which then stop us
            )
        self.wait_until_ready()
        return self

    def wait_until_ready(self) -> None:
        """Return once a client would be served; raise with the end of the log if it ended or took too long."""
        deadline = time.monotonic() + PATIENCE
        while self.running and time.monotonic() < deadline:
            try:
                if self.answers():
                    return
            except OSError:
                pass
            time.sleep(0.1)
        what = "does not answer" if self.running else "ended while starting"
        tail = "\n".join(self.log_file.read_text(errors="replace").splitlines()[-20:])
        self.kill()
        raise ServiceMissing(f"{self.name} {what}; it printed last:\n{tail}")

    def stop(self) -> None:
        """End it as an operator would. Its data stays until `close`."""
        if self._guard is not None:
            self.resume()
            self._guard.terminate()
            self._guard.wait()
            self._guard = None

    def kill(self) -> None:
        """SIGKILL it and all it started, at once."""
        if self._guard is not None:
            guard.signal_all(self._guard.pid, signal.SIGKILL)
            self._guard.wait()
            self._guard = None

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing answers; returns once all stands still."""
        self._signal(signal.SIGSTOP)
        deadline = time.monotonic() + PATIENCE
        while self._guard is not None and not guard.stand_still(self._guard.pid):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} does not stand still")
            time.sleep(0.001)

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        """Start again on the same port and data, after a stop if it runs; returns once it answers."""
        self.stop()
        self.start()

    def place(self) -> str:
        """How a test reaches it that has it to itself, or an empty place in it."""
        return self.url

    def wake(self) -> None:
        """Be ready for a test after `clear`, or after a start."""
        self.resume()

    def clear(self) -> None:
        """Forget what a test left in it, so that the next may have it; raise `ServiceMissing` if a new one costs less."""
        raise ServiceMissing(f"{self.name} is used once")

    def close(self) -> None:
        """End it at once and remove its data; a service that leaves something elsewhere stops in order first."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _signal(self, number: int) -> None:
        if self._guard is not None:
            guard.signal_all(self._guard.pid, number)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def needed(program: str, package: str) -> str:
    """The path of a program, or `ServiceMissing` with the package that has it."""
    folders = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/usr/lib/rabbitmq/bin"
    path = shutil.which(program, path=folders)
    if path is None:
        raise ServiceMissing(
            f"{program} is missing: install the Debian package {package}, or run testing/install_debian.sh"
        )
    return path

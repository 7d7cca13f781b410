# SPDX-License-Identifier: GPL-2.0-or-later
"""The parent's end of a nursery, which forks workers: `hg.replica.nursery`."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping

import structlog

# Seconds that a fork may take before the nursery is given up.
PATIENCE = 5.0

logger = structlog.get_logger()


class ForkedProcess:
    """A child that a nursery started, with the needed part of `Popen`'s interface."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        with self._lock:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended; raises TimeoutExpired."""
        with self._lock:
            # Until `poll` has its exit code no other process gets its id.
            ended = None if self.returncode is not None else os.pidfd_open(self.pid)
        if ended is not None:
            try:
                poller = select.poll()
                poller.register(ended, select.POLLIN)
                poller.poll(None if timeout is None else timeout * 1000)
            finally:
                os.close(ended)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        with self._lock:
            if self.returncode is None:
                os.kill(self.pid, signal.SIGKILL)


def start(module: str, descriptor: int, environment: Mapping[str, str], *arguments: str) -> "subprocess.Popen[bytes]":
    """Start a module of ours with its end of a pipe or socket, and more arguments.

    Ctrl-C in a terminal goes to all processes. The new one blocks it until it ignores it, because its imports would print a
    traceback.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        command = [sys.executable, "-P", "-m", module, str(descriptor), *arguments]
        return subprocess.Popen(command, env=dict(environment), pass_fds=[descriptor], stdin=subprocess.DEVNULL)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Nursery:
    """The process that forks, from its start to its end; used by one thread."""

    def __init__(self, environment: Mapping[str, str], module: str, *arguments: str) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = start(module, theirs.fileno(), environment, *arguments)
        self.is_ready = False
        # Why it forks nothing, or what it says of itself.
        self.refusal = self.says = ""

    def wait(self, timeout: float) -> bool:
        """Return whether it has imported everything, or ended, within `timeout` seconds."""
        self._socket.settimeout(timeout)
        try:
            said = self._socket.recv(65536)
            self.is_ready = said.startswith(b"r")
            if self.is_ready:
                self.says = said[1:].decode()
            else:
                self.refusal = said[1:].decode()
        except TimeoutError:
            return False
        except OSError:
            pass
        return True

    def fork(self, descriptor: int) -> ForkedProcess | None:
        """Fork a worker for this end of a pipe.

        Returns None if the nursery has ended or hangs, or the system refuses, so that the worker must be started otherwise.
        """
        if not self.is_ready:
            return None
        try:
            self._socket.settimeout(PATIENCE)
            socket.send_fds(self._socket, [b"w"], [descriptor])
            number = int(self._socket.recv(20))
        except (OSError, ValueError) as error:
            logger.warning("nursery lost: workers start one by one", reason=str(error))
            self.close()
            return None
        if number > 0:
            return ForkedProcess(number)
        logger.warning("worker not forked", reason=os.strerror(-number), number=-number)
        return None

    def close(self) -> None:
        """End it; workers stay."""
        self.is_ready = False
        self._socket.close()
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)

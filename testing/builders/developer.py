# SPDX-License-Identifier: GPL-2.0-or-later
"""A developer's `hg`, kept open as a command server: a hundred pushes cost a hundred pushes and not a hundred starts.

    with Developer(folder, environment) as dana:
        code, output = dana.hg("--cwd", "clone", "push")

Mercurial's protocol for command servers is in `hg help -e mercurial.commandserver`; the channels used here are output, error and
result. A test that kills it from outside gets `Killed` from the command under way; the next command starts a new one.
"""

import os
import struct
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from hgext.vcsreplicator.demo.supervisor import leashed
from testing.warm_hg import shared_hg


class Killed(RuntimeError):
    """The command server ended in the middle of a command, whose outcome is unknown."""


class Developer:
    """One person's hg; used by one thread. It ends with the thread that used it first.

    It starts warm, so what it starts is not below `pid`; a test that kills that wants a cold one.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], *, is_warm: bool = True) -> None:
        self._folder, self._environment, self._is_warm = folder, dict(environment), is_warm
        self._server: subprocess.Popen[bytes] | None = None
        self._changing = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The process id, None while none runs; may be asked by any thread."""
        with self._changing:
            return self._server.pid if self._server is not None else None

    def hg(self, *arguments: str | Path) -> tuple[int, str]:
        """(exit code, what it printed) of one command."""
        try:
            server = self._server or self._start()
            assert server.stdin is not None
            words = b"\0".join(os.fsencode(str(argument)) for argument in arguments)
            server.stdin.write(b"runcommand\n" + struct.pack(">I", len(words)) + words)
            server.stdin.flush()
            return self._answer(server)
        except (EOFError, BrokenPipeError) as error:
            self.close()
            raise Killed(f"hg {' '.join(map(str, arguments))}") from error

    def close(self) -> None:
        """Ends the process."""
        with self._changing:
            server, self._server = self._server, None
        if server is not None:
            for pipe in (server.stdin, server.stdout):
                assert pipe is not None
                try:
                    pipe.close()
                except OSError:
                    pass
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()

    def kill(self) -> None:
        """Kill the process and wait for it, from any thread: to Mercurial a zombie lives, and its locks hold."""
        with self._changing:
            server = self._server
        if server is not None:
            server.kill()
            server.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        program = shared_hg(self._environment) if self._is_warm else "hg"
        server = subprocess.Popen(
            leashed([program, "serve", "--cmdserver", "pipe"]),
            env=self._environment,
            cwd=self._folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        with self._changing:
            self._server = server
        _read(server)
        return server

    def _answer(self, server: subprocess.Popen[bytes]) -> tuple[int, str]:
        printed = b""
        while True:
            channel, data = _read(server)
            if channel == b"r":
                return struct.unpack(">i", data)[0], printed.decode(errors="replace")
            if channel in (b"o", b"e"):
                printed += data
            elif channel.isupper():  # it asks for input: there is none
                assert server.stdin is not None
                server.stdin.write(struct.pack(">I", 0))
                server.stdin.flush()


def _read(server: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """One piece of output: its channel, and its bytes unless the channel asks for input."""
    assert server.stdout is not None
    head = server.stdout.read(5)
    if len(head) < 5:
        raise EOFError
    channel, length = struct.unpack(">cI", head)
    if channel.isupper():
        return channel, b""
    data = server.stdout.read(length)
    if len(data) < length:
        raise EOFError
    return channel, data

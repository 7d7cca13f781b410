# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's socket."""

import errno
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from hgext.vcsreplicator.relay import server as relay_server
from hgext.vcsreplicator.relay.admission import RelaySocket
from hgext.vcsreplicator.relay.server import Server
from testing.waiting import eventually


class Work:
    """Counts what the server asks for: once for each peer that names its repository, once for each that waits."""

    def __init__(self) -> None:
        self.pokes = 0

    def poke(self, folder: str, *, now: bool = False) -> None:
        self.pokes += 1

    def recover(self, folder: str) -> None:
        raise AssertionError(folder)


class Listener:
    """A listening socket of a process that has no file descriptor left while `full`."""

    def __init__(self, real: socket.socket) -> None:
        self._real, self.full, self.refused = real, False, 0

    def accept(self) -> Any:
        if self.full:
            self.refused += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self._real.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class CrowdedSocket(RelaySocket):
    """A relay's socket in such a process."""

    listener: Listener

    def _listen(self) -> socket.socket:
        self.listener = Listener(super()._listen())
        return self.listener  # type: ignore[return-value]


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="server-"))  # a socket's path may have 107 bytes
    (made / "repo" / ".hg" / "store").mkdir(parents=True)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def crowded(folder: Path, work: Work) -> Iterator[CrowdedSocket]:
    """The socket of a running server."""
    made = CrowdedSocket(str(folder / "socket"), group_of=str(folder))
    server = Server(made, work=work, roots=(str(folder),))
    server.start()
    yield made
    server.close()


def connect(folder: Path) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(str(folder / "socket"))
    say(peer, repository=str(folder / "repo"))
    return peer


def say(peer: socket.socket, **message: object) -> None:
    peer.sendall(json.dumps(message).encode() + b"\n")


def test_without_file_descriptors_those_who_are_in_are_heard_and_nothing_spins(
    folder: Path, work: Work, crowded: CrowdedSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_server, "FULL_PAUSE", 3600.0)
    with connect(folder) as inside, capture_logs() as told:
        say(inside, seq=1)
        eventually(lambda: work.pokes == 2)
        crowded.listener.full = True
        with connect(folder) as outside:
            eventually(lambda: crowded.listener.refused)
            for seq in range(2, 12):
                say(inside, seq=seq)
                eventually(lambda expected=seq: work.pokes == expected + 1)
            assert crowded.listener.refused <= 11
            crowded.listener.full = False
            say(inside, seq=12)
            say(outside, seq=1)
            eventually(lambda: work.pokes == 15)
    assert [line["log_level"] for line in told] == ["error", "info"]


def test_connections_are_taken_again_when_there_is_room_again(
    folder: Path, work: Work, crowded: CrowdedSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_server, "FULL_PAUSE", 0.01)
    crowded.listener.full = True
    with connect(folder) as outside:
        eventually(lambda: crowded.listener.refused > 1)
        crowded.listener.full = False
        say(outside, seq=1)
        eventually(lambda: work.pokes == 2)

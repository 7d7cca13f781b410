# SPDX-License-Identifier: GPL-2.0-or-later
"""A relay that hangs holds a server of one thread once, and not for each transaction."""

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from hgext.vcsreplicator.relay.client import GLANCE
from testing.builders.developer import Developer
from testing.builders.master.pushing import Master, new_master
from testing.waiting import eventually

pytestmark = pytest.mark.processes

PATIENCE = 3.0


class HangingRelay:
    """Takes connections and reads them; answers only while it `answers`. `held` has how long each commit waited, in seconds."""

    def __init__(self, path: str) -> None:
        self.held: list[float] = []
        self.answers = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _address = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            committed = None
            for line in lines:
                if b'"seq"' in line:
                    committed = time.monotonic()
                    if self.answers:
                        connection.sendall(b'{"sent": 1000}\n')
            if committed is not None:
                self.held.append(time.monotonic() - committed)


@pytest.fixture
def master() -> Iterator[Master]:
    with new_master(f"acknowledge-timeout = {PATIENCE}") as master:
        yield master


def test_a_server_waits_once_for_a_relay_that_hangs(master: Master) -> None:
    relay = HangingRelay(master.socket)
    one = str(master.root / "one")
    environment = {**os.environ, "HGRCPATH": str(master.folder / "master.hgrc")}
    with Developer(master.folder, environment) as server:
        server.hg("init", one)
        for name in ("a", "b"):
            code, said = server.hg("-R", one, "bookmark", "-r", "null", name)
            assert (code, said.splitlines()[-1]) == (
                0,
                "replication log not reachable: the push is kept and will be sent",
            )
        relay.answers = True
        _code, said = server.hg("-R", one, "bookmark", "-r", "null", "c")
        assert "recorded push in replication log in " in said
    eventually(lambda: len(relay.held) == 4)
    relay.close()
    first, *others = relay.held
    assert first > PATIENCE / 2
    assert max(others) < PATIENCE / 2


def test_no_pause_is_made_where_the_configuration_says_so(master: Master) -> None:
    relay = HangingRelay(master.socket)
    master.configure("[vcsreplicator]\nrelay-pause = 0\nacknowledge-timeout = 1\n")
    one = str(master.root / "one")
    environment = {**os.environ, "HGRCPATH": str(master.folder / "master.hgrc")}
    with Developer(master.folder, environment) as server:
        server.hg("init", one)
        server.hg("-R", one, "bookmark", "-r", "null", "a")
    eventually(lambda: len(relay.held) == 2)
    relay.close()
    assert min(relay.held) > GLANCE

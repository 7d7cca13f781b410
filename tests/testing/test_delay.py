# SPDX-License-Identifier: GPL-2.0-or-later
"""A proxy that delays answers keeps nothing of a connection that has ended: a campaign makes thousands."""

import os
import socket
import threading
from contextlib import closing, suppress

import pytest

from testing.faults.delay import DelayingProxy
from testing.waiting import eventually


def answer(server: socket.socket) -> None:
    """Answer each connection once, and end when its client does."""
    with suppress(OSError):
        while True:
            client, _ = server.accept()
            with closing(client), suppress(OSError):
                client.sendall(client.recv(100))
                client.recv(100)


@pytest.mark.parametrize("resets", [0.0, 1.0])
def test_a_connection_that_ended_leaves_no_open_file(resets: float) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server, DelayingProxy(delay=0.0) as proxy:
        threading.Thread(target=answer, args=(server,), daemon=True).start()
        proxy.target, proxy.resets = server.getsockname()[1], resets
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            with closing(socket.create_connection(("127.0.0.1", proxy.port))) as client, suppress(OSError):
                client.sendall(b"here")
                client.recv(100)
        eventually(lambda: len(os.listdir("/proc/self/fd")) == before, "all ends closed")
        server.shutdown(socket.SHUT_RDWR)

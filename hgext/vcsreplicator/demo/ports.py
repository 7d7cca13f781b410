# SPDX-License-Identifier: GPL-2.0-or-later
"""Ports for servers that are about to start."""

import random
import socket

# Below those that Linux gives to clients, and to servers that take any, so that a server finds its port free again.
RANGE = range(20_000, 32_000)


def free_port() -> int:
    """Find a free port of the loopback interface.

    No other search finds the port for a minute, because a connection of the port with itself leaves it in TIME_WAIT. A server,
    which sets SO_REUSEADDR, can listen there; a search, which does not, cannot.
    """
    while True:
        with socket.socket() as server:
            try:
                server.bind(("127.0.0.1", random.choice(RANGE)))
            except OSError:
                continue
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.listen(1)
            address: tuple[str, int] = server.getsockname()
            with socket.create_connection(address):
                server.accept()[0].close()
            return address[1]

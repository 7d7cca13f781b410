# SPDX-License-Identifier: GPL-2.0-or-later
"""Ports for servers that are about to start."""

import random
import socket

# Below the range from which Linux assigns ports, so that a server finds its port free again.
RANGE = range(20_000, 32_000)


def free_port() -> int:
    """Find a free port of the loopback interface.

    A connection of the port with itself leaves it in TIME_WAIT for a minute. Other searches do not set SO_REUSEADDR, so they do not
    find it meanwhile; a server sets it and can listen there.
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

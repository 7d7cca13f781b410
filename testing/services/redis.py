# SPDX-License-Identifier: GPL-2.0-or-later
"""A real Redis: Debian's server, in memory, on loopback."""

import socket
from collections.abc import Sequence

from testing.services.process import Service, needed


class Redis(Service):
    """One server; `url` is its first database."""

    name = "redis"

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> Sequence[str]:
        server = needed("redis-server", "redis-server")
        return [server, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", ""]

    def answers(self) -> bool:
        return self.ask(b"PING\r\n").startswith(b"+PONG")

    def ask(self, command: bytes) -> bytes:
        """The beginning of its answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
            connection.sendall(command)
            return connection.recv(100)

# SPDX-License-Identifier: GPL-2.0-or-later
"""A TCP connection that is slow, or breaks: everything the server answers arrives later, or in part. Latency, not bandwidth."""

import queue
import random
import socket
import threading
import time
from contextlib import suppress
from typing import Self

from hgext.vcsreplicator.demo.ports import free_port
from testing.services.kafka import Kafka


class DelayingProxy:
    """Listens on loopback at `port` and passes connections on to `target`; answers take `delay` seconds longer.

    While `answers` is clear none comes, while `requests` is clear the server gets nothing. An answer is cut in its middle, and
    its connection reset, with the probability `resets`.
    """

    def __init__(self, *, delay: float) -> None:
        self.delay, self.resets = delay, 0.0
        self.requests, self.answers = threading.Event(), threading.Event()
        self.requests.set()
        self.answers.set()
        self.target = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = int(self._listener.getsockname()[1])
        # Of the connections that last.
        self._ends = set[socket.socket]()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.requests.set()
        self.answers.set()
        for end in (self._listener, *tuple(self._ends)):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.target))
                except OSError:
                    client.close()
                    continue
                threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        """Pass all on, and close both ends once there is no more."""
        self._ends |= {client, server}
        waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        pumps = [
            threading.Thread(target=self._pass, args=(client, server), daemon=True),
            threading.Thread(target=self._hold, args=(server, waiting), daemon=True),
        ]
        for pump in pumps:
            pump.start()
        self._let_go(client, waiting)
        for end in (client, server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for pump in pumps:
            pump.join()
        self._ends -= {client, server}
        client.close()
        server.close()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(1 << 16):
                self.requests.wait()
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)

    def _hold(self, source: socket.socket, waiting: "queue.SimpleQueue[tuple[float, bytes]]") -> None:
        piece = b"x"
        while piece:
            try:
                piece = source.recv(1 << 16)
            except OSError:
                piece = b""
            waiting.put((time.monotonic() + self.delay, piece))

    def _let_go(self, sink: socket.socket, waiting: "queue.SimpleQueue[tuple[float, bytes]]") -> None:
        with suppress(OSError):
            while True:
                due, piece = waiting.get()
                time.sleep(max(due - time.monotonic(), 0))
                self.answers.wait()
                if not piece:
                    sink.shutdown(socket.SHUT_RDWR)
                    return
                if random.random() < self.resets:
                    sink.sendall(piece[: len(piece) // 2])
                    sink.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    sink.close()
                    return
                sink.sendall(piece)


class BehindProxy(Kafka):
    """A broker that tells its clients to come through a proxy.

    It does not itself: a broker ends a transaction through a connection to itself, and is slow to notice that an answer was
    lost there.
    """

    def __init__(self, proxy: DelayingProxy) -> None:
        super().__init__()
        self._proxy, proxy.target = proxy, self.port
        self._own = f"OWN://127.0.0.1:{free_port()}"

    def make_settings(self) -> dict[str, str]:
        settings = super().make_settings()
        return {
            **settings,
            "listeners": f"{settings['listeners']},{self._own}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self._proxy.port},{self._own}",
            "inter.broker.listener.name": "OWN",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OWN:PLAINTEXT,CONTROLLER:PLAINTEXT",
        }

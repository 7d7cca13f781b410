# SPDX-License-Identifier: GPL-2.0-or-later
"""The network between a process in a network namespace of its own and servers on loopback, of which either direction can be cut.

    with Network([9092]) as network:
        start(["unshare", …, "--net", "sh", "-c", f'{network.inside} & exec "$@"', "sh", …])
        network.requests.clear()  # nothing reaches the server any more
        network.requests.set()    # what was sent meanwhile arrives now

The process sees the servers at their own ports of its loopback. What is sent while a direction is cut is kept, as by TCP, and new
connections are accepted, but say nothing.
"""

import os
import shlex
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Self

from testing.services.cache import CHECKOUT


class Network:
    """While `requests` is clear nothing reaches the servers on these ports, while `answers` is clear nothing comes back."""

    def __init__(self, ports: Iterable[int]) -> None:
        self.requests, self.answers = threading.Event(), threading.Event()
        # The names of sockets are short: they do not fit below the folder of a test.
        self._folder = Path(tempfile.mkdtemp(prefix="cut-"))
        self._listeners = {port: socket.socket(socket.AF_UNIX) for port in ports}

    @property
    def inside(self) -> str:
        """What a shell in the namespace runs beside the process."""
        python = f"PYTHONPATH={shlex.quote(str(CHECKOUT))} {shlex.quote(sys.executable)}"
        ports = " ".join(map(str, self._listeners))
        return f"ip link set lo up && {python} -m testing.faults.cut {shlex.quote(str(self._folder))} {ports}"

    def __enter__(self) -> Self:
        self.requests.set()
        self.answers.set()
        for port, listener in self._listeners.items():
            listener.bind(str(self._folder / str(port)))
            listener.listen(64)
            _pass_on(listener, ("127.0.0.1", port), self.requests, self.answers)
        return self

    def __exit__(self, *error: object) -> None:
        self.requests.set()
        self.answers.set()
        for listener in self._listeners.values():
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _pass_on(
    listener: socket.socket, address: tuple[str, int] | str, requests: threading.Event, answers: threading.Event
) -> None:
    """Pass connections on in threads of their own, until the listener is closed; a text is the address of a socket file."""

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
                try:
                    server.connect(address)
                except OSError:
                    server.close()
                    client.close()
                    continue
                threading.Thread(target=_serve, args=(client, server, requests, answers), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def _serve(client: socket.socket, server: socket.socket, requests: threading.Event, answers: threading.Event) -> None:
    with client, server:
        back = threading.Thread(target=_copy, args=(server, client, answers), daemon=True)
        back.start()
        _copy(client, server, requests)
        back.join()


def _copy(source: socket.socket, sink: socket.socket, is_open: threading.Event) -> None:
    """Copy until the source ends, and end the sink then."""
    piece = b"x"
    while piece:
        try:
            piece = source.recv(1 << 16)
        except OSError:
            piece = b""
        is_open.wait()
        with suppress(OSError):
            sink.sendall(piece) if piece else sink.shutdown(socket.SHUT_WR)


def main() -> None:
    folder, *ports = sys.argv[1:]
    always = threading.Event()
    always.set()
    for port in ports:
        listener = socket.create_server(("127.0.0.1", int(port)), backlog=64)
        _pass_on(listener, os.path.join(folder, port), always, always)
    threading.Event().wait()


if __name__ == "__main__":
    main()

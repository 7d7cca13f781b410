# SPDX-License-Identifier: GPL-2.0-or-later
"""One service of each kind for all workers of a test run, started when the first of them asks.

The process that starts the workers keeps them: a service ends with the process that started it, and a worker may end early. The
workers find the keeper by an environment variable and ask in lines of JSON over a Unix socket.
"""

import json
import os
import shutil
import socket
import socketserver
import tempfile
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from testing.services.process import Service, ServiceMissing

# Where workers find the keeper of their run: the path of its socket.
ADDRESS = "VCSREPLICATOR_TEST_KEEPER"


class Keeper:
    """Serves `kinds` by their names during its block, and names itself in the environment of processes started meanwhile."""

    def __init__(self, kinds: Mapping[str, type[Service]]) -> None:
        self._kinds = kinds
        self._starting = {name: threading.Lock() for name in kinds}
        self._running: dict[str, Service] = {}
        self._ending = ExitStack()

    def __enter__(self) -> Self:
        folder = Path(tempfile.mkdtemp(prefix="keeper-"))
        self._ending.callback(shutil.rmtree, folder, ignore_errors=True)
        keeper = self

        class Conversation(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                question = json.loads(self.rfile.readline())
                self.wfile.write(json.dumps(keeper.answer(**question)).encode() + b"\n")

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True
            request_queue_size = 64

        server = self._ending.enter_context(Server(str(folder / "socket"), Conversation))
        self._ending.callback(server.shutdown)
        threading.Thread(target=server.serve_forever, name="keeper", daemon=True).start()
        self._ending.callback(_set_address, os.environ.get(ADDRESS))
        _set_address(str(folder / "socket"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as ending:
            for service in self._running.values():
                ending.callback(service.close)
            self._ending.close()

    def answer(self, kind: str, call: str, arguments: list[str]) -> dict[str, Any]:
        """What the service says, started if it does not run: `{"result": …}`; or `{"missing": …}`, why it cannot start."""
        try:
            with self._starting[kind]:
                if kind not in self._running:
                    self._running[kind] = self._kinds[kind]().__enter__()
            said = getattr(self._running[kind], call)
            return {"result": said(*arguments) if callable(said) else said}
        except ServiceMissing as missing:
            return {"missing": str(missing)}


def _set_address(address: str | None) -> None:
    os.environ.pop(ADDRESS, None)
    if address is not None:
        os.environ[ADDRESS] = address


def ask(kind: str, call: str, *arguments: str) -> Any:
    """What the run's service of this kind says; raises `ServiceMissing` as the service itself would."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[ADDRESS])
        connection.sendall(json.dumps({"kind": kind, "call": call, "arguments": arguments}).encode() + b"\n")
        with connection.makefile("rb") as answers:
            answer = json.loads(answers.readline())
    if "missing" in answer:
        raise ServiceMissing(answer["missing"])
    return answer["result"]

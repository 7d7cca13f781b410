# SPDX-License-Identifier: GPL-2.0-or-later
"""One service of each kind for all workers of a test run, started when the first of them asks.

The process that starts the workers keeps them: a service ends with the process that started it, and a worker may end early. The
workers find the keeper by an environment variable and ask in lines of JSON over a Unix socket.
"""

import itertools
import json
import os
import shutil
import socket
import socketserver
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from testing.services.process import Service, ServiceMissing

# Makes what is no service, of arguments that are texts; its value is a text too.
Maker = Callable[..., AbstractContextManager[str]]
# Where workers find the keeper of their run: the path of its socket.
ADDRESS = "VCSREPLICATOR_TEST_KEEPER"


class Keeper:
    """Serves `kinds` by their names during its block, and names itself in the environment of processes started meanwhile.

    Of the kinds `made` it has one for each group of arguments, entered when a worker first asks for it.
    """

    def __init__(self, kinds: Mapping[str, type[Service]], made: Mapping[str, Maker] | None = None) -> None:
        self._kinds = kinds
        self._makers = made or {}
        self._made: dict[tuple[str, ...], str] = {}
        self._starting: dict[str, threading.Lock] = {}
        self._running: dict[str, Service] = {}
        self._lent: set[str] = set()
        self._changing = threading.Lock()
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
        """What the service says, started if it does not run: `{"result": …}`; or why not: `{"missing": …}`, `{"silent": …}`."""
        try:
            if call in ("lend", "take_back"):
                return {"result": getattr(self, call)(kind)}
            if call == "make":
                return {"result": self.make(kind, *arguments)}
            said = getattr(self._start_once(kind), call)
            result = said(*arguments) if callable(said) else said
            if isinstance(result, Path):
                return {"result": str(result)}
            return {"result": None if isinstance(result, Service) else result}
        except RuntimeError as missing:  # a `ServiceMissing` among others
            return {"missing": str(missing)}
        except OSError as error:
            return {"silent": str(error)}

    def begin(self, *names: str) -> None:
        """Start services beside what this process does meanwhile."""
        for name in names:
            threading.Thread(target=self._begin, args=(name,), name=f"start of {name}", daemon=True).start()

    def _begin(self, name: str) -> None:
        with suppress(RuntimeError, OSError):  # the first test that asks hears why
            self._start_once(name)

    def make(self, kind: str, *arguments: str) -> str:
        """What was made of this kind for these arguments, now or before."""
        asked = (kind, *arguments)
        with self._changing:
            making = self._starting.setdefault("\0".join(asked), threading.Lock())
        with making:
            if asked not in self._made:
                made = self._makers[kind](*arguments)
                self._made[asked] = made.__enter__()
                self._ending.push(made)
            return self._made[asked]

    def lend(self, kind: str) -> str:
        """The name of a service of this kind, started or used before, that nothing else uses until it is taken back."""
        with self._changing:
            names = (f"{kind} {number}" for number in itertools.count(1))
            name = next(name for name in names if name not in self._lent)
            self._lent.add(name)
        try:
            try:
                self._start_once(name).wake()
            except ServiceMissing:  # one that was used before, and does not go on
                self._close(name)
                self._start_once(name)
        except BaseException:
            self._lent.discard(name)
            raise
        return name

    def take_back(self, name: str) -> None:
        """Clear a service that was lent for the next test, or close it if it cannot be used as it is."""
        try:
            self._running[name].clear()
        except (RuntimeError, OSError):
            self._close(name)
        self._lent.discard(name)

    def _close(self, name: str) -> None:
        if service := self._running.pop(name, None):
            service.close()

    def _start_once(self, name: str) -> Service:
        """The service of this name, the kind and for one that is lent its number."""
        kind = name.partition(" ")[0]
        with self._changing:
            starting = self._starting.setdefault(name, threading.Lock())
        with starting:
            if name not in self._running:
                self._running[name] = self._kinds[kind]().__enter__()
            return self._running[name]


def _set_address(address: str | None) -> None:
    os.environ.pop(ADDRESS, None)
    if address is not None:
        os.environ[ADDRESS] = address


def ask(kind: str, call: str, *arguments: str) -> Any:
    """What the run's service of this kind says; raises `ServiceMissing` or an `OSError` as the service itself would."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[ADDRESS])
        connection.sendall(json.dumps({"kind": kind, "call": call, "arguments": arguments}).encode() + b"\n")
        with connection.makefile("rb") as answers:
            answer = json.loads(answers.readline())
    if "missing" in answer:
        raise ServiceMissing(answer["missing"])
    if "silent" in answer:
        raise OSError(answer["silent"])
    return answer["result"]

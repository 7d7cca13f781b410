# SPDX-License-Identifier: GPL-2.0-or-later
"""An edge at work, in a thread or as a process, and clients that submit to it: single requests, or a load over many connections."""

import asyncio
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from hgext.vcsreplicator.demo.ports import free_port
from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.log.opening import open_log
from notifier.messages.raw import RawMessage, from_line
from notifier.services.edge import server
from notifier.services.edge.settings import EdgeSettings
from testing.waiting import PATIENCE, eventually
from testing.warm import warm_starts

TYPE = "/submit/eng-workflow/build/1"
SOME = f"{TYPE}/2c3a0767-d84a-4d02-8a92-fa54a3376049"


def number_uuid(number: int) -> str:
    """The id of the submission with this number."""
    return f"{number:08x}-0000-4000-8000-000000000000"


def post(path: str = SOME, body: bytes = b"{}", *headers: str, method: str = "POST") -> bytes:
    """The bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: edge.example", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def ask(port: int, request: bytes) -> bytes:
    """All that is answered until the server closes the connection, or is idle."""
    with connect(port) as client:
        client.sendall(request)
        return read_all(client)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def read_all(client: socket.socket) -> bytes:
    """All that comes until the other end closes."""
    said = b""
    try:
        while more := client.recv(65536):
            said += more
    except ConnectionResetError:
        pass
    return said


def statuses(answers: bytes) -> list[int]:
    return [int(line.split()[1]) for line in answers.splitlines() if line.startswith(b"HTTP/1.")]


def taken(log: Log, topic: str = "raw") -> list[RawMessage]:
    """What the log has, in order."""
    end = log.ends(topic)[0]
    reader = log.reader({(topic, 0): log.beginnings(topic)[0]})
    found: list[RawMessage] = []
    while reader.positions()[topic, 0] < end:
        found += [from_line(record.value or b"") for record in reader.poll(1.0)]
    reader.close()
    return found


@contextmanager
def log_away(folder: Path) -> Iterator[None]:
    """The embedded log cannot be written: another process keeps it locked."""
    lock = sqlite3.connect(folder / "log.db", isolation_level=None, timeout=60)
    lock.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        lock.execute("ROLLBACK")
        lock.close()


class Edge:
    """An edge in a thread of this process."""

    def __init__(self, log: Log, folder: Path, **settings: object) -> None:
        self.port = free_port()
        self.queue = folder / "queue"
        self._stop, ready = threading.Event(), threading.Event()
        given = {"queue": str(self.queue), "log_timeout": 0.2, **settings}
        made = EdgeSettings(listen="unused", **given)  # type: ignore[arg-type]

        def run() -> None:
            server.run(made, log, address=("127.0.0.1", self.port), stop=self._stop, ready=ready.set)

        self._thread = threading.Thread(target=run)
        self._thread.start()
        eventually(lambda: ready.is_set() or not self._thread.is_alive(), "the edge is ready")

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


class EdgeProcess:
    """`vcsreplicator edge` in a process of its own, to be killed and started again."""

    def __init__(self, folder: Path, url: str | None = None, **keys: object) -> None:
        self.folder, self.port = folder, free_port()
        self.url = url or f"sqlite://{folder}/log.db"
        self.config = folder / "edge.toml"
        given: Mapping[str, object] = {"log-timeout": 0.2, **{key.replace("_", "-"): keys[key] for key in keys}}
        lines = [f"{key} = {value}" for key, value in given.items()]
        self.config.write_text(
            f'log = "{self.url}"\n[edge]\nlisten = "127.0.0.1:{self.port}"\nqueue = "{folder}/queue"\n'
            + "\n".join(lines)
            + "\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def output(self) -> str:
        return (self.folder / "edge.log").read_text()

    def start(self) -> Self:
        command = [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", "edge", "--config", str(self.config)]
        with open(self.folder / "edge.log", "ab") as output, warm_starts():
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        eventually(self._answers, "the edge answers")
        return self

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"the edge ended: {self.output[-2000:]}")
        try:
            with connect(self.port) as client:
                client.sendall(b"GET /__lbheartbeat__ HTTP/1.0\r\n\r\n")
                return read_all(client).startswith(b"HTTP/1.1 200 ")
        except OSError:
            return False

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """The exit code after SIGTERM."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(number)
        return self._process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def taken(self) -> list[RawMessage]:
        with open_log(self.url, creates=True) as log:
            return taken(log)


class Load:
    """Clients that submit one message after the other, each over its own connection, until they are cut off or all is sent.

    Each waits `pause` seconds before its next message. `answered` are the numbers of the submissions that were answered with 200,
    `others` the statuses of the other answers.
    """

    def __init__(
        self,
        port: int,
        *,
        first: int = 0,
        count: int = 10**9,
        connections: int = 16,
        size: int = 1000,
        pause: float = 0.0,
    ) -> None:
        self._port, self._connections = port, connections
        self.pause = pause
        self._next, self._end = first, first + count
        self._padding = b"x" * size
        self.answered: list[int] = []
        self.others: list[int] = []

    @property
    def sent(self) -> int:
        """The number after the last that was sent."""
        return self._next

    def run(self) -> Self:
        asyncio.run(self.submit())
        return self

    def end(self) -> None:
        """Submit nothing more; from any thread."""
        self._end = 0

    async def submit(self) -> None:
        loop = asyncio.get_running_loop()
        clients = [
            loop.create_connection(lambda: _Client(self), "127.0.0.1", self._port) for _ in range(self._connections)
        ]
        made = await asyncio.gather(*clients, return_exceptions=True)
        await asyncio.gather(*(each[1].ended for each in made if not isinstance(each, BaseException)))

    def take(self) -> tuple[int, bytes] | None:
        """The next submission, number and request; None at the end."""
        if self._next >= self._end:
            return None
        number = self._next
        self._next += 1
        return number, post(f"{TYPE}/{number_uuid(number)}", body_of(number, self._padding))


def body_of(number: int, padding: bytes) -> bytes:
    """A body that says which it is, as long as the padding."""
    return (b'{"n": %d, "x": "' % number + padding)[: len(padding) - 2] + b'"}'


class _Client(asyncio.Protocol):
    def __init__(self, load: Load) -> None:
        self._load = load
        self._number = -1
        self._said = b""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self._said += data
        if b"\r\n\r\n" not in self._said:
            return
        status = int(self._said[9:12])
        self._said = b""
        if status == 200:
            self._load.answered.append(self._number)
            if self._load.pause:
                asyncio.get_running_loop().call_later(self._load.pause, self._send)
            else:
                self._send()
        else:
            self._load.others.append(status)
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def _send(self) -> None:
        following = self._load.take()
        if following is None:
            self._transport.close()
            return
        self._number, request = following
        self._transport.write(request)

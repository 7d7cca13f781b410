# SPDX-License-Identifier: GPL-2.0-or-later
"""Processes that answer the requests of a web server, one request each at a time.

A request that holds its process, in a loop of C too, holds no other. A worker that exceeds its budget ends, by the kernel's hand; a
worker whose client has left is killed. Its request is answered with 503, or broken off, and the next request gets another worker.
"""

import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs

import structlog
from waitress.channel import ClientDisconnected

from ..mirror.nursery import ForkedProcess, Nursery
from ..words.errors import BadConfig, ReplicationError, Unavailable
from .worker import END, FAILED, FRAME, HEAD, LAST, LENGTH, WRITES

logger = structlog.get_logger()

# Seconds after which a worker ends that has nothing to do, while there are others.
_IDLE = 60.0
# Seconds that a start may take.
_START = 120.0
# Seconds between two looks whether the client is still there.
_LOOK_EVERY = 1.0
# Seconds between two looks for an idle worker, while another request has one forked.
_LOOK_IDLE = 0.1
# Seconds without a byte of an answer to a client that waits.
_SILENCE = 600.0
# Requests that wait for pushes at once; as `pushlog.web.waiting` has it.
_WAITERS = 4
# Characters of a request in a log line.
_LOGGED = 500
_PLAIN_TEXT = [("Content-Type", "text/plain; charset=utf-8")]


class Workers:
    """A WSGI application: a pool of workers that a nursery forks.

    Any thread may call it.
    """

    def __init__(self, module: str, *arguments: str, threads: int) -> None:
        """Start the nursery, a module of ours with these arguments.

        `threads` is the number of requests at a time; two of them do not wait for pushes. Raises BadConfig with the reason of a
        nursery that refuses.
        """
        self._module, self._arguments = module, arguments
        # How many requests may wait for a push: two threads stay free, or one of two; a single thread never waits.
        self._may_wait = min(_WAITERS, max(threads - 2, min(threads - 1, 1)))
        self._lock = threading.Lock()
        # The right to use the nursery, which may hang; taken before the other lock.
        self._forking = threading.Lock()
        self._waiting = 0
        # The last that worked comes last, and works next.
        self._idle: list[_WebWorker] = []
        self._busy: set[_WebWorker] = set()
        self._ended: list[ForkedProcess] = []
        self._nursery = self._start_nursery()

    @property
    def says(self) -> str:
        """What the nursery says of itself."""
        return self._nursery.says

    def _start_nursery(self) -> Nursery:
        nursery = Nursery(os.environ, self._module, *self._arguments)
        nursery.wait(_START)
        if not nursery.is_ready:
            nursery.close()
        if nursery.refusal:
            raise BadConfig(nursery.refusal)
        if not nursery.is_ready:
            raise Unavailable("the process that starts workers has ended")
        return nursery

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        """Answer a request."""
        waits = "wait" in parse_qs(environ["QUERY_STRING"], keep_blank_values=True)
        with self._lock:
            environ["pushlog.waiters"] = int(waits and self._waiting < self._may_wait)
            self._waiting += waits
        worker = None
        try:
            try:
                worker = self._take_worker()
            except (ReplicationError, OSError) as problem:
                logger.error("worker not started", reason=str(problem))
                start_response("503 Service Unavailable", _PLAIN_TEXT)
                yield b"Service Unavailable: no worker could be started\n"
                return
            yield from self._pass_on(worker, environ, start_response)
        finally:
            with self._lock:
                self._waiting -= waits
            if worker is not None:
                self._give_back(worker)

    def _pass_on(self, worker: "_WebWorker", environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        is_begun = False
        try:
            for kind, content in worker.ask(environ):
                if kind == HEAD:
                    is_begun = True
                    status, headers = json.loads(content)
                    # hgweb closes the connection if no length of a body is known; waitress takes that for a mistake of ours.
                    start_response(status, [each for each in headers if each[0].lower() != "connection"])
                else:
                    yield content
        except _Left as problem:
            raise ClientDisconnected from problem
        except _Broken as problem:
            reason = worker.describe_end(problem)
            path, query = (environ.get(name, "")[:_LOGGED] for name in ("PATH_INFO", "QUERY_STRING"))
            logger.warning("request ended", path=path, query=query, reason=reason)
            if is_begun:
                raise ClientDisconnected from problem  # waitress closes the connection, so that the client knows
            status = "500 Internal Server Error" if worker.has_failed else "503 Service Unavailable"
            start_response(status, _PLAIN_TEXT)
            yield f"{status[4:]}: {reason}\n".encode()

    def _take_worker(self) -> "_WebWorker":
        while (worker := self._take_idle()) is None:
            if self._forking.acquire(timeout=_LOOK_IDLE):
                try:
                    return self._take_idle() or self._fork_worker()
                finally:
                    self._forking.release()
        return worker

    def _take_idle(self) -> "_WebWorker | None":
        with self._lock:
            self._ended = [process for process in self._ended if process.poll() is None]
            while self._idle:
                worker = self._idle.pop()
                if worker.is_usable():
                    self._busy.add(worker)
                    return worker
                self._end_worker(worker)
        return None

    def _fork_worker(self) -> "_WebWorker":
        ours, theirs = socket.socketpair()
        with theirs:
            process = self._nursery.fork(theirs.fileno())
            if process is None and not self._nursery.is_ready:
                self._nursery = self._start_nursery()
                process = self._nursery.fork(theirs.fileno())
        if process is None:
            ours.close()
            raise Unavailable("no worker could be started")
        worker = _WebWorker(process, ours)
        with self._lock:
            self._busy.add(worker)
        return worker

    def _give_back(self, worker: "_WebWorker") -> None:
        with self._lock:
            self._busy.discard(worker)
            if not worker.is_free:
                self._end_worker(worker)
                return
            self._idle.append(worker)
            while time.monotonic() - self._idle[0].free_since > _IDLE:
                self._end_worker(self._idle.pop(0))

    def _end_worker(self, worker: "_WebWorker") -> None:
        """Let a worker end. One whose request reads only is killed; another finishes."""
        worker.end()
        self._ended.append(worker.process)

    def close(self) -> None:
        """End the nursery and all workers; a worker that may write finishes."""
        with self._forking, self._lock:
            for worker in (*self._idle, *self._busy):
                self._end_worker(worker)
            self._idle.clear()
            self._nursery.close()


class _Broken(Exception):
    """A worker ended, failed, or was given up, before its answer was complete."""


class _Left(Exception):
    """The client left before its answer was complete."""


class _WebWorker:
    """A worker process, used by one thread at a time."""

    def __init__(self, process: ForkedProcess, connection: socket.socket) -> None:
        self.process, self._connection = process, connection
        connection.settimeout(_LOOK_EVERY)
        self.is_free, self.free_since = True, 0.0
        self.has_failed = False
        self._reads_only = True

    def is_usable(self) -> bool:
        """Return whether the process still runs.

        An idle worker says nothing: only its end can be read.
        """
        poller = select.poll()
        poller.register(self._connection, select.POLLIN)
        return not poller.poll(0)

    def ask(self, environ: dict[str, Any]) -> Iterator[tuple[bytes, bytes]]:
        """Yield the frames of the answer; raise _Broken if it is not complete."""
        self.is_free = False
        self._reads_only = True
        try:
            self._send(environ)
            has_left = environ["waitress.client_disconnected"]
            while True:
                kind, length = FRAME.unpack(self._read_bytes(FRAME.size, has_left))
                if kind in (END, LAST):
                    self.is_free, self.free_since = kind == END, time.monotonic()
                    return
                if kind == WRITES:
                    self._reads_only = False
                    self._connection.sendall(b".")
                    continue
                content = self._read_bytes(length, has_left)
                if kind == FAILED:
                    self.has_failed = not content
                    raise _Broken(content.decode() or "the request failed; the server's log has the reason")
                yield kind, content
        except OSError as problem:
            raise _Broken(str(problem)) from problem

    def _send(self, environ: dict[str, Any]) -> None:
        source = environ["wsgi.input"]
        texts = {name: value for name, value in environ.items() if isinstance(value, str | int)}
        descriptors, body = [], b""
        try:
            descriptors.append(source.fileno())  # of a large body, which waitress has written to a file
            source.flush()
        except OSError:
            body = source.read()
        content = json.dumps({**texts, "length": len(body)}).encode()
        socket.send_fds(self._connection, [LENGTH.pack(len(content))], descriptors)
        self._connection.settimeout(None)
        self._connection.sendall(content + body)
        self._connection.settimeout(_LOOK_EVERY)

    def _read_bytes(self, length: int, has_left: Any) -> bytes:
        """Read so many bytes, while the client waits for them."""
        pieces, end = bytearray(), time.monotonic() + _SILENCE
        while len(pieces) < length:
            try:
                piece = self._connection.recv(length - len(pieces))
            except TimeoutError:
                if self._reads_only and has_left():
                    raise _Left from None
                if self._reads_only and time.monotonic() > end:
                    raise _Broken(f"no answer within {_SILENCE:.0f} s") from None
                continue
            if not piece:
                raise _Broken("its worker ended")
            pieces += piece
        return bytes(pieces)

    def describe_end(self, problem: _Broken) -> str:
        """Say why a request was not answered."""
        if str(problem) != "its worker ended":
            return str(problem)
        try:
            code = self.process.wait(5.0)
        except subprocess.TimeoutExpired:
            return str(problem)
        if code == -signal.SIGXCPU:
            return "the request took more processor time than a request may"
        return f"the worker of the request ended ({signal.Signals(-code).name if code < 0 else code})"

    def end(self) -> None:
        """Close the connection, and kill a process that only reads.

        Another ends after its request.
        """
        self._connection.close()
        if self._reads_only:
            self.process.kill()

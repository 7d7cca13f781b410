# SPDX-License-Identifier: GPL-2.0-or-later
"""The HTTP server of the edge: uvicorn with limits for clients.

The limits bound what a client sends, how slowly it sends, and how many connections there are. A connection is in one phase at a
time, and its time in each phase is bounded. Above the limit of connections, the server closes the connection that waits
longest for its client. A request whose client is gone counts as a connection until it is answered.

The server logs no report of uvicorn or asyncio about a single connection, because the report may contain addresses.
"""

import asyncio
import contextlib
import enum
import functools
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sized
from http import HTTPStatus
from typing import Any

import structlog
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.service import asgi
from hgext.vcsreplicator.words.clock import SystemClock

from ...messages.raw import raw_topic
from .application import EdgeApplication
from .diskqueue import DiskQueue
from .intake import EdgeIntake
from .metrics import ANSWERS, CLOSED, CONNECTIONS
from .settings import HEAD_BYTES, EdgeSettings

# Seconds that a client may take to read an answer, beside what the log and the disk need for it.
ANSWER_TIMEOUT = 120.0

# Bytes that each header counts beside its own, as in RFC 9113, 6.5.2, and each request: they take far more memory.
HEADER_COST, REQUEST_COST = 32, 300

# Ticks of uvicorn, 0.1 s each, between two looks at all connections.
_SWEEP_TICKS = 5

# Seconds for requests under way after SIGTERM.
_DRAIN_TIMEOUT = 10

logger = structlog.get_logger()


def run(
    settings: EdgeSettings, log: Log, *, address: tuple[str, int], stop: threading.Event, ready: Callable[[], None]
) -> None:
    """Serve until `stop`: then accept no more, finish what is under way, and return.

    Raises BadConfig if the address or the queue's folder cannot be used.
    """
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(asgi.bind(*address, "edge.listen"))
        disk = stack.enter_context(contextlib.closing(DiskQueue(settings.queue, settings.max_queue_bytes)))
        intake = EdgeIntake(log, raw_topic(settings.topic), disk, settings.log_timeout)
        intake.prepare()
        stack.enter_context(intake.running())
        application = EdgeApplication(settings, intake, SystemClock())
        protocol: Any = functools.partial(EdgeConnection, settings)
        config = asgi.configure(
            application,
            http=protocol,
            loop="uvloop",
            timeout_keep_alive=settings.idle_timeout,
            timeout_graceful_shutdown=_DRAIN_TIMEOUT,
        )
        _EdgeServer(config, stop.is_set, ready).run(sockets=[listener])


class _EdgeServer(asgi.StoppableServer):
    """A server that also closes slow connections."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: logger.error("connection failed", kind=type(context.get("exception")).__name__)
        )
        await super().startup(sockets)

    async def on_tick(self, counter: int) -> bool:
        if counter % _SWEEP_TICKS == 0:
            now = time.monotonic()
            CONNECTIONS.set(len(self.server_state.connections))
            for connection in list(self.server_state.connections):
                if isinstance(connection, EdgeConnection):
                    connection.close_if_slow(now)
        return await super().on_tick(counter)


class _ConnectionPhase(enum.Enum):
    """The phase of a connection: what it waits for."""

    HEAD = "head"
    BODY = "body"
    ANSWER = "answer"
    IDLE = "idle"


class _Excess(Exception):
    """The error of a client that sends more than it may.

    It ends the parser, and `EdgeConnection` answers with the connection's status of refusal.
    """


class _TurnFlow(FlowControl):
    """Reads no more of a connection while requests of it wait for their turn.

    uvicorn reads on with each answer, so many clients that pipeline large bodies could all be read in front of another's request.
    """

    def __init__(self, transport: asyncio.Transport, waiting: Sized) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        if not self._waiting:
            super().resume_reading()


class EdgeConnection(HttpToolsProtocol):
    """A connection with bounded times.

    It takes a head of at most HEAD_BYTES and one read (256 KiB), and one body. Requests that wait for the answers to those before
    them have at most HEAD_BYTES together, and come with one read; the next is read once none waits.
    """

    def __init__(self, settings: EdgeSettings, **given: Any) -> None:
        super().__init__(**given)
        self._settings = settings
        self._limits = {
            _ConnectionPhase.HEAD: settings.header_timeout,
            _ConnectionPhase.BODY: settings.body_timeout,
            _ConnectionPhase.ANSWER: ANSWER_TIMEOUT,
            _ConnectionPhase.IDLE: settings.idle_timeout,
        }
        # Bytes of an unfinished head.
        self._head_bytes = 0
        # What the heads of requests count, in their order. The first `_answered` are answered, the last may be unfinished.
        self._costs: list[int] = []
        self._answered = 0
        self._refusal = HTTPStatus.BAD_REQUEST
        self._enter(_ConnectionPhase.HEAD)

    def close_if_slow(self, now: float) -> None:
        """Close a connection too long in its phase.

        A client whose requests wait is not read, and cannot go on: it has the time for an answer.
        """
        phase = _ConnectionPhase.ANSWER if self.pipeline else self._phase
        if now - self._since > self._limits.get(phase, float("inf")):
            self._close(f"slow {phase.value}")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _TurnFlow(transport, self.pipeline)
        if self._is_one_too_many():
            waiting = [
                each
                for each in self._list_connections()
                if each is not self and each._phase is not _ConnectionPhase.ANSWER
            ]
            min(waiting, key=lambda each: each._since, default=self)._close("too many")

    def data_received(self, data: bytes) -> None:
        if self._phase is _ConnectionPhase.IDLE:
            self._enter(_ConnectionPhase.HEAD)
        if self._phase is _ConnectionPhase.HEAD:
            # An unfinished header in the parser reaches no callback.
            if self._head_bytes > HEAD_BYTES:
                self._refusal = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
                self.send_400_response("")
                return
            self._head_bytes += len(data)
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._costs = [*self._costs[self._answered :], 0]
        self._answered = 0
        self._count_head(REQUEST_COST)
        if self._phase is not _ConnectionPhase.HEAD:
            self._enter(_ConnectionPhase.HEAD)

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self._settings.max_uri_bytes:
            self._refusal = HTTPStatus.REQUEST_URI_TOO_LONG
            raise _Excess

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count_head(len(name) + len(value) + HEADER_COST)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self.parser.should_upgrade():
            # Bytes after the body would be in another protocol, which is not spoken here.
            self.cycle.keep_alive = False
        self._head_bytes = 0
        self._enter(_ConnectionPhase.BODY)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._enter(_ConnectionPhase.IDLE if self.cycle.response_complete else _ConnectionPhase.ANSWER)

    def on_response_complete(self) -> None:
        has_next = bool(self.pipeline)
        self._answered += 1
        super().on_response_complete()
        if self._phase is _ConnectionPhase.ANSWER:
            self._enter(_ConnectionPhase.ANSWER if has_next else _ConnectionPhase.IDLE)
        elif has_next:
            self._enter(self._phase)  # its time begins now that it can be read

    def send_400_response(self, msg: str) -> None:
        """Answer a head that is malformed or too large, and close the connection."""
        if self.transport.is_closing():
            return
        status = self._refusal
        ANSWERS.labels(str(status.value)).inc()
        content = f"{status.phrase}\n".encode()
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: text/plain; charset=utf-8\r\n"
        head += f"content-length: {len(content)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + content)
        self.transport.close()

    def _count_head(self, size: int) -> None:
        """Count bytes of a head; refuse it, or close a connection whose requests wait.

        The request that is being answered does not count.
        """
        self._costs[-1] += size
        waiting = self._costs[self._answered + 1 :]
        if sum(waiting or self._costs[-1:]) > HEAD_BYTES:
            if waiting:
                self._close("too many")
            self._refusal = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise _Excess

    def _is_one_too_many(self) -> bool:
        """Return whether connections and requests whose client is gone exceed the limit.

        Such a request keeps its memory until the log or the disk has its message.
        """
        most = self._settings.max_connections
        if len(self.connections) + len(self.tasks) <= most:
            return False
        return sum(each._has_no_task() for each in self._list_connections()) + len(self.tasks) > most

    def _has_no_task(self) -> bool:
        """Return whether no request is being answered; a body may come after its answer."""
        is_before = self._phase in (_ConnectionPhase.HEAD, _ConnectionPhase.IDLE)
        return is_before or self.cycle.response_complete

    def _list_connections(self) -> Iterator["EdgeConnection"]:
        return (each for each in self.connections if isinstance(each, EdgeConnection))

    def _enter(self, phase: _ConnectionPhase) -> None:
        self._phase, self._since = phase, time.monotonic()

    def _close(self, reason: str) -> None:
        CLOSED.labels(reason).inc()
        self.connections.discard(self)
        self.transport.abort()

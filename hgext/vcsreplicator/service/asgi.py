# SPDX-License-Identifier: GPL-2.0-or-later
"""The HTTP server of a service with an ASGI application: uvicorn.

The service stops it (`is_over`). uvicorn logs nothing of its own: what it reports of single connections may hold addresses.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..words.errors import BadConfig

# The client's states in which the server waits for it: it begins a request, or sends the body.
_SENDING = (h11.IDLE, h11.SEND_BODY)

# Connections that are kept free for new ones: a closed connection frees its resources only some moments later.
_SPARE = 10


def bind(host: str, port: int, key: str) -> socket.socket:
    """Listen on this address; raise BadConfig with the name of its key if that fails."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while attempting")[0]
        raise BadConfig(f"{key}: {host}:{port} cannot be used: {reason}") from error


def configure(application: Any, **options: Any) -> uvicorn.Config:
    """Make the configuration; `options` are uvicorn's."""
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)
    return uvicorn.Config(
        application,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        **options,
    )


class StoppableServer(uvicorn.Server):
    """A server until `is_over`; it calls `ready` once it accepts connections."""

    def __init__(self, config: uvicorn.Config, is_over: Callable[[], bool], ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._is_over, self._ready = is_over, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._is_over()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the service."""
        yield


class PatientConnection(H11Protocol):
    """A connection that waits for its client as long as an idle one may stay.

    uvicorn alone waits indefinitely for a first request, for the end of any, and for a client to take an answer. Here that time
    limits a whole request, even if parts of it keep coming, and each wait for room to send more of an answer. When
    there are nearly as many connections as the server takes, a new one replaces the connection that has waited longest.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        others = [each for each in self.connections if isinstance(each, PatientConnection) and each is not self]
        others = [each for each in others if not each.transport.is_closing()]
        if self.limit_concurrency is not None and len(others) >= self.limit_concurrency - _SPARE:
            deadlines = {each: each._deadline.when() for each in others if each._deadline is not None}
            if deadlines:
                min(deadlines, key=lambda each: deadlines[each]).transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self._forget_deadline()  # a request begins
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Set the deadline if the server begins to wait for the client."""
        waits = self.conn.their_state in _SENDING or self.flow.write_paused
        if not waits or self.transport.is_closing():
            self._forget_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.timeout_keep_alive, self.transport.abort)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

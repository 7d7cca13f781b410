# SPDX-License-Identifier: GPL-2.0-or-later
"""The HTTP server of a service with an ASGI application: uvicorn.

The service stops it (`is_over`). uvicorn logs nothing of its own: what it reports of single connections may hold addresses.
"""

import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from ..words.errors import BadConfig


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
    """A server that runs until `is_over` returns true.

    It calls `ready` once it accepts connections.
    """

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

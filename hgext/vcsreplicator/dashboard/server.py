# SPDX-License-Identifier: GPL-2.0-or-later
"""The server of the pages: uvicorn, until the service is stopped or the watcher fails."""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn

from ..words.errors import BadConfig
from .application import make_application
from .readers import Readers, read_users
from .settings import DashboardSettings
from .sources import Sources
from .watcher import LogWatcher

# Connections at a time, feeds included; more are refused.
CONNECTIONS = 200

# Seconds that a connection may be idle, and for requests under way after SIGTERM.
IDLE, DRAIN = 15, 2


def run(
    settings: DashboardSettings,
    sources: Sources,
    *,
    address: tuple[str, int],
    stop: threading.Event,
    ready: Callable[[], None],
) -> None:
    """Serve until `stop`. Raise BadConfig if the address or the file of users cannot be used, or what ended the watcher."""
    readers = Readers(settings, read_users(settings.users) if settings.users else ())
    watcher = LogWatcher(sources.log, destinations=sources.destinations, relay=sources.relay)
    with _bind(*address) as listener:
        watcher.start()
        try:
            application = make_application(sources, watcher, readers, hosts=(address[0], *settings.hosts))
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)
            config = uvicorn.Config(
                application,
                http="h11",
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=CONNECTIONS,
                timeout_keep_alive=IDLE,
                timeout_graceful_shutdown=DRAIN,
            )
            _DashboardServer(config, watcher, stop, ready).run(sockets=[listener])
        finally:
            watcher.close()
    if watcher.failure is not None:
        raise watcher.failure


def _bind(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while attempting")[0]
        raise BadConfig(f"dashboard.listen: {host}:{port} cannot be used: {reason}") from error


class _DashboardServer(uvicorn.Server):
    """A server that an event stops."""

    def __init__(
        self, config: uvicorn.Config, watcher: LogWatcher, stop: threading.Event, ready: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._watcher, self._stop, self._ready = watcher, stop, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._stop.is_set() or self._watcher.failure is not None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the service."""
        yield

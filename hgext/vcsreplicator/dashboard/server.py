# SPDX-License-Identifier: GPL-2.0-or-later
"""The server of the pages, uvicorn.

It runs until the service is stopped or the watcher fails.
"""

import threading
from collections.abc import Callable

from ..service import asgi
from .acts import ActJournal
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
    """Serve until `stop` is set.

    Raises BadConfig if the address or a file cannot be used, or the exception that ended the watcher.
    """
    readers = Readers(settings, read_users(settings.users) if settings.users else ())
    journal = ActJournal(settings.acts) if settings.acts else None
    watcher = LogWatcher(sources.log, destinations=sources.destinations, relay=sources.relay, clock=sources.clock)
    with asgi.bind(*address, "dashboard.listen") as listener:
        watcher.start()
        try:
            config = asgi.configure(
                make_application(sources, watcher, readers, journal, hosts=(address[0], *settings.hosts)),
                http="h11",
                loop="asyncio",
                limit_concurrency=CONNECTIONS,
                timeout_keep_alive=IDLE,
                timeout_graceful_shutdown=DRAIN,
            )
            server = asgi.StoppableServer(config, lambda: stop.is_set() or watcher.failure is not None, ready)
            server.run(sockets=[listener])
        finally:
            watcher.close()
    if watcher.failure is not None:
        raise watcher.failure

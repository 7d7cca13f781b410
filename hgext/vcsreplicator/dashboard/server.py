# SPDX-License-Identifier: GPL-2.0-or-later
"""The server of the pages, uvicorn, until a stop or a failure of the watcher."""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from ..log.opening import identify_log
from ..relay.admission import HeldSocket
from ..service import asgi
from ..status.summary import make_summary
from ..words.errors import Unavailable
from ..words.version import VERSION
from .acts import ActJournal
from .application import make_application
from .asked.question import FORMAT, StatusAnswer, StatusQuestion
from .asked.server import AnswerServer, SocketUsers
from .graphs.history import History
from .readers import Readers, read_users
from .settings import DashboardSettings
from .sources import Sources
from .watcher import LogWatcher

# Connections at a time, feeds included; more are refused, unless a connection that waits for its client makes room.
CONNECTIONS = 200

# Seconds that a connection may be idle or take for a request.
IDLE = 15
# Seconds for requests under way after SIGTERM.
DRAIN = 2


def run(
    settings: DashboardSettings,
    sources: Sources,
    *,
    address: tuple[str, int],
    stop: threading.Event,
    ready: Callable[[], None],
) -> None:
    """Serve until `stop` is set.

    Raises BadConfig if the address, the socket or a file cannot be used, or the exception that ended the watcher.
    """
    readers = Readers(settings, read_users(settings.users) if settings.users else ())
    journal = ActJournal(settings.acts, sources.log) if settings.acts else None
    watcher = LogWatcher(sources.log, sources.expected, sources.clock, History(settings.history))
    answers = _answer_questions(settings, sources.url, watcher)
    with asgi.bind(*address, "dashboard.listen") as listener, answers:
        watcher.start()
        try:
            config = asgi.configure(
                make_application(sources, watcher, readers, journal, settings),
                http=asgi.PatientConnection,
                loop="asyncio",
                limit_concurrency=CONNECTIONS,
                timeout_keep_alive=IDLE,
                timeout_graceful_shutdown=DRAIN,
            )
            server = asgi.StoppableServer(config, lambda: stop.is_set() or watcher.failure is not None, ready)
            server.run(sockets=[listener])
        finally:
            watcher.close()
            watcher.history.close()
    if watcher.failure is not None:
        raise watcher.failure


def _answer_questions(settings: DashboardSettings, url: str, watcher: LogWatcher) -> AbstractContextManager[object]:
    """Answer `status` and `check` at the socket, if any, while the block runs."""
    if settings.socket is None:
        return nullcontext()
    log = identify_log(url)
    users = SocketUsers(settings.socket_users) if settings.socket_users else None
    held = HeldSocket(settings.socket, key="dashboard.socket", service="dashboard", users=users)

    def answer(question: StatusQuestion, deadline: float) -> StatusAnswer:
        if (question.format, question.version) != (FORMAT, VERSION):
            return StatusAnswer(declined=f"this dashboard has version {VERSION}")
        if question.log != log:
            return StatusAnswer(declined="this dashboard follows another log")
        try:
            summary = watcher.use_picture(
                lambda picture, now: make_summary(picture, now, question.expected), patience=deadline - time.monotonic()
            )
        except Unavailable as error:
            return StatusAnswer(declined=str(error))
        return StatusAnswer(summary=summary)

    return AnswerServer(held, answer)

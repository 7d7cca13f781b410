# SPDX-License-Identifier: GPL-2.0-or-later
"""The frame of every daemon: signals, log lines, HTTP, readiness, exit codes.

A service stops on SIGTERM or SIGINT: its stage drains and returns. Exit codes: 0 stopped as asked; 1 an unexpected exception, or a
condition that may pass, such as a full disk; 78 wrong configuration, after which units do not restart a service
(`RestartPreventExitStatus=78`).
A service reports that it is ready as systemd expects: `READY=1` to the socket named by NOTIFY_SOCKET.
"""

import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import structlog

from ..words.errors import BadConfig, ReplicationError
from ..words.passing import is_passing
from .listening import start_server, stop_server

EXIT_CONFIG = 78

# Path → function that makes its JSON answer, besides /metrics; called from the threads of the HTTP server. The status is 200, or
# 503 if the answer has `"ready": false`; that of /health has `ready` (bool).
Pages = Mapping[str, Callable[[], Mapping[str, Any]]]

# What ends a service.
STOPPING = (signal.SIGTERM, signal.SIGINT)

# A stage bound to its settings and its log: runs until the event is set, and calls the function once, when it is ready.
RunStage = Callable[[threading.Event, Callable[[], None]], None]

logger = structlog.get_logger()


class _LibraryLines(logging.Handler):
    """Makes log lines of what libraries report, which Python would print as plain text."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            write = logger.warning if record.levelno < logging.ERROR else logger.error
            write("a library reports", library=record.name, text=record.getMessage(), exc_info=record.exc_info)
        except Exception:
            self.handleError(record)


def configure_logging(role: str) -> None:
    """Write log lines to standard error: JSON, or coloured columns on a terminal.

    What libraries report as a warning, or worse, is among them.
    """
    renderer: Any = structlog.processors.JSONRenderer(sort_keys=True)
    if sys.stderr.isatty():
        # A path may have control characters, which would reach the terminal.
        renderer = structlog.dev.ConsoleRenderer(repr_native_str=True)
    structlog.configure(
        processors=[
            lambda _logger, _method, line: {"service": role, **line},  # in each thread
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    logging.basicConfig(handlers=[_LibraryLines()])


def stop_on_signals() -> threading.Event:
    """Return an event that SIGTERM or SIGINT sets, instead of ending the process.

    A thread of its own sets it. Python runs handlers in the main thread alone, which may hold the event's lock at that moment, and
    a signal that arrives just before the main thread blocks does not wake it. So the system writes the signal's number to a pipe;
    the handler does too, because an event loop may have the system write elsewhere.
    """
    stop, (reader, writer) = threading.Event(), os.pipe()
    os.set_blocking(writer, False)
    threading.Thread(target=_set_at_signal, args=(stop, reader), name="signals", daemon=True).start()
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in STOPPING:
        signal.signal(number, lambda number, _: os.write(writer, bytes([number])))
    return stop


def _set_at_signal(stop: threading.Event, reader: int) -> None:
    while True:
        if os.read(reader, 1)[0] in STOPPING:
            stop.set()


def serve(
    stage: RunStage, *, listen: tuple[str, int] | None = None, key: str = "listen", pages: Pages | None = None
) -> int:
    """Run the stage until a signal stops it, and return the exit code.

    `key` is the setting of `listen` for messages.
    """
    stop, is_ready = stop_on_signals(), threading.Event()

    def ready() -> None:
        is_ready.set()
        notify("READY=1")
        logger.info("ready")

    server = None
    try:
        if listen is not None:
            host, port = listen
            answers = {"/health": lambda: {"ready": is_ready.is_set()}, "/live": lambda: {"alive": True}}
            served = application({**answers, **(pages or {})})
            server = start_server(served, f"{key}: {host}:{port}", host=host, port=port, threads=2, largest_body=0)
        stage(stop, ready)
    except Exception as error:
        return _report_end(error)
    finally:
        if server is not None:
            stop_server(server)
    logger.info("stopped as asked")
    return 0


def _report_end(error: Exception) -> int:
    """Log why the service ends, and return the exit code."""
    reason, may_pass = str(error), is_passing(error)
    if isinstance(error, BadConfig) and not may_pass:
        logger.error("configuration refused", reason=reason)
        return EXIT_CONFIG
    if isinstance(error, ReplicationError) or may_pass:
        kind = type(error.__cause__ if isinstance(error, BadConfig) else error).__name__
        logger.error("stopped", reason=reason, kind=kind)
    else:
        logger.exception("crashed")
    return 1


def notify(text: str) -> None:
    """Notify the supervisor, if NOTIFY_SOCKET names one; a failure is only logged."""
    where = os.environ.get("NOTIFY_SOCKET")
    if not where:
        return
    if where.startswith("@"):
        where = "\0" + where[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        try:
            sender.sendto(text.encode(), where)
        except OSError as error:
            logger.warning("supervisor not notified", reason=str(error))


def application(pages: Pages) -> Callable[..., Iterable[bytes]]:
    """Make the WSGI application with /metrics and the pages.

    Each page is JSON, with status 503 for `"ready": false`.
    """
    # Imported here: a service without this page, such as `web`, does not need it.
    import prometheus_client

    metrics: Any = prometheus_client.make_wsgi_app()

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        where = environ.get("PATH_INFO", "")
        if where == "/metrics":
            return cast(Iterable[bytes], metrics(environ, start_response))
        if where not in pages:
            start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
            return [f"served here: /metrics, {', '.join(pages)}\n".encode()]
        content = pages[where]()
        status = "200 OK" if content.get("ready", True) else "503 Service Unavailable"
        start_response(status, [("Content-Type", "application/json"), ("Cache-Control", "no-store")])
        return [json.dumps(content, sort_keys=True).encode() + b"\n"]

    return answer

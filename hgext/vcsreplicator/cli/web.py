# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator web`: serves repositories over HTTP by hgweb."""

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import click
import structlog

from ..config import address
from ..hg.serving.paths import Pushes, could_push
from ..mirror.forking import can_fork
from ..service import configure_logging, serve
from ..service.listening import CONNECTIONS, start_server, stop_server
from ..service.workers import Workers
from ..words.errors import BadConfig

logger = structlog.get_logger()

# The module that forks workers; it says where a push could be permitted.
NURSERY = "hgext.vcsreplicator.cli.web_nursery"
# Bytes of the largest push.
MAX_PUSH = 16 * 1024**3
# And of any other body: a command's arguments, which name each head up to twice, 41 bytes each. This is enough for 200,000 heads.
MAX_ARGUMENTS = 16 * 1024**2


def open_folder(root: str, threads: int | None = None) -> Callable[..., Any]:
    """Return the WSGI application for a folder.

    Raises BadConfig if it cannot or must not be served.
    """
    from ..hg.serving.web import application, refuse_unguarded

    try:
        repositories: Callable[..., Any] = application(root, threads=threads)
    except OSError as error:
        raise BadConfig(f"--root: {root}: cannot be used: {error.strerror}") from error
    refuse_unguarded(root)
    return repositories


def limit_bodies(root: str, pushes: Pushes) -> dict[str, Any]:
    """Return the limits for `start_server`: only a push may be large."""
    folder = os.fsencode(os.path.realpath(root))

    def find_largest(method: str, path: str, query: str) -> int:
        return MAX_PUSH if could_push(folder, pushes, method, path, query) else MAX_ARGUMENTS

    return {"largest_body": MAX_ARGUMENTS, "find_largest": find_largest}


@click.command()
@click.option("--root", required=True, metavar="DIR", help="The folder with the repositories.")
@click.option("--listen", required=True, metavar="HOST:PORT", help="Address to listen on.")
@click.option("--role", default="web", help="Name of the service in log lines.")
@click.option(
    "--threads",
    type=click.IntRange(1, CONNECTIONS),
    default=8,
    show_default=True,
    help="Requests answered in parallel.",
)
@click.option(
    "--seconds",
    type=click.IntRange(1, 86400),
    default=60,
    show_default=True,
    help="Processor time of a request, and of each further MiB of its answer.",
)
@click.option(
    "--memory",
    type=click.IntRange(128, 1024**2),
    default=4096,
    show_default=True,
    metavar="MIB",
    help="Memory of a request.",
)
def command(root: str, listen: str, role: str, threads: int, seconds: int, memory: int) -> None:
    """Serve the repositories in a folder over HTTP.

    Clients can see pages, clone, pull, and push if hgrc allows it. HGRCPATH names Mercurial's configuration. With `role =
    mirror` only released changesets are shown.
    """
    host, port = address(listen, "--listen")
    configure_logging(role)

    def stage(stop: threading.Event, ready: Callable[[], None]) -> None:
        options: dict[str, Any] = {"host": host, "port": port, "threads": threads}
        if not can_fork():
            logger.warning("requests are answered in threads, without a budget: this machine cannot fork workers")
            application = open_folder(root, threads)
            from ..hg.serving.web import find_pushes

            options |= limit_bodies(root, find_pushes(root))
            server = start_server(application, f"--listen: {listen}", **options)
            ready()
            stop.wait()
            stop_server(server)
            return
        workers = Workers(NURSERY, root, role, str(seconds), str(memory * 1024**2), threads=threads)
        options |= limit_bodies(root, Pushes(workers.says))
        try:
            server = start_server(workers, f"--listen: {listen}", **options)
            ready()
            stop.wait()
            stop_server(server)
        finally:
            workers.close()

    sys.exit(serve(stage))

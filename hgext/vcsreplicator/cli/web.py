# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator web`: serves repositories over HTTP by hgweb."""

import sys
import threading
from collections.abc import Callable
from typing import Any

import click

from ..config import address
from ..service import configure_logging, serve
from ..service.listening import CONNECTIONS, start_server, stop_server
from ..words.errors import BadConfig
from .postponed import postpone

# Bytes of the largest body: a push.
MAX_PUSH = 16 * 1024**3
# And on a mirror: a command's arguments, which name each head up to twice, 41 bytes each. This is enough for 200,000 heads.
MAX_ARGUMENTS = 16 * 1024**2
# Modules that hgweb imports and a server uses rarely or never, 4 MB: clients, other servers, mail, XML.
# Not `mercurial.url`: templates use it for each text, and each use of a stand-in looks the module up.
RARE = (
    "difflib",
    "http.cookiejar",
    "http.server",
    "mercurial.chgserver",
    "mercurial.commandserver",
    "mercurial.crecord",
    "mercurial.hgweb.server",
    "mercurial.httppeer",
    "mercurial.mail",
    "mercurial.server",
    "mercurial.sshpeer",
    "mercurial.sslutil",
    "mercurial.statichttprepo",
    "mercurial.upgrade",
    "mercurial.verify",
    "mercurial.wireprotov1peer",
    "smtplib",
    "ssl",
    "tarfile",
    "xml.dom.minidom",
    "xmlrpc.client",
)


def load_hgweb() -> Callable[..., Any]:
    """Return what makes the WSGI application; rare modules are loaded when used."""
    postpone(*RARE)
    from ..hg.serving.web import application

    return application


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
def command(root: str, listen: str, role: str, threads: int) -> None:
    """Serve the repositories in a folder over HTTP.

    Clients can see pages, clone, pull, and push if hgrc allows it. HGRCPATH names Mercurial's configuration. With `role =
    mirror` only released changesets are shown.
    """
    host, port = address(listen, "--listen")
    configure_logging(role)

    def stage(stop: threading.Event, ready: Callable[[], None]) -> None:
        application = load_hgweb()
        from ..hg.serving.web import is_of_mirror, refuse_unguarded

        try:
            repositories = application(root, threads=threads)
        except OSError as error:
            raise BadConfig(f"--root: {root}: cannot be used: {error.strerror}") from error
        refuse_unguarded(root)
        largest = MAX_ARGUMENTS if is_of_mirror(root) else MAX_PUSH
        options = {"host": host, "port": port, "threads": threads, "largest_body": largest}
        server = start_server(repositories, f"--listen: {listen}", **options)
        ready()
        stop.wait()
        stop_server(server)

    sys.exit(serve(stage))

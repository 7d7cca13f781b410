# SPDX-License-Identifier: GPL-2.0-or-later
"""The HTTP server of every service: waitress, hardened.

When the server has as many connections as it takes, it closes the longest silent one among those without a complete
request. So a client that opens connections and stays silent cannot keep others out, not even from `/health`. A connection whose
client takes nothing of its answer is closed too, because the answer holds a thread.
"""

import copy
import errno
import functools
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import waitress.server
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.utilities import BadRequest, RequestEntityTooLarge

from ..words.errors import BadConfig

# Connections at a time. Each takes up to three file descriptors, of which a process has 1,024 by default.
CONNECTIONS = 250
# Connections that are kept free for new ones.
_SPARE = 10
# Longest seconds in which the server does not look at its connections though nothing happens.
_LOOK_EVERY = 5
# Seconds that a connection may be silent while nothing is done for it.
_SILENCE = 60
# Seconds that a client may take nothing of an answer. Meanwhile a large answer holds the thread that makes it.
_STALLED = 120
# Bytes of a line `Content-Length: …` with any length of a request.
_LENGTH_LINE = 100
# Bytes of the line before a chunk of a body, or of what follows the last chunk. waitress copies what it has of them at each read.
_CHUNK_LINES = 8192
_HOST = re.compile(r"([A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
# In time linear in the line. What waitress itself looks for takes the square of it, if the line has another form.
_FIRST_LINE = re.compile(rb"[^\x00-\x20\x7f]+ [^\x00-\x20\x7f]+( HTTP/[0-9.]+)?")
# No path of a repository has them. It may have other control characters, and pages link such files.
_NEVER_IN_PATH = re.compile(r"[\0\r\n]")


def start_server(application: Callable[..., Any], place: str, **options: Any) -> Any:
    """Start a server in a thread; raise BadConfig that names `place` if that fails."""
    try:
        server = create_server(application, **options)
    except OSError as error:
        raise BadConfig(f"{place} cannot be used: {error.strerror}") from error
    threading.Thread(target=server.run, name="http", daemon=True).start()
    return server


def stop_server(server: Any) -> None:
    """Stop a server after the requests that it is answering now.

    It waits for them up to five seconds. A thread that ended after that would wake the server through a descriptor, which may be
    another file's by then.
    """
    server.task_dispatcher.shutdown()
    server.close()


def create_server(
    application: Callable[..., Any],
    *,
    host: str,
    port: int,
    threads: int,
    largest_body: int,
    find_largest: Callable[[str, str, str], int] | None = None,
) -> Any:
    """Make a server that listens; raise OSError if the address cannot be used.

    It refuses a request with a body of more than `largest_body` bytes, before it reads more: a body is kept on disk until
    the application can be asked. For a request with more, `find_largest` may allow it, by method, path and query.
    """
    _find_host(host)
    server = waitress.server.create_server(
        functools.partial(_answer_without_body, application),
        host=host,
        port=port,
        threads=threads,
        ident=None,
        # For clients that name no host.
        server_name=socket.gethostname() if host in ("0.0.0.0", "::", "*", "") else host,
        connection_limit=CONNECTIONS,
        channel_timeout=_SILENCE,
        cleanup_interval=_LOOK_EVERY,
        asyncore_loop_timeout=_LOOK_EVERY,
        asyncore_use_poll=True,
        # waitress refuses a body of this size too.
        max_request_body_size=largest_body + 1,
        # They show that a proxy is in front, whose address says nothing of the client; waitress itself takes nothing from them.
        clear_untrusted_proxy_headers=False,
    )
    server.adj.find_largest = find_largest
    map_of_sockets = server.map if hasattr(server, "map") else server._map
    for listener in list(map_of_sockets.values()):
        if hasattr(listener, "channel_class"):
            listener.channel_class = _Channel
    return server


def _answer_without_body(
    application: Callable[..., Any], environ: dict[str, Any], start_response: Any
) -> Iterable[bytes]:
    """Call the application; of an answer to HEAD keep the head alone.

    A proxy that uses the connection again would take the body, such as a file that was pushed, for its next client's answer. The
    application stops at its first piece.
    """
    body: Iterable[bytes] = application(environ, start_response)
    if environ["REQUEST_METHOD"] != "HEAD":
        return body
    try:
        next(iter(body), None)  # a generator calls `start_response` only now
    finally:
        if close := getattr(body, "close", None):
            close()
    return []


def _find_host(host: str) -> None:
    """Raise OSError with the reason, which waitress hides, if there is no such host."""
    try:
        socket.getaddrinfo(None if host == "*" else host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError as error:
        raise OSError(errno.EINVAL, "not the name of a host") from error


class _Parser(HTTPRequestParser):  # type: ignore[misc]
    """A parser that refuses, with 400, a request whose end or meaning is in doubt."""

    completed: bool
    body_rcv: Any
    adj: Any

    def received(self, data: bytes) -> int:
        """Take bytes of a request; return how many.

        The server asks a client to go on (100) only if something is to come; waitress alone asks, and waits, even after a request
        that has no body or is refused.
        """
        taken: int = super().received(data)
        if self.chunked and not self.completed and self.adj.max_request_body_size == 1:
            self.error = RequestEntityTooLarge("no body is expected")
            self.completed = True
        if self.chunked and not self.completed and _count_waiting(self.body_rcv) > _CHUNK_LINES:
            self.error = BadRequest("Line of a chunk is too long")
            self.completed = True
        if self.completed:
            self.expect_continue = False
        return taken

    def parse_header(self, header_plus: bytes) -> None:
        first, *lines = header_plus.split(b"\r\n")
        if not _FIRST_LINE.fullmatch(first):
            raise ParsingError("Start line is invalid")
        names = [line.partition(b":")[0].lower() for line in lines]
        if any(name == b"content-length" and len(line) > _LENGTH_LINE for name, line in zip(names, lines, strict=True)):
            raise ParsingError("Content-Length is invalid")  # waitress fails to read a number of thousands of digits
        try:
            super().parse_header(header_plus)
        except ValueError as error:  # such as "Invalid IPv6 URL", with which the server would close without an answer
            raise ParsingError(f"Request is invalid: {error}") from error
        if b"transfer-encoding" in names and (b"content-length" in names or self.version != "1.1"):
            # A proxy in front may see another request in the body.
            raise ParsingError("Transfer-Encoding with Content-Length, or not in HTTP/1.1")
        if names.count(b"content-length") > 1 or names.count(b"host") > 1:
            raise ParsingError("Header repeated")
        if self.version == "1.1" and b"host" not in names:
            raise ParsingError("Host is missing")
        if b"host" in names and not _HOST.fullmatch(self.headers.get("HOST", "")):
            raise ParsingError("Host is invalid")
        if _NEVER_IN_PATH.search(self.path) or not (
            self.path.startswith("/") or (self.path == "" and self.proxy_netloc)
        ):
            raise ParsingError("Path is invalid")
        if self.adj.find_largest and (self.chunked or self.content_length >= self.adj.max_request_body_size):
            self.adj = copy.copy(self.adj)  # what waitress compares the body with
            self.adj.max_request_body_size = self.adj.find_largest(self.command, self.path, self.query) + 1


def _count_waiting(receiver: Any) -> int:
    """Count the bytes of a body in chunks that belong to no chunk and wait for their end."""
    return len(receiver.control_line) + len(receiver.trailer)


class _Channel(HTTPChannel):  # type: ignore[misc]
    """A connection; it ends when its client stalls.

    If there are too many when it opens, it replaces a silent one.
    """

    parser_class = _Parser
    # The client's last activity, and when it was seen while something waited to be sent.
    _active, _since = 0.0, 0.0

    def __init__(self, server: Any, sock: Any, addr: Any, adj: Any, map: Any = None) -> None:
        super().__init__(server, sock, addr, adj, map=map)
        if len(map) > adj.connection_limit - _SPARE:
            others = [other for other in map.values() if isinstance(other, _Channel) and other is not self]
            silent = [other for other in others if not other.requests and not other.total_outbufs_len]
            if silent:
                min(silent, key=lambda channel: float(channel.last_activity)).handle_close()

    def check_client_disconnected(self) -> bool:
        """Return whether the client has left.

        waitress learns it by reading, and reads no more while requests wait: a request sent behind another would hide it.
        """
        poller = select.poll()
        try:
            poller.register(self.socket, select.POLLRDHUP)
            return bool(poller.poll(0)) or bool(super().check_client_disconnected())
        except (OSError, ValueError):  # it is closed
            return True

    def writable(self) -> Any:
        """Return whether there is something to send; close if the client stalls.

        waitress calls this at least every `_LOOK_EVERY` seconds, and notes when the client took or sent something. How long the
        answer took to make does not count. A thread that waits to write more ends with ClientDisconnected. To set `will_close` is
        not enough: waitress would wait until the client reads.
        """
        if not self.total_outbufs_len or self.last_activity != self._active:
            self._active, self._since = self.last_activity, time.monotonic()
        elif time.monotonic() - self._since > _STALLED:
            self.handle_close()
            return False
        return super().writable()

# SPDX-License-Identifier: GPL-2.0-or-later
"""An HTTP endpoint of a subscriber, in this process.

It records what it gets and answers as a test says.
"""

import json
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What came: header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    text: str

    @property
    def body(self) -> Any:
        return json.loads(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What to answer.

    `hang` waits first, for the event or until the client gives up; `reset` breaks the connection instead, `drips` sends a byte of
    the body every so many seconds.
    """

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    hang: threading.Event | None = None
    reset: bool = False
    body: bytes = b""
    drips: float = 0.0


class _Server(ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that gave up


def _has_gone(client: socket.socket) -> bool:
    """Return whether the client has closed the connection; below TLS, which would say so first."""
    try:
        return not socket.socket.recv(client, 1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _send(handler: BaseHTTPRequestHandler, reply: Reply, closing: threading.Event) -> None:
    """Send a reply, its body byte by byte if it drips."""
    handler.send_response(reply.status)
    for name, value in reply.headers:
        handler.send_header(name, value)
    handler.send_header("content-length", str(len(reply.body)))
    handler.end_headers()
    if not reply.drips:
        handler.wfile.write(reply.body)
        return
    handler.wfile.flush()
    for byte in reply.body:
        closing.wait(reply.drips)
        handler.wfile.write(bytes([byte]))
        handler.wfile.flush()


class Endpoint:
    """A server on loopback.

    `requests` is what came so far, over how many connections `accepted` says; `reply` decides the answer to each.
    """

    def __init__(
        self, reply: Callable[[Request], Reply] = lambda request: Reply(), *, certificate: Path | None = None
    ) -> None:
        self.reply = reply
        self.requests: list[Request] = []
        self.accepted = 0
        self.closing = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1

            def setup(self) -> None:
                endpoint.accepted += 1
                super().setup()

            def answer(self) -> None:
                request = Request(
                    method=self.command,
                    path=self.path,
                    headers={name.lower(): value for name, value in self.headers.items()},
                    text=self.rfile.read(int(self.headers.get("content-length", 0))).decode("utf-8", "surrogateescape"),
                )
                decide = endpoint.reply  # of this request, though a test that waited for it gives another
                endpoint.requests.append(request)
                reply = decide(request)
                if reply.hang is not None:
                    while not (reply.hang.wait(0.05) or endpoint.closing.is_set() or _has_gone(self.connection)):
                        pass
                if reply.reset:
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    self.close_connection = True
                    self.connection.close()
                    return
                _send(self, reply, endpoint.closing)

            do_POST = do_PUT = do_GET = answer

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._scheme = "http" if certificate is None else "https"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, certificate.with_suffix(".key"))
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}/hook"

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def told(self) -> list[tuple[str, int]]:
        """(repository, sequence) of every request, in order."""
        return [
            (each.body["data"]["repo_url"].rsplit("/", 1)[-1], int(each.headers["vcsreplicator-sequence"]))
            for each in self.requests
        ]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

# SPDX-License-Identifier: GPL-2.0-or-later
"""Connections whose answers end: in time, however slowly their bytes come, and after some kilobytes."""

import socket
import threading
from typing import Any

import urllib3

CONNECT_PATIENCE = 5.0
ANSWER_BYTES = 16 * 1024


class _Watch(threading.Timer):
    """Ends what another thread reads once the time is over; TLS is not told, its objects belong to that thread."""

    def __init__(self, sock: socket.socket, seconds: float) -> None:
        super().__init__(seconds, self._cut)
        self.daemon = True
        self.over, self._sock = False, sock

    def _cut(self) -> None:
        self.over = True
        try:
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        except OSError:
            pass  # it ended by itself


class _Timed:
    """A connection whose answers end in time: a socket's timeout only limits the wait for the next byte."""

    sock: socket.socket

    def getresponse(self) -> Any:
        """Cut at the read timeout; whoever takes the answer cancels the watch once it has read all of it."""
        watch = _Watch(self.sock, self.sock.gettimeout() or CONNECT_PATIENCE)
        watch.start()
        try:
            response = super().getresponse()  # type: ignore[misc]
            if watch.over:  # what was cut may look whole: headers end where the connection does
                raise TimeoutError("the answer did not end in time")
        except BaseException:
            watch.cancel()
            raise
        response.watch = watch
        return response


class _Connection(_Timed, urllib3.connection.HTTPConnection):
    pass


class _TlsConnection(_Timed, urllib3.connection.HTTPSConnection):
    pass


class ConnectionPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class TlsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


def watched(response: urllib3.BaseHTTPResponse) -> threading.Timer:
    """The watch over an answer of these pools."""
    found: threading.Timer = response.watch  # type: ignore[attr-defined]
    return found


def finish(response: urllib3.BaseHTTPResponse) -> None:
    """Reads the rest, so that the connection can be used again; a long or slow rest costs the connection instead."""
    try:
        size = 0
        for chunk in response.stream(4096, decode_content=False):
            size += len(chunk)
            if size > ANSWER_BYTES:
                response.close()
                return
    except (urllib3.exceptions.HTTPError, OSError, ValueError):
        response.close()

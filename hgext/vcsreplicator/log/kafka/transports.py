# SPDX-License-Identifier: GPL-2.0-or-later
"""Transports of kafka-python: opened in time, written at once, read to the end."""

import socket
import ssl
import time
import traceback
from collections.abc import Mapping
from typing import Any

from kafka import errors as kafka_errors
from kafka.net.inet import create_connection
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport

# Seconds for which a connection that has ended is kept, so that its last answer is understood.
_LAST_ANSWER = 0.5


class _PendingSockets:
    """The event loop for one new connection, and the sockets that it tried.

    The library leaves failed sockets to the garbage collector: with Python 3.13.0 a frame of the event loop holds them.
    """

    def __init__(self, net: NetworkSelector) -> None:
        self._net = net
        self._sockets: set[socket.socket] = set()

    def wait_write(self, sock: socket.socket, **limits: Any) -> Any:
        self._sockets.add(sock)
        return self._net.wait_write(sock, **limits)

    def close_all_but(self, connected: socket.socket | None) -> None:
        for failed in self._sockets - {connected}:
            failed.close()


class _AtOnce:
    """A transport that at once writes what the socket takes.

    The library first has a task wait until the socket can be written: two turns of the event loop for each request. `write` is for
    the thread of the event loop, as before. After an error it writes nothing more: a part of a request may have left.
    """

    _has_failed = False

    def write(self: Any, data: bytes) -> None:
        if self._writing or self._closed or not self._write or not data:
            super().write(data)  # type: ignore[misc]  # of the transport that this is mixed into
            return
        if self._has_failed:  # `abort` fails this request too, in the next turn
            return
        self._write_buffer.append(data)
        _, error = self._sock_send()
        self.last_write = time.monotonic()
        if error is not None:
            self._has_failed = True
            self._net.call_soon(lambda: self.abort(error))
        elif self._write_buffer:
            self._writing = True
            self._write_task = self._net.call_soon(self._write_to_sock)


class _ToTheEnd:
    """A transport that reads the last answer of a broker that hangs up.

    It may say why a password is refused. The library drops what arrived together with the end of the connection.
    """

    def _sock_recv(self: Any) -> tuple[bytes, Exception | None]:
        received, error = super()._sock_recv()  # type: ignore[misc]  # of the transport that this is mixed into
        if not received or error is None:
            return received, error
        # The next call meets the end again, unless only TLS was closed: then the socket shows nothing more.
        self._net.call_later(_LAST_ANSWER, lambda: self.abort(error))
        return received, None


class TCPTransport(_AtOnce, _ToTheEnd, KafkaTCPTransport):  # type: ignore[misc]
    """A connection without TLS."""


class SSLTransport(_AtOnce, _ToTheEnd, KafkaSSLTransport):  # type: ignore[misc]
    """A connection with TLS."""


async def open_transport(
    net: NetworkSelector, node: Any, config: Mapping[str, Any], *, has_tls: bool, timeout_at: float | None
) -> Any:
    """Connect to a broker; the TLS handshake has the same time limit."""
    options, proxy = config["socket_options"], config["proxy_url"]
    pending, sock = _PendingSockets(net), None
    try:
        sock = await create_connection(pending, node.host, node.port, options, proxy_url=proxy, timeout_at=timeout_at)
    except Exception as error:
        # Their frames hold sockets that were refused at once; the library raises another error in place of a time-out.
        for each in (error, error.__context__):
            if each is not None:
                traceback.clear_frames(each.__traceback__)
        raise
    finally:
        pending.close_all_but(sock)
    try:
        if not has_tls:
            return TCPTransport(net, sock, host=node.host)
        tls = {name: value for name, value in config.items() if name.startswith("ssl_")}
        transport = SSLTransport(net, sock, host=node.host, **tls)
        sock = transport._sock
        await _shake_hands(net, sock, timeout_at)
        return transport
    except BaseException as error:
        sock.close()
        if isinstance(error, OSError | kafka_errors.KafkaTimeoutError):
            raise kafka_errors.KafkaConnectionError(f"Handshake failed: {error}") from error
        raise


async def _shake_hands(net: NetworkSelector, sock: ssl.SSLSocket, timeout_at: float | None) -> None:
    while True:
        try:
            return sock.do_handshake()
        except ssl.SSLWantReadError:
            await net.wait_read(sock, timeout_at=timeout_at)
        except ssl.SSLWantWriteError:
            await net.wait_write(sock, timeout_at=timeout_at)

# SPDX-License-Identifier: GPL-2.0-or-later
"""Connections to AMQP brokers, with a limit on every wait.

py-amqp waits indefinitely where no timeout is given, spins when it is polled in the middle of a frame, and lets a broker keep it
busy with empty frames. Here a frame that began must be complete within `PATIENCE`, or the connection is lost. Every other
wait ends with TimeoutError: within `PATIENCE`, or when the block of `limiting_waits` is over. py-amqp also keeps everything that
a broker sends. Here frames and messages have a largest size, and one message is whole before the next begins. A frame that cannot
be read ends the connection.

Senders choose the properties and the routing key of a message, and can make py-amqp raise. Here a message with unreadable
properties comes without any, and a routing key that is not text gets question marks.
"""

import math
import re
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import kombu.connection
import kombu.transport.pyamqp
import structlog
from amqp.exceptions import AccessRefused, AMQPError, NotAllowed
from amqp.method_framing import frame_handler
from amqp.transport import SSLTransport, TCPTransport
from kombu.exceptions import KombuError

from hgext.vcsreplicator.words.errors import Unavailable, visible

from ..authorities import trusting

# Seconds: for a connection to be made, for an answer, for the rest of a frame.
PATIENCE = 5.0

# Bytes; brokers agree on 128 KiB.
LARGEST_FRAME = 1024 * 1024

# Bytes of a message's body, in any number of frames: the default limit of brokers.
LARGEST_MESSAGE = 16 * 1024 * 1024

# Channels of a connection: more than we use.
CHANNELS = 8

# Events taken in by one `drain`.
AT_ONCE = 1000

# The exceptions of py-amqp when the connection is lost, or the other side does not speak AMQP.
TROUBLE = (AMQPError, KombuError, OSError, struct.error, LookupError, AttributeError)

# Codes with which a broker refuses: no right or another's queue, no such thing.
_REFUSED = (403, 404)

# The end of RabbitMQ's text when a virtual host, a user or the node has as many connections as it may have.
_LIMIT_REACHED = re.compile(r"connection limit \(\d+\) is reached\Z")

# Types of frames.
_METHOD, _HEADER, _BODY = 1, 2, 3
# The beginning of the method that delivers a message.
_DELIVER = bytes((0, 60, 0, 60))

# Bytes of a header before the properties.
_BEFORE_PROPERTIES = 12
# The encoding of no properties.
_NO_PROPERTIES = b"\0\0"

# Kombu and py-amqp have no types.
_KombuConnection: Any = kombu.connection.Connection

logger = structlog.get_logger()


def client(
    url: str,
    *,
    password: str | None = None,
    password_place: str | None = None,
    ca_file: str | None = None,
    heartbeat: float,
    properties: Mapping[str, str],
    on_blocked: Callable[[str], None] | None = None,
    on_unblocked: Callable[[], None] | None = None,
) -> Any:
    """Return kombu's description of the broker.

    `amqps://` verifies certificate and host name. A refused login names `password_place`. Raises Unavailable if `ca_file` cannot
    be read.
    """
    options = {"on_blocked": on_blocked, "on_unblocked": on_unblocked, "client_properties": dict(properties)}
    made = _KombuConnection(
        url,
        **({} if password is None else {"password": password}),
        ssl=_make_tls(url, ca_file),
        transport=_AmqpTransport,
        connect_timeout=PATIENCE,
        heartbeat=heartbeat,
        transport_options=options,
    )
    made.password_place = password_place
    return made


def connect(kombu_client: Any) -> Any:
    """Open a connection of py-amqp; raise one of TROUBLE."""
    try:
        return kombu_client.transport.establish_connection()
    except AccessRefused as error:
        place = getattr(kombu_client, "password_place", None)
        password = f"password (from {place})" if place else "password"
        what = (
            f"login of user {kombu_client.userid or 'guest'} refused, mostly for a wrong {password} or an unknown user"
        )
        raise AccessRefused(f"{what}: {describe_error(error)}", reply_code=error.reply_code) from error


@contextmanager
def limiting_waits(connection: Any, more: float = 0.0) -> Iterator[None]:
    """Limit all waits of the block, together, to `PATIENCE` plus `more` seconds.

    A wait beyond that raises TimeoutError.
    """
    transport = connection.transport
    transport.until, before = time.monotonic() + PATIENCE + more, transport.until
    try:
        yield
    finally:
        transport.until = before


def drain(connection: Any, timeout: float) -> None:
    """Take in what the broker sends; wait up to `timeout` seconds for the first."""
    try:
        with limiting_waits(connection, timeout):
            for _ in range(AT_ONCE):
                connection.drain_events(timeout=timeout)
                timeout = 0
    except TimeoutError:
        pass


class BrokerRefusal(Unavailable):
    """The broker refuses, or its message is too large.

    Reasons to refuse are: no right, no such thing, a queue that another consumer has alone.
    """


@contextmanager
def translated(place: str) -> Iterator[None]:
    """Raise Unavailable for what py-amqp raises in the block.

    The error names the place, in one line. It is BrokerRefusal if the broker refuses.
    """
    try:
        yield
    except TROUBLE as error:
        is_refusal = isinstance(error, MessageTooLarge) or getattr(error, "reply_code", 0) in _REFUSED
        raise (BrokerRefusal if is_refusal else Unavailable)(f"{place}: {describe_error(error)}") from error


def is_refused_host(error: Unavailable) -> bool:
    """Return whether the virtual host is unknown or closed to this user.

    A limit of connections has the same code, and passes. Only the end of its text tells it: names of virtual hosts may have any
    words.
    """
    cause = error.__cause__
    return getattr(cause, "reply_code", 0) == NotAllowed.code and not _LIMIT_REACHED.search(str(cause))


def describe_error(error: BaseException) -> str:
    """Return what an error says, in one line.

    Where it concerns no method of the protocol, py-amqp writes `(0, 0): ` before it.
    """
    return visible(str(error).removeprefix("(0, 0): ") or type(error).__name__)[:300]


def where(url: str) -> str:
    """Return broker and virtual host, without the password."""
    known = _KombuConnection(url)
    port = known.port or (5671 if url.startswith("amqps://") else 5672)
    return f"{known.hostname}:{port}/{'' if known.virtual_host == '/' else known.virtual_host}"


def _make_tls(url: str, ca_file: str | None) -> Any:
    if not url.startswith("amqps://"):
        return False
    trusting(ca_file)  # py-amqp would not say which file is missing
    return {"cert_reqs": ssl.CERT_REQUIRED, "ca_certs": ca_file, "server_hostname": _KombuConnection(url).hostname}


class MessageTooLarge(ConnectionAbortedError):
    """A message is larger than the connection takes; nothing of its body was read."""


class _NotUnderstood(ConnectionAbortedError):
    """The broker sent what py-amqp cannot read.

    For example, bytes that are no text, or tables nested too deep.
    """


class _BoundedTransport:
    """A transport of py-amqp that reads until `until`, as `time.monotonic` counts."""

    until = math.inf
    largest_message = LARGEST_MESSAGE
    # Whether a larger message comes without its body.
    drops_larger = False
    # Bytes of the body of the newest message, if it was dropped.
    dropped = 0
    _body_left = 0
    _frame_until = math.inf
    _read_buffer: bytes
    _quick_recv: Callable[[int], bytes]

    def read_frame(self) -> tuple[int, int, bytes]:
        """Return type, channel and content of the next frame that is not dropped.

        Raises ConnectionAbortedError if the frame does not fit its predecessors, MessageTooLarge if it begins too large a
        message.
        """
        while True:
            kind, channel, content = super().read_frame()  # type: ignore[misc]
            if channel > CHANNELS:
                raise ConnectionAbortedError(f"a frame of channel {channel}, which is not open")
            if kind == _HEADER:
                content = self._begin_message(content)
            elif kind == _BODY:
                left, self._body_left = self._body_left, max(0, self._body_left - len(content))
                if left and self.dropped:
                    continue
            return kind, channel, content

    def _begin_message(self, header: bytes) -> bytes:
        """Return the header of a message; of one without a body, if that is dropped."""
        if self._body_left:
            raise ConnectionAbortedError("a message within a message")
        self._body_left = size = int.from_bytes(header[4:12], "big")
        self.dropped = size if size > self.largest_message else 0
        if self.dropped and not self.drops_larger:
            raise MessageTooLarge(f"a message of {size} bytes, expected at most {self.largest_message}")
        return header[:4] + bytes(8) + header[12:] if self.dropped else header

    def _read(self, n: int, initial: bool = False) -> bytes:
        """Read exactly n bytes.

        If it raises, the bytes read stay for the next call. `initial`: a frame begins, or is retried.
        """
        if n > LARGEST_FRAME:
            raise ConnectionAbortedError(f"a frame of {n} bytes, expected at most {LARGEST_FRAME}")
        if initial and not self._read_buffer:
            self._frame_until = math.inf
        while len(self._read_buffer) < n:
            self._read_some(n - len(self._read_buffer))
        found, self._read_buffer = self._read_buffer[:n], self._read_buffer[n:]
        return found

    def _read_some(self, n: int) -> None:
        now = time.monotonic()
        if now > self._frame_until:
            raise ConnectionAbortedError(f"the broker did not end a frame within {PATIENCE:g} s")
        if now > self.until:
            raise TimeoutError("the broker did not answer in time")
        try:
            found = self._quick_recv(n)
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise TimeoutError("nothing to read") from None
        if not found:
            raise ConnectionResetError("the broker closed the connection")
        self._read_buffer += found
        self._frame_until = min(self._frame_until, now + PATIENCE)

    def _setup_transport(self) -> None:
        """Limit every read and write of the connection in time."""
        super()._setup_transport()  # type: ignore[misc]
        self.sock.settimeout(PATIENCE)  # type: ignore[attr-defined]

    def _shutdown_transport(self) -> None:
        """Send no farewell: TLS would wait for the answer."""


class _Tcp(_BoundedTransport, TCPTransport):  # type: ignore[misc]
    pass


class _Tls(_BoundedTransport, SSLTransport):  # type: ignore[misc]
    pass


def _with_readable_names(content: bytes) -> bytes:
    """Return this delivery with exchange and routing key as text."""
    names = len(_DELIVER) + 1 + content[len(_DELIVER)] + 9  # behind the consumer's tag, the message's, and a flag
    key = names + 1 + content[names]
    return content[:names] + _replace_undecodable(content[names:key]) + _replace_undecodable(content[key:])


def _replace_undecodable(name: bytes) -> bytes:
    """Return the name behind its length; if no UTF-8, with `?` for all but ASCII."""
    try:
        name[1:].decode()
    except UnicodeDecodeError:
        return name[:1] + bytes(byte if byte < 0x80 else ord("?") for byte in name[1:])
    return name


def _take_in_frames(connection: Any, callback: Callable[..., None]) -> Callable[[tuple[int, int, bytes]], bool]:
    """Return py-amqp's function for each frame, for any properties of senders."""
    handle: Callable[[tuple[int, int, bytes]], bool] = frame_handler(connection, callback)

    def take_in(frame: tuple[int, int, bytes]) -> bool:
        kind, channel, content = frame
        if kind == _METHOD and content.startswith(_DELIVER):
            content = _with_readable_names(content)
        try:
            return handle((kind, channel, content))
        except Exception as error:
            if isinstance(error, ConnectionAbortedError) or (kind != _HEADER and isinstance(error, TROUBLE)):
                raise
            if kind != _HEADER:
                raise _NotUnderstood(describe_error(error)) from error
            logger.warning("properties of a message cannot be read; it has none here", reason=describe_error(error))
        return handle((kind, channel, content[:_BEFORE_PROPERTIES] + _NO_PROPERTIES))

    return take_in


class TolerantConnection(kombu.transport.pyamqp.Connection):
    """A connection on which a message whose properties cannot be read has none."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, frame_handler=_take_in_frames, **more)


class TolerantTransport(kombu.transport.pyamqp.Transport):
    """Kombu's transport; a message whose properties cannot be read has none."""

    Connection = TolerantConnection


class _Amqp(TolerantConnection):
    def Transport(self, host: str, connect_timeout: float, ssl: Any = False, *_: Any, **more: Any) -> Any:
        made = (_Tls if ssl else _Tcp)(host, connect_timeout=connect_timeout, **({"ssl": ssl} if ssl else {}))
        made.until = time.monotonic() + connect_timeout
        return made

    def connect(self, callback: Any = None) -> None:
        super().connect(callback)
        self.transport.until = math.inf


class _AmqpTransport(kombu.transport.pyamqp.Transport):
    Connection = _Amqp

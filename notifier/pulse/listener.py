# SPDX-License-Identifier: GPL-2.0-or-later
"""A subscriber of an exchange, as any receiver may run one.

It has its own queue and a prefetch limit, and acknowledges after success.

A message is acknowledged once it was handed on; one whose command fails goes back to the queue and is tried again after a pause, so
at least once. The queue is limited in length: a subscriber that is away for long loses the oldest messages, not the broker. A
message is limited in size: one that is larger stays in the queue, and ends the subscriber.
"""

import random
import re
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import kombu.entity
import kombu.messaging
import structlog
from amqp.exceptions import AccessRefused, NotFound

from hgext.vcsreplicator.words.errors import Refused

from ..window import RETRY
from .amqp import LARGEST_MESSAGE, TROUBLE, MessageTooLarge, client, connect, drain, is_broker, within

logger = structlog.get_logger()

# Kombu has no types.
_Consumer: Any = kombu.messaging.Consumer
_Queue: Any = kombu.entity.Queue
_Exchange: Any = kombu.entity.Exchange
_QUEUE = re.compile(r"queue/[^/\s]+/\S+\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenSettings:
    """What to listen to.

    `queue` is `queue/<clientId>/<name>`. A durable queue keeps messages while no client listens; any other is removed
    with its last listener.

    `prefetch` messages are under way at once, `max_length` wait in the queue at most, none has more than `max_message` bytes.
    `pause` seconds after a failure.
    """

    url: str
    exchange: str
    queue: str
    routing_key: str = "#"
    password: str | None = None
    prefetch: int = 10
    max_length: int = 10_000
    max_message: int = LARGEST_MESSAGE
    durable: bool = False
    pause: float = 1.0

    def __post_init__(self) -> None:
        if not is_broker(self.url):
            raise ValueError("url: expected amqp://USER@HOST/VHOST or amqps://…")
        if not (1 <= self.prefetch <= 65535 and self.max_length >= 1):
            raise ValueError("prefetch: expected 1 to 65535; max-length: expected at least 1")
        if not 1 <= self.max_message <= 2**31:
            raise ValueError("max-message: expected 1 to 2147483648 bytes")
        if not self.exchange.startswith("exchange/"):
            raise ValueError(f"exchange: expected exchange/<clientId>/<name>, got {self.exchange!r}")
        if not _QUEUE.match(self.queue):
            raise ValueError(f"queue: expected queue/<clientId>/<name>, got {self.queue!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage:
    """One message as it came: body text, routing key, properties and headers."""

    text: str
    routing_key: str
    properties: Mapping[str, Any]
    headers: Mapping[str, Any]


def listen(
    settings: ListenSettings,
    hand_on: Callable[[ReceivedMessage], bool],
    *,
    stop: threading.Event,
    limit: int | None = None,
) -> int:
    """Hand messages on until `stop`, or until `limit` succeeded; return how many.

    Connects again indefinitely. `hand_on` returns whether it succeeded. Raises Refused for what waiting cannot solve
    (no right, no such exchange, too large), and what `hand_on` raises.
    """
    session, failures = _Session(settings, hand_on, stop, limit), 0
    while not session.finished:
        try:
            session.run()
        except (AccessRefused, NotFound) as error:
            raise Refused(f"{settings.exchange}: {error}") from error
        except MessageTooLarge as error:
            raise Refused(f"{settings.queue}: {error} (max-message)") from error
        except _HandOnFailed as error:
            raise error.reason from None
        except TROUBLE as error:
            failures = failures + 1 if not session.connected else 1
            delay = RETRY.delay(failures, random.random())
            logger.warning("not connected", reason=str(error), retry_in=round(delay, 1))
            stop.wait(delay)
    return session.done


class _HandOnFailed(Exception):
    """Kept apart from trouble with the broker, which is waited for."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(reason)
        self.reason = reason


class _Session:
    def __init__(
        self,
        settings: ListenSettings,
        hand_on: Callable[[ReceivedMessage], bool],
        stop: threading.Event,
        limit: int | None,
    ) -> None:
        self.settings, self.hand_on, self.stop, self.limit = settings, hand_on, stop, limit
        self.done = 0
        self.connected = False

    @property
    def finished(self) -> bool:
        return self.stop.is_set() or (self.limit is not None and self.done >= self.limit)

    def run(self) -> None:
        """Listen on one connection, until it breaks or all is done."""
        self.connected = False
        settings = self.settings
        properties = {"product": "vcsreplicator", "queue": settings.queue}
        connection = connect(client(settings.url, password=settings.password, heartbeat=20, properties=properties))
        connection.transport.largest_message = settings.max_message
        try:
            with within(connection):
                channel = connection.channel()
                channel.basic_qos(0, settings.prefetch, False)
                consumer = _Consumer(channel, [self._make_queue()], on_message=self._take_message, auto_declare=True)
                consumer.consume()
            self.connected = True
            while not self.finished:
                drain(connection, 0.2)
                connection.heartbeat_tick()
            with within(connection):  # so that the last acknowledgement arrives
                connection.close()
        finally:
            connection.collect()

    def _make_queue(self) -> Any:
        exchange = _Exchange(self.settings.exchange, type="topic", durable=True, passive=True)
        return _Queue(
            self.settings.queue,
            exchange,
            routing_key=self.settings.routing_key,
            durable=self.settings.durable,
            auto_delete=not self.settings.durable,
            max_length=self.settings.max_length,
        )

    def _take_message(self, message: Any) -> None:
        if self.finished:
            return  # not acknowledged: the queue keeps it
        body = message.body
        arrival = ReceivedMessage(
            text=body if isinstance(body, str) else bytes(body).decode("utf-8", "replace"),
            routing_key=message.delivery_info["routing_key"],
            properties=message.properties,
            headers=message.headers,
        )
        try:
            succeeded = self.hand_on(arrival)
        except Exception as error:
            raise _HandOnFailed(error) from error
        if succeeded:
            message.ack()
            self.done += 1
        else:
            self.stop.wait(self.settings.pause)
            message.requeue()


def client_name() -> str:
    """Return a name for a queue without a configured one: the machine's."""
    return re.sub(r"[^A-Za-z0-9-]+", "-", socket.gethostname()) or "listener"

# SPDX-License-Identifier: GPL-2.0-or-later
"""A subscriber of an exchange, as any receiver may run one.

It has its own queue and a prefetch limit, and acknowledges a message after handing it on. Meanwhile it sends heartbeats, because
the broker would take a silent subscriber for dead and deliver the message again. A message whose command fails goes back to the
queue and is retried after a pause, so delivery is at least once. The length of the queue is limited: a subscriber that is away for
long loses the oldest messages, and the broker is safe. The size of a message is limited: a larger message stays in the queue, and
ends the subscriber. The subscriber binds its queue again regularly, because an exchange that was deleted and made anew has no
bindings.
"""

import contextlib
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import structlog

from hgext.vcsreplicator.words.errors import Refused, Unavailable, quote_value
from hgext.vcsreplicator.words.secrecy import split_url

from ...clients.amqp.channel import declare_queue, lacks_exchange
from ...clients.amqp.connection import LARGEST_MESSAGE, BrokerRefusal, MessageTooLarge, client, is_refused_host, where
from ...clients.amqp.consumer import QueueConsumer, body_of
from ...delivery.window import RETRY

# Seconds between two heartbeats.
HEARTBEAT = 20.0
# Seconds between two looks at the exchange and the queue's binding to it.
BIND_EVERY = 30.0
# Seconds of one wait.
BLINK = 0.2

logger = structlog.get_logger()

_QUEUE = re.compile(r"queue/[^/\s]+/\S+\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenSettings:
    """The exchange, the queue, and their limits.

    `queue` is `queue/<clientId>/<name>`. A durable queue keeps messages while no client listens; any other is removed with its
    last listener.

    At most `prefetch` messages are under way at once, at most `max_length` wait in the queue, and none has more than
    `max_message` bytes. After a failure the subscriber waits `pause` seconds.
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
        if split_url(self.url, "amqp", "amqps") is None:
            raise ValueError("url: expected amqp://USER@HOST/VHOST or amqps://…")
        if not (1 <= self.prefetch <= 65535 and self.max_length >= 1):
            raise ValueError("prefetch: expected 1 to 65535; max-length: expected at least 1")
        if not 1 <= self.max_message <= 2**31:
            raise ValueError("max-message: expected 1 to 2147483648 bytes")
        if not self.exchange.startswith("exchange/"):
            raise ValueError(f"exchange: expected exchange/<clientId>/<name>, got {quote_value(self.exchange)}")
        if not _QUEUE.match(self.queue):
            raise ValueError(f"queue: expected queue/<clientId>/<name>, got {quote_value(self.queue)}")


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

    Connects again indefinitely. `hand_on` returns whether it succeeded; a thread of its own calls it, for one message after the
    other. Raises Refused for what waiting cannot solve (no right, no such exchange or virtual host, a message that is too large),
    and what `hand_on` raises.
    """
    with ThreadPoolExecutor(max_workers=1) as thread:
        session, failures = _Listening(settings, lambda message: thread.submit(hand_on, message), stop, limit), 0
        while not session.is_finished:
            try:
                session.run()
            except Unavailable as error:
                if isinstance(error, BrokerRefusal) or is_refused_host(error):
                    hint = " (max-message)" if isinstance(error.__cause__, MessageTooLarge) else ""
                    raise Refused(f"{error}{hint}") from error
                failures = failures + 1 if not session.was_connected else 1
                delay = RETRY.delay(failures, random.random())
                logger.warning("not connected", reason=str(error), retry_in=round(delay, 1))
                stop.wait(delay)
        return session.done


@dataclass(slots=True)
class _Listening:
    settings: ListenSettings
    begin: Callable[[ReceivedMessage], Future[bool]]
    stop: threading.Event
    limit: int | None
    done: int = 0
    was_connected: bool = False
    is_exchange_gone: bool = False

    @property
    def is_finished(self) -> bool:
        return self.stop.is_set() or (self.limit is not None and self.done >= self.limit)

    def run(self) -> None:
        """Listen on one connection, until it breaks or all is done."""
        self.was_connected = self.is_exchange_gone = False
        settings = self.settings
        properties = {"product": "vcsreplicator", "queue": settings.queue}
        consumer = QueueConsumer(
            client(settings.url, password=settings.password, heartbeat=HEARTBEAT, properties=properties),
            f"{where(settings.url)} {settings.queue}",
            settings.queue,
            declare=self._declare,
            prefetch=settings.prefetch,
            largest=settings.max_message,
        )
        self.was_connected = True
        logger.info("listening", exchange=settings.exchange, queue=settings.queue, key=settings.routing_key)
        with contextlib.closing(consumer):
            looked_at = time.monotonic()
            while not self.is_finished:
                if time.monotonic() - looked_at >= BIND_EVERY:
                    consumer.declare(self._bind_again)
                    looked_at = time.monotonic()
                for arrived in consumer.receive(BLINK):
                    self._hand_on(consumer, arrived)
            consumer.finish()

    def _declare(self, channel: Any) -> None:
        """Declare the queue, and bind it to the exchange, which must exist."""
        settings = self.settings
        channel.exchange_declare(settings.exchange, "topic", passive=True)
        limits, is_kept = {"x-max-length": settings.max_length}, settings.durable
        declare_queue(channel, settings.queue, durable=is_kept, auto_delete=not is_kept, arguments=limits)
        channel.queue_bind(settings.queue, settings.exchange, settings.routing_key)

    def _bind_again(self, channel: Any) -> None:
        """Bind the queue, because an exchange that was made anew has no bindings."""
        settings, was_gone = self.settings, self.is_exchange_gone
        self.is_exchange_gone = lacks_exchange(channel, settings.exchange)
        if not self.is_exchange_gone:
            channel.queue_bind(settings.queue, settings.exchange, settings.routing_key)
            if was_gone:
                logger.info("the exchange is there again; the queue is bound to it", exchange=settings.exchange)
        elif not was_gone:
            logger.warning("the exchange is gone; its messages come again once it is there", exchange=settings.exchange)

    def _hand_on(self, consumer: QueueConsumer, arrived: Any) -> None:
        if self.is_finished:
            return  # not acknowledged: the queue keeps it
        message = ReceivedMessage(
            text=body_of(arrived).decode("utf-8", "replace"),
            routing_key=arrived.delivery_info["routing_key"],
            properties=arrived.properties,
            headers=arrived.headers or {},
        )
        handing_on = self.begin(message)
        try:
            while not wait([handing_on], BLINK).done:
                if self.stop.is_set() and handing_on.cancel():
                    return
                consumer.keep_alive()
        finally:
            handing_on.cancel()  # it may still wait for a message of a connection that broke before
        if handing_on.result():
            consumer.acknowledge(arrived.delivery_tag)
            self.done += 1
        else:
            self.stop.wait(self.settings.pause)
            consumer.give_back(arrived.delivery_tag)


def client_name() -> str:
    """Return a name for a queue without a configured one: the machine's."""
    return re.sub(r"[^A-Za-z0-9-]+", "-", socket.gethostname()) or "listener"

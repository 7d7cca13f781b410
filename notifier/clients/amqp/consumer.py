# SPDX-License-Identifier: GPL-2.0-or-later
"""The receiver's side of one queue.

The broker keeps every message until the consumer acknowledges it. The consumer has a connection of its own, because a broker that
blocks a publisher reads nothing more from the publisher's connection, not even an acknowledgement.
"""

import contextlib
import time
from collections.abc import Callable
from typing import Any

from hgext.vcsreplicator.words.errors import counted

from .connection import LARGEST_MESSAGE, TROUBLE, connect, drain, limiting_waits, translated

# Seconds between two heartbeats that a busy caller sends.
_BEAT_EVERY = 1.0


class QueueConsumer:
    """Messages of the queue on one connection, until it breaks; for one thread.

    Every method but `close` raises Unavailable.
    """

    def __init__(
        self,
        known: Any,
        place: str,
        queue: str,
        *,
        declare: Callable[[Any], None],
        prefetch: int,
        largest: int = LARGEST_MESSAGE,
        drops_larger: bool = False,
        is_exclusive: bool = False,
    ) -> None:
        """Connect to the broker, declare, and consume; errors name `place`.

        `known` is kombu's description of the broker. At most `prefetch` messages are unacknowledged at once; one more breaks the
        connection. So does a message of more than `largest` bytes, which comes without its body instead if `drops_larger`. Raises
        BrokerRefusal if the broker refuses, which waiting may not solve.
        """
        self._place, self._arrived = place, list[Any]()
        # The tags of messages without an acknowledgement, oldest first.
        self._prefetch, self._unsettled = prefetch, list[int]()
        self._kept_alive_at = time.monotonic()
        with translated(place):
            self._connection = connect(known)
        try:
            self._transport = self._connection.transport
            self._transport.largest_message, self._transport.drops_larger = largest, drops_larger
            with translated(place), limiting_waits(self._connection):
                self._channel = self._connection.channel()
                self._channel.auto_decode = False  # the sender would choose the codec, and some take very long
                declare(self._channel)
                self._channel.basic_qos(0, prefetch, False)
                self._channel.basic_consume(queue, callback=self._take_message, exclusive=is_exclusive)
        except BaseException:
            self._connection.collect()
            raise

    def receive(self, timeout: float, limit: int | None = None) -> list[Any]:
        """Return the messages that came, at most `limit`, and keep the connection alive.

        Returns [] if none came within `timeout` seconds. If the body of a message was dropped, `dropped` has the number of its
        bytes.
        """
        with translated(self._place):
            if limit is None or len(self._arrived) < limit:
                drain(self._connection, 0 if self._arrived else timeout)
            self._connection.heartbeat_tick()
        found = self._arrived[:limit]
        del self._arrived[:limit]
        return found

    def keep_alive(self) -> None:
        """Send the broker a heartbeat, and look for the broker's.

        Does so at most once a second. A caller that is busy for longer must call this meanwhile, because brokers close silent
        connections. Arriving messages wait for `receive`.
        """
        now = time.monotonic()
        if now - self._kept_alive_at < _BEAT_EVERY:
            return
        self._kept_alive_at = now
        with translated(self._place):
            drain(self._connection, 0)  # first: else the broker's heartbeats would be missing
            self._connection.heartbeat_tick()

    def acknowledge(self, tag: int, *, multiple: bool = False) -> None:
        """Acknowledge a message; with `multiple` all up to it."""
        with translated(self._place), limiting_waits(self._connection):
            self._channel.basic_ack(tag, multiple=multiple)
        if multiple:
            self._unsettled = [each for each in self._unsettled if each > tag]
        elif tag in self._unsettled:
            self._unsettled.remove(tag)

    def give_back(self, tag: int) -> None:
        """Put a message back into the queue."""
        with translated(self._place), limiting_waits(self._connection):
            self._channel.basic_reject(tag, requeue=True)
        if tag in self._unsettled:
            self._unsettled.remove(tag)

    def declare(self, declare: Callable[[Any], None]) -> None:
        """Declare again while consuming; arriving messages wait for `receive`."""
        with translated(self._place), limiting_waits(self._connection):
            declare(self._channel)

    def finish(self) -> None:
        """Close the connection in agreement, so that the last acknowledgement arrives."""
        with translated(self._place), limiting_waits(self._connection):
            self._connection.close()

    def _take_message(self, message: Any) -> None:
        if len(self._unsettled) >= self._prefetch:
            raise ConnectionAbortedError(f"more than {counted(self._prefetch, 'message')} without an acknowledgement")
        if self._unsettled and message.delivery_tag <= self._unsettled[-1]:
            raise ConnectionAbortedError("the tag of a message is not above the one before")
        self._unsettled.append(message.delivery_tag)
        message.dropped = self._transport.dropped
        self._arrived.append(message)

    def close(self) -> None:
        """Drop the connection; unacknowledged messages come again."""
        with contextlib.suppress(*TROUBLE):
            self._connection.collect()


def body_of(message: Any) -> bytes:
    """Return the body of a received message as bytes.

    py-amqp has an empty body as a string, and Celery's connection also each body that its sender declared as text.
    """
    body = message.body
    return body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body)

# SPDX-License-Identifier: GPL-2.0-or-later
"""The receiver's side of one queue: the broker keeps every message until it is acknowledged.

A connection of its own: a broker that blocks a publisher reads nothing more from that connection, no acknowledgement either.
"""

import contextlib
from collections.abc import Callable
from typing import Any

from .connection import LARGEST_MESSAGE, TROUBLE, connect, drain, translated, within


class QueueConsumer:
    """Messages of the queue on one connection, until it breaks; used by one thread. Every method but `close` raises Unavailable."""

    def __init__(
        self,
        known: Any,
        place: str,
        queue: str,
        *,
        declare: Callable[[Any], None],
        prefetch: int,
        largest: int = LARGEST_MESSAGE,
        is_exclusive: bool = False,
    ) -> None:
        """Connect to the broker that kombu knows, declare, and consume; `place` is named in errors.

        Raises BrokerRefusal, which waiting may not solve. `prefetch` messages are unacknowledged at once.
        """
        self._place, self._arrived = place, list[Any]()
        with translated(place):
            self._connection = connect(known)
        try:
            self._connection.transport.largest_message = largest
            with translated(place), within(self._connection):
                self._channel = self._connection.channel()
                declare(self._channel)
                self._channel.basic_qos(0, prefetch, False)
                self._channel.basic_consume(queue, callback=self._arrived.append, exclusive=is_exclusive)
        except BaseException:
            self._connection.collect()
            raise

    def receive(self, timeout: float, limit: int | None = None) -> list[Any]:
        """Return the messages that came, at most `limit`; [] if none came within `timeout` seconds. Keeps the connection."""
        with translated(self._place):
            self._connection.heartbeat_tick()
            if limit is None or len(self._arrived) < limit:
                drain(self._connection, 0 if self._arrived else timeout)
        found = self._arrived[:limit]
        del self._arrived[:limit]
        return found

    def acknowledge(self, tag: int, *, multiple: bool = False) -> None:
        """Acknowledge a message; with `multiple` all up to it."""
        with translated(self._place), within(self._connection):
            self._channel.basic_ack(tag, multiple=multiple)

    def give_back(self, tag: int) -> None:
        """Put a message back into the queue."""
        with translated(self._place), within(self._connection):
            self._channel.basic_reject(tag, requeue=True)

    def finish(self) -> None:
        """Say goodbye, so that the last acknowledgement arrives."""
        with translated(self._place), within(self._connection):
            self._connection.close()

    def close(self) -> None:
        """Drop the connection; what is not acknowledged comes again."""
        with contextlib.suppress(*TROUBLE):
            self._connection.collect()


def body_of(message: Any) -> bytes:
    """Return the body of a received message, which its sender may have declared as text."""
    body = message.body
    return body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body)

# SPDX-License-Identifier: GPL-2.0-or-later
"""The sender's side of one durable AMQP queue of pushes.

The broker returns what no queue would get: then the queue was deleted, and it is declared again on a new connection. A nack means
that the queue did not take the message, so the message is sent again: there is only one queue, so no other gets a copy by that.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from hgext.vcsreplicator.words.clock import Clock

from .channel import ConfirmedChannel, Target, declare_queues
from .connection import where
from .outgoing import OutgoingMessage
from .settings import BrokerSettings

# Bytes of a queue's name: AMQP counts them in one byte.
MAX_NAME = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings(BrokerSettings):
    """A queue of a broker."""

    queue: str = "hg"

    def __post_init__(self) -> None:
        BrokerSettings.__post_init__(self)
        if not self.queue or len(self.queue.encode()) > MAX_NAME:
            raise ValueError(f"queue: expected a name of 1 to {MAX_NAME} bytes")

    @property
    def place(self) -> str:
        """Broker, virtual host and queue, without the password."""
        return f"{where(self.url)} {self.queue}"


def open_queue(name: str, settings: BrokerSettings, queue: str, clock: Clock) -> ConfirmedChannel:
    """Return a channel to the queue, which is declared once it connects."""
    target = Target(name=queue, declare=lambda channel: declare_queues(channel, queue))
    return ConfirmedChannel(name, settings, target, clock)


def push_message(
    queue: str, message_id: str, body: str | bytes, headers: Mapping[str, str], created: int
) -> OutgoingMessage:
    return OutgoingMessage(
        routing_key=queue, body=body, id=message_id, headers=headers, type="hg-push", timestamp=created
    )

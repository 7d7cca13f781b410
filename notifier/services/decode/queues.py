# SPDX-License-Identifier: GPL-2.0-or-later
"""The decoder's queues of an AMQP broker: its input, and its outputs.

All are durable, and declared at start. A lost connection raises Unavailable; on the next connection the broker delivers again
what was not acknowledged. The decoder waits for a broker that blocks publishers, until the decoder is stopped.
"""

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence

from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import Unavailable

from ...clients.amqp.channel import ConfirmedChannel, Target, declare_queues
from ...clients.amqp.connection import where
from ...clients.amqp.consumer import QueueConsumer
from ...clients.amqp.outgoing import OutgoingMessage
from ...clients.amqp.settings import BrokerSettings, check_credentials
from ...messages.raw import RawMessage, to_line
from .settings import DecodeSettings

# The section, and who the broker's connections and metrics say that they belong to.
_NAME = "decode"

# Seconds within which the broker confirms what was published.
_CONFIRMED_WITHIN = 30.0

# Seconds that one wait for confirmations may last.
_BLINK = 0.2


class OutputQueues:
    """The queues of the outputs, on one connection."""

    def __init__(
        self,
        settings: DecodeSettings,
        names: Sequence[str],
        stop: threading.Event,
        clock: Clock,
        *,
        user: str = _NAME,
        label: str = "outputs",
    ) -> None:
        target = Target(name=label, declare=lambda channel: declare_queues(channel, *sorted(set(names))))
        self._channel = ConfirmedChannel(user, _make_broker(settings), target, clock)
        self._stop, self._numbers = stop, itertools.count()

    def keep_connected(self) -> None:
        """Connect if need be, and send the broker a heartbeat; raises Unavailable."""
        self._channel.start()
        self._channel.outcomes(0)

    def keep_alive(self) -> None:
        """Send the broker a heartbeat, if connected."""
        self._channel.outcomes(0)

    def publish(self, messages: Sequence[OutgoingMessage], keep_alive: Callable[[], None] = lambda: None) -> None:
        """Publish all messages; return once the broker has confirmed all.

        Calls `keep_alive` repeatedly meanwhile. Raises Unavailable; then the broker may have some of the messages.
        """
        unsent, unconfirmed = deque(messages), set[int]()
        while unsent or unconfirmed:
            keep_alive()
            if unsent and not self._channel.is_blocked:
                number = next(self._numbers)
                self._channel.send(number, unsent.popleft())
                unconfirmed.add(number)
                continue
            for outcome in self._channel.outcomes(_BLINK):
                if outcome.error is not None:
                    raise outcome.error
                unconfirmed.discard(outcome.number)
            if self._channel.is_blocked and self._stop.is_set():
                raise Unavailable("the broker blocks publishers; look for its memory and disk alarms")

    def close(self) -> None:
        self._channel.close()


class InputQueue(OutputQueues):
    """The queue of the decoder's input, for a destination that writes to it.

    `user` is the name of the notifier's destination. The methods keep the promises of `InputTopic`.
    """

    def __init__(self, settings: DecodeSettings, queue: str, clock: Clock, user: str) -> None:
        self._queue, self._closing = queue, threading.Event()
        super().__init__(settings, [queue], self._closing, clock, user=user, label=queue)

    def start(self) -> None:
        self.keep_connected()

    def put(self, messages: Sequence[tuple[str, RawMessage]]) -> None:
        try:
            self.publish(
                [OutgoingMessage(routing_key=self._queue, body=to_line(raw), id=name) for name, raw in messages]
            )
        except Unavailable:
            self.close()  # so that the next call uses a new connection
            raise

    def interrupt(self) -> None:
        self._closing.set()


def open_input(settings: DecodeSettings, queue: str, prefetch: int) -> QueueConsumer:
    """Declare and consume the queue of the input; raises Unavailable."""
    broker = _make_broker(settings)
    return QueueConsumer(
        broker.client(_NAME),
        f"{where(broker.url)} {queue}",
        queue,
        declare=lambda channel: declare_queues(channel, queue),
        prefetch=prefetch,
    )


def publish_raw(settings: DecodeSettings, messages: Sequence[tuple[str, RawMessage]], clock: Clock) -> None:
    """Publish raw messages, each to its queue, and wait for the confirmations.

    Does not wait for a broker that is unavailable or blocks publishers. Raises BadConfig, or Unavailable; then the broker may
    have some of the messages.
    """
    check_broker(settings)
    stop = threading.Event()
    stop.set()
    with contextlib.closing(OutputQueues(settings, [queue for queue, _ in messages], stop, clock)) as queues:
        queues.keep_connected()
        queues.publish(
            [
                OutgoingMessage(routing_key=queue, body=to_line(raw), id=str(number))
                for number, (queue, raw) in enumerate(messages)
            ]
        )


def check_broker(settings: DecodeSettings) -> None:
    """Raise BadConfig if the password cannot be read, or the broker refuses it."""
    check_credentials(_make_broker(settings), _NAME, url_key="broker", password_key="broker-password")


def _make_broker(settings: DecodeSettings) -> BrokerSettings:
    assert settings.broker is not None
    return BrokerSettings(
        url=settings.broker,
        password=settings.broker_password,
        ca_file=settings.broker_ca_file,
        confirm_timeout=_CONFIRMED_WITHIN,
    )

# SPDX-License-Identifier: GPL-2.0-or-later
"""A channel whose messages the broker confirms.

Its users decide what is declared, and what a refused message means (`Target`). Every wait has a limit (`connection`), because a
stopped broker keeps its sockets open. Every new connection declares again. While a broker blocks publishers (its memory or disk
alarm), the channel waits on the same connection: a new one would send again messages that the broker already has. From a blocked
connection RabbitMQ reads no acknowledgements either, so a consumer has a connection of its own.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog
from amqp import Message
from amqp.exceptions import NotFound, PreconditionFailed
from amqp.serialization import dumps
from prometheus_client import Counter, Gauge

from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import Rejected, Unavailable

from ...delivery.destination import DeliveryOutcome
from .confirms import Confirms
from .connection import TROUBLE, connect, describe_error, drain, limiting_waits, translated, where
from .outgoing import OutgoingMessage
from .settings import BrokerSettings

# Seconds after a nack at which the broker must still answer: a failing one sends nacks before it closes the connection.
NACK_PATIENCE = 0.2

# Seconds between two alarms about queues that refuse.
NACK_ALARM_EVERY = 600.0

# Seconds between two looks at the heartbeats.
_BEAT_EVERY = 1.0

# Bytes of messages that are held until they go to the broker together.
_AT_ONCE = 64 * 1024

UNROUTABLE = Counter("vcsreplicator_notifier_unroutable_messages", "Returned: no queue is bound", ["destination"])
REFUSED = Counter(
    "vcsreplicator_notifier_refused_by_a_queue_messages", "Nacked: a queue did not take it", ["destination"]
)
BLOCKED = Gauge("vcsreplicator_notifier_blocked_flag", "1 while the broker blocks publishers (alarm)", ["destination"])

logger = structlog.get_logger()

_NACKED = "a queue does not take messages (nack): look for a full one with x-overflow=reject-publish"
_UNROUTABLE = Rejected("no queue is bound for its routing key (mandatory)")


class OnNack(enum.StrEnum):
    """The fate of a message that a queue did not take."""

    PASS = "pass"
    RETRY = "retry"


class OnReturn(enum.Enum):
    """The fate of a message that no queue would get."""

    PASS = enum.auto()
    REJECT = enum.auto()
    DECLARE_AGAIN = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The target of messages.

    `declare` declares it on a new connection; `on_nack` and `on_return` say what the broker's refusals mean. `exchange` is a
    durable topic exchange: messages that find another kind of exchange there are sent again once it is right.
    """

    name: str
    declare: Callable[[Any], None]
    exchange: str | None = None
    on_nack: OnNack = OnNack.RETRY
    on_return: OnReturn = OnReturn.DECLARE_AGAIN


class ConfirmedChannel:
    """A channel that sends durable messages to the target; for one thread."""

    def __init__(self, name: str, settings: BrokerSettings, target: Target, clock: Clock) -> None:
        self.name, self.settings, self.target, self.clock = name, settings, target, clock
        self._connection: Any = None  # of amqp
        self._channel: Any = None
        self._held: list[tuple[OutgoingMessage, Message]] = []
        self._held_bytes = 0
        self._confirms = Confirms()
        self._nack_reported_at = float("-inf")
        self._outcomes: list[DeliveryOutcome] = []
        self._is_target_gone = False
        self._beat_at = 0.0
        self.is_blocked = False
        # Since when no queue is known to get a message: the target was gone. Its user sets it, and sends `mandatory` then: AMQP has
        # no other question about an exchange's bindings. One binding ends it; a restart forgets it.
        self.unrouted_since: float | None = None
        for counter in (UNROUTABLE, REFUSED):
            counter.labels(name)  # begins at 0, so that a rule sees the first one

    def start(self) -> None:
        """Connect and declare the target, unless connected; raise Unavailable."""
        if self._connection is not None:
            return
        known = self.settings.client(self.name, on_blocked=self._on_blocked, on_unblocked=self._on_unblocked)
        try:
            with translated(self._target_name):
                self._connection = connect(known)
                with limiting_waits(self._connection):
                    channel = self._channel = self._connection.channel()
                    self.target.declare(channel)
                    channel.confirm_select()
        except Unavailable:
            self.close()
            raise
        channel.events["basic_ack"].add(self._on_ack)
        channel.events["basic_nack"].add(self._on_nack)
        channel.events["basic_return"].add(self._on_returned)
        self._beat_at = self.clock.monotonic()
        logger.info("connected", broker=self._target_name)

    def check_takes(self) -> None:
        """Raise Unavailable unless the broker takes messages; connect if need be."""
        self.start()
        if self.is_blocked:
            raise Unavailable(f"{self._target_name}: the broker blocks publishers; look for its memory and disk alarms")

    def send(self, number: int, message: OutgoingMessage) -> None:
        """Begin to send the delivery `number`, together with others until `outcomes`.

        Raises Unavailable; then nothing was sent.
        """
        self.check_takes()
        content = _make_content(message)
        self._held.append((message, content))
        self._held_bytes += len(content.body)
        self._confirms.send(number, message.id, self.clock.monotonic())
        if self._held_bytes >= _AT_ONCE:
            try:
                self._flush()
            except TROUBLE as error:
                self._lose_connection(error)

    def outcomes(self, timeout: float) -> list[DeliveryOutcome]:
        """Return the known results, waiting up to `timeout` seconds for one.

        Without messages, the call keeps the connection alive.
        """
        if self._connection is not None:
            try:
                self._flush()
                drain(self._connection, 0 if self._outcomes else timeout)
                self._check_signs_of_life()
                self._pass_nacked()
            except TROUBLE as error:
                self._lose_connection(error)
        found, self._outcomes = self._outcomes, []
        return found

    def close(self) -> None:
        """Drop the connection without a closing message, which would need an answer."""
        self._confirms, self._held, self._held_bytes, self._is_target_gone = Confirms(), [], 0, False
        connection, self._connection, self._channel = self._connection, None, None
        self.is_blocked = False
        BLOCKED.labels(self.name).set(0)
        if connection is not None:
            try:
                connection.collect()
            except Exception as error:  # the connection is given up anyway
                logger.debug("connection not closed", reason=str(error))

    @property
    def _target_name(self) -> str:
        return f"{where(self.settings.url)} {self.target.name}"

    def _flush(self) -> None:
        """Write the messages that are held, unless the broker says that it takes nothing."""
        if not self._held:
            return
        drain(self._connection, 0)
        if not self.is_blocked:
            held, self._held, self._held_bytes = self._held, [], 0
            if (exchange := self.target.exchange) is not None:
                # The broker answers with nothing but the end of the channel, unless this durable topic exchange exists. The first
                # question keeps the second from making it.
                self._channel.exchange_declare(exchange, "topic", passive=True, auto_delete=False, nowait=True)
                self._channel.exchange_declare(exchange, "topic", durable=True, auto_delete=False, nowait=True)
            for message, content in held:
                self._channel.basic_publish(
                    content,
                    message.exchange,
                    message.routing_key,
                    message.mandatory,
                    timeout=self.settings.confirm_timeout,
                )

    def _check_signs_of_life(self) -> None:
        now = self.clock.monotonic()
        if self._is_target_gone:
            raise ConnectionAbortedError("the queue was deleted; it is declared again")
        if now - self._beat_at > _BEAT_EVERY:
            self._beat_at = now
            self._connection.heartbeat_tick()
        since = self._confirms.oldest_since()
        if since is not None and not self.is_blocked and now - since > self.settings.confirm_timeout:
            raise TimeoutError(f"no confirmation for {self.settings.confirm_timeout:g} s")

    def _on_ack(self, tag: int, multiple: bool) -> None:
        for number, was_returned in self._confirms.confirm(tag, multiple=multiple):
            self._outcomes.append(
                DeliveryOutcome(number=number, error=self._returned_error() if was_returned else None)
            )
            if not was_returned:
                self.unrouted_since = None

    def _returned_error(self) -> Rejected | Unavailable | None:
        if self.target.on_return is OnReturn.PASS:
            return None
        if self.target.on_return is OnReturn.REJECT:
            return _UNROUTABLE
        self._is_target_gone = True
        return Unavailable(f"{self._target_name}: no such queue")

    def _on_nack(self, tag: int, multiple: bool) -> None:
        for number, _ in self._confirms.confirm(tag, multiple=multiple):
            REFUSED.labels(self.name).inc()
            if self.target.on_nack is OnNack.RETRY:
                self._outcomes.append(
                    DeliveryOutcome(number=number, error=Unavailable(f"{self._target_name}: {_NACKED}"))
                )
            else:
                self._confirms.hold_nacked(number, self.clock.monotonic())

    def _pass_nacked(self) -> None:
        """Confirm nacked deliveries if the broker is well: other queues have them then."""
        now = self.clock.monotonic()
        due = self._confirms.nacked_before(now - NACK_PATIENCE)
        if not due or self.is_blocked:
            return
        with limiting_waits(self._connection):
            self.target.declare(self._channel)
        self._confirms.release_nacked(due)
        self._outcomes += [DeliveryOutcome(number=number) for number in due]
        if now - self._nack_reported_at >= NACK_ALARM_EVERY:
            self._nack_reported_at = now
            logger.error(_NACKED, broker=self._target_name, messages=len(due))

    def _on_returned(self, error: Any, exchange: str, key: str, message: Any) -> None:
        """Record a returned message; its confirmation comes after this."""
        UNROUTABLE.labels(self.name).inc()
        self._confirms.mark_returned(message.properties.get("message_id", ""))

    def _on_blocked(self, reason: str) -> None:
        self.is_blocked = True
        BLOCKED.labels(self.name).set(1)
        logger.warning("broker blocks publishers", broker=self._target_name)

    def _on_unblocked(self) -> None:
        self.is_blocked = False
        BLOCKED.labels(self.name).set(0)
        self._confirms.restart_waits(self.clock.monotonic())
        logger.info("broker takes messages again", broker=self._target_name)

    def _lose_connection(self, error: BaseException) -> None:
        """Disconnect; unconfirmed messages may have arrived, and end as Unavailable."""
        trouble = Unavailable(f"{self._target_name}: {describe_error(error)}")
        self._outcomes += [DeliveryOutcome(number=number, error=trouble) for number in self._confirms.unknown()]
        self.close()


def _make_content(message: OutgoingMessage) -> Message:
    """Return a message as py-amqp sends it.

    Raises struct.error if AMQP cannot carry it, which would end the connection if py-amqp found it out: a name of more than 255
    bytes, a number of more than 64 bits.
    """
    names = (message.exchange, message.routing_key, message.id, message.type)
    dumps("ssssFL", (*names, message.headers, message.timestamp or 0))
    return Message(
        message.body.encode() if isinstance(message.body, str) else message.body,
        content_type="application/json",
        content_encoding="utf-8",
        application_headers=dict(message.headers),
        delivery_mode=2,
        message_id=message.id,
        timestamp=message.timestamp,
        type=message.type,
    )


def lacks_exchange(channel: Any, name: str) -> bool:
    """Ask the broker whether an exchange is missing.

    The question has a channel of its own: the broker closes it then, and py-amqp opens it again.
    """
    asking = channel.connection.channel()
    try:
        asking.exchange_declare(name, "topic", passive=True)
    except NotFound:
        return True
    else:
        return False
    finally:
        asking.close()


def declare_queues(channel: Any, *names: str) -> None:
    """Declare durable queues without arguments.

    A queue that an operator has declared otherwise (quorum, with limits) is used as it is, with a warning.
    """
    for name in names:
        declare_queue(channel, name, durable=True, auto_delete=False)


def declare_queue(channel: Any, name: str, **form: Any) -> None:
    """Declare a queue of this form; use one of another form as it is, with a warning.

    The channel must be new: for another form the broker closes it, and py-amqp opens it again.
    """
    try:
        channel.queue_declare(name, **form)
    except PreconditionFailed as error:
        channel.queue_declare(name, passive=True)
        logger.warning("the queue has other arguments; it is used as it is", queue=name, reason=describe_error(error))

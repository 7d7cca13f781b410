# SPDX-License-Identifier: GPL-2.0-or-later
"""A channel to one exchange, whose messages the broker confirms.

Nothing waits without a limit (`amqp`), because a stopped broker keeps its sockets open. Whichever side closed the connection, the
next one declares the exchange again.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from prometheus_client import Counter, Gauge

from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import BadConfig, Rejected, Unavailable

from ..destination import DeliveryOutcome
from ..secret import Secret
from .amqp import TROUBLE, client, connect, drain, where, within
from .confirms import Confirms

# Seconds after a nack at which the broker must still answer: one that breaks sends nacks first and closes the
# connection then.
NACK_PATIENCE = 0.2

# Seconds between two alarms about queues that refuse.
NACK_ALARM_EVERY = 600.0

UNROUTABLE = Counter("vcsreplicator_notifier_unroutable_messages", "Returned: no queue is bound", ["destination"])
REFUSED = Counter(
    "vcsreplicator_notifier_refused_by_a_queue_messages",
    "Nacked: a queue did not take it, the others did",
    ["destination"],
)
BLOCKED = Gauge("vcsreplicator_notifier_blocked_flag", "1 while the broker blocks publishers (alarm)", ["destination"])

logger = structlog.get_logger()

_NACKED = (
    "a queue does not take messages (nack), the others have them: look for a full one with x-overflow=reject-publish"
)
_UNROUTABLE = Rejected("no queue is bound for its routing key (mandatory)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSettings:
    """What of the settings of a destination concerns its exchange; `PulseSettings` describes each."""

    url: str
    exchange: str
    password: Secret | None = None
    ca_file: str | None = None
    declare: bool = True
    mandatory: bool = False
    on_nack: str = "pass"
    confirm_timeout: float = 10.0
    heartbeat: float = 20.0


class ExchangeChannel:
    """Publishes to the exchange; used by one thread."""

    def __init__(self, name: str, settings: ExchangeSettings, clock: Clock) -> None:
        self.name, self.settings, self.clock = name, settings, clock
        self._connection: Any = None  # of amqp
        self._channel: Any = None
        self._confirms = Confirms()
        self._nack_reported_at = float("-inf")
        self._outcomes: list[DeliveryOutcome] = []
        self._blocked = False
        self._beat_at = 0.0

    def start(self) -> None:
        """Connect and declare the exchange, unless connected; raise Unavailable."""
        if self._connection is None:
            self._connect()

    def publish(
        self, number: int, key: str, text: str, headers: Mapping[str, Any], properties: Mapping[str, Any]
    ) -> None:
        """Begin to send the delivery `number`; raise Unavailable, then nothing was sent."""
        self.start()
        if self._blocked:
            raise Unavailable(f"{self._where}: the broker blocks publishers; look for its memory and disk alarms")
        prepared = self._channel.prepare_message(
            text, content_type="application/json", content_encoding="utf-8", headers=headers, properties=properties
        )
        prepared._serialize_properties()  # what AMQP cannot carry is a fault of the message; below it would cost the connection
        self._confirms.send(number, properties["message_id"], self.clock.monotonic())
        try:
            self._channel.basic_publish(
                prepared,
                exchange=self.settings.exchange,
                routing_key=key,
                mandatory=self.settings.mandatory,
                timeout=self.settings.confirm_timeout,
            )
        except TROUBLE as error:
            self._lose_connection(error)

    def outcomes(self, timeout: float) -> list[DeliveryOutcome]:
        """Return the known results, waiting up to `timeout` seconds for one."""
        if self._connection is not None:
            try:
                drain(self._connection, 0 if self._outcomes else timeout)
                self._check_signs_of_life()
                self._pass_nacked()
            except TROUBLE as error:
                self._lose_connection(error)
        found, self._outcomes = self._outcomes, []
        return found

    @property
    def _where(self) -> str:
        return f"{where(self.settings.url)} {self.settings.exchange}"

    def _connect(self) -> None:
        """Connect and declare; raise Unavailable."""
        try:
            password = None if self.settings.password is None else self.settings.password.read()
        except BadConfig as error:
            raise Unavailable(str(error)) from error
        known = client(
            self.settings.url,
            password=password,
            ca_file=self.settings.ca_file,
            heartbeat=self.settings.heartbeat,
            properties={"product": "vcsreplicator", "destination": self.name},
            on_blocked=self._on_blocked,
            on_unblocked=self._on_unblocked,
        )
        try:
            self._connection = connect(known)
            with within(self._connection):
                self._open_channel()
        except TROUBLE as error:
            self.close()
            raise Unavailable(f"{self._where}: {_describe_error(error)}") from error
        logger.info("connected", broker=self._where)

    def _open_channel(self) -> None:
        channel = self._channel = self._connection.channel()
        channel.exchange_declare(
            self.settings.exchange, "topic", durable=True, auto_delete=False, passive=not self.settings.declare
        )
        channel.confirm_select()
        channel.events["basic_ack"].add(self._on_ack)
        channel.events["basic_nack"].add(self._on_nack)
        channel.events["basic_return"].add(self._on_returned)
        self._blocked = False
        self._beat_at = self.clock.monotonic()

    def _check_signs_of_life(self) -> None:
        now = self.clock.monotonic()
        if now - self._beat_at > 1.0:
            self._beat_at = now
            self._connection.heartbeat_tick()
        since = self._confirms.oldest_since()
        if since is not None and not self._blocked and now - since > self.settings.confirm_timeout:
            raise TimeoutError(f"no confirmation for {self.settings.confirm_timeout:g} s")

    def _on_ack(self, tag: int, multiple: bool) -> None:
        for number, returned in self._confirms.confirm(tag, multiple=multiple):
            self._outcomes.append(DeliveryOutcome(number=number, error=_UNROUTABLE if returned else None))

    def _on_nack(self, tag: int, multiple: bool) -> None:
        for number, _ in self._confirms.confirm(tag, multiple=multiple):
            REFUSED.labels(self.name).inc()
            if self.settings.on_nack == "retry":
                self._outcomes.append(DeliveryOutcome(number=number, error=Unavailable(f"{self._where}: {_NACKED}")))
            else:
                self._confirms.hold_nacked(number, self.clock.monotonic())

    def _pass_nacked(self) -> None:
        """Confirm nacked deliveries if the broker is well: then all other queues have them."""
        now = self.clock.monotonic()
        due = self._confirms.nacked_before(now - NACK_PATIENCE)
        if not due or self._blocked:
            return
        with within(self._connection):
            self._channel.exchange_declare(self.settings.exchange, "topic", durable=True, passive=True)
        self._confirms.release_nacked(due)
        self._outcomes += [DeliveryOutcome(number=number) for number in due]
        if now - self._nack_reported_at >= NACK_ALARM_EVERY:
            self._nack_reported_at = now
            logger.error(_NACKED, broker=self._where, messages=len(due))

    def _on_returned(self, error: Any, exchange: str, key: str, message: Any) -> None:
        """Note a returned message; its confirmation comes after this."""
        UNROUTABLE.labels(self.name).inc()
        self._confirms.note_returned(message.properties.get("message_id", ""))

    def _on_blocked(self, reason: str) -> None:
        self._blocked = True
        BLOCKED.labels(self.name).set(1)
        logger.warning("broker blocks publishers", broker=self._where)

    def _on_unblocked(self) -> None:
        self._blocked = False
        BLOCKED.labels(self.name).set(0)
        self._confirms.restart_waits(self.clock.monotonic())

    def _lose_connection(self, error: BaseException) -> None:
        """Disconnect; what is unconfirmed, and may have arrived, is unavailable and sent again."""
        trouble = Unavailable(f"{self._where}: {_describe_error(error)}")
        self._outcomes += [DeliveryOutcome(number=number, error=trouble) for number in self._confirms.unknown()]
        self.close()

    def close(self) -> None:
        """Drop the connection; a closing message would wait for an answer."""
        self._confirms = Confirms()
        connection, self._connection, self._channel = self._connection, None, None
        self._blocked = False
        BLOCKED.labels(self.name).set(0)
        if connection is not None:
            try:
                connection.collect()
            except Exception as error:  # the connection is given up anyway
                logger.debug("connection not closed", reason=str(error))


def _describe_error(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return json.dumps(text)[1:-1][:300]

# SPDX-License-Identifier: GPL-2.0-or-later
"""Pulse: messages to a topic exchange of an AMQP 0-9-1 broker.

The broker confirms each message. Each is sent at least once.

v1 and v2 are two destinations with two connections: a failure of one never repeats a message of the other. Confirmations are
pipelined. If one does not come within `confirm_timeout`, the connection is dropped, and everything unconfirmed is sent again on
the next.

A negative confirmation (nack) names neither queue nor reason: the broker sends it when at least one bound queue did not take the
message, and the others have it. So a nack is one queue's own affair as long as the broker is well, and must not lead to copies
for the others: after `NACK_PATIENCE` a request shows whether the broker is well (`on_nack`). A full queue with `reject-publish`
gives a nack for each message, a crash of a queue's process one; a crash of the virtual host's store also closes the connection.

The broker would answer some faults of a message (routing key, size) by closing the channel, which would cost every other message,
too. So this destination refuses such a message before I/O.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from prometheus_client import Counter

from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import Rejected, quote_value
from hgext.vcsreplicator.words.records import ServiceTrouble
from hgext.vcsreplicator.words.shape import Bytes, within
from hgext.vcsreplicator.words.streams import Stream

from ...clients.amqp.channel import ConfirmedChannel, OnNack, OnReturn, Target, lacks_exchange
from ...clients.amqp.outgoing import HeaderValue, OutgoingMessage
from ...clients.amqp.settings import BrokerSettings
from ...delivery.destination import DOCUMENTED, DeliveryOutcome, Destination
from ...delivery.window import PATIENCE, Delivery, Patience
from ...messages.message import Message
from .message import body, payload, routing_key, shortened

# Bytes that a message on Pulse should not exceed.
POLITE_BYTES = 8 * 1024

# Bytes of a routing key: AMQP counts them in one byte.
MAX_KEY = 255

logger = structlog.get_logger()

LARGE = Counter("vcsreplicator_notifier_large_messages", "Messages over 8 kB", ["destination"])
_EXCHANGE = re.compile(r"exchange/[^/\s]+/\S+\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class PulseSettings(BrokerSettings):
    """One exchange of one broker.

    `exchange` is `exchange/<clientId>/<name>`, topic and durable; with `declare` false it must exist. `stream` is the form: `v1`
    (pushes only) or `v2` (all types). The routing key is the repository's URL less `routing_key_strip_prefix` (default: less
    scheme and host). `cc` are more routing keys, in which `{type}` and `{key}` are replaced. `mandatory` refuses messages that no
    queue would get. `on_nack` is what becomes of a message that a queue did not take: `pass` (delivered to the others) or `retry`
    (sent again until all take it, at the price of repeats for the others). `shorten` leaves lists out of messages over 8 kB. A
    body has at most `max_bytes`.
    """

    exchange: str
    declare: bool = True
    mandatory: bool = False
    on_nack: OnNack = OnNack.PASS
    stream: str = "v2"
    routing_key_strip_prefix: str | None = None
    cc: tuple[str, ...] = ()
    shorten: bool = False
    max_bytes: Bytes = 4 * 1024 * 1024
    types: tuple[str, ...] = DOCUMENTED
    start_at: str = "beginning"
    patience: Patience = PATIENCE

    def __post_init__(self) -> None:
        if not _EXCHANGE.match(self.exchange) or len(self.exchange.encode()) > MAX_KEY:
            raise ValueError(f"exchange: expected exchange/<clientId>/<name>, got {quote_value(self.exchange)}")
        BrokerSettings.__post_init__(self)
        if self.stream not in ("v1", "v2"):
            raise ValueError(f"stream: expected v1 or v2, got {quote_value(self.stream)}")
        if self.stream == "v1":
            if self.types not in (DOCUMENTED, _V1_TYPES):
                raise ValueError("types: the stream v1 has changegroup.1 only")
            object.__setattr__(self, "types", _V1_TYPES)
        within(self, max_bytes=(1, 2**31))
        for template in self.cc:
            try:
                template.format(type="", key="")
            except (LookupError, ValueError, AttributeError, TypeError):
                raise ValueError(f"cc: expected text with {{type}} or {{key}}, got {quote_value(template)}") from None

    def open(self, name: str, clock: Clock, log: Log) -> Destination:
        return Pulse(name, self, clock)


_V1_TYPES = (Stream.CHANGEGROUP.value,)


class Pulse:
    """The destination `pulse`."""

    def __init__(self, name: str, settings: PulseSettings, clock: Clock) -> None:
        self.name, self.settings, self.clock = name, settings, clock
        target = Target(
            name=settings.exchange,
            declare=self._declare,
            exchange=settings.exchange if settings.declare else None,
            on_nack=settings.on_nack,
            on_return=OnReturn.REJECT if settings.mandatory else OnReturn.PASS,
        )
        self._channel = ConfirmedChannel(name, settings, target, clock)
        self._refused: list[DeliveryOutcome] = []
        self._was_there = False

    def start(self) -> None:
        self._channel.start()

    def submit(self, delivery: Delivery) -> None:
        message = delivery.message
        key = routing_key(message, self.settings.routing_key_strip_prefix)
        text = self._write_body(message, key)
        problem = self._find_problem(key, text)
        if problem is not None:
            self._refused.append(DeliveryOutcome(number=delivery.number, error=Rejected(problem)))
            return
        self._channel.start()  # by which it is known whether the exchange was gone
        outgoing = OutgoingMessage(
            exchange=self.settings.exchange,
            routing_key=key,
            body=text,
            id=message.id,
            headers=self._write_headers(message, key),
            type=message.type.value,
            timestamp=int(message.created),
            mandatory=self.settings.mandatory or self._channel.unrouted_since is not None,
        )
        self._channel.send(delivery.number, outgoing)

    def outcomes(self, timeout: float) -> Sequence[DeliveryOutcome]:
        found, self._refused = self._refused, []
        return found + self._channel.outcomes(0 if found else timeout)

    def close(self) -> None:
        self._channel.close()

    def find_troubles(self) -> Sequence[ServiceTrouble]:
        """Name an exchange that was gone, until a queue gets a message of it."""
        if self._channel.unrouted_since is None:
            return ()
        text = (
            f"destination {self.name}: {self.settings.exchange} was gone and was made again without its bindings, and no "
            "queue has got a message since: consumers must bind their queues again"
        )
        return [ServiceTrouble(text=text, since=self._channel.unrouted_since)]

    def _declare(self, channel: Any) -> None:
        """Declare the exchange; note that it was gone, if it was there before."""
        name, passive = self.settings.exchange, not self.settings.declare
        if self._was_there and not passive and lacks_exchange(channel, name):
            logger.error("the exchange was gone and is made again, without its bindings", exchange=name)
            if self._channel.unrouted_since is None:
                self._channel.unrouted_since = self.clock.now()
        channel.exchange_declare(name, "topic", durable=True, auto_delete=False, passive=passive)
        self._was_there = True

    def _write_body(self, message: Message, key: str) -> str:
        content = payload(message, self.settings.stream)
        text = body(content, self.settings.exchange, key, self.clock.now())
        if len(text) > POLITE_BYTES:
            LARGE.labels(self.name).inc()
            if self.settings.shorten:
                return body(shortened(content), self.settings.exchange, key, self.clock.now())
        return text

    def _find_problem(self, key: str, text: str) -> str | None:
        for each in (key, *self._copy_keys(key, "")):
            if len(each.encode()) > MAX_KEY:
                return f"routing key {each[:60]}…: {len(each.encode())} bytes, AMQP allows {MAX_KEY}"
        if len(text) > self.settings.max_bytes:
            return f"{len(text)} bytes, max-bytes allows {self.settings.max_bytes}"
        return None

    def _write_headers(self, message: Message, key: str) -> dict[str, HeaderValue]:
        headers: dict[str, HeaderValue] = {"repository": message.repository, "sequence": message.sequence}
        if message.previous is not None:
            headers["previous"] = message.previous
        if message.replay is not None:
            headers["replay"] = message.replay
        if message.signed is not None:
            headers["signed"] = message.signed
        if self.settings.cc:
            headers["CC"] = self._copy_keys(key, message.type.value)
        return headers

    def _copy_keys(self, key: str, kind: str) -> list[str]:
        return [template.format(type=kind, key=key) for template in self.settings.cc]

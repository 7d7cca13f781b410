# SPDX-License-Identifier: GPL-2.0-or-later
"""Pulse: messages to a topic exchange of an AMQP 0-9-1 broker.

The broker confirms each; they are sent at least once.

v1 and v2 are two destinations with two connections: the one failing never repeats the other. Confirmations are pipelined; those
that do not come within `confirm_timeout` cost the connection, and everything unconfirmed is sent again on the next. Whichever
side closed the connection, the next one declares the exchange again.

A negative confirmation (nack) names neither queue nor reason: the broker sends it when at least one bound queue did not take
the message, and the others have it. So it is one queue's own affair as long as the broker is well, and a copy for the others must
not come of it: `on_nack` and docs/decisions/nack-of-one-queue.md.

Rules of this file: nothing waits without a limit (`amqp`), because a stopped broker keeps its sockets open; what the broker would
answer by closing the channel (routing key, size) is refused here, before I/O, for it would cost every other message too.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from prometheus_client import Counter, Gauge

from hgext.vcsreplicator.words.clock import DAY, Clock
from hgext.vcsreplicator.words.errors import BadConfig, Rejected, Unavailable
from hgext.vcsreplicator.words.streams import Stream

from ..destination import DOCUMENTED, DeliveryOutcome, Destination
from ..message import Message
from ..secret import Secret
from ..window import PATIENCE, Delivery, Patience, check_number
from .amqp import TROUBLE, client, connect, drain, is_broker, where, within
from .confirms import Confirms
from .message import body, payload, routing_key, shortened

# What a message on Pulse should not exceed.
POLITE_BYTES = 8 * 1024

# Seconds after a nack at which the broker must still answer: one that breaks sends nacks first and closes the
# connection then.
NACK_PATIENCE = 0.2

# Seconds between two alarms about queues that refuse.
NACK_ALARM_EVERY = 600.0

# Bytes of a routing key: AMQP counts them in one byte.
MAX_KEY = 255

LARGE = Counter("vcsreplicator_notifier_large_messages", "Messages over 8 kB", ["destination"])
UNROUTABLE = Counter("vcsreplicator_notifier_unroutable_messages", "Returned: no queue is bound", ["destination"])
REFUSED = Counter(
    "vcsreplicator_notifier_refused_by_a_queue_messages",
    "Nacked: a queue did not take it, the others did",
    ["destination"],
)
BLOCKED = Gauge("vcsreplicator_notifier_blocked_flag", "1 while the broker blocks publishers (alarm)", ["destination"])

logger = structlog.get_logger()

_EXCHANGE = re.compile(r"exchange/[^/\s]+/\S+\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class PulseSettings:
    """One exchange of one broker.

    `url` as kombu reads it: `amqp://USER@HOST:PORT/VHOST`, or `amqps://`, which verifies the certificate against `ca_file` or the
    system's authorities. `password` has its place outside the file. `exchange` is `exchange/<clientId>/<name>`, topic and
    durable; with `declare` false it must exist. `stream` is the form: `v1` (pushes only) or `v2` (all types). The routing key is
    the repository's URL less `routing_key_strip_prefix` (default: less scheme and host). `cc` are more routing keys, in which
    `{type}` and `{key}` are replaced. `mandatory` refuses messages that no queue would get. `on_nack`: what becomes of a message
    that a queue did not take, `pass` (delivered to the others) or `retry` (sent again until all take it, at the price of repeats
    for the others). `shorten` leaves lists out of messages over 8 kB. `confirm_timeout` and `heartbeat` in seconds, `max_bytes`
    of a body.
    """

    url: str
    exchange: str
    stream: str = "v2"
    password: Secret | None = None
    ca_file: str | None = None
    declare: bool = True
    routing_key_strip_prefix: str | None = None
    cc: tuple[str, ...] = ()
    mandatory: bool = False
    on_nack: str = "pass"
    shorten: bool = False
    confirm_timeout: float = 10.0
    heartbeat: float = 20.0
    max_bytes: int = 4 * 1024 * 1024
    types: tuple[str, ...] = DOCUMENTED
    start_at: str = "beginning"
    patience: Patience = PATIENCE

    def __post_init__(self) -> None:
        if not _EXCHANGE.match(self.exchange) or len(self.exchange.encode()) > MAX_KEY:
            raise ValueError(f"exchange: expected exchange/<clientId>/<name>, got {self.exchange!r}")
        if not is_broker(self.url):
            raise ValueError("url: expected amqp://USER@HOST/VHOST or amqps://…")
        if self.stream not in ("v1", "v2"):
            raise ValueError(f"stream: expected v1 or v2, got {self.stream!r}")
        if self.on_nack not in ("pass", "retry"):
            raise ValueError(f"on_nack: expected pass or retry, got {self.on_nack!r}")
        if self.stream == "v1":
            if self.types not in (DOCUMENTED, _V1_TYPES):
                raise ValueError("types: the stream v1 has changegroup.1 only")
            object.__setattr__(self, "types", _V1_TYPES)
        check_number("confirm_timeout", self.confirm_timeout, 0.001, DAY)
        check_number("heartbeat", self.heartbeat, 1, 3600)
        check_number("max_bytes", self.max_bytes, 1, 2**31)
        for template in self.cc:
            try:
                template.format(type="", key="")
            except (LookupError, ValueError):
                raise ValueError(f"cc: expected text with {{type}} or {{key}}, got {template!r}") from None

    def open(self, name: str, clock: Clock) -> Destination:
        return Pulse(name, self, clock)


_V1_TYPES = (Stream.CHANGEGROUP.value,)


class Pulse:
    """The destination `pulse`."""

    def __init__(self, name: str, settings: PulseSettings, clock: Clock) -> None:
        self.name, self.settings, self.clock = name, settings, clock
        self._connection: Any = None  # of amqp
        self._channel: Any = None
        self._confirms = Confirms()
        self._nack_reported_at = float("-inf")
        self._outcomes: list[DeliveryOutcome] = []
        self._blocked = False
        self._beat_at = 0.0

    def start(self) -> None:
        if self._connection is None:
            self._connect()

    def submit(self, delivery: Delivery) -> None:
        message = delivery.message
        key = routing_key(message, self.settings.routing_key_strip_prefix)
        text = self._write_body(message, key)
        problem = self._find_problem(key, text)
        if problem is not None:
            self._outcomes.append(DeliveryOutcome(number=delivery.number, error=Rejected(problem)))
            return
        self.start()
        if self._blocked:
            raise Unavailable(f"{self._where}: the broker blocks publishers; look for its memory and disk alarms")
        prepared = self._channel.prepare_message(
            text,
            content_type="application/json",
            content_encoding="utf-8",
            headers=self._write_headers(message, key),
            properties=_properties(message),
        )
        prepared._serialize_properties()  # what AMQP cannot carry is a fault of the message; below it would cost the connection
        self._confirms.send(delivery.number, message.id, self.clock.monotonic())
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

    def outcomes(self, timeout: float) -> Sequence[DeliveryOutcome]:
        if self._connection is not None:
            try:
                drain(self._connection, 0 if self._outcomes else timeout)
                self._check_signs_of_life()
                self._pass_nacked()
            except TROUBLE as error:
                self._lose_connection(error)
        found, self._outcomes = self._outcomes, []
        return found

    def close(self) -> None:
        self._disconnect()

    # -- messages

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

    def _write_headers(self, message: Message, key: str) -> dict[str, Any]:
        headers: dict[str, Any] = {"repository": message.repository, "sequence": message.sequence}
        if message.previous is not None:
            headers["previous"] = message.previous
        if message.replay is not None:
            headers["replay"] = message.replay
        if self.settings.cc:
            headers["CC"] = self._copy_keys(key, message.type.value)
        return headers

    def _copy_keys(self, key: str, kind: str) -> list[str]:
        return [template.format(type=kind, key=key) for template in self.settings.cc]

    # -- the connection

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
            self._disconnect()
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
        self._disconnect()

    def _disconnect(self) -> None:
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


_NACKED = (
    "a queue does not take messages (nack), the others have them: look for a full one with x-overflow=reject-publish"
)
_UNROUTABLE = Rejected("no queue is bound for its routing key (mandatory)")


def _properties(message: Message) -> Mapping[str, Any]:
    return {
        "delivery_mode": 2,
        "message_id": message.id,
        "type": message.type.value,
        "timestamp": int(message.created),
    }


def _describe_error(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return json.dumps(text)[1:-1][:300]

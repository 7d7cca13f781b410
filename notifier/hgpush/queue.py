# SPDX-License-Identifier: GPL-2.0-or-later
"""The sender's side of one durable AMQP queue: every message is confirmed, or its outcome is an error.

The broker returns what no queue would get; the queue was deleted then, and is declared again on a new connection. A nack means that
the queue did not take the message, so it is sent again: there is one queue only, and no other gets a copy by that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from amqp.exceptions import AccessRefused

from hgext.vcsreplicator.words.clock import DAY, Clock
from hgext.vcsreplicator.words.errors import BadConfig, Unavailable

from ..destination import DeliveryOutcome
from ..pulse.amqp import TROUBLE, client, connect, drain, is_broker, where, within
from ..pulse.confirms import Confirms
from ..secret import Secret
from ..window import check_number

# Bytes of a queue's name: AMQP counts them in one byte.
MAX_NAME = 255

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """A queue of a broker.

    `url` as kombu reads it: `amqp://USER@HOST:PORT/VHOST`, or `amqps://`, which verifies the certificate against `ca_file` or the
    system's authorities. `password` has its place outside the file. `confirm_timeout` and `heartbeat` in seconds.
    """

    url: str
    queue: str = "hg"
    password: Secret | None = None
    ca_file: str | None = None
    confirm_timeout: float = 10.0
    heartbeat: float = 20.0

    def __post_init__(self) -> None:
        if not is_broker(self.url):
            raise ValueError("url: expected amqp://USER@HOST/VHOST or amqps://…")
        if not self.queue or len(self.queue.encode()) > MAX_NAME:
            raise ValueError(f"queue: expected a name of 1 to {MAX_NAME} bytes")
        check_number("confirm_timeout", self.confirm_timeout, 0.001, DAY)
        check_number("heartbeat", self.heartbeat, 1, 3600)

    @property
    def place(self) -> str:
        """Broker, virtual host and queue, without the password."""
        return f"{where(self.url)} {self.queue}"

    def client(self, name: str) -> Any:
        """Return kombu's description of the broker; raises Unavailable for a secret that cannot be read."""
        try:
            password = None if self.password is None else self.password.read()
        except BadConfig as error:
            raise Unavailable(str(error)) from error
        return client(
            self.url,
            password=password,
            ca_file=self.ca_file,
            heartbeat=self.heartbeat,
            properties={"product": "vcsreplicator", "destination": name},
        )


class QueueSender:
    """Sends to the queue; used by one thread."""

    def __init__(self, name: str, settings: QueueSettings, clock: Clock) -> None:
        self.name, self.settings, self.clock = name, settings, clock
        self._connection: Any = None  # of amqp
        self._channel: Any = None
        self._confirms = Confirms()
        self._outcomes: list[DeliveryOutcome] = []
        self._was_returned = False
        self._beat_at = 0.0

    def start(self) -> None:
        """Connect and declare the queue, unless connected; raises Unavailable."""
        if self._connection is None:
            self._connect()

    def send(self, number: int, message_id: str, text: str, headers: Mapping[str, Any], created: int) -> None:
        """Begin to send; raises Unavailable, then nothing was sent."""
        self.start()
        prepared = self._channel.prepare_message(
            text,
            content_type="application/json",
            content_encoding="utf-8",
            headers=dict(headers),
            properties={"delivery_mode": 2, "message_id": message_id, "type": "hg-push", "timestamp": created},
        )
        self._confirms.send(number, message_id, self.clock.monotonic())
        try:
            self._channel.basic_publish(
                prepared,
                exchange="",
                routing_key=self.settings.queue,
                mandatory=True,
                timeout=self.settings.confirm_timeout,
            )
        except TROUBLE as error:
            self._lose(error)

    def outcomes(self, timeout: float) -> list[DeliveryOutcome]:
        """Return the known results, waiting up to `timeout` seconds for one."""
        if self._connection is not None:
            try:
                drain(self._connection, 0 if self._outcomes else timeout)
                self._check_signs_of_life()
            except TROUBLE as error:
                self._lose(error)
        found, self._outcomes = self._outcomes, []
        return found

    def close(self) -> None:
        """Drop the connection without closing it properly: a closing message would wait for an answer."""
        self._confirms, self._was_returned = Confirms(), False
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            try:
                connection.collect()
            except Exception as error:  # the connection is given up anyway
                logger.debug("connection not closed", reason=str(error))

    def _connect(self) -> None:
        known = self.settings.client(self.name)
        try:
            self._connection = connect(known)
            with within(self._connection):
                self._channel = self._connection.channel()
                declare(self._channel, self.settings.queue)
                self._channel.confirm_select()
        except TROUBLE as error:
            self.close()
            raise Unavailable(f"{self.settings.place}: {_reason(error)}") from error
        self._channel.events["basic_ack"].add(self._on_ack)
        self._channel.events["basic_nack"].add(self._on_nack)
        self._channel.events["basic_return"].add(self._on_returned)
        self._beat_at = self.clock.monotonic()
        logger.info("connected", broker=self.settings.place)

    def _check_signs_of_life(self) -> None:
        now = self.clock.monotonic()
        if self._was_returned:
            raise ConnectionAbortedError("the queue was deleted; it is declared again")
        if now - self._beat_at > 1.0:
            self._beat_at = now
            self._connection.heartbeat_tick()
        since = self._confirms.oldest_since()
        if since is not None and now - since > self.settings.confirm_timeout:
            raise TimeoutError(f"no confirmation for {self.settings.confirm_timeout:g} s")

    def _on_ack(self, tag: int, multiple: bool) -> None:
        for number, was_returned in self._confirms.confirm(tag, multiple=multiple):
            trouble = Unavailable(f"{self.settings.place}: no such queue") if was_returned else None
            self._outcomes.append(DeliveryOutcome(number=number, error=trouble))

    def _on_nack(self, tag: int, multiple: bool) -> None:
        for number, _ in self._confirms.confirm(tag, multiple=multiple):
            refused = Unavailable(f"{self.settings.place}: the queue does not take messages (nack): is it full?")
            self._outcomes.append(DeliveryOutcome(number=number, error=refused))

    def _on_returned(self, error: Any, exchange: str, key: str, message: Any) -> None:
        """Note a returned message; its confirmation comes after this."""
        self._was_returned = True
        self._confirms.note_returned(message.properties.get("message_id", ""))

    def _lose(self, error: BaseException) -> None:
        """Report everything unconfirmed as unavailable, and disconnect: it is unknown whether the broker has it."""
        trouble = Unavailable(f"{self.settings.place}: {_reason(error)}")
        self._outcomes += [DeliveryOutcome(number=number, error=trouble) for number in self._confirms.unknown()]
        self.close()


def check_credentials(settings: QueueSettings, section: str) -> None:
    """Raise BadConfig if the broker answers and refuses user and password; what else is wrong may pass."""
    try:
        connection = connect(settings.client(section))
        connection.collect()
    except AccessRefused as error:
        raise BadConfig(
            f"{section}.url: {settings.place}: {_reason(error)}: expected user and password that the broker takes"
        ) from error
    except (*TROUBLE, Unavailable):
        pass


def declare(channel: Any, queue: str) -> None:
    """Declare the durable queue, as every sender and receiver must: with no arguments."""
    channel.queue_declare(queue, durable=True, auto_delete=False)


def _reason(error: BaseException) -> str:
    return " ".join((str(error) or type(error).__name__).split())[:300]

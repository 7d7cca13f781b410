# SPDX-License-Identifier: GPL-2.0-or-later
"""Queues of an AMQP broker: messages from one, and to those of the outputs. All are durable, and declared at start.

A lost connection raises Unavailable; what was not acknowledged comes again on the next one.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hgext.vcsreplicator.words.errors import BadConfig, Unavailable

from ..pulse.amqp import PATIENCE, TROUBLE, client, connect, drain, where, within
from .settings import DecodeSettings

# Seconds within which the broker confirms what was published.
_CONFIRMED_WITHIN = 30.0

# Seconds between two heartbeats.
_HEARTBEAT = 20.0


class BrokerQueues:
    """One connection to the broker, with a channel to read from `input` and one to publish to `outputs`."""

    def __init__(
        self, settings: DecodeSettings, *, read_from: str | None, outputs: Sequence[str], prefetch: int
    ) -> None:
        assert settings.broker is not None
        self._where = where(settings.broker)
        self._arrived: list[tuple[int, bytes]] = []
        self._unconfirmed: set[int] = set()
        self._refused: str | None = None
        self._sent = 0
        try:
            password = None if settings.broker_password is None else settings.broker_password.read()
        except BadConfig as error:
            raise Unavailable(str(error)) from error
        with self._translated():
            self._connection = connect(
                client(
                    settings.broker,
                    password=password,
                    ca_file=settings.broker_ca_file,
                    heartbeat=_HEARTBEAT,
                    properties={"product": "vcsreplicator", "service": "decode"},
                )
            )
        try:
            with self._translated(), within(self._connection):
                self._open(read_from, outputs, prefetch)
        except BaseException:
            self.close()
            raise

    def receive(self, timeout: float, limit: int) -> list[tuple[int, bytes]]:
        """Return at most `limit` messages with their tags; [] if none came within `timeout` seconds."""
        with self._translated():
            self._connection.heartbeat_tick()
            if len(self._arrived) < limit:
                drain(self._connection, 0 if self._arrived else timeout)
        found, self._arrived = self._arrived[:limit], self._arrived[limit:]
        return found

    def acknowledge(self, tag: int) -> None:
        """Acknowledge all messages up to this one."""
        with self._translated(), within(self._connection):
            self._reading.basic_ack(tag, multiple=True)

    def publish(self, messages: Sequence[tuple[str, bytes, dict[str, str]]]) -> None:
        """Publish (queue, body, headers) persistently; returns once the broker has confirmed all."""
        with self._translated():
            for queue, body, headers in messages:
                prepared = self._publishing.prepare_message(
                    body,
                    content_type="application/json",
                    headers=headers,
                    properties={"delivery_mode": 2, "message_id": headers["document_id"]},
                )
                self._sent += 1
                self._unconfirmed.add(self._sent)
                self._publishing.basic_publish(
                    prepared, exchange="", routing_key=queue, mandatory=True, timeout=PATIENCE
                )
            until = time.monotonic() + _CONFIRMED_WITHIN
            while self._unconfirmed and self._refused is None:
                if time.monotonic() > until:
                    raise TimeoutError(f"no confirmation for {_CONFIRMED_WITHIN:g} s")
                drain(self._connection, 0.2)
                self._connection.heartbeat_tick()
        if self._refused is not None:
            raise Unavailable(f"{self._where}: {self._refused}")

    def close(self) -> None:
        """Drop the connection."""
        self._connection.collect()

    def _open(self, read_from: str | None, outputs: Sequence[str], prefetch: int) -> None:
        publishing = self._publishing = self._connection.channel()
        for name in sorted({*outputs, *([read_from] if read_from else [])}):
            publishing.queue_declare(name, durable=True, auto_delete=False)
        publishing.confirm_select()
        publishing.events["basic_ack"].add(self._on_ack)
        publishing.events["basic_nack"].add(lambda *_: self._refuse("a queue refused a message"))
        publishing.events["basic_return"].add(lambda *_: self._refuse("a queue is gone"))
        if read_from is not None:
            reading = self._reading = self._connection.channel()
            reading.basic_qos(0, prefetch, False)
            reading.basic_consume(read_from, callback=self._take)

    def _take(self, message: Any) -> None:
        body = message.body
        self._arrived.append((message.delivery_tag, body.encode() if isinstance(body, str) else bytes(body)))

    def _on_ack(self, tag: int, multiple: bool) -> None:
        self._unconfirmed -= {each for each in self._unconfirmed if each <= tag} if multiple else {tag}

    def _refuse(self, reason: str) -> None:
        self._refused = reason

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except TROUBLE as error:
            raise Unavailable(f"{self._where}: {type(error).__name__}: {error}") from error

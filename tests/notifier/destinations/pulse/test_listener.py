# SPDX-License-Identifier: GPL-2.0-or-later
"""A subscriber on a real RabbitMQ whose exchange is made anew, and whose queue an operator has declared."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import amqp
import kombu
import pytest
import structlog

from notifier.destinations.pulse import listener
from notifier.destinations.pulse.listener import ListenSettings, ReceivedMessage, listen
from testing.waiting import eventually

pytestmark = pytest.mark.processes

EXCHANGE, QUEUE = "exchange/guest/v2", "queue/guest/mine"


@contextmanager
def listening(url: str) -> Iterator[list[str]]:
    """The texts that a subscriber got."""
    got, stop = list[str](), threading.Event()

    def take(message: ReceivedMessage) -> bool:
        got.append(message.text)
        return True

    settings = ListenSettings(url=url, exchange=EXCHANGE, queue=QUEUE)
    thread = threading.Thread(target=listen, args=(settings, take), kwargs={"stop": stop})
    thread.start()
    try:
        yield got
    finally:
        stop.set()
        thread.join()


@contextmanager
def publishing(url: str) -> Iterator[Any]:
    """A channel on which the exchange is declared."""
    with kombu.Connection(url) as connection:
        channel: Any = connection.default_channel
        channel.exchange_declare(EXCHANGE, "topic", durable=True, auto_delete=False)
        yield channel


def publish(channel: Any, text: str) -> None:
    channel.basic_publish(amqp.Message(text), EXCHANGE, "key")


def test_a_listener_binds_its_queue_to_an_exchange_that_was_made_anew(
    monkeypatch: pytest.MonkeyPatch, rabbitmq: Any
) -> None:
    monkeypatch.setattr(listener, "BIND_EVERY", 0.05)
    url = rabbitmq.vhost()
    with publishing(url) as channel, structlog.testing.capture_logs() as said, listening(url) as got:
        eventually(lambda: "listening" in [line["event"] for line in said], "the listener to be ready")
        channel.exchange_delete(EXCHANGE)
        gone = "the exchange is gone; its messages come again once it is there"
        eventually(lambda: gone in [line["event"] for line in said], "the listener to notice")
        channel.exchange_declare(EXCHANGE, "topic", durable=True, auto_delete=False)

        def arrives() -> bool:
            publish(channel, "new")
            return "new" in got

        eventually(arrives, "a message of the new exchange")
    events = [line["event"] for line in said]
    assert events.count(gone) == events.count("the exchange is there again; the queue is bound to it") == 1
    assert events.count("listening") == 1


def test_a_listener_uses_a_queue_that_an_operator_declared(rabbitmq: Any) -> None:
    url = rabbitmq.vhost()
    with publishing(url) as channel, structlog.testing.capture_logs() as said:
        channel.queue_declare(QUEUE, durable=True, auto_delete=False, arguments={"x-queue-type": "quorum"})
        with listening(url) as got:
            eventually(lambda: "listening" in [line["event"] for line in said], "the listener to be ready")
            publish(channel, "one")
            eventually(lambda: got == ["one"], "the message")
    assert [line["event"] for line in said if line["log_level"] == "warning"] == [
        "the queue has other arguments; it is used as it is"
    ]

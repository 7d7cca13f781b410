# SPDX-License-Identifier: GPL-2.0-or-later
"""What senders write into the properties and the routing key of a message harms no receiver."""

import struct
from contextlib import closing
from typing import Any

import amqp
import kombu
import pytest
import structlog

from notifier.clients.amqp.channel import declare_queues
from notifier.clients.amqp.connection import BrokerRefusal
from notifier.clients.amqp.consumer import QueueConsumer, body_of
from notifier.clients.amqp.settings import BrokerSettings
from testing.waiting import eventually

pytestmark = [pytest.mark.processes, pytest.mark.services]

_kombu: Any = kombu  # has no types

# Flags of the properties `content_type` and `application_headers`.
CONTENT_TYPE, HEADERS = 0x8000, 0x2000


def nested(depth: int) -> bytes:
    """Return an array of arrays."""
    found = b""
    for _ in range(depth):
        found = b"A" + struct.pack(">I", len(found)) + found
    return found


def one_header(value: bytes) -> bytes:
    entry = b"\x01h" + value
    return struct.pack(">HI", HEADERS, len(entry)) + entry


UNREADABLE = {
    "a time after the year 9999": one_header(b"T" + struct.pack(">Q", 10**13)),
    "a time that no clock has": one_header(b"T" + struct.pack(">Q", 2**64 - 1)),
    "arrays in arrays": one_header(nested(2000)),
    "a type that is no text": struct.pack(">HB", CONTENT_TYPE, 2) + b"\xff\xfe",
}


def send(url: str, body: bytes, properties: bytes | None = None, **more: Any) -> None:
    message = amqp.Message(body, **more)
    if properties is not None:
        message._serialize_properties = lambda: properties
    with _kombu.Connection(url, transport_options={"confirm_publish": True}) as connection:
        channel = connection.default_channel
        declare_queues(channel, "q")
        channel.basic_publish(message, routing_key="q")


@pytest.mark.parametrize("arguments", [{"x-queue-type": "quorum"}, {"x-max-length": 5}], ids=str)
def test_a_queue_that_an_operator_declared_otherwise_is_used_as_it_is(url: str, arguments: dict[str, Any]) -> None:
    with _kombu.Connection(url) as connection:
        connection.default_channel.queue_declare("q", durable=True, auto_delete=False, arguments=arguments)
    with structlog.testing.capture_logs() as said:
        send(url, b"one")
        assert [body_of(message) for message in receive(url, 1)] == [b"one"]
    assert {line["event"] for line in said} == {"the queue has other arguments; it is used as it is"}
    assert "inequivalent arg" in said[0]["reason"]


@pytest.fixture
def url(rabbitmq: Any) -> str:
    return str(rabbitmq.vhost())


def receive(url: str, count: int, **more: Any) -> list[Any]:
    known = BrokerSettings(url=url).client("it")
    found: list[Any] = []
    with closing(
        QueueConsumer(known, "q", "q", declare=lambda channel: declare_queues(channel, "q"), prefetch=9, **more)
    ) as it:

        def has_all() -> bool:
            found.extend(it.receive(0.05))
            return len(found) >= count

        eventually(has_all, f"{count} messages")
    return found


@pytest.mark.parametrize("properties", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("body", [b"first", b""], ids=["body", "no body"])
def test_a_message_with_unreadable_properties_comes_without_them(url: str, properties: bytes, body: bytes) -> None:
    send(url, body, properties)
    send(url, b"second", application_headers={"h": 1})
    first, second = receive(url, 2)
    assert (body_of(first), first.properties) == (body, {})
    assert (body_of(second), second.headers) == (b"second", {"h": 1})


def test_a_message_whose_routing_key_is_no_text_has_a_replacement(url: str) -> None:
    with _kombu.Connection(url, transport_options={"confirm_publish": True}) as connection:
        channel = connection.default_channel
        declare_queues(channel, "q")
        channel.queue_bind("q", "amq.topic", "#")
        for key in (b"a\xff." + b"b" * 200, "\N{EURO SIGN}".encode()):
            channel.basic_publish(amqp.Message(b"x"), exchange="amq.topic", routing_key=key)
    assert [each.delivery_info["routing_key"] for each in receive(url, 2)] == ["a?." + "b" * 200, "\N{EURO SIGN}"]


def test_a_message_too_large_comes_without_its_body_on_demand(url: str) -> None:
    for body in (b"x" * 1000, b"y" * 300_000, b"", b"z" * 1001, b"x"):
        send(url, body, application_headers={"h": len(body)})
    found = receive(url, 5, largest=1000, drops_larger=True)
    assert [body_of(each) for each in found] == [b"x" * 1000, b"", b"", b"", b"x"]
    assert [each.dropped for each in found] == [0, 300_000, 0, 1001, 0]
    assert [each.headers["h"] for each in found] == [1000, 300_000, 0, 1001, 1]


def test_message_that_is_too_large_breaks_the_connection_elsewhere(url: str) -> None:
    send(url, b"y" * 1001)
    with pytest.raises(BrokerRefusal, match="a message of 1001 bytes, expected at most 1000"):
        receive(url, 1, largest=1000)


def test_body_is_what_was_sent_whatever_encoding_its_sender_names(url: str) -> None:
    body = "{}".encode("utf-16")
    send(url, body, content_encoding="utf-16")
    assert [body_of(each) for each in receive(url, 1)] == [body]

# SPDX-License-Identifier: GPL-2.0-or-later
"""A message's frames are those of py-amqp, to the byte."""

import struct
import types
from typing import Any

import pytest
from amqp import Message, spec
from amqp.method_framing import frame_writer
from amqp.serialization import dumps
from hypothesis import given
from hypothesis import strategies as some

from notifier.clients.amqp.frames import OutgoingMessage, write_exchange_check, write_frames

LARGEST = 200

NAMES = some.text(max_size=60)
NUMBERS = some.integers(-(2**63), 2**63 - 1) | some.sampled_from([2**31 - 1, 2**31, 1 - 2**31, -(2**31)])
VALUES = NAMES | NUMBERS | some.lists(NAMES, max_size=3)
MESSAGES = some.builds(
    OutgoingMessage,
    routing_key=NAMES,
    exchange=NAMES,
    id=NAMES,
    body=some.text(max_size=3 * LARGEST) | some.binary(max_size=3 * LARGEST),
    headers=some.dictionaries(NAMES, VALUES, max_size=4),
    type=some.none() | NAMES,
    timestamp=some.none() | some.integers(0, 2**64 - 1),
    mandatory=some.booleans(),
)


def written_by_library(message: OutgoingMessage, channel: int, largest: int) -> bytes:
    written: list[bytes] = []
    connection: Any = types.SimpleNamespace(frame_max=largest, bytes_sent=0)
    write = frame_writer(connection, types.SimpleNamespace(write=lambda data: written.append(bytes(data))))
    content = Message(
        message.body,
        content_type="application/json",
        content_encoding="utf-8",
        application_headers=dict(message.headers),
        delivery_mode=2,
        message_id=message.id,
        timestamp=message.timestamp,
        type=message.type,
    )
    arguments = (0, message.exchange, message.routing_key, message.mandatory, False)
    write(1, channel, spec.Basic.Publish, dumps("Bssbb", arguments), content)
    return b"".join(written)


@given(message=MESSAGES)
def test_frames_are_those_of_the_library(message: OutgoingMessage) -> None:
    assert write_frames(message, 3, LARGEST) == written_by_library(message, 3, LARGEST)


@given(exchange=NAMES)
def test_a_check_of_an_exchange_is_two_declarations_of_the_library(exchange: str) -> None:
    written: list[bytes] = []
    connection: Any = types.SimpleNamespace(frame_max=LARGEST, bytes_sent=0)
    write = frame_writer(connection, types.SimpleNamespace(write=lambda data: written.append(bytes(data))))
    for passive, durable in ((True, False), (False, True)):
        arguments = (0, exchange, "topic", passive, durable, False, False, True, {})
        write(1, 3, spec.Exchange.Declare, dumps("BssbbbbbF", arguments), None)
    assert write_exchange_check(exchange, 3) == b"".join(written)


@pytest.mark.parametrize("size", [0, 1, LARGEST - 8, LARGEST - 7, 2 * (LARGEST - 8), 2 * LARGEST])
def test_a_body_has_as_few_frames_as_fit(size: int) -> None:
    message = OutgoingMessage(routing_key="q", id="m", body=b"x" * size)
    sizes, rest = [], write_frames(message, 1, LARGEST)
    while rest:
        kind, _, length = struct.unpack_from(">BHI", rest)
        if kind == 3:
            sizes.append(length)
        rest = rest[length + 8 :]
    assert sizes == [LARGEST - 8] * (size // (LARGEST - 8)) + [size % (LARGEST - 8)] * (size % (LARGEST - 8) > 0)


@pytest.mark.parametrize(
    "wrong", [{"routing_key": "é" * 128}, {"id": "x" * 256}, {"headers": {"n": 2**63}}, {"timestamp": -1}]
)
def test_a_message_that_amqp_cannot_carry_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(struct.error):
        write_frames(OutgoingMessage(**{"routing_key": "q", "id": "m", "body": "{}", **wrong}), 1, LARGEST)

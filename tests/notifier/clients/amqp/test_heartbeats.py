# SPDX-License-Identifier: GPL-2.0-or-later
"""Connections without messages: both sides show that they are alive."""

import contextlib
import socket
import threading
from collections.abc import Callable

import pytest

from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.errors import Unavailable
from notifier.clients.amqp.channel import ConfirmedChannel, Target
from notifier.clients.amqp.consumer import QueueConsumer
from notifier.clients.amqp.outgoing import OutgoingMessage
from notifier.clients.amqp.settings import BrokerSettings
from testing.faults.broker import CONFIRMING, CONSUMING, HEARTBEAT, FakeBroker, silence
from testing.waiting import eventually

pytestmark = pytest.mark.processes

Opened = Callable[[str], contextlib.AbstractContextManager[Callable[[], object]]]


@contextlib.contextmanager
def a_channel(url: str):
    settings = BrokerSettings(url=url, heartbeat=1)
    with contextlib.closing(
        ConfirmedChannel("it", settings, Target(name="x", declare=lambda channel: None), SystemClock())
    ) as channel:
        channel.start()
        yield lambda: channel.outcomes(0.05)


@contextlib.contextmanager
def a_consumer(url: str):
    known = BrokerSettings(url=url, heartbeat=1).client("it")
    with contextlib.closing(QueueConsumer(known, "q", "q", declare=lambda channel: None, prefetch=1)) as consumer:
        yield lambda: consumer.receive(0.05)


@contextlib.contextmanager
def a_busy_consumer(url: str):
    known = BrokerSettings(url=url, heartbeat=1).client("it")
    with contextlib.closing(QueueConsumer(known, "q", "q", declare=lambda channel: None, prefetch=1)) as consumer:
        yield consumer.keep_alive


@pytest.mark.parametrize(
    ("until", "opened"), [(CONFIRMING, a_channel), (CONSUMING, a_consumer), (CONSUMING, a_busy_consumer)]
)
def test_heartbeats_are_sent_while_there_are_no_messages(until: tuple[int, int], opened: Opened) -> None:
    came = threading.Event()

    def wait_for_heartbeat(connection: socket.socket, over: threading.Event) -> None:
        received = b""
        while HEARTBEAT not in received:
            received += connection.recv(1000)
        came.set()
        over.wait()

    with FakeBroker(until, wait_for_heartbeat) as broker, opened(broker.url) as wait:
        eventually(lambda: wait() or came.is_set(), "a heartbeat")


@pytest.mark.parametrize("opened", [a_consumer, a_busy_consumer])
def test_consumer_of_a_broker_without_heartbeats_is_unavailable(opened: Opened) -> None:
    with FakeBroker(CONSUMING, silence) as broker, opened(broker.url) as wait, pytest.raises(Unavailable):
        eventually(wait)


def test_channel_to_a_broker_without_heartbeats_is_lost_with_what_it_sent() -> None:
    with FakeBroker(CONFIRMING, silence) as broker:
        settings = BrokerSettings(url=broker.url, heartbeat=1, confirm_timeout=1000)
        channel = ConfirmedChannel("it", settings, Target(name="x", declare=lambda channel: None), SystemClock())
        channel.send(7, OutgoingMessage(routing_key="q", body="{}", id="m"))
        [outcome] = eventually(lambda: channel.outcomes(0.05), "the outcome")
        assert (outcome.number, type(outcome.error)) == (7, Unavailable)
        channel.close()

# SPDX-License-Identifier: GPL-2.0-or-later
"""A broker that was away for long: its first message comes soon after it answers again."""

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import kombu
import pytest

from testing.builders.cluster import Cluster
from testing.services.rabbitmq import RabbitMQ
from testing.waiting import eventually

pytestmark = [pytest.mark.processes, pytest.mark.services, pytest.mark.slow]

_kombu: Any = kombu  # has no types

PULSE = """
[notifier.pulse]
type = "pulse"
url = "{url}"
exchange = "exchange/guest/v2"

[listen]
"""
AWAY = 25.0
QUEUE = _kombu.Queue("queue/guest/q", _kombu.Exchange("exchange/guest/v2", type="topic"), routing_key="#")


def take(broker: RabbitMQ) -> str:
    """The routing key of the next message, "" if there is none."""
    with closing(_kombu.Connection(broker.url)) as connection:
        message = QUEUE(connection.default_channel).get(no_ack=True)
        return "" if message is None else message.delivery_info["routing_key"]


def test_a_message_arrives_within_seven_seconds_of_an_outages_end(
    tmp_path: Path, own_service: Callable[[type[RabbitMQ]], RabbitMQ], told: Callable[[object], None]
) -> None:
    broker, prepared = own_service(RabbitMQ), Cluster(tmp_path)
    with closing(_kombu.Connection(broker.url)) as connection:
        QUEUE(connection.default_channel).declare()
    prepared.config.write_text(prepared.config.read_text().replace("\n[listen]\n", PULSE.format(url=broker.url)))
    with prepared as cluster:
        clone = cluster.create("x")
        eventually(lambda: take(broker), "the repository is announced")
        broker.kill()
        cluster.commit(clone, "a")
        cluster.push(clone)
        time.sleep(AWAY)
        broker.start()
        start = time.monotonic()
        eventually(lambda: take(broker), "the push is announced")
        took = time.monotonic() - start
        told(f"RabbitMQ away for {AWAY:.0f} s: first message {took:.1f} s after it answers")
        assert took < 7, "promised: a try every five seconds"

# SPDX-License-Identifier: GPL-2.0-or-later
"""Outputs of the decoder that are queues of a real RabbitMQ, which blocks publishers, closes connections and restarts."""

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import kombu
import pytest
import structlog

from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.errors import Unavailable
from notifier.clients.amqp.channel import BLOCKED
from notifier.clients.amqp.outgoing import OutgoingMessage
from notifier.messages.raw import to_line
from notifier.services.decode.queues import OutputQueues, open_input
from notifier.services.decode.sources import GROUP
from testing.builders.notifier.decoding import (
    decoding,
    numbered,
    put,
    rejects,
    settings_in,
    settled,
    submit,
    take,
    take_bodies,
    take_ids,
    waiting,
)
from testing.builders.notifier.submissions import ID, a_raw, uri_of
from testing.faults.broker import CONFIRMING, FakeBroker, only_heartbeats
from testing.metrics import value_of
from testing.services.rabbitmq import RabbitMQ
from testing.waiting import eventually

pytestmark = pytest.mark.processes

OwnService = Callable[[type[RabbitMQ]], RabbitMQ]


def test_messages_go_from_a_queue_to_a_queue(log: Log, tmp_path: Path, rabbitmq: Any) -> None:
    url = rabbitmq.vhost()
    with decoding(log, settings_in(tmp_path, broker=url, input="queue:raw", output="queue:")):
        put(url, "raw", *map(to_line, (*numbered([1, 2]), a_raw(b"no json"))))
        found = take(url, "eng-workflow.hgpush", 2)
        eventually(lambda: rejects(log), "the reject")
    assert waiting(url, "raw") == 0
    assert [body["document_id"] for body in found] == [uri_of(n)[-36:] for n in (1, 2)]
    assert rejects(log)[0].topic == "queue:raw"


UNREADABLE = b'{"payload": "", "attributeMap": {"remote_addr": ["203.0.113.7"]}}'


@pytest.mark.parametrize("line", [UNREADABLE, b"no json", b"\xff"])
def test_a_queue_keeps_whole_what_the_decoder_cannot_read(log: Log, tmp_path: Path, rabbitmq: Any, line: bytes) -> None:
    url = rabbitmq.vhost()
    with decoding(log, settings_in(tmp_path, broker=url, input="queue:raw")):
        put(url, "raw", line)
        [found] = eventually(lambda: rejects(log), "the reject")
        assert take_bodies(url, "raw.unreadable", 1) == [line]
    assert waiting(url, "raw") == 0
    assert (found.attributes or {})["error_message"].endswith("; the queue raw.unreadable has it whole")
    assert not found.value


def test_a_queue_keeps_whole_what_no_record_of_the_log_holds(log: Log, tmp_path: Path, rabbitmq: Any) -> None:
    url, line = rabbitmq.vhost(), to_line(a_raw(b"\0" * 7 * 1024 * 1024))
    with decoding(log, settings_in(tmp_path, broker=url, input="queue:raw")):
        put(url, "raw", line)
        [found] = eventually(lambda: rejects(log), "the reject")
        assert take_bodies(url, "raw.unreadable", 1) == [line]
    assert "not kept; the queue raw.unreadable has it whole" in (found.attributes or {})["error_message"]


def test_what_a_queue_cannot_keep_whole_is_not_acknowledged(log: Log, tmp_path: Path, rabbitmq: Any) -> None:
    url = rabbitmq.vhost()
    with kombu.Connection(url) as connection:
        full = {"x-max-length": 0, "x-overflow": "reject-publish"}
        connection.default_channel.queue_declare("raw.unreadable", durable=True, auto_delete=False, arguments=full)
    with structlog.testing.capture_logs() as said, decoding(log, settings_in(tmp_path, broker=url, input="queue:raw")):
        put(url, "raw", UNREADABLE)
        eventually(lambda: "decoding waits" in [line["event"] for line in said], "the refusal of the queue")
    assert eventually(lambda: waiting(url, "raw"), "the message to be back") == 1
    assert not rejects(log)


def test_what_was_not_acknowledged_comes_again_from_a_queue(tmp_path: Path, rabbitmq: Any) -> None:
    settings = settings_in(tmp_path, broker=rabbitmq.vhost(), input="queue:raw")
    put(settings.broker or "", "raw", b"1", b"2")
    with closing(open_input(settings, "raw", 100)) as first:
        [message] = eventually(lambda: first.receive(0.1, 1))
        assert message.body == b"1"
        first.acknowledge(message.delivery_tag)
        first.finish()
    with closing(open_input(settings, "raw", 100)) as second:
        assert [message.body for message in eventually(lambda: second.receive(0.1))] == [b"2"]


def test_an_output_queue_that_is_deleted_is_declared_again(log: Log, tmp_path: Path, rabbitmq: Any) -> None:
    url = rabbitmq.vhost()
    with decoding(log, settings_in(tmp_path, broker=url, output="queue:out", repeats="none")):
        submit(log, *numbered([1]))
        settled(log)
        with kombu.Connection(url) as connection:
            connection.default_channel.queue_delete("out")
        submit(log, *numbered([2, 3]))
        settled(log)
    assert take_ids(url, "out", 2).keys() == {2, 3}


def test_a_broker_that_blocks_publishers_is_waited_for_without_repeats(
    log: Log, tmp_path: Path, own_service: OwnService
) -> None:
    broker = own_service(RabbitMQ)
    settings = settings_in(tmp_path, broker=broker.url, output="queue:out", repeats="none")
    with structlog.testing.capture_logs() as said, decoding(log, settings):
        broker.block_publishers()
        submit(log, *numbered(range(600)))
        eventually(lambda: value_of(BLOCKED.labels("decode")) == 1, "the metric to say so")
        broker.unblock_publishers()
        settled(log)
        assert value_of(BLOCKED.labels("decode")) == 0
    warnings = [line["event"] for line in said if line["log_level"] == "warning"]
    assert warnings == ["broker blocks publishers"]
    assert take_ids(broker.url, "out", 600) == dict.fromkeys(range(600), 1)

    with decoding(log, settings) as stop:
        broker.block_publishers()
        submit(log, *numbered(range(600, 1200)))
        eventually(lambda: value_of(BLOCKED.labels("decode")) == 1, "the metric to say so")
        stop.set()
    assert log.stored(GROUP, "raw") != log.ends("raw")
    broker.unblock_publishers()
    with decoding(log, settings):
        settled(log)
    assert take_ids(broker.url, "out", 600).keys() == set(range(600, 1200))


def test_the_input_gets_signs_of_life_while_a_broker_does_not_confirm(tmp_path: Path) -> None:
    signs = 0

    def keep_alive() -> None:
        nonlocal signs
        signs += 1
        if signs == 3:
            raise Unavailable("enough")

    with FakeBroker(CONFIRMING, only_heartbeats) as broker:
        settings = settings_in(tmp_path, broker=broker.url, output="queue:out")
        with closing(OutputQueues(settings, ["out"], threading.Event(), SystemClock())) as queues:
            queues.keep_connected()
            with pytest.raises(Unavailable, match="enough"):
                queues.publish([OutgoingMessage(routing_key="out", body="{}", id=ID)], keep_alive)


def test_a_decoder_without_messages_connects_again(log: Log, tmp_path: Path, own_service: OwnService) -> None:
    broker = own_service(RabbitMQ)
    settings = settings_in(tmp_path, broker=broker.url, output="queue:out")
    with structlog.testing.capture_logs() as said, decoding(log, settings):
        broker.close_connections()
        eventually(lambda: [line["event"] for line in said].count("connected") > 1, "a second connection")
        submit(log, a_raw())
        settled(log)
    assert max([line["retry_in"] for line in said if "retry_in" in line], default=0) <= 5
    assert take(broker.url, "out", 1)[0]["document_id"] == ID

# SPDX-License-Identifier: GPL-2.0-or-later
"""The destination `hg-push` on a real RabbitMQ: the body to the letter, numbers that stay, and queues that go away.

What every destination must do is in `tests/notifier/delivery/test_destination.py`.
"""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import kombu
import pytest
import structlog

from hgext.vcsreplicator.log import NOTICES, Log
from hgext.vcsreplicator.words.errors import BadConfig
from hgext.vcsreplicator.words.event import Type
from notifier.clients.amqp.channel import BLOCKED
from notifier.destinations.hgpush import lookup
from notifier.destinations.hgpush.destination import HgPushSettings
from notifier.messages.pushes import LARGEST
from notifier.publishing.settings import read
from testing.builders.notifier.endpoint import Reply
from testing.builders.notifier.notices import a_notice, an_event, identifier, node, publish, publish_pushes
from testing.builders.notifier.notifying import Notifier
from testing.builders.notifier.receivers import HgPushReceiver
from testing.faults.broker import FakeBroker
from testing.metrics import value_of
from testing.services.rabbitmq import RabbitMQ
from testing.waiting import eventually

pytestmark = pytest.mark.processes

TABLES = {"public": {"urls": {"": "https://hg.example/"}}}


@pytest.fixture
def receiver(rabbitmq: Any, tmp_path: Path) -> Iterator[HgPushReceiver]:
    made = HgPushReceiver(rabbitmq, tmp_path)
    yield made
    made.close()


def test_body_is_the_documented_one_with_all_changesets(log: Log, notifier: Notifier, receiver: HgPushReceiver) -> None:
    notifier.start(it=receiver.settings())
    publish_pushes(log, "x", 1, 1)
    eventually(receiver.told)
    changesets = [node("x", "first", "1"), node("x", 1)]
    push = {"id": 1, "date": 1460975081, "user": "dana@example.com", "changesets": changesets}
    assert receiver.bodies == [{"type": "hg-push", "repository_id": 1, "pushes": [push]}]
    [message] = receiver.messages
    assert message.headers == {"source": "notifier", "repository": "https://hg.example/x"}
    assert (message.properties["delivery_mode"], message.properties["type"]) == (2, "hg-push")


def test_a_repositorys_id_is_the_same_after_a_restart_and_a_rename(
    log: Log, notifier: Notifier, receiver: HgPushReceiver
) -> None:
    notifier.start(it=receiver.settings())
    for path in ("x", "y"):
        publish_pushes(log, path, 1, 1)
    notifier.settled("it")
    notifier.stop()
    renamed = replace(an_event("x", 2), path="renamed")
    publish(log, a_notice(renamed), a_notice(an_event("y", 2)), a_notice(an_event("z", 1)))
    notifier.start(it=receiver.settings())
    eventually(lambda: len(receiver.told()) == 5, "all messages")
    numbers = {}
    for body, message in zip(receiver.bodies, receiver.messages, strict=True):
        numbers[message.headers["repository"].rsplit("/", 1)[-1], body["pushes"][0]["id"]] = body["repository_id"]
    assert numbers["x", 1] == numbers["renamed", 2]
    assert numbers["y", 1] == numbers["y", 2]
    assert len({numbers["x", 1], numbers["y", 1], numbers["z", 1]}) == 3


def test_push_that_mirrors_know_no_more_is_sent_with_its_heads(
    log: Log, notifier: Notifier, receiver: HgPushReceiver
) -> None:
    receiver.mirror.reply = lambda request: Reply(body=json.dumps({"lastpushid": 2, "pushes": {}}).encode())
    notifier.start(it=receiver.settings())
    publish_pushes(log, "x", 1, 1)
    eventually(receiver.told)
    assert receiver.bodies[0]["pushes"][0]["changesets"] == [node("x", 1)]


def test_a_push_of_a_repository_without_its_url_holds_up_no_other(
    log: Log, notifier: Notifier, receiver: HgPushReceiver
) -> None:
    shown = {"1": {"changesets": [node("first"), node("x", 1)], "date": 1, "user": "u"}}
    body = json.dumps({"lastpushid": 1, "pushes": shown}).encode()
    receiver.mirror.reply = lambda request: Reply(headers=(("x-vcsreplicator-event", "1"),), body=body)
    former = replace(an_event("x", 7), repository=identifier("former"))
    publish(log, a_notice(former), a_notice(an_event("x", 1)))
    notifier.start(it=receiver.settings())
    eventually(lambda: receiver.told() == [("x", 7), ("x", 1)], "both pushes, in order")
    found = [body["pushes"][0]["changesets"] for body in receiver.bodies]
    assert found == [[node("x", 7)], [node("first"), node("x", 1)]]


def test_changesets_are_those_of_the_push_where_a_mirror_shows_more(
    log: Log, notifier: Notifier, receiver: HgPushReceiver
) -> None:
    shown = {number: {"changesets": [node("x", number)], "date": 1, "user": "u"} for number in (1, 2, 3)}
    receiver.mirror.reply = lambda request: Reply(body=json.dumps({"lastpushid": 3, "pushes": shown}).encode())
    notifier.start(it=replace(receiver.settings(), source="other"))
    publish_pushes(log, "x", 1, 2)
    eventually(lambda: len(receiver.told()) == 2, "both pushes")
    assert {message.headers["source"] for message in receiver.messages} == {"other"}
    assert [body["pushes"][0]["changesets"] for body in receiver.bodies] == [[node("x", 1)], [node("x", 2)]]


def test_push_waits_for_a_mirror_that_answers(log: Log, notifier: Notifier, receiver: HgPushReceiver) -> None:
    answer, receiver.mirror.reply = receiver.mirror.reply, lambda request: Reply(status=502)
    notifier.start(it=receiver.settings())
    publish_pushes(log, "x", 1, 2)
    eventually(lambda: len(receiver.mirror.requests) > 3, "some attempts")
    assert receiver.told() == []
    receiver.mirror.reply = answer
    eventually(lambda: receiver.told() == [("x", 1), ("x", 2)], "both pushes, in order")


def test_push_waits_while_something_else_answers_for_the_mirrors(
    log: Log, notifier: Notifier, receiver: HgPushReceiver
) -> None:
    answer, receiver.mirror.reply = receiver.mirror.reply, lambda request: Reply(body=b"<html>maintenance</html>")
    notifier.start(it=receiver.settings())
    publish_pushes(log, "x", 1, 1)
    eventually(lambda: len(receiver.mirror.requests) > 6, "more attempts than a refused message gets")
    receiver.mirror.reply = answer
    eventually(lambda: receiver.told() == [("x", 1)], "the push")


def test_push_whose_answer_is_longer_than_a_notice_is_sent_with_its_heads(
    log: Log, notifier: Notifier, receiver: HgPushReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "LARGEST", 20)
    notifier.start(it=receiver.settings())
    publish_pushes(log, "x", 1, 1)
    eventually(receiver.told)
    assert receiver.bodies[0]["pushes"][0]["changesets"] == [node("x", 1)]


def test_push_that_fits_into_no_message_is_a_reject_and_holds_up_no_other(
    log: Log, notifier: Notifier, receiver: HgPushReceiver
) -> None:
    answer = receiver.mirror.reply
    shell = '{"lastpushid":1,"pushes":{"1":{"changesets":[%s],"date":1,"user":""}}}'  # shorter than a message
    nodes = [f"{number:040x}" for number in range(1, (LARGEST - len(shell)) // 43)]
    text = shell % ",".join(f'"{each}"' for each in [*nodes, node("x", 1)])
    receiver.mirror.reply = lambda asked: Reply(body=text.encode()) if "/x/" in asked.path else answer(asked)
    notifier.start(it=receiver.settings())
    publish_pushes(log, "x", 1, 1)
    publish_pushes(log, "y", 2, 2)
    notifier.settled("it")
    assert receiver.told() == [("y", 2)]
    [reject] = notifier.errors()
    assert "push 1: a message of " in reject.reason


@pytest.mark.parametrize(
    "start", [b"HTTP/1.1 200 OK\r\nx-long: ", b"HTTP/1.1 200 OK\r\n\r\n"], ids=["headers", "body without a length"]
)
def test_answer_that_drips_for_ever_is_given_up_in_time(
    log: Log, notifier: Notifier, receiver: HgPushReceiver, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    monkeypatch.setattr(lookup, "ANSWER", 0.3)
    entry = {"changesets": [node("x", 1)], "date": 1456826400, "user": "dana@example.com"}
    whole = json.dumps({"lastpushid": 1, "pushes": {"1": entry}}).encode()
    seen: list[int] = []

    def drip_twice(connection: socket.socket, over: threading.Event) -> None:
        seen.append(len(connection.recv(65536)))
        if len(seen) > 2:
            connection.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + whole)
            return
        connection.sendall(start)
        while not over.wait(0.05):
            connection.sendall(b" ")

    with FakeBroker(None, drip_twice) as mirror:
        port = mirror.url.rpartition(":")[2].strip("/")
        notifier.start(it=replace(receiver.settings(), mirror_url=f"http://127.0.0.1:{port}"))
        publish_pushes(log, "x", 1, 1)
        eventually(receiver.told)
        notifier.stop()
    assert len(seen) >= 3, "a machine that is slow may need more"
    assert receiver.bodies[0]["pushes"][0]["changesets"] == [node("x", 1)]


def test_change_without_a_push_is_settled_without_a_message(
    log: Log, notifier: Notifier, receiver: HgPushReceiver
) -> None:
    notifier.start(it=receiver.settings())
    publish(log, a_notice(an_event("x", 1, type=Type.CREATED)))
    publish_pushes(log, "x", 2, 2)
    notifier.settled("it")
    eventually(receiver.told)
    assert receiver.told() == [("x", 2)]
    assert len(receiver.bodies) == 1


def test_deleted_queue_is_declared_again_and_gets_the_message(
    log: Log, notifier: Notifier, receiver: HgPushReceiver
) -> None:
    notifier.start(it=receiver.settings())
    publish_pushes(log, "x", 1, 1)
    eventually(receiver.told)
    receiver._connection.release()
    with kombu.Connection(receiver.url) as connection:
        connection.channel().queue_delete("hg")
    publish_pushes(log, "x", 2, 2)
    notifier.settled("it")
    receiver.listen()
    eventually(lambda: ("x", 2) in receiver.told(), "the message behind the deletion")


def test_a_broker_that_blocks_publishers_holds_up_no_stop(
    log: Log, notifier: Notifier, own_service: Callable[[type[RabbitMQ]], RabbitMQ], tmp_path: Path
) -> None:
    broker = own_service(RabbitMQ)
    receiver = HgPushReceiver(broker, tmp_path)
    with structlog.testing.capture_logs() as said:
        notifier.start(it=replace(receiver.settings(), confirm_timeout=0.5))
        publish_pushes(log, "x", 1, 1)
        notifier.settled("it")
        broker.block_publishers()
        for path in "xyz":
            publish_pushes(log, path, 2, 5)
        eventually(lambda: value_of(BLOCKED.labels("it")) == 1, "the metric to say so")
        notifier.stop()
        assert notifier.position("it") != log.ends(NOTICES)[0]
        notifier.start(it=receiver.settings())
        broker.unblock_publishers()
        notifier.settled("it")
    assert [line["event"] for line in said].count("broker blocks publishers") in (1, 2)  # of each start
    assert not [line for line in said if "no confirmation" in str(line)]
    expected = {("x", 1), *((path, number) for path in "xyz" for number in range(2, 6))}
    eventually(lambda: set(receiver.told()) == expected, "all pushes")
    receiver.close()


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"url": "http://h"}, "it.url: expected amqp://"),
        ({"types": ["newrepo.1"]}, "it.types: hg-push has changegroup.1 only"),
        ({"source": ""}, "it.source: expected lower-case letters"),
        ({"mirror-url": "https://h/path"}, "expected https://HOST"),
        ({"state": "/elsewhere.db"}, "it.state: unknown key, expected notifier.state"),
        ({"queue": ""}, "it.queue: expected a name"),
    ],
)
def test_wrong_key_is_one_line_with_file_and_key(wrong: dict[str, Any], complaint: str) -> None:
    table = {"type": "hg-push", "url": "amqp://h", **wrong}
    with pytest.raises(BadConfig, match=complaint) as refused:
        read({**TABLES, "notifier": {"it": table}}, "v.toml")
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith("v.toml: notifier.it.")


def test_numbers_are_kept_in_the_state_of_the_notifier() -> None:
    tables = {**TABLES, "notifier": {"state": "/s.db", "it": {"type": "hg-push", "url": "amqp://h"}}}
    settings = read(tables, "v.toml").destinations["it"]
    assert isinstance(settings, HgPushSettings)
    assert settings.state == "/s.db"

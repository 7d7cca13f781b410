# SPDX-License-Identifier: GPL-2.0-or-later
"""The destination `decode`: pushes become raw messages, one for each changeset, and what is private goes to the decoder alone.

What every destination must do is in `tests/notifier/delivery/test_destination.py`.
"""

import dataclasses
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
import structlog

from hgext.vcsreplicator.log import ERRORS, NOTICES, Log, Topic
from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.errors import BadConfig, Rejected, TopicMissing, Unavailable
from hgext.vcsreplicator.words.event import PushConnection, Type
from notifier.clients.amqp.channel import BLOCKED
from notifier.destinations.decode import DecoderDestinationSettings, InputTopic, raw_messages
from notifier.destinations.jsonlines import JsonLinesSettings
from notifier.destinations.state import Kind
from notifier.messages.message import Message, messages
from notifier.messages.pushes import QueuedPush
from notifier.messages.raw import NOTIFIER_TYPES, from_line, parse_uri
from notifier.publishing.settings import read
from notifier.services.decode.settings import DecodeSettings
from notifier.services.edge.settings import EdgeSettings
from testing.builders.log.memorylog import MemoryLog
from testing.builders.notifier.decoding import decoding, records, rejects, settings_in, settled
from testing.builders.notifier.endpoint import Endpoint, Reply, Request
from testing.builders.notifier.notices import CREATED_AT, a_notice, an_event, node, publish, publish_pushes
from testing.builders.notifier.notifying import FAST, PUBLIC, Notifier, Scripted
from testing.builders.notifier.receivers import WebhookReceiver
from testing.builders.notifier.submissions import BERLIN, a_document, a_raw
from testing.builders.notifier.submitting import Edge, ask, post, statuses
from testing.metrics import value_of
from testing.services.rabbitmq import RabbitMQ
from testing.waiting import eventually

pytestmark = pytest.mark.processes

AGENT = "mercurial/proto-1.0 (Mercurial 7.2) planted-agent"
FROM = PushConnection(address="10.66.66.66", forwarded=f"198.51.100.99, {BERLIN}", client=AGENT)
PLANTED = ("10.66.66.66", "198.51.100.99", BERLIN, "planted-agent")
TABLES = {"log": "sqlite:///l.db", "public": {"urls": {"": "https://hg.example/"}}}


def changesets_of(path: str, seq: int) -> list[str]:
    """What the mirror says of a push, the head last."""
    return [node(path, "first", seq), node(path, seq)]


@pytest.fixture
def mirror() -> Iterator[Endpoint]:
    def answer(request: Request) -> Reply:
        path, _, query = request.path.partition("/json-pushes?")
        number = int(query.rpartition("endID=")[2])
        entry = {"changesets": changesets_of(path.strip("/"), number), "date": 1456826400, "user": "dana"}
        return Reply(body=json.dumps({"lastpushid": number, "pushes": {str(number): entry}}).encode())

    with Endpoint(answer) as made:
        yield made


@pytest.fixture
def settings(mirror: Endpoint, tmp_path: Path) -> DecoderDestinationSettings:
    return DecoderDestinationSettings(
        decoder=DecodeSettings(),
        log=f"sqlite://{tmp_path}/log.db",
        mirror_url=f"http://127.0.0.1:{mirror.port}",
        patience=FAST,
    )


def a_message(connection: PushConnection | None) -> Message:
    [message] = messages(a_notice(an_event("x", 1)), 0, PUBLIC)
    return dataclasses.replace(message, connection=connection)


def documents(log: Log) -> list[dict[str, Any]]:
    raw = [from_line(record.value or b"") for record in records(log, "raw")]
    return [json.loads(each.payload) for each in raw]


def test_a_raw_message_has_the_documented_members_and_one_id() -> None:
    push = QueuedPush(id=7, date=1456826400, user="dana", changesets=(node("a"), node("b")))
    made = list(raw_messages(a_message(FROM), push))
    [(first, raw), (second, _)] = made
    assert first == str(uuid.uuid5(uuid.UUID(hex=an_event("x", 1).id), node("a")))
    assert first != second
    assert made == list(raw_messages(a_message(FROM), push))
    assert raw.attributes == {
        "submission_timestamp": "2016-04-18T10:24:42.000000Z",
        "uri": f"/submit/eng-workflow/hgpush/1/{first}",
        "protocol": "hg",
        "method": "push",
        "origin": "notifier",
        "remote_addr": "10.66.66.66",
        "x_forwarded_for": f"198.51.100.99, {BERLIN}",
        "user_agent": AGENT,
    }
    assert json.loads(raw.payload) == {
        "changesetID": node("a"),
        "repository": "https://hg.example/x",
        "reviewSystemUsed": "unknown",
        "pushDate": 1456826400,
    }


def test_push_without_a_connection_has_no_private_attribute() -> None:
    push = QueuedPush(id=7, date=-1, user="dana", changesets=(node("a"),))
    [(_, raw)] = raw_messages(a_message(None), push)
    assert set(raw.attributes) == {"submission_timestamp", "uri", "protocol", "method", "origin"}
    assert "pushDate" not in json.loads(raw.payload)


def test_pushes_reach_the_decoders_output_without_what_is_private(
    log: Log, notifier: Notifier, settings: DecoderDestinationSettings, places: Path, tmp_path: Path
) -> None:
    with structlog.testing.capture_logs() as said:
        notifier.start(it=settings)
        publish(log, *(a_notice(an_event("x", seq)) for seq in (1, 2)), connection=FROM)
        notifier.settled("it")
        decoder = settings_in(tmp_path, geoip=str(places / "geo.mmdb"))
        with decoding(log, decoder):
            settled(log)
    decoded = [json.loads(record.value or b"") for record in records(log, "decoded")]
    assert [each["changesetID"] for each in decoded] == [*changesets_of("x", 1), *changesets_of("x", 2)]
    for each in decoded:
        assert each["normalized_country_code"] == "DE"
        assert each["metadata"]["user_agent"]["browser"] == "Mercurial"
        assert each["metadata"]["user_agent"]["version"] == "7.2"
    assert not rejects(log)
    outputs = [record.value or b"" for topic in ("decoded", NOTICES, ERRORS) for record in records(log, topic)]
    everything = b"".join(outputs).decode() + str(said) + prometheus_client.generate_latest().decode()
    assert not [planted for planted in PLANTED if planted in everything]


def test_what_is_delivered_again_is_dropped_by_the_decoder(
    log: Log, notifier: Notifier, settings: DecoderDestinationSettings, tmp_path: Path
) -> None:
    notifier.start(it=settings)
    publish(log, a_notice(an_event("x", 1)), connection=FROM)
    notifier.settled("it")
    notifier.ask("it", Kind.REPLAY, repository=an_event("x", 1).repository, since_push=1)
    eventually(lambda: len(records(log, "raw")) == 4, "the push a second time")
    with decoding(log, settings_in(tmp_path)):
        settled(log)
    assert len(records(log, "decoded")) == 2
    assert [(reject.attributes or {})["error_type"] for reject in rejects(log)] == ["repeat"] * 2


def test_no_submission_of_a_client_suppresses_the_record_of_a_push(
    log: Log, notifier: Notifier, settings: DecoderDestinationSettings, tmp_path: Path
) -> None:
    push = QueuedPush(id=1, date=-1, user="dana", changesets=tuple(changesets_of("x", 1)))
    with Edge(log, tmp_path, reserved=()) as edge:
        for _, foreseen in raw_messages(a_message(None), push):
            request = post(foreseen.attributes["uri"], json.dumps(a_document()).encode(), "Connection: close")
            assert statuses(ask(edge.port, request)) == [200]
    with decoding(log, settings_in(tmp_path)):
        settled(log)
        notifier.start(it=settings)
        publish(log, a_notice(an_event("x", 1)))
        notifier.settled("it")
        settled(log)
    decoded = [json.loads(record.value or b"") for record in records(log, "decoded")]
    assert [each["changesetID"] for each in decoded[2:]] == changesets_of("x", 1)
    assert not rejects(log)


def test_types_of_the_raw_messages_are_those_that_the_edge_refuses() -> None:
    push = QueuedPush(id=7, date=-1, user="dana", changesets=(node("a"),))
    [(_, raw)] = raw_messages(a_message(None), push)
    submission = parse_uri(raw.attributes["uri"])
    assert (f"{submission.namespace}.{submission.type}",) == NOTIFIER_TYPES == EdgeSettings(listen="a:1").reserved


def test_no_other_destination_gets_the_connection(log: Log, notifier: Notifier, tmp_path: Path) -> None:
    hooks, scripted = WebhookReceiver(tmp_path), Scripted()
    refusing = Scripted(answer=lambda message: Rejected(repr(message)))
    try:
        lines = JsonLinesSettings(file=str(tmp_path / "lines"))
        notifier.start(lines=lines, hooks=hooks.settings(), scripted=scripted, refusing=refusing)
        publish(log, a_notice(an_event("x", 1)), connection=FROM)
        publish(log, dataclasses.replace(a_notice(an_event("y", 1, type=Type.CREATED)), time=2.0), connection=FROM)
        for name in ("lines", "hooks", "scripted", "refusing"):
            notifier.settled(name)
        eventually(lambda: len(hooks.told()) == 2, "the webhook")
        notifier.stop()
    finally:
        hooks.close()
    assert [message.connection for message in scripted.got] == [None, None]
    written = b"".join(
        file.read_bytes() for file in tmp_path.rglob("*") if file.is_file() and "log.db" not in file.name
    )
    written += b"".join(record.value or b"" for record in records(log, ERRORS))
    written += repr(hooks.endpoint.requests).encode() + repr(scripted.got).encode()
    assert b"https://hg.example/x" in written
    assert not [planted for planted in PLANTED if planted.encode() in written]


def test_message_shows_its_connection_in_no_text() -> None:
    shown = a_message(FROM)
    assert not [planted for planted in PLANTED if planted in f"{shown!r} {shown} {shown.envelope}"]


def test_change_without_a_push_is_settled_without_a_message(
    log: Log, notifier: Notifier, settings: DecoderDestinationSettings
) -> None:
    notifier.start(it=settings)
    publish(log, a_notice(an_event("x", 1, type=Type.CREATED)))
    publish_pushes(log, "x", 2, 2)
    notifier.settled("it")
    assert [document["changesetID"] for document in documents(log)] == changesets_of("x", 2)


def test_push_that_is_larger_than_an_append_stays_in_order(
    log: Log,
    notifier: Notifier,
    settings: DecoderDestinationSettings,
    mirror: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("notifier.destinations.decode.BATCH", 2)
    nodes = [node("many", number) for number in range(7)]
    entry = {"changesets": nodes, "date": int(CREATED_AT), "user": "dana"}
    mirror.reply = lambda request: Reply(body=json.dumps({"lastpushid": 1, "pushes": {"1": entry}}).encode())
    notifier.start(it=settings)
    publish_pushes(log, "x", 1, 1)
    notifier.settled("it")
    assert [document["changesetID"] for document in documents(log)] == nodes


def test_changesets_of_a_push_that_became_obsolete_are_sent_too(
    log: Log, notifier: Notifier, settings: DecoderDestinationSettings, mirror: Endpoint
) -> None:
    entry = {"changesets": [node("first")], "obsoletechangesets": [node("x", 1)], "date": 1, "user": "dana"}
    mirror.reply = lambda request: Reply(body=json.dumps({"lastpushid": 1, "pushes": {"1": entry}}).encode())
    notifier.start(it=settings)
    publish_pushes(log, "x", 1, 1)
    notifier.settled("it")
    assert [document["changesetID"] for document in documents(log)] == [node("first"), node("x", 1)]


def test_position_waits_for_a_mirror_that_answers(
    log: Log, notifier: Notifier, settings: DecoderDestinationSettings, mirror: Endpoint
) -> None:
    answer, mirror.reply = mirror.reply, lambda request: Reply(status=502)
    notifier.start(it=settings)
    publish_pushes(log, "x", 1, 2)
    eventually(lambda: len(mirror.requests) > 3, "some attempts")
    assert notifier.position("it") == log.beginnings(NOTICES)[0]
    mirror.reply = answer
    notifier.settled("it")
    assert [document["changesetID"] for document in documents(log)][1::2] == [node("x", 1), node("x", 2)]


def test_a_lost_log_is_not_replaced_by_an_empty_one(settings: DecoderDestinationSettings, tmp_path: Path) -> None:
    lost = tmp_path / "lost.db"
    with pytest.raises(Unavailable, match="the log is missing"):
        dataclasses.replace(settings, log=f"sqlite://{lost}").open("it", SystemClock(), MemoryLog())
    assert not lost.exists()


class WithoutTopic:
    """A log whose topic was removed."""

    def __init__(self) -> None:
        self.created: list[str] = []

    def append(self, messages: object, *, timeout: float) -> None:
        raise TopicMissing("topic raw is missing")

    def create(self, wanted: list[Topic]) -> None:
        self.created += [topic.name for topic in wanted]


def test_topic_that_was_removed_is_made_again_and_costs_no_message() -> None:
    log: Any = WithoutTopic()
    with pytest.raises(Unavailable):
        InputTopic(log, "raw").put([("id", a_raw())])
    assert log.created == ["raw"]


@pytest.mark.services
def test_queue_of_the_decoder_gets_the_same_lines(
    log: Log, notifier: Notifier, settings: DecoderDestinationSettings, rabbitmq: Any, tmp_path: Path
) -> None:
    decoder = settings_in(tmp_path, input="queue:raw", broker=rabbitmq.vhost())
    notifier.start(it=dataclasses.replace(settings, decoder=decoder))
    publish(log, a_notice(an_event("x", 1)), connection=FROM)
    notifier.settled("it")
    with decoding(log, decoder):
        eventually(lambda: len(records(log, "decoded")) == 2, "both changesets")
    assert [record.headers["user_agent_browser"] for record in records(log, "decoded")] == ["Mercurial"] * 2


@pytest.mark.services
def test_a_broker_that_blocks_publishers_gets_everything_in_order(
    log: Log,
    notifier: Notifier,
    settings: DecoderDestinationSettings,
    own_service: Callable[[type[RabbitMQ]], RabbitMQ],
    tmp_path: Path,
) -> None:
    broker = own_service(RabbitMQ)
    decoder = settings_in(tmp_path, input="queue:raw", broker=broker.vhost())
    notifier.start(it=dataclasses.replace(settings, decoder=decoder))
    publish_pushes(log, "x", 1, 1)
    notifier.settled("it")
    broker.block_publishers()
    publish_pushes(log, "x", 2, 4)
    eventually(lambda: value_of(BLOCKED.labels("it")) == 1, "the metric to say so")
    notifier.stop()
    assert notifier.position("it") != log.ends(NOTICES)[0]
    broker.unblock_publishers()
    notifier.start(it=dataclasses.replace(settings, decoder=decoder))
    notifier.settled("it")
    with decoding(log, decoder):
        eventually(lambda: len(records(log, "decoded")) == 8, "all changesets")
    found = [json.loads(record.value or b"")["changesetID"] for record in records(log, "decoded")]
    assert found == [each for seq in range(1, 5) for each in changesets_of("x", seq)]


@pytest.mark.parametrize(
    ("wrong", "sections", "complaint"),
    [
        ({}, {}, r"notifier.it: expected a section \[decode\] too"),
        ({}, {"decode": {"input": "file:/x"}}, "v.toml: decode.input: expected log:TOPIC or queue:NAME"),
        ({}, {"decode": {"input": "queue:raw"}}, "v.toml: decode.broker: expected amqp://"),
        ({"types": ["newrepo.1"]}, {"decode": {}}, "it.types: decode has changegroup.1 only"),
        ({"mirror-url": "https://h/path"}, {"decode": {}}, "it.mirror-url: expected https://HOST"),
        ({"decoder": {}}, {"decode": {}}, r"it.decoder: unknown key, expected section \[decode\]"),
        ({"log": "x"}, {"decode": {}}, "it.log: unknown key, expected log"),
    ],
)
def test_wrong_configuration_is_one_line(wrong: dict[str, Any], sections: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadConfig, match=complaint) as refused:
        read({**TABLES, **sections, "notifier": {"it": {"type": "decode", **wrong}}}, "v.toml")
    assert "\n" not in str(refused.value)


def test_settings_have_the_decoders_input_and_the_log_of_the_file() -> None:
    sections = {"decode": {"input": "log:other", "outputs": {"eng-workflow.hgpush": "log:pushes"}}}
    found = read({**TABLES, **sections, "notifier": {"it": {"type": "decode"}}}, "v.toml").destinations["it"]
    assert isinstance(found, DecoderDestinationSettings)
    assert found.decoder == DecodeSettings(input="log:other", outputs={"eng-workflow.hgpush": "log:pushes"})
    assert found.log == "sqlite:///l.db"

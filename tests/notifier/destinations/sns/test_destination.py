# SPDX-License-Identifier: GPL-2.0-or-later
"""SNS and S3: forms to the letter, the object first, and clouds that throttle, fail and hang."""

import json
import threading
import urllib.parse
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.errors import Rejected, ReplicationError, Unavailable
from notifier.delivery.window import Delivery
from notifier.destinations.sns.destination import SnsSettings
from notifier.destinations.sns.message import (
    MOST_BYTES,
    attributes,
    attributes_size,
    object_body,
    object_key,
    topic_parts,
    topic_text,
)
from notifier.messages.message import Message, messages
from notifier.messages.public import PublicSettings
from testing.builders.log.memorylog import MemoryLog
from testing.builders.notifier.endpoint import Endpoint, Reply, Request
from testing.builders.notifier.notices import a_notice, an_event, identifier, publish_pushes
from testing.builders.notifier.notifying import Notifier, Scripted
from testing.builders.notifier.receivers import FAST, SnsReceiver
from testing.waiting import eventually

pytestmark = pytest.mark.processes

PUBLIC = PublicSettings(urls={"": "https://hg.example/"})


def a_message(seq: int = 2, offset: int = 17, index: int = 0) -> Message:
    [message] = messages(a_notice(an_event("try", seq)), offset, PUBLIC)
    return replace(message, index=index)


@pytest.fixture
def cloud(aws: Any) -> Iterator[SnsReceiver]:
    receiver = SnsReceiver(aws.url)
    yield receiver
    receiver.close()


def test_object_has_the_known_name_and_form() -> None:
    message = replace(a_message(), created=1469830278.5)
    assert object_key(message) == "events/2016-07-29/0000000017-20160729T221118.json"
    assert json.loads(object_body(message)) == {
        "created": 1469830278.5,
        "data": dict(message.data),
        "id": 17,
        "type": "changegroup.1",
    }


def test_second_message_of_a_notice_has_an_object_of_its_own() -> None:
    assert object_key(a_message()) != object_key(a_message(index=1))


def test_message_over_the_limit_goes_without_its_data() -> None:
    whole = topic_text(a_message(), "https://s3/b/k", 260_000)
    assert set(json.loads(whole)) == {"type", "data", "data_url"}
    assert topic_text(a_message(), "https://s3/b/k", len(whole)) == whole
    assert json.loads(topic_text(a_message(), "https://s3/b/k", len(whole) - 1)) == {
        "type": "changegroup.1",
        "external": True,
        "data_url": "https://s3/b/k",
        "repo_url": "https://hg.example/try",
    }


def test_message_names_an_object_that_is_there(log: Log, notifier: Notifier, cloud: SnsReceiver) -> None:
    notifier.start(it=cloud.settings())
    publish_pushes(log, "try", 1, 1)
    eventually(cloud.told)
    [envelope] = cloud.messages
    content = json.loads(envelope["Message"])
    assert envelope["Message"] == json.dumps(content, sort_keys=True)
    key = content["data_url"].split(f"/{cloud.name}/", 1)[1]
    stored = cloud.s3.get_object(Bucket=cloud.name, Key=key)
    assert stored["ContentType"] == "application/json"
    assert json.loads(stored["Body"].read())["data"] == content["data"]
    kinds = {name: (each["Type"], each["Value"]) for name, each in envelope["MessageAttributes"].items()}
    assert kinds["type"] == ("String", "changegroup.1")
    assert kinds["repo_url"] == ("String", "https://hg.example/try")
    assert kinds["sequence"] == ("Number", "1")
    assert kinds["repository"] == ("String", identifier("try"))
    assert kinds["id"][1].endswith(".changegroup.1")


def test_an_object_whose_topic_refuses_is_repeated_until_both_are_there(
    log: Log, notifier: Notifier, cloud: SnsReceiver
) -> None:
    good = cloud.settings()
    notifier.start(it=replace(good, topic_arn=cloud.arn + "-later"))
    publish_pushes(log, "try", 1, 2)
    eventually(lambda: "NotFound" in (notifier.state.conditions().get("it", {}).get("trouble") or ""), "the refusal")
    assert len(list(cloud.objects())) == 1
    assert cloud.told() == []
    cloud.sns.create_topic(Name=cloud.name + "-later")
    notifier.settled("it")
    assert len(list(cloud.objects())) == 2


@pytest.fixture
def fifo(aws: Any) -> Iterator[SnsReceiver]:
    receiver = SnsReceiver(aws.url, is_fifo=True)
    yield receiver
    receiver.close()


def test_a_fifo_topic_keeps_each_repository_in_order(log: Log, notifier: Notifier, fifo: SnsReceiver) -> None:
    notifier.start(it=fifo.settings())
    publish_pushes(log, "try", 1, 5)
    publish_pushes(log, "central", 1, 5)
    notifier.settled("it")
    told = fifo.told()
    assert [seq for name, seq in told if name == "try"] == [1, 2, 3, 4, 5]
    assert [seq for name, seq in told if name == "central"] == [1, 2, 3, 4, 5]


def test_a_fifo_topic_drops_a_repeat_and_takes_a_replay(fifo: SnsReceiver) -> None:
    sent = some(2)
    again = [replace(each, replay="2026-11-24T12:00:00Z by operator") for each in sent]
    for each in (sent, sent, again):
        assert become(fifo.settings(), *each) == [None] * 2
    assert sorted(fifo.told()) == [("r0", 1), ("r0", 1), ("r1", 1), ("r1", 1)]


def test_a_fifo_topic_is_given_repository_and_id(cloud: SnsReceiver) -> None:
    with Endpoint(lambda request: STORED) as topic:
        assert become(at(cloud, topic, topic_arn=f"{cloud.arn}.fifo"), a_message()) == [None]
        [request] = topic.requests
    fields = form(request)
    assert fields["MessageGroupId"] == a_message().repository
    assert fields["MessageDeduplicationId"] == a_message().id


def test_a_standard_topic_is_given_neither(cloud: SnsReceiver) -> None:
    with Endpoint(lambda request: STORED) as topic:
        become(at(cloud, topic), a_message())
        assert not [name for name in form(topic.requests[0]) if "Group" in name or "Dedup" in name]


STORED = Reply(body=b"<PublishResponse><PublishResult><MessageId>1</MessageId></PublishResult></PublishResponse>")
ANSWER_OF_SNS = b"""<ErrorResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/"><Error><Type>Sender</Type>\
<Code>%s</Code><Message>no</Message></Error><RequestId>1</RequestId></ErrorResponse>"""


def become(settings: SnsSettings, *sent: Message) -> list[ReplicationError | None]:
    """What becomes of these messages, submitted at once."""
    found: dict[int, ReplicationError | None] = {}
    destination = settings.open("it", SystemClock(), MemoryLog())
    destination.start()
    for number, message in enumerate(sent):
        destination.submit(Delivery(number=number, message=message, attempt=1))

    def all_are_known() -> bool:
        for outcome in destination.outcomes(0.1):
            assert outcome.number not in found
            found[outcome.number] = outcome.error
        return len(found) == len(sent)

    eventually(all_are_known)
    assert destination.outcomes(0) == []
    destination.close()
    return [found[number] for number in range(len(sent))]


def some(count: int) -> list[Message]:
    """Pushes of as many repositories."""
    return [messages(a_notice(an_event(f"r{number}")), number, PUBLIC)[0] for number in range(count)]


def at(cloud: SnsReceiver, topic: Endpoint, **more: Any) -> SnsSettings:
    """The real bucket and another topic."""
    settings = replace(cloud.settings(), sns_endpoint_url=topic.url.removesuffix("/hook"), **more)
    assert isinstance(settings, SnsSettings)
    return settings


def form(request: Request) -> dict[str, str]:
    return dict(urllib.parse.parse_qsl(request.text, keep_blank_values=True))


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("trouble", "kind"),
    [
        (Reply(status=400, body=ANSWER_OF_SNS % b"Throttled"), Unavailable),
        (Reply(status=429, body=ANSWER_OF_SNS % b"TooManyRequests"), Unavailable),
        (Reply(status=500, body=b""), Unavailable),
        (Reply(status=503, body=b"<html>busy</html>"), Unavailable),
        (Reply(status=403, body=ANSWER_OF_SNS % b"AuthorizationError"), Unavailable),
        (Reply(status=404, body=ANSWER_OF_SNS % b"NotFound"), Unavailable),
        (Reply(status=400, body=ANSWER_OF_SNS % b"InvalidParameter"), Rejected),
        (
            Reply(
                status=400, body=ANSWER_OF_SNS.replace(b"no<", b"Invalid parameter: TopicArn<") % b"InvalidParameter"
            ),
            Unavailable,
        ),
        (Reply(hang=threading.Event()), Unavailable),
        (Reply(reset=True), Unavailable),
        (Reply(status=200, body=b""), Unavailable),
        (Reply(status=200, body=b"<html>log in first</html>"), Unavailable),
        (Reply(status=200, body=b"<PublishResponse><PublishResult/></PublishResponse>"), Unavailable),
    ],
    ids=[
        "throttled",
        "429",
        "500",
        "503",
        "no-rights",
        "no-topic",
        "invalid",
        "invalid-topic",
        "hanging",
        "reset",
        "empty",
        "html",
        "unsaid",
    ],
)
def test_trouble_of_the_topic_is_waited_out_or_refused(
    cloud: SnsReceiver, trouble: Reply, kind: type[Exception]
) -> None:
    # The bucket must answer in this time too.
    more = {"read_timeout": 1.0} if trouble.hang else {}
    with Endpoint(lambda request: trouble) as sick:
        [outcome] = become(at(cloud, sick, **more), a_message())
        assert type(outcome) is kind
        assert len(sick.requests) == 1


def test_an_answer_of_a_bucket_without_sense_refuses_no_message(cloud: SnsReceiver) -> None:
    with Endpoint(lambda request: Reply(headers=(("x-amz-object-size", "much"),))) as bucket:
        settings = replace(cloud.settings(), s3_endpoint_url=bucket.url.removesuffix("/hook"))
        [outcome] = become(settings, a_message())
        assert type(outcome) is Unavailable


def test_message_whose_object_has_no_name_is_refused(cloud: SnsReceiver) -> None:
    [error] = become(cloud.settings(), replace(a_message(), created=1e20))
    assert isinstance(error, Rejected)


def test_object_that_hangs_delays_no_other_message(cloud: SnsReceiver) -> None:
    hang = threading.Event()
    hanging = [Reply(hang=hang)]
    with Endpoint(lambda request: hanging.pop() if hanging else Reply()) as bucket:
        settings = replace(cloud.settings(), s3_endpoint_url=bucket.url.removesuffix("/hook"))
        destination = settings.open("it", SystemClock(), MemoryLog())
        for number, message in enumerate(some(2)):
            destination.submit(Delivery(number=number, message=message, attempt=1))
        [first] = eventually(lambda: destination.outcomes(0.1), "the other one")
        hang.set()
        [second] = eventually(lambda: destination.outcomes(0.1), "the one that hung")
        assert (first.error, second.error) == (None, None)
        destination.close()


def test_poison_among_good_messages_is_refused_alone(cloud: SnsReceiver) -> None:
    sent = some(10)
    sent[4] = replace(sent[4], repo_url="")
    found = become(cloud.settings(), *sent)
    assert [type(each) for each in found] == [type(None)] * 4 + [Rejected] + [type(None)] * 5
    assert sorted(cloud.told()) == [(f"r{number}", 1) for number in range(10) if number != 4]


def test_message_that_no_request_can_carry_is_refused_alone(cloud: SnsReceiver) -> None:
    sent = some(3)
    sent[1] = replace(sent[1], repo_url="https://hg.example/\udce9")
    found = become(cloud.settings(), *sent)
    assert [isinstance(each, Rejected) for each in found] == [False, True, False]
    assert (found[0], found[2]) == (None, None)
    assert sorted(cloud.told()) == [("r0", 1), ("r2", 1)]


def test_what_failed_is_sent_again_and_what_is_wrong_is_kept(log: Log, notifier: Notifier, cloud: SnsReceiver) -> None:
    lock, stored = threading.Lock(), set[str]()
    troubles = iter([b"InternalError", b"Throttled"] * 5)

    def answer(request: Request) -> Reply:
        """The messages of `bad` are wrong, and the first requests of others fail."""
        url = json.loads(form(request)["Message"])["data"]["repo_url"]
        with lock:
            trouble = b"InvalidParameter" if url.endswith("/bad") else next(troubles, None)
            if trouble is None:
                stored.add(url)
        return STORED if trouble is None else Reply(status=400, body=ANSWER_OF_SNS % trouble)

    with Endpoint(answer) as topic:
        for path in ("bad", *(f"r{number}" for number in range(9))):
            publish_pushes(log, path, 1, 1)
        notifier.start(it=at(cloud, topic))
        notifier.settled("it")
        notifier.stop()
    assert stored == {f"https://hg.example/r{number}" for number in range(9)}
    [kept] = notifier.errors()
    assert "InvalidParameter" in kept.reason


def test_bytes_of_a_message_are_those_that_go_out(cloud: SnsReceiver) -> None:
    big = replace(a_message(), data={**a_message().data, "more": "é" * 20_000})
    with Endpoint(lambda request: STORED) as topic:
        become(at(cloud, topic), big)
        fields = form(topic.requests[0])
    counted = ("Message", ".Name", ".DataType", ".StringValue")
    sent = sum(len(value.encode()) for name, value in fields.items() if name.endswith(counted))
    assert sent == len(fields["Message"]) + attributes_size(attributes(big))


def test_text_leaves_room_for_the_attributes() -> None:
    """However high `limit` is: SNS counts both."""
    message = a_message()
    spare = MOST_BYTES - len(topic_text(message, "https://s3/b/k", MOST_BYTES))
    message = replace(message, data={**message.data, "more": "x" * (spare - len(', "more": ""'))})
    assert len(topic_text(message, "https://s3/b/k", MOST_BYTES)) == MOST_BYTES
    text, beside = topic_parts(message, "https://s3/b/k", MOST_BYTES)
    assert len(text) + attributes_size(beside) <= MOST_BYTES
    assert json.loads(text)["external"]


def test_cloud_in_trouble_delays_no_other_destination(log: Log, notifier: Notifier, cloud: SnsReceiver) -> None:
    hang, other = threading.Event(), Scripted()
    with Endpoint(lambda request: Reply(hang=hang)) as sick:
        settings = replace(
            cloud.settings(), sns_endpoint_url=sick.url.removesuffix("/hook"), read_timeout=0.5, patience=FAST
        )
        notifier.start(it=settings, other=other)
        for number in range(10):
            publish_pushes(log, f"r{number}", 1, 3)
        notifier.settled("other")
        assert len(other.got) == 30
        assert cloud.told() == []
        notifier.stop()

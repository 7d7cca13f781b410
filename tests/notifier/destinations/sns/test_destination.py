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
from hgext.vcsreplicator.words.clock import Clock, SystemClock
from hgext.vcsreplicator.words.errors import Rejected, ReplicationError, Unavailable
from notifier.delivery.window import Delivery
from notifier.destinations.sns.destination import SnsSettings
from notifier.destinations.sns.message import (
    MOST_BYTES,
    BatchEntry,
    attributes,
    attributes_size,
    object_body,
    object_key,
    together,
    topic_parts,
    topic_text,
    write_form,
)
from notifier.messages.message import Message, messages
from notifier.messages.public import PublicSettings
from testing.builders.notifier.endpoint import Endpoint, Reply, Request
from testing.builders.notifier.notices import a_notice, an_event, identifier, publish_pushes
from testing.builders.notifier.notifying import Notifier, Scripted
from testing.builders.notifier.receivers import FAST, SnsReceiver
from testing.clock import HandClock
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


@pytest.mark.parametrize("length", [1, 200])
def test_form_of_a_request_is_that_of_urlencode(length: int) -> None:
    values = {f"name.{n}": chr(n) * length for n in (*range(0x180), 0x2028, 0x1F600)}
    assert write_form(values) == urllib.parse.urlencode(values).encode()


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


def test_object_written_and_topic_refusing_is_repeated_until_both_are_there(
    log: Log, notifier: Notifier, cloud: SnsReceiver
) -> None:
    good = cloud.settings()
    notifier.start(it=replace(good, topic_arn=cloud.arn + "-later"))
    publish_pushes(log, "try", 1, 2)
    eventually(lambda: "NotFound" in (notifier.state.conditions().get("it", {}).get("trouble") or ""), "the refusal")
    assert len(list(cloud._objects())) == 1
    assert cloud.told() == []
    cloud.sns.create_topic(Name=cloud.name + "-later")
    notifier.settled("it")
    assert len(list(cloud._objects())) == 2


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


@pytest.mark.parametrize("count", [1, 2], ids=["alone", "in a batch"])
def test_a_fifo_topic_drops_a_repeat_and_takes_a_replay(fifo: SnsReceiver, count: int) -> None:
    sent = some(count)
    again = [replace(each, replay="2026-11-24T12:00:00Z by operator") for each in sent]
    for each in (sent, sent, again):
        assert become(fifo.settings(), *each) == [None] * count
    assert sorted(fifo.told()) == sorted([(f"r{number}", 1) for number in range(count)] * 2)


@pytest.mark.parametrize("count", [1, 2], ids=["alone", "in a batch"])
def test_a_fifo_topic_is_given_repository_and_id(cloud: SnsReceiver, count: int) -> None:
    sent = some(count)
    one = b"<PublishResponse><PublishResult><MessageId>1</MessageId></PublishResult></PublishResponse>"
    with Endpoint(lambda request: Reply(body=one) if count == 1 else stores_all(request)) as topic:
        assert become(at(cloud, topic, topic_arn=f"{cloud.arn}.fifo"), *sent) == [None] * count
        [request] = topic.requests
    fields = form(request)
    assert {value for name, value in fields.items() if name.endswith("MessageGroupId")} == {
        each.repository for each in sent
    }
    assert {value for name, value in fields.items() if name.endswith("MessageDeduplicationId")} == {
        each.id for each in sent
    }


def test_a_standard_topic_is_given_neither(cloud: SnsReceiver) -> None:
    with Endpoint(stores_all) as topic:
        become(at(cloud, topic), *some(2))
        assert not [name for name in form(topic.requests[0]) if "Group" in name or "Dedup" in name]


ANSWER_OF_SNS = b"""<ErrorResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/"><Error><Type>Sender</Type>\
<Code>%s</Code><Message>no</Message></Error><RequestId>1</RequestId></ErrorResponse>"""


def become(settings: SnsSettings, *sent: Message, clock: Clock | None = None) -> list[ReplicationError | None]:
    """What becomes of these messages, submitted at once.

    Under a clock that stands still no message waits too long for company: they go together as soon as all objects are written.
    """
    found: dict[int, ReplicationError | None] = {}
    destination = settings.open("it", clock or HandClock())
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
    """The real bucket, another topic, and one writer: objects are ready in the order of messages."""
    url = topic.url.removesuffix("/hook")
    settings = replace(cloud.settings(), sns_endpoint_url=url, workers=1, **more)
    assert isinstance(settings, SnsSettings)
    return settings


def form(request: Request) -> dict[str, str]:
    return dict(urllib.parse.parse_qsl(request.text, keep_blank_values=True))


def publications(topic: Endpoint) -> list[int]:
    """How many messages each request carried."""
    return [sum(name == "Message" or name.endswith(".Message") for name in form(each)) for each in topic.requests]


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("trouble", "kind", "requests"),
    [
        (Reply(status=400, body=ANSWER_OF_SNS % b"Throttled"), Unavailable, [3]),
        (Reply(status=429, body=ANSWER_OF_SNS % b"TooManyRequests"), Unavailable, [3]),
        (Reply(status=500, body=b""), Unavailable, [3]),
        (Reply(status=503, body=b"<html>busy</html>"), Unavailable, [3]),
        (Reply(status=403, body=ANSWER_OF_SNS % b"AuthorizationError"), Unavailable, [3, 1, 1, 1]),
        (Reply(status=404, body=ANSWER_OF_SNS % b"NotFound"), Unavailable, [3, 1, 1, 1]),
        (Reply(status=400, body=ANSWER_OF_SNS % b"InvalidParameter"), Rejected, [3, 1, 1, 1]),
        (
            Reply(
                status=400, body=ANSWER_OF_SNS.replace(b"no<", b"Invalid parameter: TopicArn<") % b"InvalidParameter"
            ),
            Unavailable,
            [3, 1, 1, 1],
        ),
        (Reply(hang=threading.Event()), Unavailable, [3]),
        (Reply(reset=True), Unavailable, [3]),
        (Reply(status=200, body=b""), Unavailable, [3]),
        (Reply(status=200, body=b"<html>log in first</html>"), Unavailable, [3]),
        (Reply(status=200, body=b"<PublishResponse><PublishResult/></PublishResponse>"), Unavailable, [3]),
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
    cloud: SnsReceiver, trouble: Reply, kind: type[Exception], requests: list[int]
) -> None:
    # The bucket must answer in this time too.
    more = {"read_timeout": 1.0} if trouble.hang else {}
    with Endpoint(lambda request: trouble) as sick:
        [alone] = become(at(cloud, sick, **more), a_message())
        assert type(alone) is kind
    with Endpoint(lambda request: trouble) as sick:
        assert {type(each) for each in become(at(cloud, sick, **more), *some(3))} == {kind}
        assert publications(sick) == requests


def test_message_whose_object_has_no_name_is_refused(cloud: SnsReceiver) -> None:
    [error] = become(cloud.settings(), replace(a_message(), created=1e20))
    assert isinstance(error, Rejected)


def test_what_we_made_is_not_checked_by_the_client_again(cloud: SnsReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[object] = []
    monkeypatch.setattr("botocore.validate.ParamValidator.validate", lambda self, params, shape: checks.append(shape))
    assert become(cloud.settings(), *some(3)) == [None] * 3
    assert not checks


def test_lone_message_does_not_wait_for_company(cloud: SnsReceiver) -> None:
    assert become(cloud.settings(), a_message(), clock=HandClock()) == [None]
    assert cloud.told() == [("try", 2)]


def test_message_does_not_wait_for_company_that_hangs(cloud: SnsReceiver) -> None:
    hang = threading.Event()
    hanging = [Reply(hang=hang)]
    with Endpoint(lambda request: hanging.pop() if hanging else Reply()) as bucket:
        settings = replace(cloud.settings(), s3_endpoint_url=bucket.url.removesuffix("/hook"))
        destination = settings.open("it", SystemClock())
        for number, message in enumerate(some(2)):
            destination.submit(Delivery(number=number, message=message, attempt=1))
        [first] = eventually(lambda: destination.outcomes(0.1), "the other one")
        hang.set()
        [second] = eventually(lambda: destination.outcomes(0.1), "the one that hung")
        assert (first.error, second.error) == (None, None)
        destination.close()


def test_messages_that_wait_go_ten_at_a_time(cloud: SnsReceiver) -> None:
    with Endpoint(stores_all) as topic:
        assert become(at(cloud, topic), *some(24)) == [None] * 24
        assert sorted(publications(topic)) == [4, 10, 10]


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


@pytest.mark.parametrize(
    "code", ["BatchRequestTooLong", "InvalidBatchEntryId", "TooManyEntriesInBatchRequest", "InvalidAction"]
)
def test_request_of_several_that_is_refused_is_made_one_by_one(cloud: SnsReceiver, code: str) -> None:
    one = b"<PublishResponse><PublishResult><MessageId>1</MessageId></PublishResult></PublishResponse>"

    def answer(request: Request) -> Reply:
        if form(request)["Action"] == "Publish":
            return Reply(body=one)
        return Reply(status=400, body=ANSWER_OF_SNS % code.encode())

    with Endpoint(answer) as topic:
        assert become(at(cloud, topic), *some(3)) == [None] * 3
        assert publications(topic) == [3, 1, 1, 1]


def batch_answer(said: dict[str, str | None]) -> bytes:
    """By entry: stored (None), or the code of its error."""
    failure = "<member><Id>%s</Id><Code>%s</Code><Message>no</Message><SenderFault>true</SenderFault></member>"
    stored = "".join(f"<member><Id>{name}</Id><MessageId>1</MessageId></member>" for name in said if not said[name])
    failed = "".join(failure % (name, code) for name, code in said.items() if code)
    result = f"<Successful>{stored}</Successful><Failed>{failed}</Failed>"
    return f"<PublishBatchResponse><PublishBatchResult>{result}</PublishBatchResult></PublishBatchResponse>".encode()


def stores_all(request: Request) -> Reply:
    return Reply(body=batch_answer({value: None for name, value in form(request).items() if name.endswith(".Id")}))


def test_each_entry_of_an_answer_stands_for_itself(cloud: SnsReceiver) -> None:
    said = {"0": None, "1": "InternalError", "2": "InvalidParameter", "4": None}  # and not a word of the fourth
    with Endpoint(lambda request: Reply(body=batch_answer(said))) as topic:
        found = become(at(cloud, topic), *some(5))
    assert [type(each) for each in found] == [type(None), Unavailable, Rejected, Unavailable, type(None)]
    assert str(found[2]) == "PublishBatch: InvalidParameter: no"


def test_what_failed_in_an_answer_is_sent_again_and_what_is_wrong_is_kept(
    log: Log, notifier: Notifier, cloud: SnsReceiver
) -> None:
    lock, stored = threading.Lock(), set[str]()
    troubles = iter(["InternalError", "Throttled"] * 5)

    def answer(request: Request) -> Reply:
        """The real messages of `bad` are wrong, and some of the first requests' fail."""
        fields = form(request)
        texts = {name: text for name, text in fields.items() if name == "Message" or name.endswith(".Message")}
        said: dict[str, str | None] = {}
        with lock:
            for name, text in texts.items():
                url = json.loads(text)["data"]["repo_url"]
                trouble = "InvalidParameter" if url.endswith("/bad") else next(troubles, None)
                said[fields.get(name.removesuffix("Message") + "Id", "alone")] = trouble
                if trouble is None:
                    stored.add(url)
        if "alone" not in said:
            return Reply(body=batch_answer(said))
        if said["alone"] is not None:
            return Reply(status=400, body=ANSWER_OF_SNS % said["alone"].encode())
        return Reply(body=b"<PublishResponse><PublishResult><MessageId>1</MessageId></PublishResult></PublishResponse>")

    with Endpoint(answer) as topic:
        for path in ("bad", *(f"r{number}" for number in range(9))):
            publish_pushes(log, path, 1, 1)
        notifier.start(it=replace(cloud.settings(), sns_endpoint_url=topic.url.removesuffix("/hook")))
        notifier.settled("it")
        notifier.stop()
    assert stored == {f"https://hg.example/r{number}" for number in range(9)}
    [kept] = notifier.errors()
    assert "InvalidParameter" in kept.reason


def an_entry(size: int) -> BatchEntry:
    beside = attributes(a_message())
    return BatchEntry(number=1, text="x" * (size - attributes_size(beside)), attributes=beside, written=0.0)


def test_request_carries_the_bytes_that_sns_allows_and_not_one_more() -> None:
    third, rest = MOST_BYTES // 3, MOST_BYTES - 2 * (MOST_BYTES // 3)
    entries = [an_entry(third), an_entry(third), an_entry(rest), an_entry(1000)]
    assert together(entries) == entries[:3]
    assert together([entries[0], entries[1], an_entry(rest + 1)]) == entries[:2]
    assert together([an_entry(MOST_BYTES + 1), entries[3]]) == [an_entry(MOST_BYTES + 1)]
    assert len(together([an_entry(1000)] * 11)) == 10


def test_bytes_of_a_request_are_those_that_go_out(cloud: SnsReceiver) -> None:
    big = [replace(each, data={**each.data, "more": "é" * 20_000}) for each in some(4)]

    with Endpoint(stores_all) as topic:
        settings = at(cloud, topic)
        become(settings, *big[:2])
        [request] = topic.requests
    counted = (".Message", ".Name", ".DataType", ".StringValue")
    sent = sum(len(value.encode()) for name, value in form(request).items() if name.endswith(counted))
    url = next(json.loads(value)["data_url"] for name, value in form(request).items() if name.endswith(".Message"))
    parts = [topic_parts(each, url, settings.limit) for each in big[:2]]
    assert sent == sum(BatchEntry(number=0, text=t, attributes=a, written=0.0).size for t, a in parts)


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

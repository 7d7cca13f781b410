# SPDX-License-Identifier: GPL-2.0-or-later
"""Publishing: requests of several messages that are boto3's to the letter, and answers that botocore reads."""

import datetime
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, HTTPClientError

from hgext.vcsreplicator.words.clock import SystemClock
from notifier.destinations.sns.message import BatchEntry, attributes, fifo_keys
from notifier.destinations.sns.topic import TopicPublisher
from notifier.messages.message import messages
from notifier.messages.public import PublicSettings
from testing.builders.notifier.endpoint import Endpoint, Reply, Request
from testing.builders.notifier.notices import a_notice, an_event

pytestmark = pytest.mark.processes

ARN = "arn:aws:sns:us-west-2:123456789012:hg-events.fifo"
ANSWER = (
    b'<PublishBatchResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/"><PublishBatchResult><Failed>%b</Failed>'
    b"<Successful>%b</Successful></PublishBatchResult></PublishBatchResponse>"
)
STORED = b"<member><Id>%d</Id><MessageId>1</MessageId></member>"
FAILED = b"<member><Id>%d</Id><Code>InternalError</Code><SenderFault>false</SenderFault></member>"
BOTH = Reply(body=ANSWER % (b"", STORED % 0 + STORED % 1))
ERROR = b"<ErrorResponse><Error><Code>Throttled</Code><Message>no</Message></Error></ErrorResponse>"


class Topic:
    """A publisher and the endpoint of its topic, which gives the `replies`, then stores two entries each time."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.replies: list[Reply] = []
        endpoint.reply = lambda request: self.replies.pop(0) if self.replies else BOTH
        self.requests = endpoint.requests
        session = boto3.session.Session("first", "secret", region_name="us-west-2")
        self.clock = SystemClock()
        self.client = session.client(
            "sns",
            endpoint_url=endpoint.url.removesuffix("/hook"),
            config=Config(retries={"total_max_attempts": 1}),
        )
        self.publisher = TopicPublisher(self.client, ARN, session.get_credentials(), self.clock)

    def publish(self) -> Any:
        return self.publisher.publish_batch([an_entry("a"), an_entry("b")])

    @property
    def ways(self) -> list[str]:
        """Whose each request was, by a header that only boto3 sends."""
        return ["boto3" if "amz-sdk-invocation-id" in each.headers else "short" for each in self.requests]


def an_entry(path: str) -> BatchEntry:
    [message] = messages(a_notice(an_event(path, 2)), 1, PublicSettings(urls={"": "https://hg.example/"}))
    text = f'{path} "é"\n%&=+/?'
    return BatchEntry(number=0, text=text, attributes=attributes(message), written=0.0, keys=fifo_keys(message))


@pytest.fixture
def topic() -> Iterator[Topic]:
    with Endpoint() as endpoint:
        yield Topic(endpoint)


def test_later_requests_are_boto3s_to_the_letter(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    noon = datetime.datetime(2026, 11, 26, 12, tzinfo=datetime.UTC)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: noon)
    monkeypatch.setattr(topic.clock, "now", noon.timestamp)
    for _ in range(3):
        topic.publish()

    def whole(request: Request) -> Any:
        headers = {name: value for name, value in request.headers.items() if not name.startswith("amz-sdk-")}
        return request.method, request.path, request.text, headers

    assert topic.ways == ["boto3", "short", "short"]
    first, *later = map(whole, topic.requests)
    assert later == [first, first]
    assert "/sns/aws4_request" in first[3]["authorization"]


def test_entry_that_failed_alone_is_named_after_a_request_of_either_kind(topic: Topic) -> None:
    topic.replies = [Reply(body=ANSWER % (FAILED % 1, STORED % 0)) for _ in range(2)]
    for answer in (topic.publish(), topic.publish()):
        assert [each["Id"] for each in answer["Successful"]] == ["0"]
        assert [(each["Id"], each["Code"]) for each in answer["Failed"]] == [("1", "InternalError")]
    assert topic.ways == ["boto3", "short"]


def test_error_is_boto3s_and_so_is_the_next_request(topic: Topic) -> None:
    topic.replies = [BOTH, Reply(status=400, body=ERROR)]
    topic.publish()
    with pytest.raises(ClientError, match="Throttled") as caught:
        topic.publish()
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    topic.publish()
    assert topic.ways == ["boto3", "short", "boto3"]


def test_messages_are_published_once_after_an_answer_that_says_nothing(topic: Topic) -> None:
    topic.replies = [BOTH, Reply(body=ANSWER % (b"", b""))]
    topic.publish()
    assert topic.publish()["Successful"] == []
    assert topic.ways == ["boto3", "short"]


def test_lost_connection_is_not_tried_twice_at_once(topic: Topic) -> None:
    topic.replies = [BOTH, Reply(reset=True)]
    topic.publish()
    with pytest.raises(HTTPClientError):
        topic.publish()
    topic.publish()
    assert topic.ways == ["boto3", "short", "boto3"]


def test_requests_that_boto3_writes_differently_are_boto3s(topic: Topic) -> None:
    """As it would if the service took another format."""

    def add_member(params: dict[str, Any], **_: object) -> None:
        params["body"] = params["body"] + b"&Further=1"

    topic.client.meta.events.register_last("before-call.sns", add_member)
    for _ in range(2):
        topic.publish()
    assert topic.ways == ["boto3", "boto3"]
    assert all(each.text.endswith("&Further=1") for each in topic.requests)

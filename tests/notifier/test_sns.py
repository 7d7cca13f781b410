# SPDX-License-Identifier: GPL-2.0-or-later
"""SNS and S3: forms to the letter, the object first, and clouds that throttle, fail and hang."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from hgext.vcsreplicator.errors import Rejected, Unavailable
from hgext.vcsreplicator.log import Log
from notifier.message import Message, messages
from notifier.public import PublicSettings
from notifier.sns import Sns, SnsSettings, object_body, object_key, topic_message
from testing.endpoint import Endpoint, Reply
from testing.notices import a_notice, an_event, publish_pushes
from testing.notifying import Notifier, Scripted
from testing.receivers import FAST, SnsReceiver
from testing.waiting import eventually

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
    whole = topic_message(a_message(), "https://s3/b/k", 260_000)
    assert set(whole) == {"type", "data", "data_url"}
    size = len(json.dumps(whole, sort_keys=True))
    assert topic_message(a_message(), "https://s3/b/k", size) == whole
    assert topic_message(a_message(), "https://s3/b/k", size - 1) == {
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


ANSWER_OF_SNS = b"""<ErrorResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/"><Error><Type>Sender</Type>\
<Code>%s</Code><Message>no</Message></Error><RequestId>1</RequestId></ErrorResponse>"""


@pytest.mark.parametrize(
    ("trouble", "kind"),
    [
        (Reply(status=400, body=ANSWER_OF_SNS % b"Throttled"), Unavailable),
        (Reply(status=500, body=b""), Unavailable),
        (Reply(status=503, body=b"<html>busy</html>"), Unavailable),
        (Reply(status=403, body=ANSWER_OF_SNS % b"AuthorizationError"), Unavailable),
        (Reply(status=400, body=ANSWER_OF_SNS % b"InvalidParameter"), Rejected),
        (Reply(hang=threading.Event()), Unavailable),
        (Reply(reset=True), Unavailable),
    ],
    ids=["throttled", "500", "503", "no-rights", "invalid", "hanging", "reset"],
)
def test_trouble_of_the_topic_is_waited_out_or_refused(
    cloud: SnsReceiver, trouble: Reply, kind: type[Exception]
) -> None:
    with Endpoint(lambda request: trouble) as sick:
        settings = replace(cloud.settings(), sns_endpoint_url=sick.url.removesuffix("/hook"), read_timeout=0.3)
        assert isinstance(settings, SnsSettings)
        with pytest.raises(kind):
            Sns(settings).send(a_message())


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

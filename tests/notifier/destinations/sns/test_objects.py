# SPDX-License-Identifier: GPL-2.0-or-later
"""Objects: requests that are boto3's to the letter, and boto3's own after trouble."""

import datetime
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError, HTTPClientError

from hgext.vcsreplicator.words.clock import SystemClock
from notifier.destinations.sns.objects import ObjectWriter
from testing.builders.notifier.endpoint import Endpoint, Reply, Request

pytestmark = pytest.mark.processes

FULL = b"<Error><Code>QuotaExceeded</Code><Message>no room</Message></Error>"


class Bucket:
    """A writer and the endpoint of its bucket, which gives the `replies`, then stores everything."""

    def __init__(self, endpoint: Endpoint, *, proxy: str | None = None) -> None:
        self.replies: list[Reply] = []
        endpoint.reply = lambda request: self.replies.pop(0) if self.replies else Reply()
        self.requests = endpoint.requests
        session = boto3.session.Session("first", "secret", region_name="us-west-2")
        self.clock = SystemClock()
        self.credentials: Credentials = session.get_credentials()
        self.client = session.client(
            "s3",
            endpoint_url=endpoint.url.removesuffix("/hook"),
            config=Config(
                s3={"addressing_style": "path"},
                retries={"total_max_attempts": 1},
                proxies=None if proxy is None else {"http": proxy},
                request_checksum_calculation="when_required",
            ),
        )
        self.writer = ObjectWriter(self.client, "bucket", self.credentials, self.clock)

    @property
    def ways(self) -> list[str]:
        """Whose each request was, by a header that only boto3 sends."""
        return ["boto3" if "amz-sdk-invocation-id" in each.headers else "short" for each in self.requests]


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    with Endpoint() as endpoint:
        yield Bucket(endpoint)


def headers(request: Request) -> dict[str, str]:
    return {name: value for name, value in request.headers.items() if not name.startswith(("amz-sdk-", "expect"))}


def test_later_requests_are_boto3s_to_the_letter(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    noon = datetime.datetime(2026, 11, 26, 12, tzinfo=datetime.UTC)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: noon)
    monkeypatch.setattr(bucket.clock, "now", noon.timestamp)
    for _ in range(3):
        bucket.writer.write("events/a.json", b'{"a": 1}')
    assert bucket.ways == ["boto3", "short", "short"]
    first, *later = [(each.method, each.path, each.text, headers(each)) for each in bucket.requests]
    assert later == [first, first]
    assert "Signature=" in first[3]["authorization"]


def test_later_requests_are_signed_for_the_region_of_the_first(bucket: Bucket) -> None:
    """It may be another than the client's: that of a redirect, or behind a name such as `aws-global`."""

    def move(context: dict[str, Any], **_: object) -> None:
        context["signing"]["region"] = "eu-west-3"

    bucket.client.meta.events.register("before-call.s3.PutObject", move)
    for _ in range(2):
        bucket.writer.write("events/a.json", b"")
    assert bucket.ways == ["boto3", "short"]
    assert all("/eu-west-3/s3/aws4_request" in each.headers["authorization"] for each in bucket.requests)


def test_requests_that_boto3_signs_differently_are_boto3s(bucket: Bucket) -> None:
    def add_header(request: Any, **_: object) -> None:
        request.headers["X-Amz-Acl"] = "private"

    bucket.client.meta.events.register("before-sign.s3.PutObject", add_header)
    for _ in range(2):
        bucket.writer.write("events/a.json", b"")
    assert bucket.ways == ["boto3", "boto3"]


def test_each_object_has_its_own_key_and_content(bucket: Bucket) -> None:
    for name in ("a", "b", "c"):
        bucket.writer.write(f"events/{name}.json", name.encode())
    assert [(each.path, each.text) for each in bucket.requests] == [
        (f"/bucket/events/{name}.json", name) for name in ("a", "b", "c")
    ]


def test_credentials_that_changed_sign_the_next_object(bucket: Bucket) -> None:
    for key, token in (("first", None), ("first", None), ("second", "token")):
        bucket.credentials.access_key, bucket.credentials.token = key, token
        bucket.writer.write("events/a.json", b"")
    assert bucket.ways == ["boto3", "short", "short"]
    assert "Credential=second/" in bucket.requests[2].headers["authorization"]
    assert bucket.requests[2].headers["x-amz-security-token"] == "token"


def test_object_that_was_not_stored_is_boto3s_to_explain(bucket: Bucket) -> None:
    bucket.writer.write("events/a.json", b"")
    bucket.replies = [Reply(status=503), Reply(status=403, body=FULL), Reply(status=403, body=FULL)]
    for _ in range(2):
        with pytest.raises(ClientError, match="QuotaExceeded"):
            bucket.writer.write("events/b.json", b"")
    assert bucket.ways == ["boto3", "short", "boto3", "boto3"]


def test_error_in_an_answer_of_status_200_is_an_error(bucket: Bucket) -> None:
    bucket.writer.write("events/a.json", b"")
    bucket.replies = [Reply(body=FULL), Reply(body=FULL)]
    with pytest.raises(ClientError, match="QuotaExceeded"):
        bucket.writer.write("events/b.json", b"")
    assert bucket.ways == ["boto3", "short", "boto3"]


def test_store_whose_answers_have_content_gets_each_object_once(bucket: Bucket) -> None:
    bucket.replies = [Reply(body=b"<Stored/>") for _ in range(2)]
    for name in ("a", "b"):
        bucket.writer.write(f"events/{name}.json", b"")
    assert bucket.ways == ["boto3", "boto3"]


@pytest.mark.parametrize("part", ["learned._KnownRequest.send", "learned.LearnedRequest._learn_request"])
def test_botocore_that_works_differently_inside_stores_every_object(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def differ(*_: object, **__: object) -> None:
        raise TypeError("unexpected keyword argument")

    monkeypatch.setattr(f"notifier.destinations.sns.{part}", differ)
    for name in ("a", "b", "c"):
        bucket.writer.write(f"events/{name}.json", b"")
    assert [each.path for each in bucket.requests] == [f"/bucket/events/{name}.json" for name in ("a", "b", "c")]
    assert bucket.ways == ["boto3"] * 3


def test_object_that_boto3_stored_after_all_is_stored(bucket: Bucket) -> None:
    bucket.writer.write("events/a.json", b"")
    bucket.replies = [Reply(status=503)]
    bucket.writer.write("events/b.json", b"")
    bucket.writer.write("events/c.json", b"")
    assert bucket.ways == ["boto3", "short", "boto3", "short"]


def test_lost_connection_is_not_tried_twice_at_once(bucket: Bucket) -> None:
    bucket.writer.write("events/a.json", b"")
    bucket.replies = [Reply(reset=True)]
    with pytest.raises(HTTPClientError):
        bucket.writer.write("events/b.json", b"")
    bucket.writer.write("events/b.json", b"")
    assert bucket.ways == ["boto3", "short", "boto3"]


def test_object_that_goes_through_a_proxy_is_left_to_boto3() -> None:
    """The proxy is asked for a whole URL, which the bucket itself is not."""
    with Endpoint() as endpoint:
        bucket = Bucket(endpoint, proxy=endpoint.url.removesuffix("/hook"))
        for name in ("a", "b"):
            bucket.writer.write(f"events/{name}.json", b"")
    assert bucket.ways == ["boto3", "boto3"]
    assert all(each.path.startswith("http://") for each in bucket.requests)


def test_address_that_does_not_end_with_the_key_is_left_to_boto3(bucket: Bucket) -> None:
    def add_query(params: dict[str, Any], **_: object) -> None:
        params["url"] += "?x-id=PutObject"

    bucket.client.meta.events.register("before-call.s3.PutObject", add_query)
    for name in ("a", "b"):
        bucket.writer.write(f"events/{name}.json", b"")
    assert [each.path for each in bucket.requests] == [
        f"/bucket/events/{name}.json?x-id=PutObject" for name in ("a", "b")
    ]

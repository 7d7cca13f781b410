# SPDX-License-Identifier: GPL-2.0-or-later
"""SNS: the message to a topic, and its body to an S3 object that the message names, the object first.

Whoever gets a message can read its object at once. A message over `limit` bytes goes out without its data (`external`).
Credentials come from boto3's default chain. Repeats write the same object under the same name. What SNS or S3 say is wrong with
this one message is refused; everything else (throttling, 5xx, no answer, missing rights, a missing bucket) heals by waiting or by
an operator.
"""

import datetime
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError
from botocore.handlers import add_expect_header

from hgext.vcsreplicator.clock import Clock
from hgext.vcsreplicator.errors import BadConfig, ReplicationError, Unavailable
from hgext.vcsreplicator.errors import Rejected as Wrong

from .delivery import PATIENCE, Patience, check_number
from .destination import DOCUMENTED, Destination, Threads
from .message import Json, Message, to_text

WRONG = {
    "InvalidParameter",
    "InvalidParameterValue",
    "InvalidParameterException",
    "ParameterValueInvalid",
    "ValidationError",
    "EntityTooLarge",
    "KeyTooLongError",
}
"""Error codes that are about the message and stay so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnsSettings:
    """`topic_arn` and `bucket` must exist. `limit`: bytes of a message's text with its data. Timeouts in seconds.

    The endpoint URLs are for other clouds and tests. `workers` requests are under way at once, one per repository.
    """

    topic_arn: str
    bucket: str
    region: str
    sns_endpoint_url: str | None = None
    s3_endpoint_url: str | None = None
    limit: int = 260_000
    workers: int = 16
    connect_timeout: float = 5.0
    read_timeout: float = 10.0
    types: tuple[str, ...] = DOCUMENTED
    start_at: str = "beginning"
    patience: Patience = PATIENCE

    def __post_init__(self) -> None:
        if not self.topic_arn.startswith("arn:"):
            raise ValueError(f"topic-arn: expected arn:…, got {self.topic_arn!r}")
        for name in ("bucket", "region"):
            if not getattr(self, name):
                raise ValueError(f'{name}: expected a name, got ""')
        for name in ("sns_endpoint_url", "s3_endpoint_url"):
            if not (getattr(self, name) or "https://").startswith(("http://", "https://")):
                raise ValueError(f"{name}: expected an http or https URL, got {getattr(self, name)!r}")
        check_number("workers", self.workers, 1, 100)
        check_number("limit", self.limit, 1024, 256 * 1024)
        check_number("connect_timeout", self.connect_timeout, 0.001, 3600)
        check_number("read_timeout", self.read_timeout, 0.001, 3600)

    def open(self, name: str, clock: Clock) -> Destination:
        return Threads(Sns(self).send, workers=self.workers)


def object_key(message: Message) -> str:
    """`events/YYYY-MM-DD/OFFSET-YYYYMMDDTHHMMSS.json`; a second message of the same notice adds its type."""
    created = datetime.datetime.fromtimestamp(message.created, datetime.UTC)
    suffix = f"-{message.type.value}" if message.index else ""
    return f"events/{created:%Y-%m-%d}/{message.offset:010d}-{created:%Y%m%dT%H%M%S}{suffix}.json"


def object_body(message: Message) -> str:
    """What the object holds."""
    return to_text({"created": message.created, "data": message.data, "id": message.offset, "type": message.type.value})


def topic_message(message: Message, data_url: str, limit: int) -> Json:
    """What is published: with the data, or without if its text were over `limit` bytes."""
    whole: Json = {"type": message.type.value, "data": message.data, "data_url": data_url}
    if len(to_text(whole).encode()) <= limit:
        return whole
    return {"type": message.type.value, "external": True, "data_url": data_url, "repo_url": message.repo_url}


def attributes(message: Message) -> dict[str, Any]:
    """For filter policies of subscriptions, and for receivers that drop repeats."""
    texts = {
        "type": message.type.value,
        "repo_url": message.repo_url,
        "id": message.id,
        "previous": message.previous,
        "replay": message.replay,
    }
    found: dict[str, Any] = {
        name: {"DataType": "String", "StringValue": text} for name, text in texts.items() if text is not None
    }
    found["sequence"] = {"DataType": "Number", "StringValue": str(message.sequence)}
    return found


class Sns:
    """Sends one message at a time; used by several threads."""

    def __init__(self, settings: SnsSettings) -> None:
        self.settings = settings
        config = Config(
            connect_timeout=settings.connect_timeout,
            read_timeout=settings.read_timeout,
            max_pool_connections=settings.workers,
            retries={"total_max_attempts": 1},  # the publisher tries again, for ever
            s3={"addressing_style": "path"},
            request_checksum_calculation="when_required",  # TLS and the signature cover the body
            response_checksum_validation="when_required",
        )
        try:
            session = boto3.session.Session(region_name=settings.region)
            self._s3 = session.client("s3", config=config, endpoint_url=settings.s3_endpoint_url)
            self._s3.meta.events.unregister(
                "before-call.s3", add_expect_header
            )  # a round trip for each of our small bodies
            self._sns = session.client("sns", config=config, endpoint_url=settings.sns_endpoint_url)
        except (BotoCoreError, OSError, ValueError) as error:
            raise BadConfig(f"sns: {error}") from error

    def send(self, message: Message) -> None:
        """Object first, then message; returns when SNS has stored it."""
        key = object_key(message)
        try:
            self._s3.put_object(
                Bucket=self.settings.bucket,
                Key=key,
                Body=object_body(message).encode(),
                ContentType="application/json",
            )
            self._sns.publish(
                TopicArn=self.settings.topic_arn,
                Message=to_text(topic_message(message, self._data_url(key), self.settings.limit)),
                MessageAttributes=attributes(message),
            )
        except (ClientError, BotoCoreError) as error:
            raise _translated(error) from error
        except OSError as error:  # a file of boto3's: certificates, credentials
            raise Unavailable(f"sns: {error}") from error

    def _data_url(self, key: str) -> str:
        return f"{self._s3.meta.endpoint_url.rstrip('/')}/{self.settings.bucket}/{key}"


def _translated(error: ClientError | BotoCoreError) -> ReplicationError:
    if isinstance(error, ParamValidationError):
        return Wrong(f"sns: {error}")
    if isinstance(error, ClientError):
        code = str(error.response.get("Error", {}).get("Code", ""))
        text = f"{error.operation_name}: {code}: {error.response.get('Error', {}).get('Message', '')}"
        return Wrong(text) if code in WRONG else Unavailable(text)
    return Unavailable(f"sns: {error}")

# SPDX-License-Identifier: GPL-2.0-or-later
"""SNS: the message to a topic, its body to an S3 object.

The message names the object, which is written first, so a receiver of a message can read its object at once. A message over
`limit` bytes goes out without its data (`external`). Credentials come from boto3's default chain. Repeats write the same object
under the same name. A message to which SNS or S3 attribute the fault is rejected; every other error (throttling, 5xx, no answer,
missing rights, a missing bucket) is retried until it works, perhaps after an operator's repair.
"""

import re
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError
from botocore.handlers import add_expect_header
from botocore.parsers import ResponseParserError

from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import BadConfig, ReplicationError, Unavailable, quote_value
from hgext.vcsreplicator.words.errors import Rejected as Wrong
from hgext.vcsreplicator.words.secrecy import split_url
from hgext.vcsreplicator.words.shape import Bytes, Seconds, within
from hgext.vcsreplicator.words.version import VERSION

from ...delivery.destination import DOCUMENTED, DeliveryThreads, Destination
from ...delivery.rejects import judged
from ...delivery.window import PATIENCE, Delivery, Patience
from .message import fifo_keys, object_body, object_key, topic_parts

TOPIC = re.compile(r"arn:[^:]+:sns:(?P<region>[^:]*):[^:]*:[A-Za-z0-9_-]{1,256}(\.fifo)?")
BUCKET = re.compile(r"[A-Za-z0-9._-]{1,255}")

# Error codes that are about the message and stay so.
WRONG = {
    "InvalidParameter",
    "InvalidParameterValue",
    "InvalidParameterException",
    "ParameterValueInvalid",
    "ValidationError",
    "EntityTooLarge",
    "KeyTooLongError",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SnsSettings:
    """Settings of the destination `sns`.

    `topic_arn` and `bucket` must exist. `limit` is the largest size in bytes of a message's text with its data. Timeouts are in
    seconds.

    The endpoint URLs are for other clouds and tests. `workers` messages are sent at once, one per repository.
    """

    topic_arn: str
    bucket: str
    region: str
    sns_endpoint_url: str | None = None
    s3_endpoint_url: str | None = None
    limit: Bytes = 260_000
    workers: int = 16
    connect_timeout: Seconds = 5.0
    read_timeout: Seconds = 10.0
    types: tuple[str, ...] = DOCUMENTED
    start_at: str = "beginning"
    patience: Patience = PATIENCE

    def __post_init__(self) -> None:
        # SNS and S3 would attribute most of these mistakes to each message.
        arn = TOPIC.fullmatch(self.topic_arn)
        if arn is None:
            raise ValueError(f"topic-arn: expected arn:…:sns:REGION:ACCOUNT:NAME, got {quote_value(self.topic_arn)}")
        if not BUCKET.fullmatch(self.bucket):
            raise ValueError(
                f"bucket: expected a name of letters, digits, dots and hyphens, got {quote_value(self.bucket)}"
            )
        if not self.region:
            raise ValueError('region: expected a name, got ""')
        if self.sns_endpoint_url is None and self.region != arn["region"]:
            raise ValueError(f"region: expected {arn['region']}, as in topic-arn, got {quote_value(self.region)}")
        for name in ("sns_endpoint_url", "s3_endpoint_url"):
            url = getattr(self, name)
            if url is not None and not (url.startswith("http") and split_url(url, "http", "https")):
                raise ValueError(f"{name}: expected an http or https URL, got {quote_value(url)}")
        within(self, workers=(1, 100), limit=(1024, 256 * 1024))
        within(self, connect_timeout=(0.001, 3600), read_timeout=(0.001, 3600))

    @property
    def is_fifo(self) -> bool:
        """Whether SNS keeps the topic's messages in order; the name says so."""
        return self.topic_arn.endswith(".fifo")

    def open(self, name: str, clock: Clock, log: Log) -> Destination:
        return Sns(self)


class Sns(DeliveryThreads):
    """The destination `sns`: a thread writes an object, then its message."""

    def __init__(self, settings: SnsSettings) -> None:
        super().__init__(self._deliver, workers=settings.workers)
        self.settings = settings
        config = Config(
            connect_timeout=settings.connect_timeout,
            read_timeout=settings.read_timeout,
            max_pool_connections=settings.workers,
            user_agent_extra=f"vcsreplicator/{VERSION}",
            retries={"total_max_attempts": 1},  # the courier retries indefinitely
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

    def _deliver(self, delivery: Delivery) -> None:
        """Convert the whole message, write its object, and publish it."""
        message, settings = delivery.message, self.settings
        key, content = object_key(message), object_body(message).encode()
        url = f"{self._s3.meta.endpoint_url.rstrip('/')}/{settings.bucket}/{key}"
        text, attributes = topic_parts(message, url, settings.limit)
        keys: dict[str, Any] = fifo_keys(message) if settings.is_fifo else {}
        try:
            self._s3.put_object(Bucket=settings.bucket, Key=key, Body=content, ContentType="application/json")
            answer = self._sns.publish(TopicArn=settings.topic_arn, Message=text, MessageAttributes=attributes, **keys)
        except Exception as error:
            raise _translate_error(error) from error
        if not answer.get("MessageId"):
            raise Unavailable("sns: the answer does not say that the message is stored")


def _translate_error(error: Exception) -> ReplicationError:
    if isinstance(error, ParamValidationError):
        return Wrong(f"sns: {error}")
    if isinstance(error, ClientError):
        said = error.response.get("Error", {})
        code, reason = str(said.get("Code", "")), said.get("Message", "")
        text = f"{error.operation_name}: {code}: {reason}"
        # "Invalid parameter: TopicArn" is no fault of the message.
        return Wrong(text) if code in WRONG and "TopicArn" not in reason else Unavailable(text)
    if isinstance(error, BotoCoreError | OSError):  # OSError: a file of certificates, credentials
        return Unavailable(f"sns: {error}")
    # KeyError, ValueError: well-formed, but not an answer of AWS. UnicodeEncodeError: the message cannot be sent.
    is_unreadable = isinstance(error, ResponseParserError | KeyError | ValueError)
    if is_unreadable and not isinstance(error, UnicodeEncodeError):
        return Unavailable(f"sns: an answer that is not understood: {error}")
    return judged(error)

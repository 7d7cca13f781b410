# SPDX-License-Identifier: GPL-2.0-or-later
"""SNS: the message to a topic, its body to an S3 object.

The message names the object, which is written first, so a receiver of a message can read its object at once. A message over
`limit` bytes goes out without its data (`external`). Credentials come from boto3's default chain. Repeats write the same object
under the same name. A message to which SNS or S3 attribute the fault is rejected; every other error (throttling, 5xx, no answer,
missing rights, a missing bucket) is retried until it works, perhaps after an operator's repair.

Messages whose objects are written go to the topic together, up to ten in a request; each has an outcome of its own. Such a
message waits only while objects of others are being written, and some milliseconds at most. If the service does not take a
request of several messages, each is sent again in a request of its own, so that no message is refused for the fault of another.
"""

import math
import queue
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError
from botocore.handlers import add_expect_header
from botocore.parsers import ResponseParserError

from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import BadConfig, ReplicationError, Unavailable, quote_value
from hgext.vcsreplicator.words.errors import Rejected as Wrong
from hgext.vcsreplicator.words.secrecy import split_url
from hgext.vcsreplicator.words.shape import Bytes, Seconds, within
from hgext.vcsreplicator.words.version import VERSION

from ...delivery.destination import DOCUMENTED, DeliveryOutcome, Destination, take_all
from ...delivery.rejects import judged
from ...delivery.window import PATIENCE, Delivery, Patience
from .message import MOST_ENTRIES, BatchEntry, fifo_keys, object_body, object_key, together, topic_parts
from .objects import ObjectWriter
from .topic import TopicPublisher

# Seconds that a message may wait for each that may join it.
LINGER = 0.003

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

    The endpoint URLs are for other clouds and tests. `workers` objects are written at once, one per repository, and as many
    requests to the topic are under way.
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
            raise ValueError(f"region: expected that of topic-arn, {arn['region']}, got {quote_value(self.region)}")
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

    def open(self, name: str, clock: Clock) -> Destination:
        return Sns(self, clock)


class Sns:
    """The destination `sns`.

    Threads write objects and publish; the caller's thread decides what goes together.
    """

    def __init__(self, settings: SnsSettings, clock: Clock) -> None:
        self.settings, self.clock = settings, clock
        self._writers = ThreadPoolExecutor(settings.workers, thread_name_prefix="sns-object")
        self._publishers = ThreadPoolExecutor(settings.workers, thread_name_prefix="sns-topic")
        self._done: queue.SimpleQueue[BatchEntry | DeliveryOutcome] = queue.SimpleQueue()
        self._writing: set[int] = set()
        self._ready: list[BatchEntry] = []
        config = Config(
            connect_timeout=settings.connect_timeout,
            read_timeout=settings.read_timeout,
            max_pool_connections=settings.workers,
            user_agent=f"vcsreplicator/{VERSION}",  # boto3's own is put together at each request: a seventh of its cost
            retries={"total_max_attempts": 1},  # the courier retries indefinitely
            s3={"addressing_style": "path"},
            # We make keys, bodies and entries; to check their types again would be an eighth of the cost of a request.
            parameter_validation=False,
            request_checksum_calculation="when_required",  # TLS and the signature cover the body
            response_checksum_validation="when_required",
        )
        try:
            session = boto3.session.Session(region_name=settings.region)
            self._s3 = session.client("s3", config=config, endpoint_url=settings.s3_endpoint_url)
            self._s3.meta.events.unregister(
                "before-call.s3", add_expect_header
            )  # a round trip for each of our small bodies
            self._objects = ObjectWriter(self._s3, settings.bucket, session.get_credentials(), clock)
            sns = session.client("sns", config=config, endpoint_url=settings.sns_endpoint_url)
            self._topic = TopicPublisher(sns, settings.topic_arn, session.get_credentials(), clock)
        except (BotoCoreError, OSError, ValueError) as error:
            raise BadConfig(f"sns: {error}") from error

    def start(self) -> None:
        """Do nothing: each request connects by itself."""

    def submit(self, delivery: Delivery) -> None:
        self._writing.add(delivery.number)
        self._writers.submit(self._write_object, delivery)

    def outcomes(self, timeout: float) -> Sequence[DeliveryOutcome]:
        end = self.clock.monotonic() + timeout
        found = self._take_in(0)
        while not found and (left := end - self.clock.monotonic()) > 0:
            found = self._take_in(min(left, self._remaining_linger()))
        return found

    def close(self) -> None:
        for pool in (self._writers, self._publishers):
            pool.shutdown(wait=False, cancel_futures=True)

    # -- the caller's thread

    def _take_in(self, wait: float) -> list[DeliveryOutcome]:
        """Take in the threads' results, and publish what is ready; return the outcomes.

        Waits up to `wait` seconds for the first result.
        """
        found: list[DeliveryOutcome] = []
        for done in take_all(self._done, wait):
            self._writing.discard(done.number)
            if isinstance(done, DeliveryOutcome):
                found.append(done)
            else:
                self._ready.append(done)
        self._publish_ready()
        return found

    def _remaining_linger(self) -> float:
        """Return the seconds that the oldest ready message may still wait.

        The more objects are being written, the longer it may wait.
        """
        if not self._ready:
            return math.inf
        return self._ready[0].written + LINGER * min(len(self._writing), MOST_ENTRIES) - self.clock.monotonic()

    def _publish_ready(self) -> None:
        """Publish full requests at once, the rest when its wait is over.

        The wait is also over when no other object is being written.
        """
        while self._ready:
            if len(self._ready) < MOST_ENTRIES and self._remaining_linger() > 0:
                return
            entries = together(self._ready)
            del self._ready[: len(entries)]
            self._publishers.submit(self._publish_entries, entries)

    # -- threads

    def _write_object(self, delivery: Delivery) -> None:
        """Convert the whole message, then write its object."""
        message = delivery.message
        try:
            key, content = object_key(message), object_body(message).encode()
            text, attributes = topic_parts(message, self._data_url(key), self.settings.limit)
        except Exception as error:
            self._done.put(DeliveryOutcome(number=delivery.number, error=judged(error)))
            return
        try:
            self._objects.write(key, content)
            now = self.clock.monotonic()
            keys = fifo_keys(message) if self.settings.is_fifo else {}
            entry = BatchEntry(number=delivery.number, text=text, attributes=attributes, written=now, keys=keys)
        except Exception as error:  # a thread that dies would forget its delivery
            self._done.put(DeliveryOutcome(number=delivery.number, error=_translate_error(error)))
            return
        self._done.put(entry)

    def _publish_entries(self, entries: Sequence[BatchEntry]) -> None:
        """Publish entries together, or each alone if that cannot work.

        Only one of them may be to blame.
        """
        try:
            outcomes = self._publish_one(entries[0]) if len(entries) == 1 else self._publish_batch(entries)
        except Exception as error:  # a thread that dies would forget its deliveries
            if len(entries) > 1 and not _is_passing(error):
                for entry in entries:
                    self._publishers.submit(self._publish_entries, [entry])
                return
            trouble = _translate_error(error)
            outcomes = [DeliveryOutcome(number=entry.number, error=trouble) for entry in entries]
        for outcome in outcomes:
            self._done.put(outcome)

    def _publish_one(self, entry: BatchEntry) -> list[DeliveryOutcome]:
        answer = self._topic.publish(entry)
        return [DeliveryOutcome(number=entry.number, error=None if answer.get("MessageId") else _NOT_CONFIRMED)]

    def _publish_batch(self, entries: Sequence[BatchEntry]) -> list[DeliveryOutcome]:
        """Publish entries in one request.

        An entry failed unless the answer calls it successful.
        """
        answer = self._topic.publish_batch(entries)
        errors: dict[str, ReplicationError | None] = {each["Id"]: None for each in answer.get("Successful", ())}
        for each in answer.get("Failed", ()):
            errors[each["Id"]] = _judge_error("PublishBatch", each["Code"], each.get("Message", ""))
        return [
            DeliveryOutcome(number=entry.number, error=errors.get(str(n), _NOT_CONFIRMED))
            for n, entry in enumerate(entries)
        ]

    def _data_url(self, key: str) -> str:
        return f"{self._s3.meta.endpoint_url.rstrip('/')}/{self.settings.bucket}/{key}"


_NOT_CONFIRMED = Unavailable("sns: the answer does not say that the message is stored")


def _is_passing(error: Exception) -> bool:
    """Return whether a request failed for a reason unrelated to its content."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return status >= 500 or status == 429 or "Throttl" in _read_code(error)
    return isinstance(_translate_error(error), Unavailable)


def _translate_error(error: Exception) -> ReplicationError:
    if isinstance(error, ParamValidationError):
        return Wrong(f"sns: {error}")
    if isinstance(error, ClientError):
        return _judge_error(error.operation_name, _read_code(error), error.response.get("Error", {}).get("Message", ""))
    if isinstance(error, BotoCoreError | OSError):  # OSError: a file of certificates, credentials
        return Unavailable(f"sns: {error}")
    if isinstance(error, ResponseParserError | KeyError):  # KeyError: well-formed, and still none of theirs
        return Unavailable(f"sns: an answer that is not understood: {error}")
    return judged(error)


def _read_code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _judge_error(operation: str, code: str, reason: str) -> ReplicationError:
    text = f"{operation}: {code}: {reason}"
    # "Invalid parameter: TopicArn" is no fault of the message.
    return Wrong(text) if code in WRONG and "TopicArn" not in reason else Unavailable(text)

# SPDX-License-Identifier: GPL-2.0-or-later
"""The other side of every destination.

What arrived there, in order, and how to make it refuse, fail and recover.

A `Receiver` belongs to one destination of one test. `settings()` is what the notifier is given; `told()` is every arrival as
(repository, sequence), repeats included. `down` and `up` break and heal the other side; `poison` is a repository whose messages it
can never take.
"""

import base64
import functools
import json
import secrets
import urllib.parse
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import boto3
import kombu

from hgext.vcsreplicator.words.retry import Backoff
from notifier.delivery.destination import DestinationSettings
from notifier.delivery.window import Patience
from notifier.destinations.decode import DecoderDestinationSettings
from notifier.destinations.hgpush.destination import HgPushSettings
from notifier.destinations.jsonlines import JsonLinesSettings
from notifier.destinations.pulse.destination import PulseSettings
from notifier.destinations.sns.destination import SnsSettings
from notifier.destinations.webhook.destination import WebhookSettings
from notifier.destinations.webhook.subscription import Subscription
from notifier.services.decode.settings import DecodeSettings
from testing.builders.notifier.endpoint import Endpoint, Reply, Request
from testing.builders.notifier.notices import node

FAST = Patience(attempts=2, retry=Backoff(first=0.02, longest=0.2))

Told = tuple[str, int]

_kombu: Any = kombu  # has no types


class Receiver(ABC):
    """One destination's other side."""

    poison: str | None = None

    @abstractmethod
    def settings(self) -> DestinationSettings:
        """Return the notifier's settings for this receiver."""

    @abstractmethod
    def told(self) -> list[Told]:
        """Return everything that arrived."""

    @abstractmethod
    def down(self) -> None:
        """Let nothing arrive any more."""

    @abstractmethod
    def up(self) -> None:
        """It does again."""

    @abstractmethod
    def table(self) -> dict[str, Any]:
        """Return the settings as keys of a TOML file.

        For a notifier in a process of its own.
        """

    def sections(self) -> dict[str, Any]:
        """Return the sections that the file needs beside it."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Free everything."""


def _name(repo_url: str) -> str:
    return repo_url.rsplit("/", 1)[-1]


class LinesReceiver(Receiver):
    """A file, which goes down by its folder being moved away."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "lines"
        self.folder.mkdir()
        self.file = self.folder / "out.jsonl"

    def settings(self) -> DestinationSettings:
        return JsonLinesSettings(file=str(self.file), patience=FAST)

    def table(self) -> dict[str, Any]:
        return {"type": "jsonlines", "file": str(self.file)}

    def told(self) -> list[Told]:
        if not self.file.exists():
            return []
        lines = self.file.read_bytes().split(b"\n")[:-1]
        return [(_name(each["data"]["repo_url"]), each["sequence"]) for each in map(json.loads, lines)]

    def down(self) -> None:
        self.folder.rename(self.folder.with_name("away"))

    def up(self) -> None:
        self.folder.with_name("away").rename(self.folder)

    def close(self) -> None:
        pass


class PulseReceiver(Receiver):
    """A queue bound to an exchange.

    It goes down when the user loses the right to write.
    """

    poison = "p" * 200 + "/" + "q" * 200

    def __init__(self, rabbitmq: Any, stream: str) -> None:
        self.stream, self._rabbitmq = stream, rabbitmq
        self.url = rabbitmq.vhost()
        self.exchange = f"exchange/guest/{secrets.token_hex(4)}"
        self.bodies: list[dict[str, Any]] = []
        self.sequences: list[Told] = []
        self.messages: list[Any] = []
        self._vhost = urllib.parse.urlsplit(self.url).path.removeprefix("/") or "/"
        self.name = f"queue/guest/{secrets.token_hex(4)}"
        self.listen()

    def listen(self) -> None:
        """Consume the queue, which outlives connections and brokers.

        It may be called again after a `close`.
        """
        self._connection = _kombu.Connection(self.url)
        exchange = _kombu.Exchange(self.exchange, type="topic", durable=True)
        self.queue = _kombu.Queue(self.name, exchange, routing_key="#")
        consumer = _kombu.Consumer(self._connection, [self.queue], callbacks=[self._take])
        consumer.consume()

    def _take(self, body: Any, message: Any) -> None:
        content = body["payload"]["data"] if self.stream == "v2" else body["payload"]
        self.bodies.append(body)
        self.messages.append(message)
        self.sequences.append((_name(content["repo_url"]), message.headers["sequence"]))
        message.ack()

    def settings(self) -> DestinationSettings:
        return PulseSettings(url=self.url, exchange=self.exchange, stream=self.stream, patience=FAST)

    def table(self) -> dict[str, Any]:
        return {"type": "pulse", "url": self.url, "exchange": self.exchange, "stream": self.stream}

    def told(self) -> list[Told]:
        try:
            while True:
                self._connection.drain_events(timeout=0.02)
        except TimeoutError:
            return self.sequences

    def down(self) -> None:
        self._rabbitmq.allow_writing(self._vhost, "^$")
        # The broker remembers rights while a connection lives.
        self._rabbitmq.close_connections(self._vhost, "vcsreplicator")

    def up(self) -> None:
        self._rabbitmq.allow_writing(self._vhost, ".*")

    def close(self) -> None:
        self._connection.release()


class HgPushReceiver(PulseReceiver):
    """The queue `hg`, and the mirror that is asked for changesets; what it says of `poison` makes no sense."""

    poison = "unreadable"

    def __init__(self, rabbitmq: Any, folder: Path) -> None:
        self.folder = folder
        self.mirror = Endpoint(self._answer)
        self.mirror.__enter__()
        super().__init__(rabbitmq, "v2")

    def _answer(self, request: Request) -> Reply:
        path, _, query = request.path.partition("/json-pushes?")
        if _name(path) == self.poison:
            return Reply(body=b'{"lastpushid": 1, "pushes": {"1": {"changesets": "none"}}}')
        number = urllib.parse.parse_qs(query)["endID"][0]
        nodes = [node(_name(path), "first", number), node(_name(path), int(number))]
        entry = {"changesets": nodes, "date": 1456826400, "user": "dana@example.com", "more": 1}
        return Reply(body=json.dumps({"lastpushid": int(number), "pushes": {number: entry}}).encode())

    def listen(self) -> None:
        self._connection = _kombu.Connection(self.url)
        self.queue = _kombu.Queue("hg", durable=True)
        _kombu.Consumer(self._connection, [self.queue], callbacks=[self._take]).consume()

    def _take(self, body: Any, message: Any) -> None:
        self.bodies.append(body)
        self.messages.append(message)
        self.sequences += [(_name(message.headers["repository"]), push["id"]) for push in body["pushes"]]
        message.ack()

    def settings(self) -> DestinationSettings:
        state = str(self.folder / "notifier.db")
        return HgPushSettings(url=self.url, state=state, mirror_url=self._mirror_url, patience=FAST)

    def table(self) -> dict[str, Any]:
        return {"type": "hg-push", "url": self.url, "mirror-url": self._mirror_url}

    @property
    def _mirror_url(self) -> str:
        return f"http://127.0.0.1:{self.mirror.port}"

    def close(self) -> None:
        super().close()
        self.mirror.__exit__()


@functools.cache
def _sequences(path: str) -> dict[str, int]:
    """Return the sequence of each head of `publish_pushes`."""
    return {node(path, seq): seq for seq in range(1, 10_000)}


class DecodeReceiver(HgPushReceiver):
    """The decoder's input, a queue; it counts the heads of pushes, and keeps each raw message."""

    def listen(self) -> None:
        self._connection = _kombu.Connection(self.url)
        self.queue = _kombu.Queue("raw", durable=True)
        _kombu.Consumer(self._connection, [self.queue], callbacks=[self._take]).consume()

    def _take(self, body: Any, message: Any) -> None:
        document = json.loads(base64.b64decode(body["payload"]))
        name = _name(document["repository"])
        self.bodies.append(body)
        self.messages.append(message)
        if document["changesetID"] in _sequences(name):
            self.sequences.append((name, _sequences(name)[document["changesetID"]]))
        message.ack()

    def settings(self) -> DestinationSettings:
        decoder = DecodeSettings(**self.sections()["decode"])
        return DecoderDestinationSettings(decoder=decoder, mirror_url=self._mirror_url, patience=FAST)

    def table(self) -> dict[str, Any]:
        return {"type": "decode", "mirror-url": self._mirror_url}

    def sections(self) -> dict[str, Any]:
        return {"decode": {"input": "queue:raw", "broker": self.url}}


class SnsReceiver(Receiver):
    """A topic with a queue behind it; it goes down by its bucket being deleted.

    Both are FIFO, or neither.
    """

    def __init__(self, url: str, *, is_fifo: bool = False) -> None:
        self.url, self.name = url, f"test-{secrets.token_hex(4)}"
        ending = ".fifo" if is_fifo else ""
        region: dict[str, Any] = {"endpoint_url": url, "region_name": "us-west-2"}
        self.s3, self.sqs = boto3.client("s3", **region), boto3.client("sqs", **region)
        self.sns = boto3.client("sns", **region)
        self.arn = self.sns.create_topic(Name=self.name + ending, Attributes={"FifoTopic": "true"} if is_fifo else {})[
            "TopicArn"
        ]
        self.queue = self.sqs.create_queue(
            QueueName=self.name + ending, Attributes={"FifoQueue": "true"} if is_fifo else {}
        )["QueueUrl"]
        asked = self.sqs.get_queue_attributes(QueueUrl=self.queue, AttributeNames=["QueueArn"])
        self._subscription = self.sns.subscribe(
            TopicArn=self.arn, Protocol="sqs", Endpoint=asked["Attributes"]["QueueArn"]
        )["SubscriptionArn"]
        self.up()
        self.messages: list[dict[str, Any]] = []
        self.sequences: list[Told] = []

    def settings(self) -> DestinationSettings:
        return SnsSettings(**self._keys(), patience=FAST)

    def _keys(self) -> dict[str, Any]:
        endpoints = {"sns_endpoint_url": self.url, "s3_endpoint_url": self.url}
        return {"topic_arn": self.arn, "bucket": self.name, "region": "us-west-2", **endpoints}

    def table(self) -> dict[str, Any]:
        return {"type": "sns", **{name.replace("_", "-"): value for name, value in self._keys().items()}}

    def told(self) -> list[Told]:
        while found := self.sqs.receive_message(QueueUrl=self.queue, MaxNumberOfMessages=10).get("Messages"):
            for each in found:
                envelope = json.loads(each["Body"])
                self.messages.append(envelope)
                content = json.loads(envelope["Message"])
                url = content["data"]["repo_url"] if "data" in content else content["repo_url"]
                self.sequences.append((_name(url), int(envelope["MessageAttributes"]["sequence"]["Value"])))
                self.sqs.delete_message(QueueUrl=self.queue, ReceiptHandle=each["ReceiptHandle"])
        return self.sequences

    def unsubscribe(self) -> None:
        """End the subscription; the topic takes messages as before."""
        self.sns.unsubscribe(SubscriptionArn=self._subscription)

    def down(self) -> None:
        for each in self.objects():
            self.s3.delete_object(Bucket=self.name, Key=each)
        self.s3.delete_bucket(Bucket=self.name)

    def up(self) -> None:
        self.s3.create_bucket(Bucket=self.name, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})

    def close(self) -> None:
        for client in (self.s3, self.sqs, self.sns):
            client.close()

    def objects(self) -> Iterable[str]:
        return [each["Key"] for each in self.s3.list_objects_v2(Bucket=self.name).get("Contents", [])]


class WebhookReceiver(Receiver):
    """An endpoint, which goes down by answering 503.

    The message is the notifier's only until it stands in the table.
    """

    poison = "unwanted"

    def __init__(self, folder: Path) -> None:
        self.folder, self._down = folder, False
        self.endpoint = Endpoint(self._reply)
        self.endpoint.__enter__()
        self._accepted: list[Told] = []

    def _reply(self, request: Request) -> Reply:
        told = (_name(request.body["data"]["repo_url"]), int(request.headers["vcsreplicator-sequence"]))
        if self._down:
            return Reply(status=503)
        if told[0] == self.poison:
            return Reply(status=422)
        self._accepted.append(told)
        return Reply()

    def settings(self) -> DestinationSettings:
        return WebhookSettings(
            database=str(self.folder / "deliveries.db"),
            ladder=(0, *[0.05] * 500),
            allow=("127.0.0.0/8",),
            allow_http=True,
            patience=FAST,
            subscriptions={"test": Subscription(url=self.endpoint.url)},
        )

    def table(self) -> dict[str, Any]:
        return {
            "type": "webhook",
            "database": str(self.folder / "deliveries.db"),
            "ladder": [0, *[0.05] * 500],
            "allow": ["127.0.0.0/8"],
            "allow-http": True,
            "subscriptions": {"test": {"url": self.endpoint.url}},
        }

    def told(self) -> list[Told]:
        return list(self._accepted)

    def down(self) -> None:
        self._down = True

    def up(self) -> None:
        self._down = False

    def close(self) -> None:
        self.endpoint.__exit__()

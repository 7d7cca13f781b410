# SPDX-License-Identifier: GPL-2.0-or-later
"""A push through separate processes, on the embedded log and on real services."""

import json
import secrets
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import kombu
import pytest

from hgext.vcsreplicator.demo.scenario import Watcher, order_moments, with_delivery
from hgext.vcsreplicator.log import NOTICES, STATE, NewRecord, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words.records import Notice
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.aggregating import send
from testing.builders.aggregator.chains import Chain
from testing.builders.aggregator.states import state_of
from testing.builders.cluster import Cluster, in_order
from testing.waiting import eventually

pytestmark = pytest.mark.processes

PUSHES = 8
NAMES = ("red", "blue")


def test_a_notice_is_never_shown_as_delivered_before_it_was_written() -> None:
    """The time of a file is a little early."""
    moments = {"committed on the master": 1.0, "notice written": 1.044, "hg push returned": 1.098}
    for delivered in (1.0434, 1.05):
        assert list(with_delivery(moments, delivered))[1:3] == ["notice written", "notice delivered (JSON lines)"]


def test_a_release_is_never_shown_after_what_it_allowed() -> None:
    """If its record was replaced before it was read, its time is that of the next one."""
    times = {"committed on the master": 1.0, "served by alpha": 1.2, "served by beta": 1.1, "released": 1.3}
    ordered = order_moments(times)
    assert list(ordered) == ["committed on the master", "released", "served by beta", "served by alpha"]
    assert order_moments(ordered | {"notice written": 1.3})["released"] == 1.1


def test_a_release_is_shown_although_its_notice_takes_its_place(tmp_path: Path) -> None:
    chain = Chain("hello")
    event = chain.next()

    def state(noticed: int) -> NewRecord:
        found = state_of(event, released=1, noticed=noticed)
        return NewRecord(topic=STATE, key=chain.repository, value=to_json(found))

    notice = Notice(event=event, time=event.time, roster=1, acks=(), previous={})
    with open_log(f"sqlite://{tmp_path}/log.db", creates=True) as log:
        log.create(topics(partitions=1))
        with closing(Watcher(log)) as watcher:
            with watcher.reading():
                send(log, [event])
                log.append([state(0)])
                eventually(lambda: "released" in watcher._moments.get((chain.repository, 1), {}), "the release is read")
                log.append([state(1), NewRecord(topic=NOTICES, key=chain.repository, value=to_json(notice))])
            at = watcher.wait_for_notice("hello", 30)
    assert at["in the log"] <= at["released"] < at["notice written"]


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        yield cluster


def push_interleaved(cluster: Cluster, clones: dict[str, Path], count: int) -> dict[str, list[str]]:
    """Push `count` times to each repository; return the pushed nodes in order."""
    nodes: dict[str, list[str]] = {name: [] for name in clones}
    for number in range(count):
        name = NAMES[number % len(NAMES)]
        nodes[name].append(cluster.commit(clones[name], f"{name} {number}"))
        output = cluster.push(clones[name])
        assert "recorded push in pushlog" in output
        assert "recorded push in replication log" in output
    return nodes


def heads_by_repository(messages: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Read the heads of each repository from its messages, without repeats."""
    announced: dict[str, list[str]] = {}
    for message in messages:
        if message["type"] == "changegroup.1":
            data = message["data"]
            heads = announced.setdefault(data["repo_url"].rsplit("/", 1)[-1], [])
            heads.extend(head for head in data["heads"] if head not in heads)
    return announced


def test_pushes_to_two_repositories_are_announced_in_order_and_once(embedded: Cluster) -> None:
    clones = {name: embedded.create(name) for name in NAMES}
    nodes = push_interleaved(embedded, clones, PUSHES)
    eventually(lambda: len(embedded.lines()) >= PUSHES + len(NAMES), what="all notices")
    messages = embedded.lines()
    assert heads_by_repository(messages) == nodes
    assert [m["type"] for m in messages].count("newrepo.1") == len(NAMES)
    assert len(messages) == PUSHES + len(NAMES)
    for name in NAMES:
        pushes = [
            m["data"]["pushlog_pushes"][0]["pushid"]
            for m in messages
            if m["type"] == "changegroup.1" and m["data"]["repo_url"].endswith("/" + name)
        ]
        assert in_order(pushes)


@pytest.mark.slow
def test_nothing_is_announced_while_one_mirror_is_stopped(embedded: Cluster) -> None:
    clones = {name: embedded.create(name) for name in NAMES}
    eventually(lambda: len(embedded.lines()) == len(NAMES), what="the new repositories")
    embedded.stop("mirror-beta")
    nodes = push_interleaved(embedded, clones, 6)
    eventually(lambda: applied(embedded, "alpha") == 6, what="alpha applies alone")
    assert len(embedded.lines()) == len(NAMES)
    embedded.start("mirror-beta")
    eventually(lambda: len(embedded.lines()) == len(NAMES) + 6, what="all notices")
    assert heads_by_repository(embedded.lines()) == nodes


def test_the_mirrors_serve_what_was_announced_and_agree_with_the_master(embedded: Cluster) -> None:
    clone = embedded.create("red")
    node = embedded.commit(clone, "x")
    embedded.push(clone)
    eventually(lambda: len(embedded.lines()) == 2)
    for mirror in embedded.about["mirrors"]:
        assert embedded.hg("identify", "--id", mirror["url"] + "red").strip() == node[:12]
        served = embedded.hg("clone", mirror["url"] + "red", embedded.folder / f"from-{mirror['name']}")
        assert "added 1 changesets" in served


def applied(cluster: Cluster, mirror: str) -> int:
    """How many changesets the mirror's repositories hold, served or not."""
    root = next(Path(m["root"]) for m in cluster.about["mirrors"] if m["name"] == mirror)
    logs = [cluster.hg("-R", root / name, "log", "-T", "x", HGRCPATH="/dev/null") for name in NAMES]
    return sum(map(len, logs))


class Queue:
    """A consumer of one exchange, as a subscriber would run it."""

    def __init__(self, url: str, exchange: str) -> None:
        self._connection = kombu.Connection(url)
        queue = kombu.Queue(
            f"queue/tester/{secrets.token_hex(4)}",
            kombu.Exchange(exchange, type="topic"),
            routing_key="#",
            auto_delete=True,
        )
        self.bodies: list[dict[str, Any]] = []
        self._consumer = kombu.Consumer(self._connection, [queue], callbacks=[self._take], accept=["json"])
        self._consumer.consume()

    def _take(self, body: dict[str, Any], message: kombu.Message) -> None:
        self.bodies.append(body)
        message.ack()

    def read(self) -> list[dict[str, Any]]:
        """The payloads so far."""
        try:
            while True:
                self._connection.drain_events(timeout=0.05)
        except TimeoutError:
            return [body["payload"] for body in self.bodies]

    def close(self) -> None:
        self._connection.release()


def test_the_same_on_kafka_rabbitmq_and_sns(
    kafka: Any, rabbitmq: Any, aws: Any, tmp_path: Path, unique_name: str
) -> None:
    amqp, endpoint = rabbitmq.vhost(), aws.url
    log = f"{kafka.url}?topic-prefix={unique_name}."
    options = ("--log", log, "--pulse", amqp, "--sns-endpoint", endpoint)
    with Cluster(tmp_path, *options) as cluster:
        about = cluster.about
        v1, v2 = (Queue(amqp, about["pulse"][name]) for name in ("exchange_v1", "exchange_v2"))
        region = {"endpoint_url": endpoint, "region_name": "us-east-1"}
        sqs = boto3.client("sqs", **region)
        queue = sqs.create_queue(QueueName=unique_name)["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        boto3.client("sns", **region).subscribe(TopicArn=about["sns"]["topic_arn"], Protocol="sqs", Endpoint=arn)

        clones = {name: cluster.create(name) for name in NAMES}
        nodes = push_interleaved(cluster, clones, PUSHES // 2)
        eventually(lambda: len(cluster.lines()) == PUSHES // 2 + len(NAMES), what="what was pushed before")
        cluster.stop("mirror-alpha")
        more = push_interleaved(cluster, clones, PUSHES // 2)
        for name in NAMES:
            nodes[name] += more[name]

        assert len(cluster.lines()) == PUSHES // 2 + len(NAMES)
        cluster.start("mirror-alpha")
        eventually(lambda: len(cluster.lines()) == PUSHES + len(NAMES), timeout=60, what="all notices")

        eventually(lambda: len(v2.read()) >= PUSHES + len(NAMES), what="all messages on v2")
        assert heads_by_repository(v2.read()) == nodes
        eventually(lambda: len(v1.read()) >= PUSHES, what="all messages on v1")
        assert heads_by_repository([{"type": "changegroup.1", "data": payload} for payload in v1.read()]) == nodes
        received: list[dict[str, Any]] = []

        def receive() -> bool:
            answer = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=0)
            for message in answer.get("Messages", ()):
                received.append(json.loads(json.loads(message["Body"])["Message"]))
                sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
            return len(received) >= PUSHES + len(NAMES)

        eventually(receive, what="all messages on SNS")
        assert heads_by_repository(received) == nodes
        for consumer in (v1, v2):
            consumer.close()

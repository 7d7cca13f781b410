# SPDX-License-Identifier: GPL-2.0-or-later
"""From a push to the message at a consumer, two mirrors, every service a process of its own.

Zero is the commit on the master, or the end of `hg push` where a row says so. Instants are those of the records that the services
wrote; the last is when a consumer on RabbitMQ, bound to the exchange v2, has the message. The first pushes of each cluster warm it
up and are not counted. Kafka has done the same work for a while before: a broker that was just started takes half as much
processor time again for the same requests, until Java has compiled what it runs. Of Kafka the records are read only when the
message has arrived, to leave the processor to what is measured; the embedded log keeps only the newest record of a level.
"""

import json
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

from hgext.vcsreplicator.demo.scenario import Watcher
from hgext.vcsreplicator.log import ACKS, EVENTS, NOTICES, PENDING, STATE, NewRecord, topics
from hgext.vcsreplicator.log.opening import open_log
from notifier.destinations.pulse.listener import ListenSettings, ReceivedMessage, listen
from testing.bench.measure import Row
from testing.builders.cluster import Cluster
from testing.services.existing import shared
from testing.services.kafka import Kafka
from testing.services.rabbitmq import RabbitMQ

ROUNDS, WARM = 30, 10
# Transactions that a new broker commits before it is measured.
BROKER_WARM = 2_000
PATIENCE = 30.0
MOMENTS = (
    ("in the log", "in the log"),
    ("applied on", "applied on the last mirror"),
    ("released", "released"),
    ("served by", "served by the last mirror"),
    ("notice written", "notice written"),
)
CONSUMED = "at an AMQP consumer"


def rows() -> list[Row]:
    with shared(RabbitMQ) as rabbitmq:
        measured = _measure("embedded log", rabbitmq.vhost())
        with shared(Kafka) as kafka:
            warm_up(f"{kafka.url}?topic-prefix=warm-{time.time_ns()}.")
            log = f"{kafka.url}?topic-prefix=bench-{time.time_ns()}."
            return measured + _measure("Kafka", rabbitmq.vhost(), "--log", log)


class Consumer:
    """Subscribes to everything in the exchange, and notes when each pushed head arrived."""

    def __init__(self, url: str, exchange: str) -> None:
        self._arrived: dict[str, float] = {}
        self._news = threading.Condition()
        self._stop = threading.Event()
        settings = ListenSettings(url=url, exchange=exchange, queue="queue/guest/bench")
        self._thread = threading.Thread(target=listen, args=(settings, self._take), kwargs={"stop": self._stop})
        self._thread.start()

    def wait(self, head: str) -> float:
        """When the message with this head came."""
        with self._news:
            assert self._news.wait_for(lambda: head in self._arrived, PATIENCE), f"no message about {head}"
            return self._arrived[head]

    def close(self) -> None:
        """Unsubscribes."""
        self._stop.set()
        self._thread.join()

    def _take(self, arrival: ReceivedMessage) -> bool:
        now = time.time()
        with self._news:
            for head in json.loads(arrival.text)["payload"]["data"].get("heads", ()):
                self._arrived.setdefault(head, now)
            self._news.notify_all()
        return True


def warm_up(url: str) -> None:
    """Send requests of the kinds that a push causes."""
    with open_log(url, creates=True) as log:
        log.create(topics())
        with (
            closing(log.transactor("warm")) as transactor,
            closing(log.reader({(STATE, 0): 0, (ACKS, 0): 0})) as reader,
        ):
            for number in range(BROKER_WARM):
                log.append([NewRecord(topic=EVENTS, key="warm", value=bytes(1000))])
                log.append([NewRecord(topic=ACKS, key="warm", value=bytes(200))])
                transactor.expect([PENDING, STATE, NOTICES])
                transactor.commit(
                    [NewRecord(topic=topic, key="warm", value=bytes(300)) for topic in (STATE, PENDING, NOTICES)]
                )
                reader.poll(0.0)
                if number % 10 == 0:
                    log.acknowledge("warm", EVENTS, {0: number})


def _measure(log: str, broker: str, *options: str) -> list[Row]:
    samples: dict[str, list[float]] = {name: [] for _, name in MOMENTS}
    consumed: list[float] = []
    returned: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(Path(folder), "--pulse", broker, *options, warm=False) as cluster,
        open_log(cluster.log_url, creates=True) as opened,
    ):
        clone = cluster.create("bench")
        watcher, consumer = Watcher(opened), Consumer(broker, cluster.about["pulse"]["exchange_v2"])
        for number in range(WARM + ROUNDS):
            head = cluster.commit(clone, str(number))
            cluster.push(clone)
            end = time.time()
            if options:  # Kafka
                consumer.wait(head)
            moments = watcher.wait_for_notice("bench", PATIENCE)
            arrived = consumer.wait(head)
            if number < WARM:
                continue
            committed = moments["committed on the master"]
            for word, name in MOMENTS:
                samples[name].append(
                    1000 * (max(at for what, at in moments.items() if what.startswith(word)) - committed)
                )
            consumed.append(1000 * (arrived - committed))
            returned.append(1000 * (arrived - end))
        consumer.close()
        watcher.close()
    rows = [Row(name=f"{log}: commit → {name}", unit="ms", samples=values) for name, values in samples.items()]
    return [
        *rows,
        Row(name=f"{log}: commit → {CONSUMED}", unit="ms", samples=consumed),
        Row(name=f"{log}: push returned → {CONSUMED}", unit="ms", samples=returned),
    ]

# SPDX-License-Identifier: GPL-2.0-or-later
"""What a push costs each service on Kafka, and whether these costs foretell other hosts.

Processor time is the scheduler's, beyond what the same processes use while nothing happens; three hosts give the costs of a push,
of a mirror and of a destination. Two other hosts are computed from them, and measured. Pushes go round ten repositories, over HTTP;
the developer's `hg` is not counted. A proxy before a broker of its own counts Kafka's requests, since it takes processor time.
Bytes are keys and values of the records of a push.
"""

import os
import socket
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from hgext.vcsreplicator.demo.scenario import Watcher
from hgext.vcsreplicator.log import TOPIC_NAMES, Log
from hgext.vcsreplicator.log.opening import open_log
from testing.bench.measure import Row
from testing.builders.cluster import Cluster
from testing.faults.delay import DelayingProxy
from testing.services.kafka import Kafka
from testing.services.process import Service
from testing.services.rabbitmq import RabbitMQ

REPOSITORIES, PATIENCE = 10, 60.0
# Seconds until a new cluster has settled, of rest, and of pushes.
SETTLE, REST = 10.0, 20.0
BUSY = float(os.environ.get("BENCH_SCALE_SECONDS", "40"))
# Of Kafka's requests those that a push causes: https://kafka.apache.org/protocol#protocol_api_keys
REQUESTS = {0: "Produce", 1: "Fetch", 8: "OffsetCommit", 24: "AddPartitionsToTxn", 25: "AddOffsetsToTxn", 26: "EndTxn"}
REQUESTS |= {28: "TxnOffsetCommit"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host: its mirrors, whether it publishes to two exchanges beside a file, and its pushes per second."""

    mirrors: int
    rate: float
    has_broker: bool = True

    def __str__(self) -> str:
        destinations = 3 if self.has_broker else 1
        return f"{self.mirrors} mirrors, {destinations} destination{'s' * (destinations > 1)}, {self.rate:g}/s"


BASE, WIDE, PLAIN = Host(mirrors=2, rate=1), Host(mirrors=5, rate=1), Host(mirrors=2, rate=1, has_broker=False)
OTHERS = Host(mirrors=2, rate=2.5), Host(mirrors=4, rate=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Milliseconds of processor time: of each service per second at rest, and per push beyond that."""

    rest: Mapping[str, float]
    push: Mapping[str, float]


class CountingProxy(DelayingProxy):
    """Counts the requests that pass."""

    def __init__(self) -> None:
        super().__init__(delay=0.0)
        self.counts: Counter[str] = Counter()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        """Each request begins with its length, and its kind in two bytes."""
        with suppress(OSError), source.makefile("rb") as requests:
            while len(head := requests.read(4)) == 4:
                body = requests.read(struct.unpack(">I", head)[0])
                self.counts[REQUESTS.get(struct.unpack_from(">H", body)[0], "others")] += 1
                sink.sendall(head + body)
            sink.shutdown(socket.SHUT_WR)


class CountedKafka(Kafka):
    """A broker that tells its clients to come through a proxy."""

    def __init__(self, proxy: CountingProxy) -> None:
        super().__init__()
        self._proxy, proxy.target = proxy, self.port

    def make_settings(self) -> dict[str, str]:
        return {**super().make_settings(), "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self._proxy.port}"}


def rows() -> Iterator[Row]:
    with RabbitMQ() as rabbitmq:
        with Kafka() as kafka:
            costs = {host: _measure(host, kafka, rabbitmq) for host in (BASE, WIDE, PLAIN, *OTHERS)}
        yield from _show(costs)
        with CountingProxy() as proxy, CountedKafka(proxy) as kafka:
            for host in (BASE, WIDE, PLAIN):
                yield from _count(host, kafka, rabbitmq, proxy)


def _measure(host: Host, kafka: Kafka, rabbitmq: RabbitMQ) -> Costs:
    count = int(BUSY * host.rate)
    with _running(host, kafka, rabbitmq) as (cluster, log):
        names = _warm_up(cluster, log)
        began, before = time.monotonic(), _read_costs(cluster, kafka, rabbitmq)
        time.sleep(REST)
        rested, between = time.monotonic(), _read_costs(cluster, kafka, rabbitmq)
        _push(cluster, log, islice(names, count), host.rate)
        ended, after = time.monotonic(), _read_costs(cluster, kafka, rabbitmq)
    rest = {name: (between[name] - before[name]) / (rested - began) for name in before}
    return Costs(
        rest=rest,
        push={name: (after[name] - between[name] - rest[name] * (ended - rested)) / count for name in before},
    )


def _show(costs: Mapping[Host, Costs]) -> Iterator[Row]:
    """Yield the costs of a unit, and of the hosts that they are to foretell what was computed and what was measured."""
    base, wide, plain = (costs[host].push for host in (BASE, WIDE, PLAIN))
    added = {name: (wide[name] - base[name]) / (WIDE.mirrors - BASE.mirrors) for name in base}
    for name, value in base.items():
        yield Row(name=f"a push: {name}", unit="ms", samples=[value])
    for name in ("aggregator", "Kafka"):
        yield Row(name=f"a push: {name}, each further mirror", unit="ms", samples=[added[name]])
    for name in ("notifier", "Kafka"):
        difference = (base[name] - plain[name]) / 2
        yield Row(name=f"a push: {name}, each exchange", unit="ms", samples=[difference])
    yield Row(name="rest: all", unit="ms/s", samples=[_sum(costs[BASE].rest, BASE)])
    for host in OTHERS:
        further = host.mirrors - BASE.mirrors
        push = _sum(base, host) + further * (added["aggregator"] + added["Kafka"])
        computed = host.rate * push + _sum(costs[BASE].rest, host)
        seen = host.rate * _sum(costs[host].push, host) + _sum(costs[host].rest, host)
        yield Row(name=f"{host}, all", unit="ms/s", samples=[seen], baseline=computed, note=f"computed {computed:.0f}")


def _sum(units: Mapping[str, float], host: Host) -> float:
    """Return what all services of a host use, with the cost of one mirror for each."""
    return sum(
        value * (host.mirrors if name in ("a mirror", "a mirror's server") else 1) for name, value in units.items()
    )


def _count(host: Host, kafka: Kafka, rabbitmq: RabbitMQ, proxy: CountingProxy) -> Iterator[Row]:
    """Yield the requests to Kafka and the bytes in the log of a push."""
    count = int(BUSY * host.rate)
    with _running(host, kafka, rabbitmq) as (cluster, log):
        names = _warm_up(cluster, log)
        before = Counter(proxy.counts)
        time.sleep(REST)
        between = Counter(proxy.counts)
        ends = {topic: log.ends(topic) for topic in TOPIC_NAMES}
        _push(cluster, log, islice(names, count), host.rate)
        after = Counter(proxy.counts)
        written = {topic: _read_bytes(log, topic, ends[topic]) for topic in TOPIC_NAMES}
    yield Row(name=f"{host}: rest", unit="requests/s", samples=[(between - before).total() / REST])
    used = {
        name: (after[name] - between[name] - (between[name] - before[name]) * BUSY / REST) / count for name in after
    }
    yield Row(name=f"{host}: a push", unit="requests", samples=[sum(used.values())])
    yield Row(name=f"{host}: a push", unit="bytes", samples=[sum(written.values()) / count])
    if host is BASE:
        for name, number in used.items():
            yield Row(name=f"a push: {name}", unit="requests", samples=[number])
        for topic, size in written.items():
            yield Row(name=f"a push: topic {topic}", unit="bytes", samples=[size / count])


@contextmanager
def _running(host: Host, kafka: Kafka, rabbitmq: RabbitMQ) -> Iterator[tuple[Cluster, Log]]:
    """Give a cluster of this host with empty topics, and its log."""
    options = ["--mirrors", str(host.mirrors), "--log", f"{kafka.url}?topic-prefix=scale-{time.time_ns()}."]
    options += ["--pulse", rabbitmq.vhost()] if host.has_broker else []
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(Path(folder), *options, warm=False) as cluster,
        open_log(cluster.log_url, creates=True) as log,
    ):
        yield cluster, log


def _warm_up(cluster: Cluster, log: Log) -> Iterator[str]:
    """Push once to each repository, wait until all rests, and return their names, round and round."""
    names = [f"bench{number}" for number in range(REPOSITORIES)]
    for name in names:
        cluster.create(name)
    _push(cluster, log, names * 2, rate=5)
    time.sleep(SETTLE)
    return cycle(names)


def _push(cluster: Cluster, log: Log, names: Iterable[str], rate: float) -> None:
    """Push once to each of these, so many a second, and return when the last push has its notice and is served."""
    began, name = time.monotonic(), ""
    with closing(Watcher(log)) as watcher:
        for number, name in enumerate(names):
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
            clone = cluster.folder / "work" / name
            cluster.commit(clone, f"{began} {number}")
            cluster.push(clone)
        watcher.wait_for_notice(name, PATIENCE)


def _read_bytes(log: Log, topic: str, since: Mapping[int, int]) -> int:
    """Return the bytes of keys and values written since then."""
    size, ends = 0, log.ends(topic)
    with closing(log.reader({(topic, part): offset for part, offset in since.items()})) as reader:
        while any(reader.positions()[topic, part] < end for part, end in ends.items()):
            size += sum(len(record.key or "") + len(record.value or b"") for record in reader.poll(1.0, limit=5000))
    return size


def _read_costs(cluster: Cluster, kafka: Service, rabbitmq: Service) -> dict[str, float]:
    """Return the milliseconds that the processes of each service used so far; of a mirror and its web server the mean of all."""
    used: dict[str, float] = {}
    mirrors = sum(role.startswith("mirror-") for role in cluster.roles)
    for role in cluster.roles:
        if role == "web-master":
            used["the master's server"] = _read_tree(cluster.pid(role))
            continue
        kind, dash, _ = role.partition("-")
        name = {"mirror": "a mirror", "web": "a mirror's server"}.get(kind, role) if dash else role
        used[name] = used.get(name, 0.0) + _read_tree(cluster.pid(role)) / (mirrors if dash else 1)
    return {**used, "Kafka": _read_tree(kafka.guard_pid), "RabbitMQ": _read_tree(rabbitmq.guard_pid)}


def _read_tree(process: int) -> float:
    """Return the milliseconds of a process and of all below it."""
    found, nanoseconds = [process], 0
    for each in found:
        with suppress(OSError):  # ended meanwhile
            for task in Path(f"/proc/{each}/task").iterdir():
                nanoseconds += int((task / "schedstat").read_text().split()[0])
                found += map(int, (task / "children").read_text().split())
    return nanoseconds / 1e6

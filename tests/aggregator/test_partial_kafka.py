# SPDX-License-Identifier: GPL-2.0-or-later
"""One broker of three is away, and with it the only copy of some partitions, when the aggregator starts."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import EVENTS, NOTICES, Log, partition_of, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.table import find_beginnings, read_records
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.records import Notice
from hgext.vcsreplicator.words.roster import Verb
from hgext.vcsreplicator.words.shape import from_json
from testing.builders.aggregator.aggregating import Aggregator, SimulatedMirror, ask, patiently, send
from testing.builders.aggregator.chains import Chain
from testing.services.kafka.cluster import KafkaCluster
from testing.waiting import eventually

pytestmark = [pytest.mark.processes, pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(600)]

COUNT = 6


def noticed(log: Log, chain: Chain) -> list[int]:
    records = patiently(lambda: list(read_records(log, find_beginnings(log, NOTICES))))
    notices = [from_json(Notice, record.value or b"") for record in records]
    return [notice.event.seq for notice in notices if notice.event.repository == chain.repository]


def is_silent(log: Log, partition: int) -> bool:
    try:
        log.ends(EVENTS, [partition])
    except Unavailable as error:
        return "no broker leads" in str(error)
    return False


def test_a_start_without_one_broker_of_three_goes_on_with_the_others(
    tmp_path: Path, told: Callable[[object], None]
) -> None:
    with KafkaCluster() as cluster:
        alone = cluster.url.replace("replication-factor=3&min-insync-replicas=2", "replication-factor=1")
        wanted = topics(partitions=COUNT)
        with open_log(alone, creates=True) as log:
            patiently(lambda: log.create([topic for topic in wanted if topic.name == EVENTS]))
        with open_log(cluster.url, creates=True) as log:
            patiently(lambda: log.create(wanted))
            ask(log, Verb.ADD, "alpha")
            chains = {partition_of(chain.repository, COUNT): chain for chain in map(Chain, map(str, range(100)))}
            leaders = {partition: cluster.leader(EVENTS, partition) for partition in chains}
            away = leaders[0]
            mirror = SimulatedMirror("alpha", cluster.url)
            mirror.start()
            with Aggregator(cluster.url, tmp_path) as aggregator:
                aggregator.ready()
                for chain in chains.values():
                    send(log, chain.take(1))
                eventually(lambda: all(noticed(log, chain) == [1] for chain in chains.values()), timeout=60)
            for partition, chain in chains.items():
                if leaders[partition] == away:
                    send(log, chain.take(1))
            cluster.brokers[away].kill()
            eventually(lambda: is_silent(log, 0), "Kafka knows that it has no leader", timeout=60)
            others = [chain for partition, chain in chains.items() if leaders[partition] != away]
            start = time.monotonic()
            with Aggregator(cluster.url, tmp_path) as aggregator:
                aggregator.ready()
                told(f"ready after {time.monotonic() - start:.1f} s")
                for chain in others:
                    send(log, chain.take(1))
                eventually(lambda: all(noticed(log, chain) == [1, 2] for chain in others), timeout=60)
                told(f"notices of the others after {time.monotonic() - start:.1f} s")
                cluster.brokers[away].start()
                eventually(lambda: all(noticed(log, chain) == [1, 2] for chain in chains.values()), timeout=120)
                loaded = [line["seconds"] for line in aggregator.lines() if line["event"] == "loaded"]
                told(f"everything was read {len(loaded)} times, each in {', '.join(map(str, loaded))} s")
            mirror.stop()

# SPDX-License-Identifier: GPL-2.0-or-later
"""A broker that comes back with an older partition of `notices` and all else that it had."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import NOTICES, Log, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.table import find_beginnings, read_records
from hgext.vcsreplicator.words.records import Notice
from hgext.vcsreplicator.words.roster import Verb
from hgext.vcsreplicator.words.shape import from_json
from testing.builders.aggregator.aggregating import Aggregator, SimulatedMirror, ask, patiently, send
from testing.builders.aggregator.chains import Chain
from testing.services.kafka import Kafka
from testing.waiting import eventually

pytestmark = [pytest.mark.processes, pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(600)]


def list_announced(log: Log) -> list[int]:
    records = patiently(lambda: list(read_records(log, find_beginnings(log, NOTICES))))
    return [from_json(Notice, record.value or b"").event.seq for record in records]


def test_a_living_aggregator_writes_what_kafka_lost_of_notices(
    tmp_path: Path, own_service: Callable[[type[Kafka]], Kafka]
) -> None:
    kafka, chain = own_service(Kafka), Chain("x")
    with open_log(kafka.url, creates=True) as log:
        patiently(lambda: log.create(topics(partitions=1)))
        ask(log, Verb.ADD, "alpha")
        mirror = SimulatedMirror("alpha", kafka.url)
        mirror.start()
        with Aggregator(kafka.url, tmp_path) as aggregator:
            aggregator.ready()
            send(log, chain.take(2))
            eventually(lambda: list_announced(log) == [1, 2], "the first notices", timeout=60)
            kafka.copy()
            send(log, chain.take(3))
            eventually(lambda: list_announced(log) == [1, 2, 3, 4, 5], "more notices", timeout=60)
            kafka.kill()
            [older] = (kafka.folder / "copy").glob(f"*{NOTICES}-0")
            shutil.rmtree(kafka.folder / "data" / older.name)
            shutil.copytree(older, kafka.folder / "data" / older.name)
            kafka.start()
            patiently(lambda: send(log, chain.take(1)))
            eventually(lambda: len(list_announced(log)) == 6, "all notices", timeout=120)
            lost = [line for line in aggregator.lines() if line["event"].startswith("topic notices lost records")]
        mirror.stop()
        assert list_announced(log) == [1, 2, 3, 4, 5, 6]
    assert [line["notices"] for line in lost] == [3]

# SPDX-License-Identifier: GPL-2.0-or-later
"""From a push to its notice, two mirrors, every service a process of its own.

Zero is the end of the push: when `hg push` returned to the developer, or earlier instants as named. Read from the records that the
services wrote; the delivered notice is a line in a file.
"""

import tempfile
import time
from pathlib import Path

from hgext.vcsreplicator.cluster.scenario import Watcher
from hgext.vcsreplicator.log.opening import open_log
from testing.cluster import Cluster
from testing.measure import Row
from testing.services.existing import shared_kafka

ROUNDS = 30
MOMENTS = (
    ("in the log", "in the log"),
    ("applied on", "applied on the last mirror"),
    ("released", "released"),
    ("served by", "served by the last mirror"),
    ("notice written", "notice written"),
)


def rows() -> list[Row]:
    measured = _measure("embedded log", ())
    with shared_kafka() as kafka:
        return measured + _measure("Kafka", ("--log", f"{kafka.url}?topic-prefix=bench-{time.time_ns()}."))


def _measure(log: str, options: tuple[str, ...]) -> list[Row]:
    samples: dict[str, list[float]] = {name: [] for _, name in MOMENTS}
    whole: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(Path(folder), *options) as cluster,
        open_log(cluster.log_url) as opened,
    ):
        clone = cluster.create("bench")
        watcher = Watcher(opened)
        for number in range(ROUNDS + 3):
            cluster.commit(clone, str(number))
            cluster.push(clone)
            returned = time.time()
            moments = watcher.wait_for_notice("bench", 30)
            if number < 3:
                continue
            committed = next(m.time for m in moments if m.what == "committed on the master")
            for word, name in MOMENTS:
                samples[name].append(1000 * (max(m.time for m in moments if m.what.startswith(word)) - committed))
            whole.append(1000 * (max(m.time for m in moments) - returned))
        watcher.close()
    rows = [Row(name=f"{log}: commit → {name}", unit="ms", samples=values) for name, values in samples.items()]
    return [*rows, Row(name=f"{log}: push returned → notice written", unit="ms", samples=whole)]

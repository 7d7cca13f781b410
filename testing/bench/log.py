# SPDX-License-Identifier: GPL-2.0-or-later
"""The log: durable append, append until a reader in another process has it, transactions; SQLite and Kafka.

SQLite is held against one `fdatasync` of the same size on the same disk, Kafka against the same figure of SQLite.
The reader runs in a process of its own and shares the clock (`CLOCK_MONOTONIC`).
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from hgext.vcsreplicator.log import EVENTS, NOTICES, Log, NewRecord, topics
from hgext.vcsreplicator.log.opening import open_log
from testing.bench.measure import Row
from testing.services.kafka import Kafka

WARM_UP = 20
SAMPLES = 200
BATCH = 100
VALUE = b"." * 1000

READER = """
import sys, time
from hgext.vcsreplicator.log import EVENTS
from hgext.vcsreplicator.log.opening import open_log
log = open_log(sys.argv[1], creates=True)
reader = log.reader({(EVENTS, number): at for number, at in log.ends(EVENTS).items()})
reader.poll(0.5)
print("ready", flush=True)
while True:
    for record in reader.poll(10):
        print(time.monotonic() - float(record.headers["sent"]), flush=True)
"""


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        disk = Row(name="fdatasync of 1 kB", unit="ms", samples=syncs(Path(folder)))
        embedded = figures(f"sqlite://{folder}/log.db", "SQLite", [disk.median, None, None, None, None])
    with Kafka() as kafka:
        return [disk, *embedded, *figures(kafka.url, "Kafka", [row.median for row in embedded])]


def figures(url: str, name: str, baselines: Sequence[float | None]) -> list[Row]:
    with open_log(url, creates=True) as log:
        log.create(topics())
        measured = [
            ("append, durable", "ms", appends(log)),
            ("append until read elsewhere", "ms", latencies(url, log)),
            ("transaction: one record and a position", "ms", transactions(log, 1)),
            ("records in transactions of 100", "1/s", bulk_transactions(log)),
            ("records read", "1/s", reads(log)),
        ]
    return [
        Row(name=f"{name}: {what}", unit=unit, samples=samples, baseline=baseline)
        for (what, unit, samples), baseline in zip(measured, baselines, strict=True)
    ]


def syncs(folder: Path) -> list[float]:
    with (folder / "file").open("wb", buffering=0) as file:

        def sync() -> None:
            file.write(VALUE)
            os.fdatasync(file.fileno())

        return [milliseconds(sync) for _ in range(SAMPLES)]


def appends(log: Log) -> list[float]:
    def append() -> None:
        log.append([NewRecord(topic=EVENTS, key="x", value=VALUE)])

    return [milliseconds(append) for _ in range(WARM_UP + SAMPLES)][WARM_UP:]


def latencies(url: str, log: Log) -> list[float]:
    with subprocess.Popen([sys.executable, "-c", READER, url], stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        taken = []
        for _ in range(WARM_UP + SAMPLES):
            time.sleep(0.005)  # one push at a time, not a queue of them
            log.append([NewRecord(topic=EVENTS, key="x", value=VALUE, headers={"sent": repr(time.monotonic())})])
            taken.append(float(reader.stdout.readline()) * 1000)
        reader.kill()
    return taken[WARM_UP:]


def transactions(log: Log, size: int) -> list[float]:
    transactor = log.transactor("bench")
    message = NewRecord(topic=NOTICES, key="x", value=VALUE)

    def commit(number: int) -> None:
        transactor.commit([message] * size, group="bench", positions={(EVENTS, 0): number})

    taken = [milliseconds(partial(commit, number)) for number in range(WARM_UP + SAMPLES)]
    transactor.close()
    return taken[WARM_UP:]


def bulk_transactions(log: Log) -> list[float]:
    return [1000 * BATCH / taken for taken in transactions(log, BATCH)]


def reads(log: Log) -> list[float]:
    """From the first record to the last of those appended above, five times."""
    rates = []
    for _ in range(5):
        reader = log.reader({(NOTICES, 0): 0})
        count = len(reader.poll(10, limit=1))  # connects
        start = time.monotonic()
        while found := reader.poll(0.5):
            count += len(found)
            end = time.monotonic()
        rates.append(count / (end - start))
        reader.close()
    return rates


def milliseconds(act: Callable[[], None]) -> float:
    start = time.monotonic()
    act()
    return (time.monotonic() - start) * 1000

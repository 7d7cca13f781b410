# SPDX-License-Identifier: GPL-2.0-or-later
"""The edge: submissions of 1 kB, answered with 200 once they are durable.

The load comes from another process, over 64 connections that are kept open. A rate per core is answers by processor seconds of the
edge, which a loaded machine does not change much.
"""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from testing.bench.measure import Row
from testing.builders.notifier.submitting import EdgeProcess, Load, log_away
from testing.services.kafka import Kafka
from testing.waiting import eventually

ROUNDS, COUNT, CONNECTIONS = 5, 10_000, 64


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        found = [*figures("embedded log", EdgeProcess(Path(folder))), *away(Path(folder))]
    with tempfile.TemporaryDirectory() as folder, Kafka() as kafka:
        return [*found, *figures("Kafka", EdgeProcess(Path(folder), kafka.url, log_timeout=30))]


def figures(name: str, edge: EdgeProcess) -> Iterator[Row]:
    with edge:
        Load(edge.port, count=1000, connections=CONNECTIONS).run()
        per_core, per_second = rounds(edge)
    yield Row(name=f"{name}: per core", unit="requests/s", samples=per_core)
    yield Row(name=f"{name}: beside its clients", unit="requests/s", samples=per_second)


def away(folder: Path) -> Iterator[Row]:
    """To the queue on disk, and from there to the log: alone, and while clients submit as fast as they can."""
    with EdgeProcess(folder, log_timeout=1, max_queue_bytes=2**30) as edge:
        for name, connections in (("alone", 0), ("under full load", CONNECTIONS)):
            with log_away(folder):
                Load(edge.port, count=100, connections=CONNECTIONS).run()
                per_core, _ = rounds(edge)
            load = Load(edge.port, first=10**6, connections=connections)
            clients = threading.Thread(target=load.run)
            clients.start()
            seconds, _ = timed(lambda: eventually(lambda: not queue(edge), "the queue is drained", timeout=600))
            rate = (ROUNDS * COUNT + 100 + len(load.answered)) / seconds
            load.end()
            clients.join()
            yield Row(name=f"queue on disk, drained {name}", unit="messages/s", samples=[rate])
        yield Row(name="queue on disk: per core", unit="requests/s", samples=per_core)


def queue(edge: EdgeProcess) -> list[Path]:
    return list((edge.folder / "queue").glob("*.log"))


def rounds(edge: EdgeProcess) -> tuple[list[float], list[float]]:
    """Answers per second of the processor and of the clock."""
    per_core, per_second = [], []
    for number in range(1, ROUNDS + 1):
        load = Load(edge.port, first=number * COUNT, count=COUNT, connections=CONNECTIONS)
        before = processor_seconds(edge.pid)
        seconds, _ = timed(load.run)
        assert len(load.answered) == COUNT, load.others
        per_core.append(COUNT / (processor_seconds(edge.pid) - before))
        per_second.append(COUNT / seconds)
    return per_core, per_second


def timed(act: Callable[[], object]) -> tuple[float, object]:
    begin = time.perf_counter()
    result = act()
    return time.perf_counter() - begin, result


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

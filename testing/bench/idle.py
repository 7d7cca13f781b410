# SPDX-License-Identifier: GPL-2.0-or-later
"""What a cluster costs while nothing happens: processor time, memory and wake-ups of each service.

Two mirrors, three destinations (JSON lines, Pulse v1 and v2) and the three web servers, one push behind them. A service counts with
its workers. Processor time is comparable on a loaded machine too. Memory is the proportional set size: a page that several
processes share counts for each in part. Wake-ups are context switches of all threads.
"""

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from hgext.vcsreplicator.demo.scenario import Watcher
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.mirror import pool
from testing.bench.measure import Row
from testing.builders.cluster import Cluster
from testing.services.existing import shared
from testing.services.kafka import Kafka
from testing.services.rabbitmq import RabbitMQ

# Seconds until caches are warm, threads have settled and workers without a task have ended, and seconds that are measured.
SETTLE, MEASURED = pool.IDLE + 15.0, float(os.environ.get("BENCH_IDLE_SECONDS", "60"))
PATIENCE = 60.0
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Of some processes: seconds of processor time, context switches, bytes, and how many processes they are."""

    cpu: float
    switches: int
    memory: int
    processes: int


def rows() -> list[Row]:
    with shared(RabbitMQ) as rabbitmq:
        measured = _measure("embedded log", rabbitmq.vhost())
        with shared(Kafka) as kafka:
            log = f"{kafka.url}?topic-prefix=bench-{time.time_ns()}."
            return measured + _measure("Kafka", rabbitmq.vhost(), "--log", log)


def _measure(log: str, broker: str, *options: str) -> list[Row]:
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(Path(folder), "--pulse", broker, *options, warm=False) as cluster,
    ):
        with open_log(cluster.log_url, creates=True) as opened:
            clone = cluster.create("bench")
            watcher = Watcher(opened)
            cluster.commit(clone, "once")
            cluster.push(clone)
            watcher.wait_for_notice("bench", PATIENCE)
            watcher.close()
        time.sleep(SETTLE)
        began = time.monotonic()
        before = {role: read_usage(cluster.pid(role)) for role in cluster.roles}
        time.sleep(MEASURED)
        after = {role: read_usage(cluster.pid(role)) for role in cluster.roles}
        seconds = time.monotonic() - began
    rows = [make_row(f"{log}: {role}", [before[role]], [after[role]], seconds) for role in cluster.roles]
    for is_web, name in (False, "all five services"), (True, "three web servers"):
        roles = [role for role in cluster.roles if role.startswith("web-") is is_web]
        rows.append(make_row(f"{log}: {name}", [before[r] for r in roles], [after[r] for r in roles], seconds))
    return rows


def make_row(name: str, before: list[Usage], after: list[Usage], seconds: float) -> Row:
    cpu = sum(usage.cpu for usage in after) - sum(usage.cpu for usage in before)
    switches = sum(usage.switches for usage in after) - sum(usage.switches for usage in before)
    memory = sum(usage.memory for usage in after) / 1e6
    processes = sum(usage.processes for usage in after)
    note = f"{memory:.0f} MB, {switches / seconds:.0f} wake-ups/s, {processes} processes"
    return Row(name=name, unit="CPU s/min", samples=[60 * cpu / seconds], note=note)


def read_usage(leader: int) -> Usage:
    """Return what the process group of a service used so far; time of processes that ended counts with their parents."""
    ticks = switches = memory = processes = 0
    for folder in list_processes(leader):
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
        tasks = list((folder / "task").iterdir())
        switches += sum(
            read_fields(task / "status", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches") for task in tasks
        )
        memory += 1024 * read_fields(folder / "smaps_rollup", "Pss")
        processes += 1
    return Usage(cpu=ticks / TICKS, switches=switches, memory=memory, processes=processes)


def list_processes(leader: int) -> list[Path]:
    """List the folders in /proc of a process group."""
    found = []
    for path in (path for path in Path("/proc").iterdir() if path.name.isdigit()):
        try:
            if os.getpgid(int(path.name)) == leader:
                found.append(path)
        except ProcessLookupError:
            continue
    return found


def read_fields(file: Path, *names: str) -> int:
    """Return the sum of these fields; 0 for what ended meanwhile."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.partition(":")[0] in names)

# SPDX-License-Identifier: GPL-2.0-or-later
"""Large installations: 1,000, 10,000 and 100,000 repositories on 10 mirrors, on Kafka.

The log is written as the services would write it, all repositories at rest. On the disk of one mirror there is as much of each
repository as a start looks at; this mirror starts and ends twice. Then the aggregator starts, is left idle, and gets pushes at a
steady rate, for which a thread of this process plays all mirrors; a notice is timed from the appending of its event until it can
be read. `status` reads the log itself; the dashboard is asked for its first page. Memory is the largest resident set, but for the
mirror with its workers the proportional one after its start.

`BENCH_LARGE=1000,10000` measures these sizes.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from hgext.vcsreplicator.demo.ports import free_port
from hgext.vcsreplicator.log import ACKS, EVENTS, NOTICES, ROSTER, STATE, Log, NewRecord, Record, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.mirror.checkpoint import Checkpoint
from hgext.vcsreplicator.outbox.entry import NewestEvent
from hgext.vcsreplicator.words.event import Event
from hgext.vcsreplicator.words.records import AGGREGATOR, RepositoryState
from hgext.vcsreplicator.words.roster import KEY, Mirror, MirrorState, Roster
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.bench.idle import list_processes, read_fields
from testing.bench.measure import Row
from testing.bench.mirror import write_level
from testing.builders.aggregator.aggregating import Aggregator, fill_settled, send
from testing.builders.aggregator.chains import Chain
from testing.services.existing import shared
from testing.services.kafka import Kafka
from testing.waiting import eventually

SIZES = tuple(int(size) for size in os.environ.get("BENCH_LARGE", "1000,10000,100000").split(","))
MIRRORS = tuple(f"mirror{number}" for number in range(10))
# Pushes per second, and how many of each rate; no repository is pushed to twice.
RATES = {20: 200, 100: 600}
# Seconds that are measured without a push, and between two heartbeats of the aggregator.
IDLE, BEAT = 30.0, 5.0
PATIENCE = 600.0
TICKS = os.sysconf("SC_CLK_TCK")


def rows() -> list[Row]:
    with shared(Kafka) as kafka:
        prefix = f"{kafka.url}?topic-prefix=large-{time.time_ns()}"
        return [row for size in SIZES for row in _measure(size, f"{prefix}-{size}.")]


def _measure(size: int, url: str) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder, open_log(url, creates=True) as log:
        log.create(topics())
        config, root, port = Path(folder, "vcsreplicator.toml"), Path(folder, "mirror"), free_port()
        dashboard = f'[dashboard]\nlisten = "127.0.0.1:{port}"\nanonymous = "reader"\n'
        config.write_text(f'log = "{url}"\n{dashboard}[mirror.{MIRRORS[0]}]\nroot = "{root}"\ncheck-interval = 0\n')
        chains = _fill(log, size, root)
        yield from _measure_mirror(f"{size:,}", config, Path(folder, "mirror.log"))
        yield from _measure_aggregator(f"{size:,}", log, url, Path(folder), chains)
        yield from _measure_status(f"{size:,}", config)
        yield from _measure_dashboard(f"{size:,}", config, f"http://127.0.0.1:{port}/")


def _fill(log: Log, size: int, root: Path) -> list[Chain]:
    """Write the repositories, also below the root of a mirror; return those that get pushes."""
    mirrors = tuple(Mirror(name=name, state=MirrorState.ACTIVE) for name in MIRRORS)
    log.append([NewRecord(topic=ROSTER, key=KEY, value=to_json(Roster(version=1, mirrors=mirrors)))])
    pushed: list[Chain] = []
    for first in range(0, size, 1000):
        chains = [Chain(f"group{number % 100}/repo{number}") for number in range(first, first + 1000)]
        fill_settled(log, chains, MIRRORS)
        for chain in chains:
            write_level(root / chain.path, _make_checkpoint(chain.events[0]))
        pushed = pushed or chains
    return pushed


def _make_checkpoint(event: Event) -> Checkpoint:
    names = {name: getattr(event, name) for name in NewestEvent.list_members()}
    return Checkpoint(**names, length=event.after.length, tip=event.after.node, push=None, time=event.time)


def _measure_mirror(name: str, config: Path, output: Path) -> Iterator[Row]:
    starts = []
    for _ in range(2):
        began = time.perf_counter()
        with output.open("wb") as lines, _running("mirror", MIRRORS[0], config=config, stderr=lines) as process:
            eventually(lambda: b'"event": "ready"' in output.read_bytes(), str(output), timeout=PATIENCE, every=0.1)
            starts.append(time.perf_counter() - began)
            time.sleep(2 * BEAT)
            sizes = [read_fields(each / "smaps_rollup", "Pss") for each in list_processes(process.pid)]
    yield Row(name=f"{name}: mirror, start", unit="s", samples=starts)
    yield Row(
        name=f"{name}: mirror, memory", unit="MB", samples=[1024 * sum(sizes) / 1e6], note=f"{len(sizes)} processes"
    )


@contextmanager
def _running(*words: str, config: Path, stderr: IO[bytes] | int) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a service in a process group of its own, and let it end."""
    command = [_program(), *words, "--config", str(config)]
    with subprocess.Popen(command, stderr=stderr, process_group=0) as process:
        try:
            yield process
        finally:
            process.terminate()


def _measure_aggregator(name: str, log: Log, url: str, folder: Path, chains: list[Chain]) -> Iterator[Row]:
    began = time.perf_counter()
    with Aggregator(url, folder, warm=False, beat=BEAT) as aggregator:
        aggregator.ready(PATIENCE)
        pid = aggregator.process.pid
        yield Row(name=f"{name}: start", unit="s", samples=[time.perf_counter() - began])
        yield Row(name=f"{name}: start, processor", unit="s", samples=[_read_processor(pid)])
        time.sleep(2 * BEAT)
        before = _read_processor(pid)
        time.sleep(IDLE)
        yield Row(name=f"{name}: idle", unit="CPU s/min", samples=[60 / IDLE * (_read_processor(pid) - before)])
        left = iter(chains)
        for rate, count in RATES.items():
            before = _read_processor(pid)
            samples = sorted(_push(log, url, [next(left) for _ in range(count)], rate))
            note = f"p99 {samples[round(0.99 * (count - 1))]:.0f}"
            yield Row(name=f"{name}: notice at {rate}/s", unit="ms", samples=samples, note=note)
            used = 1000 * (_read_processor(pid) - before) / count
            yield Row(name=f"{name}: a notice at {rate}/s, processor", unit="ms", samples=[used])
        yield Row(name=f"{name}: aggregator, memory", unit="MB", samples=[_read_peak(pid)])


def _push(log: Log, url: str, chains: list[Chain], rate: float) -> list[float]:
    """Push once in each repository; return the milliseconds of each notice."""
    sent, noticed = dict[str, float](), dict[str, float]()
    with _mirrors(url, {chain.repository: chain for chain in chains}), _following(log, NOTICES) as read:
        began = time.perf_counter()
        for number, chain in enumerate(chains):
            while (wait := began + number / rate - time.perf_counter()) > 0:
                noticed.update((record.key or "", time.perf_counter()) for record in read(wait))
            sent[chain.repository] = time.perf_counter()
            send(log, [chain.next()])
        end = time.monotonic() + PATIENCE
        while not sent.keys() <= noticed.keys():
            assert time.monotonic() < end, f"{len(noticed)} of {len(sent)} notices"
            noticed.update((record.key or "", time.perf_counter()) for record in read(1.0))
    return [1000 * (noticed[name] - at) for name, at in sent.items()]


@contextmanager
def _mirrors(url: str, chains: dict[str, Chain]) -> Iterator[None]:
    """Answer for all mirrors: apply events of these repositories at once, and serve what is released."""
    stop, is_ready = threading.Event(), threading.Event()

    def answer() -> None:
        with open_log(url, creates=True) as log, _following(log, EVENTS, STATE) as read:
            is_ready.set()
            while not stop.is_set():
                levels = dict(filter(None, (_find_level(record, chains) for record in read(0.1))))
                acks = [chains[key].ack(mirror, *level) for key, level in levels.items() for mirror in MIRRORS]
                log.append(
                    [NewRecord(topic=ACKS, key=f"{ack.mirror}/{ack.repository}", value=to_json(ack)) for ack in acks]
                )

    thread = threading.Thread(target=answer, name="mirrors", daemon=True)
    thread.start()
    try:
        assert is_ready.wait(PATIENCE)
        yield
    finally:
        stop.set()
        thread.join(PATIENCE)


def _find_level(record: Record, chains: dict[str, Chain]) -> tuple[str, tuple[int, int]] | None:
    """Return the repository of the record, and what a mirror has applied and serves then."""
    if record.key not in chains or record.key == AGGREGATOR or record.value is None:
        return None
    applied = len(chains[record.key].events)
    if record.topic == EVENTS:
        return record.key, (applied, applied - 1)
    state = from_json(RepositoryState, record.value)
    return (record.key, (applied, applied)) if state.noticed < state.released == applied else None


@contextmanager
def _following(log: Log, *names: str) -> Iterator[Callable[[float], list[Record]]]:
    """Give a function that reads what is written to these topics from now on."""
    reader = log.reader({(name, part): end for name in names for part, end in log.ends(name).items()})
    try:
        reader.poll(0.2)  # connects
        yield lambda wait: reader.poll(wait, limit=5000)
    finally:
        reader.close()


def _measure_status(name: str, config: Path) -> Iterator[Row]:
    began = time.perf_counter()
    with subprocess.Popen([_program(), "status", "--config", str(config)], stdout=subprocess.DEVNULL) as process:
        _, _, used = os.wait4(process.pid, 0)
        process.returncode = 0
    yield Row(name=f"{name}: status", unit="s", samples=[time.perf_counter() - began])
    yield Row(name=f"{name}: status, processor", unit="s", samples=[used.ru_utime + used.ru_stime])
    yield Row(name=f"{name}: status, memory", unit="MB", samples=[used.ru_maxrss / 1000])


def _measure_dashboard(name: str, config: Path, url: str) -> Iterator[Row]:
    began = time.perf_counter()
    with _running("dashboard", config=config, stderr=subprocess.DEVNULL) as process:
        eventually(lambda: _get(url), timeout=PATIENCE, every=0.1)
        yield Row(name=f"{name}: dashboard, first page", unit="s", samples=[time.perf_counter() - began])
        for _ in range(10):  # views are made meanwhile
            _get(url)
            time.sleep(1.0)
        yield Row(name=f"{name}: dashboard, memory", unit="MB", samples=[_read_peak(process.pid)])


def _program() -> str:
    return str(Path(sys.executable).with_name("vcsreplicator"))


def _get(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return bool(answer.read())
    except OSError:
        return False


def _read_processor(pid: int) -> float:
    """Return the processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / TICKS


def _read_peak(pid: int) -> float:
    """Return the largest resident memory of a process so far, in megabytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM:"))

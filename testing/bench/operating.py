# SPDX-License-Identifier: GPL-2.0-or-later
"""`status`, `check` and the dashboard for 10,000 repositories on 10 mirrors.

The levels are written into the log as the services would write them; a hundredth of the repositories waits for its notice. Verbs
are processes of their own, from their start to their end: first they read the log, then they ask the dashboard, also as another
user where we are root. `check` finds something, so its exit code is not 0. The first page after a minute without readers comes
while heartbeats and levels go on.
"""

import os
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from hgext.vcsreplicator.dashboard.graphs.history import KEPT, MINUTE, History, MinuteSample
from hgext.vcsreplicator.dashboard.watcher import Pace
from hgext.vcsreplicator.demo.ports import free_port
from hgext.vcsreplicator.log import ACKS, ROSTER, STATE, Log, NewRecord, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words.records import Ack, AggregatorHeartbeat, MirrorHeartbeat
from hgext.vcsreplicator.words.roster import KEY, Mirror, MirrorState, Roster
from hgext.vcsreplicator.words.shape import to_json
from testing.bench.measure import Row
from testing.builders.aggregator.states import some_state
from testing.services.existing import shared
from testing.services.kafka import Kafka
from testing.waiting import eventually

REPOSITORIES, MIRRORS, LATE_EACH = 10_000, tuple(f"m{number}" for number in range(10)), 100
VERBS, PAGES = 5, 50
# How often, and for how many seconds, no page is read before the first page; more than the dashboard goes on making views.
PAUSES, PAUSE = 2, Pace().interest + 2 * Pace().reading
OTHER_USER = "nobody"
PAGE_ADDRESSES = (
    "/",
    "/repositories",
    "/repositories?q=repo09",
    "/roster",
    "/pushes",
    f"/mirror/{MIRRORS[0]}",
    "/graphs?span=day",
    "/graphs?span=week",
)
DIGEST = "0" * 64


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # who asks looks which file the log is
        found = list(_measure("embedded log", f"sqlite://{folder}/log.db"))
    with shared(Kafka) as kafka:
        return [*found, *_measure("Kafka", f"{kafka.url}?topic-prefix=bench-{time.time_ns()}.")]


def _measure(name: str, url: str) -> Iterator[Row]:
    with open_log(url, creates=True) as log, tempfile.TemporaryDirectory() as folder:
        log.create(topics())
        _fill(log)
        port = free_port()
        Path(folder).chmod(0o755)  # for another user, too
        config, socket = Path(folder, "vcsreplicator.toml"), Path(folder, "status.sock")
        _fill_history(history := Path(folder, "history.db"))
        config.write_text(
            f'log = "{url}"\n[dashboard]\nlisten = "127.0.0.1:{port}"\nanonymous = "reader"\nsocket = "{socket}"\n'
            f'socket-users = ["{OTHER_USER}"]\nhistory = "{history}"\n'
        )
        assert not socket.exists(), "no dashboard runs yet"
        yield from _measure_verbs(name, config, log)
        yield from _measure_pages(name, config, f"http://127.0.0.1:{port}", log)


def _fill(log: Log) -> None:
    now = time.time()
    mirrors = [Mirror(name=name, state=MirrorState.ACTIVE, since=now) for name in MIRRORS]
    log.append([NewRecord(topic=ROSTER, key=KEY, value=to_json(Roster(version=1, mirrors=tuple(mirrors))))])
    for first in range(0, REPOSITORIES, 100):
        records: list[NewRecord] = []
        for number in range(first, first + 100):
            records += _levels(number, now)
        log.append(records)


def _fill_history(path: Path) -> None:
    """Write the samples of a week, as a dashboard writes them."""
    with closing(History(str(path))):
        pass
    newest = int(time.time()) // MINUTE
    with closing(sqlite3.connect(path)) as database, database:
        for minute in range(newest - KEPT + 1, newest + 1):
            sample = MinuteSample(
                at=float(minute * MINUTE),
                pushes=minute % 100,
                waiting=minute % 7,
                lags=dict.fromkeys(MIRRORS, float(minute % 13)),
                median=0.2 + minute % 5,
                slow=1.0 + minute % 11,
            )
            database.execute("INSERT INTO samples VALUES (?, ?, ?)", (minute % KEPT, minute, to_json(sample).decode()))


def _levels(number: int, now: float) -> Iterator[NewRecord]:
    """The records of one repository at its fifth event."""
    name, noticed = f"{number:032x}", 5 if number % LATE_EACH else 4
    state = some_state(
        repository=name,
        incarnation=name,
        path=f"group{number % 100}/repo{number:05}",
        seq=5,
        event=name,
        digest=DIGEST,
        released=5,
        noticed=noticed,
        source="hg://bench",
    )
    yield NewRecord(topic=STATE, key=name, value=to_json(state))
    for mirror in MIRRORS:
        ack = Ack(
            mirror=mirror,
            repository=name,
            incarnation=name,
            applied=5,
            serving=5 if mirror != "m3" else noticed,
            event=name,
            digest=DIGEST,
            applied_at=now,
            served_at=now,
        )
        yield NewRecord(topic=ACKS, key=f"{mirror}/{name}", value=to_json(ack))


def _make_heartbeats() -> list[NewRecord]:
    now = time.time()
    heartbeats = [
        MirrorHeartbeat(mirror=name, time=now, positions={}, version="bench", instance=f"{name}@bench")
        for name in MIRRORS
    ]
    beat = AggregatorHeartbeat(time=now, roster=1, held=REPOSITORIES // LATE_EACH)
    return [
        NewRecord(topic=STATE, key="aggregator", value=to_json(beat)),
        *(NewRecord(topic=ACKS, key=beat.mirror, value=to_json(beat)) for beat in heartbeats),
    ]


def _measure_verbs(name: str, config: Path, log: Log, user: str | None = None) -> Iterator[Row]:
    for verb in ("status", "check"):
        samples = []
        for _ in range(VERBS):
            log.append(_make_heartbeats())
            samples.append(_time_verb(verb, config, user))
        yield Row(name=f"{name}: vcsreplicator {verb}", unit="ms", samples=samples)


def _time_verb(verb: str, config: Path, user: str | None) -> float:
    began = time.perf_counter()
    become = [] if user is None else ["setpriv", "--reuid", user, "--regid", "65534", "--clear-groups"]
    done = subprocess.run([*become, _program(), verb, "--config", str(config)], capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    assert user is None or "dashboard not asked" not in done.stderr, done.stderr
    assert done.stdout, done.stderr
    return (time.perf_counter() - began) * 1000


def _program() -> str:
    return str(Path(sys.executable).with_name("vcsreplicator"))


def _measure_pages(name: str, config: Path, url: str, log: Log) -> Iterator[Row]:
    log.append(_make_heartbeats())
    began = time.perf_counter()
    with subprocess.Popen([_program(), "dashboard", "--config", str(config)], stderr=subprocess.DEVNULL) as process:
        try:
            eventually(lambda: _get(url + "/") is not None, timeout=60.0, every=0.02)
            yield Row(
                name=f"{name}: dashboard, start to first page",
                unit="ms",
                samples=[1000 * (time.perf_counter() - began)],
            )
            yield from _measure_verbs(f"{name}, asked", config, log)
            if os.geteuid() == 0:
                yield from _measure_verbs(f"{name}, asked by another user", config, log, OTHER_USER)
            before = _read_memory(process.pid)
            for address in PAGE_ADDRESSES:
                samples = [_get(url + address) or 0.0 for _ in range(PAGES)]
                yield Row(name=f"{name}: GET {address}", unit="ms", samples=samples)
            samples = [_time_first_page(url, log) for _ in range(PAUSES)]
            yield Row(name=f"{name}: GET / after {PAUSE:.0f} s without readers", unit="ms", samples=samples)
            note = f"{before:.0f} MB before"
            yield Row(name=f"{name}: dashboard, memory", unit="MB", samples=[_read_memory(process.pid)], note=note)
        finally:
            process.terminate()


def _time_first_page(url: str, log: Log) -> float:
    """Milliseconds of the first page after a time without readers, in which the log goes on."""
    until = time.monotonic() + PAUSE
    number = 0
    while time.monotonic() < until:
        log.append([*_make_heartbeats(), *_levels(number, time.time())])
        number += 1
        time.sleep(1.0)
    return _get(url + "/") or 0.0


def _get(url: str) -> float | None:
    """Milliseconds until a whole page is there; None if there is none."""
    began = time.perf_counter()
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            answer.read()
    except OSError:
        return None
    return (time.perf_counter() - began) * 1000


def _read_memory(pid: int) -> float:
    """The resident memory of a process, in megabytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

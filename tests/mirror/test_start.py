# SPDX-License-Identifier: GPL-2.0-or-later
"""What a mirror keeps of the log when it starts: its own acks, and after the start only what it works with."""

import gc
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import ACKS, ROSTER, STATE, Log, NewRecord, topics
from hgext.vcsreplicator.log.table import Table
from hgext.vcsreplicator.mirror import service
from hgext.vcsreplicator.mirror.namesake import Namesakes
from hgext.vcsreplicator.mirror.pool import Worker, WorkerPool
from hgext.vcsreplicator.mirror.task import Scan
from hgext.vcsreplicator.words.records import ACK_KEY_LIMIT, ACK_LIMIT, HEARTBEAT_LIMIT
from testing.builders.log.memorylog import MemoryLog
from testing.builders.mirror.mirroring import Bench


def test_a_mirror_keeps_no_acks_of_other_mirrors_at_its_start() -> None:
    log = MemoryLog()
    log.create(topics(partitions=1))
    keys = [f"{mirror}/{repository}" for mirror in ("alpha", "alphabet", "beta") for repository in "ab"]
    log.append([NewRecord(topic=ACKS, key=key, value=b"{}") for key in (*keys, "alpha", "beta")])
    log.append([NewRecord(topic=STATE, key=key, value=b"{}") for key in "ab"])
    log.append([NewRecord(topic=ROSTER, key="roster", value=b"{}")])
    table = service.read_log(log, "alpha", threading.Event())
    assert table is not None
    assert {key for topic, key in table.records if topic == ACKS} == {"alpha/a", "alpha/b", "alpha"}
    assert len(table.records) == 6


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, partitions=1) as bench:
        yield bench


def test_a_mirror_keeps_no_acks_larger_than_it_writes_at_its_start() -> None:
    log = MemoryLog()
    log.create(topics(partitions=1))
    for key, size in (("alpha/a", ACK_LIMIT), ("alpha/b", ACK_LIMIT + 1), ("alpha", HEARTBEAT_LIMIT + 1)):
        log.append([NewRecord(topic=ACKS, key=key, value=b"x" * size)])
    table = service.read_log(log, "alpha", threading.Event())
    assert table is not None
    assert list(table.records) == [(ACKS, "alpha/a")]


def test_a_mirror_keeps_no_acks_with_longer_keys_than_its_own_at_its_start() -> None:
    log = MemoryLog()
    log.create(topics(partitions=1))
    for length in (ACK_KEY_LIMIT, ACK_KEY_LIMIT + 1):
        log.append([NewRecord(topic=ACKS, key="alpha/".ljust(length, "a"), value=b"x")])
    table = service.read_log(log, "alpha", threading.Event())
    assert table is not None
    assert [len(key) for _, key in table.records] == [ACK_KEY_LIMIT]


@pytest.mark.processes
def test_a_running_mirror_keeps_nothing_of_the_tables_of_its_start(bench: Bench) -> None:
    with bench.mirror():
        gc.collect()
        assert not [each for each in gc.get_objects() if isinstance(each, Table)]


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> queue.SimpleQueue[Scan]:
    """What the mirror asks of workers about the whole disk."""
    given, give = queue.SimpleQueue[Scan](), WorkerPool.give

    def note(pool: WorkerPool, worker: Worker, task: object, now: float | None = None) -> None:
        if isinstance(task, Scan):
            given.put(task)
        give(pool, worker, task, now)

    monkeypatch.setattr(WorkerPool, "give", note)
    return given


@pytest.mark.processes
def test_a_start_reads_the_disk_while_it_reads_the_log(
    bench: Bench, scans: queue.SimpleQueue[Scan], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_log = service.read_log

    def read(log: Log, mirror: str, stop: threading.Event) -> Table | None:
        scans.get(timeout=60)
        return read_log(log, mirror, stop)

    monkeypatch.setattr(service, "read_log", read)
    with bench.mirror():
        assert scans.empty()


@pytest.mark.processes
def test_a_start_reads_the_disk_again_after_the_wait_for_a_namesake(
    bench: Bench, scans: queue.SimpleQueue[Scan], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = list[int]()

    def wait(*_: object) -> bool:
        before.append(scans.qsize())
        return True

    monkeypatch.setattr(Namesakes, "wait", wait)
    with bench.mirror():
        assert (before, scans.qsize()) == ([1], 2)

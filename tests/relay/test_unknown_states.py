# SPDX-License-Identifier: GPL-2.0-or-later
"""A relay starts and the aggregator's states tell nothing: it looks for the newest event of each repository in one reading."""

import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import EVENTS, STATE, NewRecord, topics
from hgext.vcsreplicator.outbox.entry import before_first_event
from hgext.vcsreplicator.outbox.file import Outbox
from hgext.vcsreplicator.relay import daemon
from hgext.vcsreplicator.relay.settings import RelaySettings
from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.states import state_of
from testing.builders.log.memorylog import MemoryLog, MemoryReader
from testing.builders.master.outboxes import Folder, PlainPort, Transaction, following
from testing.builders.master.pushing import short_folder
from testing.waiting import eventually

pytestmark = pytest.mark.processes

PARTITIONS, COUNT = 4, 40


class CountingLog(MemoryLog):
    """Notes where readers of `events` begin."""

    def __init__(self) -> None:
        super().__init__()
        self.create(topics(partitions=PARTITIONS))
        self.readings: list[tuple[int, int]] = []
        self.may_read = threading.Event()
        self.may_read.set()

    def reader(self, positions: Mapping[tuple[str, int], int]) -> MemoryReader:
        if any(topic == EVENTS for topic, _ in positions):
            assert self.may_read.wait(60)
        self.readings += [(number, at) for (topic, number), at in positions.items() if topic == EVENTS]
        return super().reader(positions)


class Relay:
    """A relay over repositories that were written by hand, with one event each."""

    def __init__(self, folder: Path, log: MemoryLog) -> None:
        self.root, self._log = folder / "repositories", log
        self.boxes: dict[str, Outbox] = {}
        for number in range(COUNT):
            store = self.root / str(number) / ".hg" / "store"
            store.mkdir(parents=True)
            (store.parent / "requires").write_text("store\n")
            box = self.boxes[str(self.root / str(number))] = Outbox(Folder(str(store)))
            box.append(Transaction(), following(before_first_event(f"repository{number}", 1), 1))
        roots = {str(self.root): ""}
        self._settings = RelaySettings(socket=f"{folder}/s", source="hg://master", roots=roots, scan=3600.0)

    @contextmanager
    def running(self) -> Iterator[daemon.Relay]:
        """A new relay."""
        stop = threading.Event()
        relay = daemon.Relay(self._settings, self._log, PlainPort(), stop, SystemClock())
        try:
            relay.start()
            yield relay
        finally:
            stop.set()
            relay.close()

    def start(self) -> None:
        """Run a new relay until it knows that the log has everything."""
        with self.running() as relay:
            eventually(lambda: all(self._is_done(relay, folder) for folder in self.boxes))

    def _is_done(self, relay: daemon.Relay, folder: str) -> bool:
        sent = self.boxes[folder].sent()
        is_working = folder in relay._work._tasks
        return not (sent is None or is_working) and relay._losses.is_confirmed(folder, sent.id)

    def sent(self) -> list[tuple[int | None, int | None]]:
        """The partition and offset of the newest sent event of each repository."""
        marks = [box.sent() for box in self.boxes.values()]
        return [(mark.partition, mark.offset) for mark in marks if mark is not None]


@pytest.fixture
def log() -> CountingLog:
    return CountingLog()


@pytest.fixture
def relay(log: CountingLog) -> Iterator[Relay]:
    """All events are sent, and the aggregator has written no state."""
    with short_folder() as folder:
        relay = Relay(folder, log)
        relay.start()
        log.readings.clear()
        yield relay


def test_a_start_without_states_reads_each_partition_once(relay: Relay, log: CountingLog) -> None:
    relay.start()
    assert sorted(number for number, _ in log.readings) == list(range(PARTITIONS))


def test_a_repository_with_a_state_waits_for_no_reading_of_others(relay: Relay, log: CountingLog) -> None:
    folder, box = next(iter(relay.boxes.items()))
    state = state_of(box.newest(), seq=9, event="of another master")
    log.append([NewRecord(topic=STATE, key=state.repository, value=to_json(state))])
    log.may_read.clear()
    with relay.running():
        eventually(lambda: box.fork() is not None, f"{folder} is forked")
        log.may_read.set()


def test_a_copy_with_the_same_mark_is_looked_at_too(relay: Relay) -> None:
    """Whether the log has one event of two folders, a reading of the log cannot say."""
    original = next(iter(relay.boxes))
    copy = str(relay.root / "copy")
    shutil.copytree(original, copy)
    relay.boxes[copy] = Outbox(Folder(f"{copy}/.hg/store"))
    relay.start()


def test_one_reading_finds_what_stands_in_the_place_of_lost_events(relay: Relay, log: CountingLog) -> None:
    before = relay.sent()
    log.lose(EVENTS, 0, 3)
    end = log.ends(EVENTS)[0]
    log.append([NewRecord(topic=EVENTS, key="other", value=b"", partition=0) for _ in range(9)])
    relay.start()
    moved = {old: new for old, new in zip(before, relay.sent(), strict=True) if old != new}
    assert moved.keys() == {(0, end), (0, end + 1), (0, end + 2)}
    assert {*moved.values()} == {(0, end + 9), (0, end + 10), (0, end + 11)}


def test_a_damaged_outbox_spoils_the_reading_of_no_other(relay: Relay, log: CountingLog) -> None:
    damaged, _ = relay.boxes.popitem()
    with Path(damaged, ".hg/store/outbox.0001.log").open("r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"xxx")
    relay.start()
    assert sorted(number for number, _ in log.readings) == list(range(PARTITIONS))


def test_a_partition_that_cannot_be_read_leaves_the_others_to_one_reading(relay: Relay, log: CountingLog) -> None:
    """Its repositories wait for it."""
    log.leaderless.add((EVENTS, 0))
    places = dict(zip(relay.boxes, relay.sent(), strict=True))
    relay.boxes = {folder: box for folder, box in relay.boxes.items() if places[folder][0] != 0}
    relay.start()
    assert sorted(number for number, _ in log.readings) == list(range(1, PARTITIONS))

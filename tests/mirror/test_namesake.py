# SPDX-License-Identifier: GPL-2.0-or-later
"""A second mirror of one name is found by its heartbeats, also when the log lost some; a log that lost records ends no mirror."""

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from hgext.vcsreplicator.log import ACKS, Log, NewRecord, Record, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.table import read_table
from hgext.vcsreplicator.mirror.namesake import Namesakes, _read_recent
from hgext.vcsreplicator.mirror.seals import OwnSeals
from hgext.vcsreplicator.mirror.service import _ask_until_available
from hgext.vcsreplicator.mirror.settings import MirrorSettings
from hgext.vcsreplicator.mirror.sources import SkippedRecords
from hgext.vcsreplicator.words.errors import BadConfig, Expired, Rewound, Unavailable
from hgext.vcsreplicator.words.records import MirrorHeartbeat
from hgext.vcsreplicator.words.shape import to_json
from testing.waiting import eventually

OURS, OTHER = "ffff@here", "aaaa@there"
# A position that the log had before it lost its newest records.
BEYOND = 1000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with open_log(f"sqlite:///{str(tmp_path / 'log.db').lstrip('/')}", creates=True) as log:
        log.create(topics(partitions=1))
        yield log


@pytest.fixture
def settings(tmp_path: Path) -> MirrorSettings:
    return MirrorSettings(name="alpha", root=str(tmp_path / "root"), beat_interval=0.05)


def search(settings: MirrorSettings, log: Log, position: int) -> Namesakes:
    """A search by a mirror without a key."""
    return Namesakes(settings, OURS, log, position, OwnSeals("alpha", Path(settings.folder)), lambda keys: None)


def beat(log: Log, instance: str, time: float = 100.0) -> Record:
    """Write a heartbeat, and return its record."""
    value = to_json(MirrorHeartbeat(mirror="alpha", time=time, positions={}, version="1", instance=instance))
    log.append([NewRecord(topic=ACKS, key="alpha", value=value)])
    return read_table(log, ACKS).records[ACKS, "alpha"]


class Alive:
    """Another mirror of the name, which sends heartbeats until the test ends."""

    def __init__(self, log: Log, clock: float = 100.0) -> None:
        self._log, self._clock, self._stop = log, clock, threading.Event()
        self._thread = threading.Thread(target=self._live)

    def _live(self) -> None:
        while not self._stop.wait(0.01):
            beat(self._log, OTHER, self._clock)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class Seen:
    """The log, and whether a reader met the end of what it lost."""

    def __init__(self, log: Log, *errors: Exception) -> None:
        self._log, self._errors = log, list(errors)
        self.ends_asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def ends(self, topic: str) -> Any:
        self.ends_asked += 1
        if self._errors:
            raise self._errors.pop(0)
        return self._log.ends(topic)


@pytest.mark.processes
def test_a_log_that_lost_records_does_not_end_the_search_for_namesakes(log: Log, settings: MirrorSettings) -> None:
    arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
    seen = Seen(log, Unavailable("away"))
    beat(log, OTHER)  # of long ago, and no heartbeat
    namesakes = search(settings, cast(Log, seen), BEYOND)
    namesakes.watch(arrived.put)
    try:
        # The log may have lost this mirror's acks, too: they are written again.
        assert arrived.get(timeout=60) == SkippedRecords(positions={})
        assert seen.ends_asked >= 2, "the position is found again, also after an outage"
        assert arrived.empty()
        with Alive(log):
            broken = arrived.get(timeout=60)
    finally:
        namesakes.stop()
    assert isinstance(broken, BadConfig)
    assert "works on there" in str(broken)


@pytest.mark.processes
def test_a_mirror_alone_does_not_ask_the_log_where_it_ends_at_each_beat(log: Log, settings: MirrorSettings) -> None:
    arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
    seen = Seen(log)
    namesakes = search(settings, cast(Log, seen), 0)
    namesakes.watch(arrived.put)
    try:
        for at in range(1, 6):
            beat(log, OURS)
            eventually(lambda at=at: namesakes._position >= at, "the beat is read")  # type: ignore[misc]
        assert seen.ends_asked == 1
        with Alive(log):
            broken = arrived.get(timeout=60)
    finally:
        namesakes.stop()
    assert isinstance(broken, BadConfig)


def test_a_look_for_namesakes_passes_what_many_mirrors_ack_in_a_beat() -> None:
    waiting = 5 * 10_000  # the seconds of a beat, and acks a second

    class Reader:
        def poll(self, timeout: float, *, limit: int = 500) -> list[None]:
            nonlocal waiting
            taken = min(limit, waiting)
            waiting -= taken
            return [None] * taken

    assert len(list(_read_recent(cast(Any, Reader())))) == 50_000


@pytest.mark.processes
def test_a_mirror_waiting_for_its_namesake_outlasts_a_log_with_a_loss(log: Log, settings: MirrorSettings) -> None:
    last = beat(log, OTHER)
    search(settings, log, BEYOND).wait(last, threading.Event())  # silent: its place is free
    with Alive(log), pytest.raises(BadConfig, match="works on there"):
        search(settings, log, 10**9).wait(last, threading.Event())


@pytest.mark.processes
@pytest.mark.parametrize("clock", [0.0, 1e9, 4e9])
def test_a_namesake_is_found_for_any_clock_of_its_machine(log: Log, settings: MirrorSettings, clock: float) -> None:
    last = beat(log, OTHER, clock)
    position = log.ends(ACKS)[0]
    search(settings, log, position).wait(last, threading.Event())  # silent: its place is free
    with Alive(log, clock), pytest.raises(BadConfig, match="works on there"):
        search(settings, log, position).wait(last, threading.Event())


@pytest.mark.parametrize("error", [Expired("taken by retention"), Rewound("restored from a copy")])
def test_a_start_while_the_log_loses_records_reads_again(error: Exception) -> None:
    answers: list[Any] = [error, "read"]

    def ask() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert _ask_until_available(threading.Event(), ask) == "read"

# SPDX-License-Identifier: GPL-2.0-or-later
"""A second mirror of one name is found by its heartbeats, also when the log lost some; a log that lost records ends no mirror."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from hgext.vcsreplicator.aggregator.loading import GROUP
from hgext.vcsreplicator.aggregator.session import Session
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.log import ACKS, STATE, Log, NewRecord, Record, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.table import read_table
from hgext.vcsreplicator.mirror.namesake import Namesakes
from hgext.vcsreplicator.mirror.seals import OwnSeals
from hgext.vcsreplicator.mirror.service import _ask_until_available, run
from hgext.vcsreplicator.mirror.settings import MirrorSettings
from hgext.vcsreplicator.words.errors import BadConfig, Expired, Rewound
from hgext.vcsreplicator.words.records import AGGREGATOR, AggregatorHeartbeat, MirrorHeartbeat
from hgext.vcsreplicator.words.roster import Verb
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.aggregator.aggregating import ask
from testing.builders.log.memorylog import MemoryLog
from testing.clock import HandClock
from testing.waiting import eventually
from testing.warm import warm_starts

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


def wait(settings: MirrorSettings, log: Log, position: int, last: Record, stop: threading.Event | None = None) -> bool:
    """The wait of a mirror without a key at its start."""
    seals = OwnSeals("alpha", Path(settings.folder))
    return Namesakes(settings, OURS, position).wait(log, seals, last, stop or threading.Event())


def beat(log: Log, instance: str, time: float = 100.0) -> Record:
    """Write a heartbeat, and return its record."""
    value = to_json(MirrorHeartbeat(mirror="alpha", time=time, positions={}, version="1", instance=instance))
    log.append([NewRecord(topic=ACKS, key="alpha", value=value)])
    return read_table(log, ACKS).records[ACKS, "alpha"]


class Alive(threading.Event):
    """The `stop` of a mirror, during whose wait another mirror of the name sends a heartbeat."""

    def __init__(self, log: Log, clock: float = 100.0) -> None:
        super().__init__()
        self._log, self._clock = log, clock

    def wait(self, timeout: float | None = None) -> bool:
        beat(self._log, OTHER, self._clock)
        return super().wait(timeout)


@pytest.mark.processes
def test_a_mirror_waiting_for_its_namesake_outlasts_a_log_with_a_loss(log: Log, settings: MirrorSettings) -> None:
    last = beat(log, OTHER)
    wait(settings, log, BEYOND, last)  # silent: its place is free
    with pytest.raises(BadConfig, match="works on there"):
        wait(settings, log, 10**9, last, Alive(log))


@pytest.mark.processes
@pytest.mark.parametrize("clock", [0.0, 1e9, 4e9])
def test_a_namesake_is_found_for_any_clock_of_its_machine(log: Log, settings: MirrorSettings, clock: float) -> None:
    last = beat(log, OTHER, clock)
    position = log.ends(ACKS)[0]
    wait(settings, log, position, last)  # silent: its place is free
    with pytest.raises(BadConfig, match="works on there"):
        wait(settings, log, position, last, Alive(log, clock))


@pytest.mark.processes
def test_a_mirror_whose_namesake_was_found_silent_begins_at_once(log: Log, settings: MirrorSettings) -> None:
    last = beat(log, OTHER)
    Path(settings.folder).mkdir(parents=True)
    assert wait(settings, log, log.ends(ACKS)[0], last)
    assert not wait(replace(settings, beat_interval=3600.0), log, log.ends(ACKS)[0], last)
    last = beat(log, OTHER)  # it was alive nevertheless
    with pytest.raises(BadConfig, match="works on there"):
        wait(settings, log, log.ends(ACKS)[0], last, Alive(log))


class Watched:
    """A log, and the topics that are being read: by each reader that is open."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.read: list[set[str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def reader(self, positions: Any) -> Any:
        topics, reader = {topic for topic, _ in positions}, self._log.reader(positions)
        self.read.append(topics)
        close = reader.close
        reader.close = lambda: (self.read.remove(topics), close())  # type: ignore[method-assign]
        return reader


@pytest.mark.processes
def test_a_running_mirror_reads_no_acks(log: Log, settings: MirrorSettings) -> None:
    watched, stop, is_ready = Watched(log), threading.Event(), threading.Event()

    def work() -> None:
        with warm_starts():
            run(settings, cast(Log, watched), stop=stop, ready=is_ready.set)

    mirror = threading.Thread(target=work)
    mirror.start()
    try:
        assert is_ready.wait(60)
        eventually(lambda: log.ends(ACKS)[0] >= 3, "it sends heartbeats")
        expected = [["events"], ["roster", "state"]]
        eventually(lambda: sorted(map(sorted, watched.read)) == expected, "it reads nothing else")
    finally:
        stop.set()
        mirror.join(60)


def said(**offsets: int) -> AggregatorHeartbeat:
    """A heartbeat of the aggregator: where it last read those of each instance."""
    return AggregatorHeartbeat(time=1.0, roster=1, held=0, namesakes={"alpha": offsets})


def test_a_mirror_ends_because_of_a_lesser_instance_that_lives(settings: MirrorSettings) -> None:
    greater, lesser = Namesakes(settings, "b@here", 100), Namesakes(settings, "a@here", 90)
    for namesakes in (greater, lesser):
        namesakes.take(said(**{"a@here": 110, "b@here": 120}))
    later = said(**{"a@here": 130, "b@here": 140})
    lesser.take(later)
    with pytest.raises(BadConfig, match="works on here"):
        greater.take(later)


def test_heartbeats_from_before_the_start_end_no_mirror(settings: MirrorSettings) -> None:
    namesakes = Namesakes(settings, "b@here", 100)
    namesakes.take(said(**{"a@here": 50, "b@here": 40}))  # of an aggregator that was behind
    for own in (110, 120):
        namesakes.take(said(**{"a@here": 99, "b@here": own}))


def test_a_namesake_is_found_in_a_log_that_lost_acks(settings: MirrorSettings) -> None:
    namesakes = Namesakes(settings, "b@here", 100)
    namesakes.take(said(**{"a@here": 99, "b@here": 120}))
    namesakes.forget()
    namesakes.take(said(**{"a@here": 99, "b@here": 120}))  # of an aggregator that has not noticed the loss
    for own in (10, 11):
        namesakes.take(said(**{"a@here": 5, "b@here": own}))
    with pytest.raises(BadConfig):
        namesakes.take(said(**{"a@here": 12, "b@here": 13}))


def test_of_two_mirrors_that_begin_at_once_one_goes_on(settings: MirrorSettings) -> None:
    clock = HandClock()
    log = MemoryLog(clock)
    log.create(topics(partitions=1))
    ask(log, Verb.ADD, "alpha")
    mirrors = {instance: Namesakes(settings, instance) for instance in (OURS, OTHER)}
    with Session(AggregatorSettings(beat=5.0), log, log.transactor(GROUP), clock) as aggregator:
        for _ in range(4):
            for instance, namesakes in list(mirrors.items()):
                beat(log, instance)
                clock.advance(3.0)
                aggregator.step(0.0)
                heard = read_table(log, STATE).value(STATE, AGGREGATOR)
                try:
                    namesakes.take(from_json(AggregatorHeartbeat, heard or b""))
                except BadConfig:
                    del mirrors[instance]
    assert mirrors.keys() == {OTHER}


@pytest.mark.parametrize("error", [Expired("taken by retention"), Rewound("restored from a copy")])
def test_a_start_while_the_log_loses_records_reads_again(error: Exception) -> None:
    answers: list[Any] = [error, "read"]

    def ask() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert _ask_until_available(threading.Event(), ask) == "read"

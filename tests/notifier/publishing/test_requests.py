# SPDX-License-Identifier: GPL-2.0-or-later
"""Operators' requests in the log, and files of the notifier that are lost."""

import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import NOTIFIER, NewRecord
from hgext.vcsreplicator.words.errors import Unavailable
from notifier.clients.database import NOWHERE
from notifier.destinations.state import Kind, RequestRecord, StateDatabase
from notifier.publishing.requests import RequestFollower, SharedRequests, record_requests, restore_requests
from testing.builders.log.memorylog import MemoryLog, MemoryReader
from testing.builders.notifier.notices import with_topics
from testing.builders.notifier.notifying import Notifier, Scripted
from testing.waiting import PATIENCE, eventually


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    with_topics(log)
    return log


class CountedLog(MemoryLog):
    """Counts the readings of all requests; each waits for `may_read`, and fails while the log is `away`."""

    def __init__(self) -> None:
        super().__init__()
        self.readings, self.is_away, self.may_read = 0, False, threading.Event()
        with_topics(self)

    def reader(self, positions: Mapping[tuple[str, int], int]) -> MemoryReader:
        if positions == {(NOTIFIER, 0): 0}:
            self.readings += 1
            assert self.may_read.wait(PATIENCE)
            if self.is_away:
                raise Unavailable("the log is away")
        return super().reader(positions)


@pytest.fixture
def state(log: MemoryLog) -> Iterator[StateDatabase]:
    with closing(StateDatabase(NOWHERE)) as state:
        yield state


def a_request(kind: Kind, at: float, **more: object) -> RequestRecord:
    return RequestRecord(kind=kind.value, argument="{}", who="dana", asked_at=at, **more)  # type: ignore[arg-type]


def test_requests_of_an_earlier_file_go_into_the_log_and_from_there_into_a_new_one(
    log: MemoryLog, state: StateDatabase
) -> None:
    paused, replay = state.requests.ask("it", Kind.PAUSE, {}, who="dana", now=1.0), {"repository": "x", "since_push": 2}
    state.requests.answer(paused, "paused", now=2.0)
    state.requests.ask("it", Kind.REPLAY, replay, who="erin", now=3.0)
    state.requests.ask("other", Kind.PAUSE, {}, who="dana", now=4.0)
    restore_requests("it", SharedRequests(log), state, log.append)
    with closing(StateDatabase(NOWHERE)) as new:
        restore_requests("it", SharedRequests(log), new, log.append)
        restore_requests("it", SharedRequests(log), new, log.append)
        assert new.list_records("it") == state.list_records("it")
        assert (new.paused("it"), new.paused("other")) == (True, False)
        [waiting] = new.requests.list_open()
        assert (waiting.argument, waiting.who) == (replay, "erin")


def test_a_skip_is_known_to_a_new_file(log: MemoryLog, state: StateDatabase) -> None:
    record_requests(
        "it", log.append, [a_request(Kind.SKIP, 1.0, done_at=2.0, result="skipped", skipped="m", skipped_offset=7)]
    )
    restore_requests("it", SharedRequests(log), state, log.append)
    assert (state.skipped("it", 7), state.skipped("it", 8)) == ({"m"}, set())


def test_an_answer_that_only_the_log_has_is_not_given_twice(log: MemoryLog, state: StateDatabase) -> None:
    number = state.requests.ask("it", Kind.SKIP, {}, who="dana", now=1.0)
    record_requests("it", log.append, [a_request(Kind.SKIP, 1.0, done_at=2.0, result="skipped m")])
    restore_requests("it", SharedRequests(log), state, log.append)
    assert state.requests.list_open() == []
    assert state.requests.read(number).result == "skipped m"


def test_an_older_file_gets_the_newer_pause_from_the_log(log: MemoryLog, state: StateDatabase) -> None:
    state.requests.ask("it", Kind.PAUSE, {}, who="dana", now=1.0)
    restore_requests("it", SharedRequests(log), state, log.append)
    record_requests("it", log.append, [a_request(Kind.RESUME, 2.0, done_at=2.0, result="resumed")])
    restore_requests("it", SharedRequests(log), state, log.append)
    assert not state.paused("it")


@pytest.mark.parametrize("clock", [1.0, 9.0])
def test_a_pause_outlives_a_resume_before_it_that_an_older_file_lacks(
    log: MemoryLog, state: StateDatabase, clock: float
) -> None:
    """Another machine's notifier resumed and paused; the clock of the machine that asked it to resume may be ahead."""
    pause = a_request(Kind.PAUSE, 2.0)
    record_requests("it", log.append, [a_request(Kind.RESUME, clock, done_at=clock, result="resumed")])
    state.restore_requests("it", [pause])
    record_requests("it", log.append, [replace(pause, done_at=3.0, result="paused")])
    restore_requests("it", SharedRequests(log), state, log.append)
    assert state.paused("it")
    with closing(StateDatabase(NOWHERE)) as new:
        restore_requests("it", SharedRequests(log), new, log.append)
        assert new.paused("it")


def test_a_follower_takes_what_came_since_and_everything_of_a_log_that_was_set_back(
    log: MemoryLog, state: StateDatabase
) -> None:
    follower = RequestFollower("it", log, state)
    follower.follow()
    record_requests("it", log.append, [a_request(Kind.PAUSE, 1.0)])
    record_requests("other", log.append, [a_request(Kind.PAUSE, 2.0)])
    former = log.copied(NOTIFIER)
    record_requests("it", log.append, [a_request(Kind.PAUSE, 1.0, done_at=3.0, result="paused")])
    follower.follow()
    assert [each.result for each in state.list_records("it")] == ["paused"]
    log.restore(NOTIFIER, former)
    follower.follow()
    record_requests("it", log.append, [a_request(Kind.RESUME, 4.0)])
    follower.follow()
    assert [each.kind for each in state.list_records("it")] == ["pause", "resume"]


GOOD = {"kind": "pause", "argument": "{}", "who": "dana", "asked_at": 1.0}


@pytest.mark.parametrize(
    "value", [b"", b"{", b"[]", *(json.dumps(GOOD | {key: "\ud800"}).encode() for key in GOOD), b'{"kind":"pause"}']
)
def test_a_request_that_cannot_be_read_stops_no_other(log: MemoryLog, state: StateDatabase, value: bytes) -> None:
    log.append([NewRecord(topic=NOTIFIER, key="request/it/0", value=value)])
    record_requests("it", log.append, [a_request(Kind.PAUSE, 1.0)])
    restore_requests("it", SharedRequests(log), state, log.append)
    assert len(state.list_records("it")) == 1


@pytest.mark.processes
def test_destinations_that_begin_together_share_a_reading_of_the_requests() -> None:
    log = CountedLog()
    shared = SharedRequests(log)
    with ThreadPoolExecutor(20) as threads:
        first = threads.submit(shared.read)
        eventually(lambda: log.readings == 1)
        others = [threads.submit(shared.read) for _ in range(19)]
        eventually(lambda: repr(shared._numbers) == "count(21)")  # all have asked
        log.append([NewRecord(topic=NOTIFIER, key="request/it/0", value=b"{}")])
        log.may_read.set()
        assert all((NOTIFIER, "request/it/0") in each.result().records for each in (first, *others))
    assert log.readings == 2, "those that came during the first share one that began after them"


def test_reading_of_the_requests_that_failed_is_repeated() -> None:
    log = CountedLog()
    shared, log.is_away = SharedRequests(log), True
    log.may_read.set()
    with pytest.raises(Unavailable):
        shared.read()
    log.is_away = False
    assert shared.read().records == {}


@pytest.mark.processes
def test_start_of_a_destination_reads_all_requests_once(tmp_path: Path) -> None:
    log = CountedLog()
    log.may_read.set()
    notifier = Notifier(log, tmp_path)
    notifier.start(it=Scripted())
    notifier.stop()
    notifier.state.close()
    assert log.readings == 1

# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay compares an outbox with what the log has, before it continues any history."""

import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hgext.vcsreplicator.log import SERVICES, STATE, Log, NewRecord, Record, topics
from hgext.vcsreplicator.outbox.entry import NewestEvent
from hgext.vcsreplicator.outbox.file import Outbox
from hgext.vcsreplicator.relay import fork
from hgext.vcsreplicator.words.errors import NotAuthorized, Unavailable
from hgext.vcsreplicator.words.event import Event, Type
from hgext.vcsreplicator.words.records import MASTER_KEY, MasterRecord, RepositoryState
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.log.memorylog import MemoryLog
from testing.waiting import PATIENCE, eventually

NEWEST = NewestEvent(
    repository="a" * 32, incarnation="b" * 32, path="x", generation=1, seq=1, id="c" * 32, digest="d" * 64
)
GOLDEN = Path(__file__).parent / "golden" / "state.json"


class Box(Outbox):
    """An outbox whose newest event is NEWEST, without a store."""

    def __init__(self) -> None:
        pass

    def newest(self) -> NewestEvent:
        return NEWEST


class Slow(MemoryLog):
    """A log whose topics cannot be read until it is awake."""

    def __init__(self) -> None:
        super().__init__()
        self.awake = threading.Event()

    def ends(self, topic: str, partitions: Collection[int] | None = None) -> dict[int, int]:
        if not self.awake.is_set():
            raise Unavailable("asleep")
        return super().ends(topic, partitions)


def watch(log: Log, stop: threading.Event, **more: Any) -> fork.StateWatch:
    made = fork.StateWatch(log, stop, **more)
    made.start()
    return made


@pytest.fixture
def stop() -> threading.Event:
    return threading.Event()


def test_nothing_is_judged_before_the_log_was_read(monkeypatch: pytest.MonkeyPatch, stop: threading.Event) -> None:
    monkeypatch.setattr(fork, "FIRST_READ", 0.0)
    log = Slow()
    log.create(topics())
    watching = watch(log, stop)
    with pytest.raises(Unavailable, match="not read yet"):
        watching.fork(Box())
    stop.set()
    watching.close()


def test_an_unreadable_state_hides_no_other(stop: threading.Event) -> None:
    log = MemoryLog()
    log.create(topics())
    log.append(
        [
            NewRecord(topic=STATE, key="e" * 32, value=b"nonsense"),
            NewRecord(topic=STATE, key=NEWEST.repository, value=GOLDEN.read_bytes()),
        ]
    )
    watching = watch(log, stop)
    found = watching.fork(Box())
    assert found is not None
    assert "has its event 7" in found.reason
    stop.set()
    watching.close()


def test_a_path_has_the_states_of_its_repositories_alone(stop: threading.Event) -> None:
    """Each new repository looks for another one at its path: that must not cost what the host has."""
    log, golden = MemoryLog(), from_json(RepositoryState, GOLDEN.read_bytes())
    log.create(topics())

    def write(repository: str, path: str, seq: int) -> RepositoryState:
        state = replace(golden, repository=repository, path=path, seq=seq)
        log.append([NewRecord(topic=STATE, key=repository, value=to_json(state))])
        return state

    first, other = write("1" * 32, "one", 1), write("2" * 32, "two", 1)
    watching = watch(log, stop)
    assert watching.states_at("one") == [first]
    moved, later = write("1" * 32, "three", 2), write("3" * 32, "one", 1)
    eventually(lambda: later in watching.states_at("one"))
    assert watching.states_at("one") == [moved, later]
    assert (watching.states_at("two"), watching.states_at("three")) == ([other], [moved])
    assert watching.states_at("four") == []
    stop.set()
    watching.close()


@pytest.mark.parametrize(("states", "seen"), [((), 5), ((7,), 7)])
def test_what_the_log_has_and_what_the_relay_sent_are_both_compared(
    states: Sequence[int], seen: int, stop: threading.Event
) -> None:
    log, golden = MemoryLog(), from_json(RepositoryState, GOLDEN.read_bytes())
    log.create(topics())
    for seq in states:
        log.append([NewRecord(topic=STATE, key=NEWEST.repository, value=to_json(replace(golden, seq=seq)))])
    watching = watch(log, stop)
    event = SimpleNamespace(repository=NEWEST.repository, incarnation="b" * 32, seq=5, id="c" * 32, type=Type.CHANGED)
    watching.sent(cast(Event, event))
    found = watching.fork(Box())
    assert found is not None
    assert f"has its event {seen}" in found.reason
    stop.set()
    watching.close()


def test_the_watch_ends_at_once_however_long_it_waits_for_records(stop: threading.Event) -> None:
    log = MemoryLog()
    log.create(topics())
    others = set(threading.enumerate())
    watching = watch(log, stop, poll=3600.0)
    stop.set()
    watching.close()
    assert set(threading.enumerate()) <= others


class Failing(MemoryLog):
    """A log whose readers fail once when `fails` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = threading.Event()

    def collect(
        self, positions: dict[tuple[str, int], int], active: Sequence[tuple[str, int]], limit: int
    ) -> list[Record]:
        if self.fails.is_set():
            self.fails.clear()
            raise Unavailable("down for a moment")
        return super().collect(positions, active, limit)


@pytest.mark.processes
def test_the_watch_hands_on_each_state_also_after_a_failure(stop: threading.Event) -> None:
    log = Failing()
    log.create(topics())
    golden, handed = from_json(RepositoryState, GOLDEN.read_bytes()), list[int]()

    def write(noticed: int) -> None:
        value = to_json(replace(golden, noticed=noticed))
        log.append([NewRecord(topic=STATE, key=golden.repository, value=value)])

    def hand_on(state: RepositoryState) -> None:
        if watching.state(state.repository) == state:
            handed.append(state.noticed)

    write(1)
    watching = fork.StateWatch(log, stop)
    watching.on_state = hand_on
    watching.start()
    write(2)
    eventually(lambda: handed == [1, 2])
    log.fails.set()
    write(3)
    eventually(lambda: handed == [1, 2, 3])
    stop.set()
    watching.close()


class Guarded(MemoryLog):
    """A log whose topic `services` this user may not read."""

    def collect(
        self, positions: dict[tuple[str, int], int], active: Sequence[tuple[str, int]], limit: int
    ) -> list[Record]:
        if any(topic == SERVICES for topic, _ in active):
            raise NotAuthorized("no right to read services")
        return super().collect(positions, active, limit)


def test_a_relay_that_may_not_read_of_promotions_reads_the_states(stop: threading.Event) -> None:
    log = Guarded()
    log.create(topics())
    log.append([NewRecord(topic=STATE, key=NEWEST.repository, value=GOLDEN.read_bytes())])
    watching = watch(log, stop)
    assert watching.fork(Box()) is not None
    assert watching.successor("hg://master") is None
    stop.set()
    watching.close()


def test_what_is_no_promotion_makes_no_former_master_send_again(stop: threading.Event) -> None:
    log = MemoryLog()
    log.create(topics())
    promotion = MasterRecord(source="hg://alpha", mirror="alpha", replaces=("hg://old",), time=1.0)
    log.append([NewRecord(topic=SERVICES, key=MASTER_KEY, value=to_json(promotion))])
    watching, seen = watch(log, stop), threading.Event()
    watching.on_state = lambda state: seen.set()
    eventually(lambda: watching.successor("hg://old") is not None)
    log.append([NewRecord(topic=SERVICES, key=MASTER_KEY, value=b"{}")])
    log.append([NewRecord(topic=STATE, key=NEWEST.repository, value=GOLDEN.read_bytes())])
    assert seen.wait(PATIENCE)
    assert watching.successor("hg://old") is not None
    stop.set()
    watching.close()


class Stale(MemoryLog):
    """A log of which a cut-off relay gets no record, until it is healed."""

    def __init__(self) -> None:
        super().__init__()
        self.is_cut_off = False

    def collect(
        self, positions: dict[tuple[str, int], int], active: Sequence[tuple[str, int]], limit: int
    ) -> list[Record]:
        return [] if self.is_cut_off else super().collect(positions, active, limit)


@pytest.mark.processes
def test_a_relay_on_a_suspended_machine_reads_of_promotions_before_it_sends(
    stop: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monotonic clock stands still meanwhile, and the connections to the log may look alive."""
    real, suspended = time.clock_gettime, [0.0]
    monkeypatch.setattr(
        time, "clock_gettime", lambda clock: real(clock) + (clock == time.CLOCK_BOOTTIME) * suspended[0]
    )
    log = Stale()
    log.create(topics())
    watching = watch(log, stop, poll=0.01)
    assert watching.fork(Box()) is None
    log.is_cut_off = True
    record = MasterRecord(source="hg://new", mirror="alpha", replaces=("hg://master",), time=1.0)
    log.append([NewRecord(topic=SERVICES, key=MASTER_KEY, value=to_json(record))])
    suspended[0] = fork.TERM + 1
    with pytest.raises(Unavailable, match="whether a mirror was promoted meanwhile is not read yet"):
        watching.fork(Box())
    stop.set()
    watching.close()


@pytest.mark.processes
def test_a_relay_that_was_cut_off_reads_of_promotions_before_it_sends(stop: threading.Event) -> None:
    """The promotion waited until it was silent: what it accepted before must not follow the new master's events."""
    now = [0.0]
    log = Stale()
    log.create(topics())
    watching = watch(log, stop, poll=0.01, monotonic=lambda: now[0])
    assert watching.fork(Box()) is None
    log.is_cut_off = True
    record = MasterRecord(source="hg://new", mirror="alpha", replaces=("hg://master",), time=1.0)
    log.append([NewRecord(topic=SERVICES, key=MASTER_KEY, value=to_json(record))])
    now[0] = fork.TERM + 1
    with pytest.raises(Unavailable, match="whether a mirror was promoted meanwhile is not read yet"):
        watching.fork(Box())
    log.is_cut_off = False
    eventually(lambda: watching.successor("hg://master") is not None)

    def may_send() -> bool:
        with suppress(Unavailable):
            return watching.fork(Box()) is None
        return False

    eventually(may_send)
    stop.set()
    watching.close()

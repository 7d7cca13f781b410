# SPDX-License-Identifier: GPL-2.0-or-later
"""The aggregator's work follows what changes, not how many repositories there are."""

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from hgext.vcsreplicator.aggregator.decisions import outstanding
from hgext.vcsreplicator.aggregator.loading import GROUP
from hgext.vcsreplicator.aggregator.session import Session
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.log import ACKS, NOTICES, STATE, NewRecord, topics
from hgext.vcsreplicator.words.event import Type
from hgext.vcsreplicator.words.records import AggregatorHeartbeat
from hgext.vcsreplicator.words.roster import MirrorState, Verb
from hgext.vcsreplicator.words.rules import Rules
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.aggregator.aggregating import ask, fill_settled, send
from testing.builders.aggregator.chains import Chain
from testing.builders.log.memorylog import MemoryLog
from testing.clock import HandClock

SETTINGS = AggregatorSettings(group_time=0.0, beat=5.0)
MIRRORS = ("alpha", "beta", "gamma")


class Installation:
    """Repositories at rest on three active mirrors, and an aggregator that has sent its first heartbeat."""

    def __init__(self, repositories: int) -> None:
        self.clock = HandClock()
        self.log = MemoryLog(self.clock)
        self.log.create(topics())
        for name in MIRRORS:
            ask(self.log, Verb.ADD, name)
        self.chains = [Chain(f"group/{number}") for number in range(repositories)]
        fill_settled(self.log, self.chains, MIRRORS)
        self.session = Session(SETTINGS, self.log, self.log.transactor(GROUP), self.clock)
        self.step()
        while self.session.aggregation.is_behind:
            self.session.step(0.0)
        self.step()

    def step(self) -> None:
        """The time of a heartbeat comes."""
        self.clock.advance(SETTINGS.beat)
        self.session.step(0.0)

    def ack(self, chain: Chain, serving: int) -> None:
        acks = [chain.ack(name, len(chain.events), serving) for name in MIRRORS]
        self.log.append(
            [NewRecord(topic=ACKS, key=f"{ack.mirror}/{ack.repository}", value=to_json(ack)) for ack in acks]
        )

    def beat(self) -> AggregatorHeartbeat:
        newest = [record for record in self.log.records(STATE) if record.key == "aggregator"][-1]
        return from_json(AggregatorHeartbeat, newest.value or b"")


def count_lines(act: Callable[[], None]) -> int:
    """The lines of the aggregator that run."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if "/aggregator/" not in frame.f_code.co_filename or "/tests/" in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


def test_a_heartbeat_looks_at_no_repository_that_is_at_rest() -> None:
    few, many = Installation(10), Installation(1000)
    assert count_lines(few.step) == count_lines(many.step) > 0


def test_a_notice_costs_as_much_among_many_repositories_as_among_few() -> None:
    def announce(it: Installation) -> None:
        chain = it.chains[0]
        send(it.log, [chain.next()])
        it.session.step(0.0)
        for serving in (1, 2):
            it.ack(chain, serving)
            it.session.step(0.0)
        assert len(it.log.records(NOTICES)) == 1

    few, many = Installation(10), Installation(1000)
    assert count_lines(lambda: announce(few)) == count_lines(lambda: announce(many)) > 0


def test_a_rename_costs_as_much_among_many_repositories_while_a_mirror_joins() -> None:
    def rename(it: Installation) -> None:
        event = it.chains[0].next(Type.RENAMED, detail={"from": it.chains[0].path})
        send(it.log, [replace(event, path="elsewhere")])
        it.session.step(0.0)
        assert it.session.aggregation.repositories[event.repository].path == "elsewhere"

    few, many = Installation(10), Installation(1000)
    for it in (few, many):
        ask(it.log, Verb.ADD, "delta")
        it.step()
        it.step()
        while it.session.aggregation.is_behind:
            it.session.step(0.0)
        assert it.session.aggregation.roster.mirror("delta").state is MirrorState.JOINING
    assert count_lines(lambda: rename(few)) == count_lines(lambda: rename(many)) > 0


def test_no_step_looks_at_more_repositories_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """New rules change what each repository lacks; notices go on meanwhile."""
    it = Installation(200)
    monkeypatch.setattr(outstanding, "LOOKED_AT", 20)
    with counted_looks() as looks:
        ask(it.log, Verb.RULES, "alpha", rules=Rules(exclude=("re:group",)))
        it.step()
        steps = 1
        while it.session.aggregation.is_behind:
            it.session.step(0.0)
            steps += 1
    assert steps > 2
    assert sum(looks) >= 180
    assert max(looks) <= 20


@contextmanager
def counted_looks() -> Iterator[list[int]]:
    """How many repositories each update looks at."""
    looks, update = list[int](), outstanding.Outstanding.update

    def counted(self: outstanding.Outstanding, *arguments: Any) -> None:
        before = len(self._changed)
        update(self, *arguments)
        looks.append(before - len(self._changed))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outstanding.Outstanding, "update", counted)
        yield looks


def test_the_first_heartbeat_counts_what_waits_in_all_repositories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outstanding, "LOOKED_AT", 3)
    it = Installation(10)
    for chain in it.chains:
        send(it.log, [chain.next()])
    it.session.step(0.0)
    it.session = Session(SETTINGS, it.log, it.log.transactor(GROUP), it.clock)
    it.session.step(0.0)
    assert it.beat().held == 10


def measure_session(log: MemoryLog) -> tuple[int, int]:
    """Return the bytes that a session of 100 repositories takes, and took at most at its start."""
    tracemalloc.start()
    try:
        with Session(SETTINGS, log, log.transactor(GROUP), HandClock()) as session:
            gc.collect()
            assert len(session.aggregation.repositories) == 100
            return tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()


def test_a_level_of_a_mirror_at_rest_takes_less_than_half_a_kilobyte() -> None:
    """Ten mirrors of 100,000 repositories have a million levels."""
    log, mirrors = MemoryLog(HandClock()), [f"mirror{number}" for number in range(10)]
    log.create(topics())
    fill_settled(log, [Chain(f"group/{number}") for number in range(100)], mirrors)
    taken, peak = zip(*(measure_session(log) for _ in range(3)), strict=True)
    # A thread of another test may take memory meanwhile, but not each time.
    assert min(taken) / 1000 < 500
    assert min(peak) / 1000 < 700

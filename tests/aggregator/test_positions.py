# SPDX-License-Identifier: GPL-2.0-or-later
"""Positions in `events` follow later than what they stand behind: killed in between, nothing is announced or recorded twice."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from hgext.vcsreplicator.aggregator.loading import GROUP, IDENTITY
from hgext.vcsreplicator.aggregator.session import Session
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.log import (
    ACKS,
    ERRORS,
    EVENTS,
    EXPECTED_WITHIN,
    NOTICES,
    PENDING,
    ROSTER_REQUESTS,
    STATE,
    NewRecord,
    topics,
)
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.event import VERSION, Type
from hgext.vcsreplicator.words.records import Notice
from hgext.vcsreplicator.words.roster import KEY, Verb
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.aggregator.aggregating import ask, send
from testing.builders.aggregator.chains import Chain
from testing.builders.log.memorylog import MemoryLog, MemoryTransactor
from testing.clock import HandClock


class Installation:
    """An aggregator that is killed and started again by a test; one mirror."""

    def __init__(self, kind: type[MemoryLog] = MemoryLog, **settings: float) -> None:
        self.clock = HandClock()
        self.log = kind(self.clock)
        self.log.create(topics(partitions=1))
        self.settings = AggregatorSettings(**{"group_time": 0.0, "beat": 5.0} | settings)
        ask(self.log, Verb.ADD, "alpha")
        self.session = self.start()
        self.session.step(0.0)

    def start(self) -> Session:
        """What a start after a kill makes of the log."""
        self.session = Session(self.settings, self.log, self.log.transactor(IDENTITY), self.clock)
        return self.session

    def ack(self, chain: Chain, *, serving: int) -> None:
        value = to_json(chain.ack("alpha", len(chain.events), serving=serving))
        self.log.append([NewRecord(topic=ACKS, key=f"alpha/{chain.repository}", value=value)])

    def announced(self) -> list[int]:
        return [from_json(Notice, record.value or b"").event.seq for record in self.log.records(NOTICES)]

    def position(self) -> int:
        return self.log.stored(GROUP, EVENTS).get(0, 0)


@pytest.mark.parametrize("killed_after", ["taken", "released", "announced"])
def test_an_event_whose_position_was_not_stored_is_announced_once(killed_after: str) -> None:
    it, chain = Installation(), Chain("x")
    send(it.log, chain.take(2))
    it.session.step(0.0)
    for moment, serving in (("taken", None), ("released", 0), ("announced", 2)):
        if serving is not None:
            it.ack(chain, serving=serving)
            it.session.step(0.0)
        if moment == killed_after:
            assert it.position() == 0
            it.start().step(0.0)
    assert it.announced() == [1, 2]
    it.clock.advance(5.0)
    it.session.step(0.0)
    assert it.position() == 2
    assert not it.log.records(ERRORS)
    assert not [record for record in it.log.records(PENDING) if record.value is not None and record.key != KEY]


@pytest.mark.parametrize("what", [Type.RENAMED, Type.DELETED, "adopted"])
def test_a_change_of_place_with_no_stored_position_is_announced_once(what: str) -> None:
    it, chain = Installation(), Chain("x")
    send(it.log, chain.take(2))
    if what == "adopted":
        adopted = Chain("x", incarnation=2)
        adopted.repository, adopted.path = chain.repository, chain.path
        send(it.log, [adopted.next(Type.SYNC, detail={"reason": "adopted", "replaces": chain.incarnation})])
        expected, last = [1, 2, 1], adopted
    else:
        was, chain.path = chain.path, "moved/x" if what is Type.RENAMED else chain.path
        send(it.log, [chain.next(what, detail={"from": was} if what is Type.RENAMED else None)])
        expected, last = [1, 2, 3], chain
    it.ack(chain, serving=len(chain.events))
    for _ in range(4):
        it.session.step(0.0)
    it.ack(last, serving=len(last.events))
    for _ in range(4):
        it.session.step(0.0)
    before = it.announced()
    assert before == expected[-len(before) :]
    errors = len(it.log.records(ERRORS))
    assert it.position() == (3 if errors else 0), "what an adoption overtook is recorded, with the position"
    it.start()
    for _ in range(4):
        it.session.step(0.0)
    assert it.announced() == before
    assert len(it.log.records(ERRORS)) == errors


def test_a_record_that_was_set_aside_is_not_recorded_twice() -> None:
    it, chain = Installation(), Chain("x")
    send(it.log, chain.take(1))
    it.session.step(0.0)
    it.log.append([NewRecord(topic=EVENTS, key=chain.repository, value=b"nonsense")])
    it.session.step(0.0)
    assert it.position() == 2, "with the record in errors"
    it.start().step(0.0)
    assert len(it.log.records(ERRORS)) == 1


def test_what_is_kept_for_a_newer_aggregator_is_kept_alone_and_once() -> None:
    it, chain = Installation(), Chain("x")
    send(it.log, chain.take(2))
    it.session.step(0.0)
    newer = replace(chain.next(), version=VERSION + 1)
    headers = wire.headers(newer, "hg://master")
    it.log.append([NewRecord(topic=EVENTS, key=chain.repository, value=wire.encode(newer), headers=headers)])
    with capture_logs() as lines:
        it.session.step(0.0)
    [line] = [line for line in lines if line["event"] == "event of a newer version, its repository waits"]
    assert (line["repository"], line["seq"], line["event_id"]) == (chain.repository, "3", newer.id)
    assert it.session.aggregation.held == 3
    it.start().step(0.0)
    assert it.session.aggregation.held == 3
    assert len(it.session.aggregation.repositories[chain.repository].newer) == 1
    assert len([record for record in it.log.records(PENDING) if record.value is not None and record.key != KEY]) == 3


def test_a_decided_request_is_stored_with_its_decision() -> None:
    it = Installation()
    ask(it.log, Verb.ADD, "beta")
    it.session.step(0.0)
    assert it.log.stored(GROUP, ROSTER_REQUESTS) == {0: 2}
    version = it.session.aggregation.roster.version
    it.start().step(0.0)
    assert it.session.aggregation.roster.version == version


def test_an_aggregator_that_is_stopped_leaves_nothing_to_be_read_again() -> None:
    it, chain = Installation(), Chain("x")
    send(it.log, chain.take(3))
    it.session.step(0.0)
    assert it.position() == 0
    it.session.finish()
    assert it.position() == 3


class ExpectingLog(MemoryLog):
    """Notes when a commit is expected, and how long it takes to come."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__(clock)
        self.expected: list[set[str]] = []
        self.since: float | None = None
        self.waits: list[float] = []

    def transactor(self, identity: str, *, group: str | None = None) -> MemoryTransactor:
        log, transactor = self, super().transactor(identity)

        class Expecting(MemoryTransactor):
            def expect(self, wanted: Sequence[str]) -> None:
                log.expected.append(set(wanted))
                log.since = log.clock.monotonic() if log.since is None else log.since

            def commit(self, *given: object, **named: object) -> list[tuple[int, int]]:  # type: ignore[override]
                if log.since is not None:
                    log.waits.append(log.clock.monotonic() - log.since)
                log.since = None
                return super().commit(*given, **named)  # type: ignore[arg-type]

        return Expecting(self, identity, transactor.epoch)


def test_an_expected_commit_comes_in_time_also_if_mirrors_do_not_answer() -> None:
    it, chain = Installation(ExpectingLog, group_time=0.1), Chain("x")
    log = it.log
    assert isinstance(log, ExpectingLog)
    send(log, chain.take(1))
    it.session.step(0.0)
    it.ack(chain, serving=0)
    it.session.step(0.0)
    assert log.expected == [{PENDING, STATE}, {NOTICES, PENDING, STATE}]
    for _ in range(30):
        it.clock.advance(0.5)
        it.session.step(0.0)
    assert log.since is None
    assert max(log.waits) <= EXPECTED_WITHIN
    assert len(log.expected) == 2, "nothing is prepared while nothing happens"


def test_nothing_is_expected_where_signs_of_life_are_rare() -> None:
    it, chain = Installation(ExpectingLog, beat=60.0), Chain("x")
    send(it.log, chain.take(1))
    it.session.step(0.0)
    it.ack(chain, serving=0)
    it.session.step(0.0)
    assert isinstance(it.log, ExpectingLog)
    assert it.log.expected == []

# SPDX-License-Identifier: GPL-2.0-or-later
"""Starts while partitions of `events` do not answer: the others go on, and nothing is announced that needs what is not read."""

import threading
from collections.abc import Collection, Mapping

import pytest

from hgext.vcsreplicator.aggregator import rereading
from hgext.vcsreplicator.aggregator.loading import GROUP
from hgext.vcsreplicator.aggregator.loop import run
from hgext.vcsreplicator.aggregator.session import Session
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.log import ACKS, EVENTS, NOTICES, PENDING, STATE, NewRecord, partition_of, topics
from hgext.vcsreplicator.log.table import ReadStopped
from hgext.vcsreplicator.words.clock import Clock, SystemClock
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.event import Type
from hgext.vcsreplicator.words.records import AggregatorHeartbeat, Notice
from hgext.vcsreplicator.words.roster import Verb
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.aggregator.aggregating import ask, send
from testing.builders.aggregator.chains import Chain
from testing.builders.log.hanging_ends import HangingEnds
from testing.builders.log.memorylog import MemoryLog
from testing.clock import HandClock
from testing.waiting import eventually

SETTINGS = AggregatorSettings(group_time=0.0, beat=5.0)
# The partition that does not answer, and the other.
SILENT, THERE = 0, 1


class Halves(MemoryLog):
    """A log of two partitions or more, some of which may have no leader, and a mirror that acks at once."""

    def __init__(self, clock: Clock, partitions: int = 2) -> None:
        super().__init__(clock)
        self.create(topics(partitions=partitions))
        ask(self, Verb.ADD, "alpha")

    def push(self, *chains: Chain) -> None:
        for chain in chains:
            send(self, chain.take(1))
            self.ack(chain)

    def ack(self, chain: Chain) -> None:
        value = to_json(chain.ack("alpha", len(chain.events)))
        self.append([NewRecord(topic=ACKS, key=f"alpha/{chain.repository}", value=value)])

    def fall_silent(self, *partitions: int) -> None:
        self.leaderless |= {(EVENTS, partition) for partition in partitions or (SILENT,)}

    def session(self) -> Session:
        return Session(SETTINGS, self, self.transactor(GROUP), self.clock)

    def step(self, session: Session, count: int = 3) -> None:
        for _ in range(count):
            session.step(0.0)
            assert isinstance(self.clock, HandClock)
            self.clock.advance(SETTINGS.beat)

    def noticed(self) -> list[tuple[str, int, int]]:
        """Path, generation and sequence of what was announced, in order."""
        events = [from_json(Notice, record.value or b"").event for record in self.records(NOTICES)]
        return [(event.path, event.generation, event.seq) for event in events]


@pytest.fixture
def log() -> Halves:
    return Halves(HandClock())


def chains() -> Mapping[int, Chain]:
    """A repository of each partition."""
    return {partition_of(chain.repository, 2): chain for chain in map(Chain, "abcdefgh")}


def at(path: str, partition: int, generation: int) -> bool:
    return partition_of(Chain(path, generation=generation).repository, 2) == partition


def test_a_start_goes_on_with_partitions_that_answer_until_others_do(log: Halves) -> None:
    silent, there = chains()[SILENT], chains()[THERE]
    log.push(silent, there)
    with log.session() as session:
        log.step(session)
    log.push(silent)
    log.fall_silent()
    with log.session() as session:
        log.push(there)
        log.step(session)
        assert log.noticed()[2:] == [(there.path, 1, 2)]
        assert not session.is_outdated
        log.leaderless.clear()
        log.step(session)
        assert session.is_outdated
    with log.session() as session:
        log.step(session)
        assert not session.is_outdated
    assert log.noticed()[2:] == [(there.path, 1, 2), (silent.path, 1, 2)]


def test_a_stored_repository_is_announced_though_its_partition_hangs(log: Halves) -> None:
    silent = chains()[SILENT]
    send(log, silent.take(2))
    with log.session() as session:
        log.step(session)
    assert log.noticed() == []
    log.fall_silent()
    with log.session() as session:
        log.ack(silent)
        log.step(session)
    assert log.noticed() == [(silent.path, 1, 1), (silent.path, 1, 2)]


def test_an_aggregator_reads_everything_anew_once_a_partition_answers() -> None:
    log = Halves(SystemClock())
    silent, there = chains()[SILENT], chains()[THERE]
    send(log, silent.take(1))
    log.fall_silent()
    settings = AggregatorSettings(group_time=0.0, beat=0.02)
    stop, is_ready = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: run(settings, log, stop=stop, ready=is_ready.set), daemon=True)
    thread.start()
    try:
        assert is_ready.wait(60)
        log.push(there)
        eventually(lambda: log.noticed() == [(there.path, 1, 1)])
        log.ack(silent)
        log.leaderless.clear()
        eventually(lambda: log.noticed() == [(there.path, 1, 1), (silent.path, 1, 1)])
        log.push(silent)
        eventually(lambda: log.noticed()[2:] == [(silent.path, 1, 2)])
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("is_known", [False, True])
def test_no_successor_is_announced_before_all_partitions_are_read(log: Halves, is_known: bool) -> None:
    path = next(path for path in map(str, range(1000)) if at(path, SILENT, 1) and at(path, THERE, 2))
    former, successor, other = Chain(path), Chain(path, generation=2), chains()[THERE]
    if is_known:
        log.push(former)
        with log.session() as session:
            log.step(session)
    former.take(2) if is_known else former.take(3)
    send(log, [*former.events[is_known:], former.next(Type.DELETED)])
    log.ack(former)
    log.push(successor, other)
    log.fall_silent()
    with log.session() as session:
        log.step(session, 30)
    before = log.noticed()
    assert before == [*([(path, 1, 1)] if is_known else []), (other.path, 1, 1)]
    log.leaderless.clear()
    with log.session() as session:
        log.step(session)
    expected = [*((path, 1, seq) for seq in range(2 if is_known else 1, 5)), (path, 2, 1)]
    assert log.noticed()[len(before) :] == expected


def test_a_loss_of_a_partition_that_does_not_answer_stays_known(log: Halves) -> None:
    log.append(
        [
            NewRecord(
                topic=STATE, key=GROUP, value=to_json(AggregatorHeartbeat(time=1.0, roster=1, held=0, cut={"0": 7}))
            )
        ]
    )
    log.fall_silent()
    with log.session() as session:
        log.step(session)
    [beat] = [record.value for record in log.records(STATE) if record.key == GROUP]
    assert from_json(AggregatorHeartbeat, beat or b"").cut == {"0": 7}


def test_a_mirror_that_joins_meanwhile_gates_every_event_of_the_partition(log: Halves) -> None:
    log.push(chains()[SILENT], chains()[THERE])
    with log.session() as session:
        log.step(session)
    log.fall_silent()
    with log.session() as session:
        ask(log, Verb.ADD, "beta")
        session.step(0.0)
        roster = session.aggregation.roster
    beta = roster.mirror("beta")
    assert beta is not None
    assert not beta.gates_at(THERE, 0)
    assert beta.gates_at(SILENT, 0)


@pytest.mark.parametrize("silent", [SILENT, THERE])
def test_a_start_waits_for_a_partition_that_has_to_be_read_again(log: Halves, silent: int) -> None:
    chain = chains()[SILENT]
    send(log, chain.take(2))
    with log.session() as session:
        log.step(session)
    log.append([NewRecord(topic=PENDING, key=f"{chain.repository}/1", value=None)])
    log.ack(chain)
    log.fall_silent(silent)
    if silent == SILENT:
        with pytest.raises(Unavailable, match="has to be read again"):
            log.session()
        assert log.noticed() == []
        log.leaderless.clear()
    with log.session() as session:
        log.step(session)
    assert log.noticed() == [(chain.path, 1, 1), (chain.path, 1, 2)]


def test_a_start_waits_while_no_partition_answers(log: Halves) -> None:
    log.fall_silent(SILENT, THERE)
    with pytest.raises(Unavailable):
        log.session()


def test_a_stop_ends_the_search_for_the_partitions_that_answer(log: Halves) -> None:
    stop, asked, ends = threading.Event(), list[object](), log.ends

    def stop_at_first(topic: str, which: Collection[int] | None = None) -> dict[int, int]:
        if topic == EVENTS:
            asked.append(which)
            stop.set()
        return ends(topic, which)

    log.fall_silent()
    log.ends = stop_at_first  # type: ignore[method-assign]
    with pytest.raises(ReadStopped):
        Session(SETTINGS, log, log.transactor(GROUP), log.clock, stop=stop)
    assert asked == [None]


def test_a_partition_that_loses_its_leader_in_a_rereading_loses_nothing(
    log: Halves, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rereading, "SLICE", 1)
    skipped, there = chains()[SILENT], chains()[THERE]
    send(log, skipped.take(10))
    log.acknowledge(GROUP, EVENTS, log.ends(EVENTS))
    with log.session() as session:
        log.push(skipped)
        session.step(0.0)
        session.step(0.0)
        [known] = session.aggregation.repositories.values()
        assert known.state is not None
        assert known.state.seq < 10, "it is read again"
        log.fall_silent()
        with pytest.raises(Unavailable):
            session.step(0.0)
    with log.session() as session:
        log.push(there)
        log.step(session)
        assert log.noticed() == [(there.path, 1, 1)]
        log.leaderless.clear()
        log.step(session)
        assert session.is_outdated
    log.push(skipped)
    with log.session() as session:
        log.step(session, 20)
    assert log.noticed()[1:] == [(skipped.path, 1, seq) for seq in range(1, 13)]


@pytest.mark.usefixtures("impatient")
def test_a_silent_partition_holds_up_no_other_and_is_found_again(log: Halves) -> None:
    silent, there = chains()[SILENT], chains()[THERE]
    send(log, silent.take(1))
    log.fall_silent()
    with log.session() as session:
        hanging = HangingEnds(log)
        log.push(there)
        log.step(session)
        assert log.noticed() == [(there.path, 1, 1)]
        assert [sorted(each or ()) for each in hanging.asked] == [[SILENT]]
        log.leaderless.clear()
        hanging.go_on.set()
        eventually(lambda: log.step(session) or session.is_outdated)


def test_of_two_silent_partitions_the_first_that_answers_ends_the_session() -> None:
    log = Halves(HandClock(), partitions=3)
    log.fall_silent(0, 1)
    with log.session() as session:
        log.step(session)
        assert not session.is_outdated
        log.leaderless.remove((EVENTS, 1))
        log.step(session)
        assert session.is_outdated

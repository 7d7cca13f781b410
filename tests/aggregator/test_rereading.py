# SPDX-License-Identifier: GPL-2.0-or-later
"""Long readings of the log end when it shrinks meanwhile, obey a wish to stop, and hold up nothing else."""

import threading
from collections.abc import Mapping
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from hgext.vcsreplicator.aggregator.decisions.deciding import LOST_PATIENCE
from hgext.vcsreplicator.aggregator.decisions.intake import EventIntake
from hgext.vcsreplicator.aggregator.decisions.memory import RecordOutcome
from hgext.vcsreplicator.aggregator.loading import GROUP
from hgext.vcsreplicator.aggregator.loop import run
from hgext.vcsreplicator.aggregator.session import Session
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.log import ACKS, ERRORS, EVENTS, NOTICES, STATE, NewRecord, Record, partition_of, topics
from hgext.vcsreplicator.words.event import Type
from hgext.vcsreplicator.words.records import ErrorRecord, Notice
from hgext.vcsreplicator.words.roster import Verb
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.aggregator.aggregating import ask, list_rereadings, send
from testing.builders.aggregator.chains import Chain
from testing.builders.log.memorylog import MemoryLog, MemoryReader
from testing.clock import HandClock

SETTINGS = AggregatorSettings(group_time=0.0, beat=5.0)


class Shrinking(MemoryLog):
    """Loses the newest records of a topic once its end was asked for, and before it is read."""

    topic: str | None = None

    def reader(self, positions: Mapping[tuple[str, int], int]) -> MemoryReader:
        if self.topic is not None and {topic for topic, _ in positions} & {self.topic}:
            self.lose(self.topic, 0, 2)
            self.topic = None
        return super().reader(positions)


class Endless(MemoryReader):
    """Is never where the log says that it ends."""

    def poll(self, timeout: float, *, limit: int = 500) -> list[object]:  # type: ignore[override]
        return []


def installation(kind: type[MemoryLog] = MemoryLog, partitions: int = 1) -> tuple[HandClock, MemoryLog]:
    clock = HandClock()
    log = kind(clock)
    log.create(topics(partitions=partitions))
    ask(log, Verb.ADD, "alpha")
    return clock, log


def ack(log: MemoryLog, *chains: Chain) -> None:
    for chain in chains:
        value = to_json(chain.ack("alpha", len(chain.events)))
        log.append([NewRecord(topic=ACKS, key=f"alpha/{chain.repository}", value=value)])


def noticed(log: MemoryLog, chain: Chain) -> list[int]:
    notices = [from_json(Notice, record.value or b"") for record in log.records(NOTICES)]
    return [notice.event.seq for notice in notices if notice.event.repository == chain.repository]


@pytest.mark.parametrize("topic", [ACKS, STATE])
def test_a_start_ends_though_the_log_loses_records_while_it_is_read(topic: str) -> None:
    clock, log = installation(Shrinking)
    chain = Chain("x")
    send(log, chain.take(3))
    ack(log, chain)
    with Session(SETTINGS, log, log.transactor(GROUP), clock) as session:
        for _ in range(3):
            session.step(0.0)
            clock.advance(5.0)
    assert isinstance(log, Shrinking)
    log.topic = topic
    with Session(SETTINGS, log, log.transactor(GROUP), clock):
        assert log.topic is None


def test_events_are_read_again_to_the_end_of_a_log_that_loses_records() -> None:
    clock, log = installation(Shrinking)
    chain = Chain("x")
    send(log, chain.take(6))
    log.acknowledge(GROUP, EVENTS, log.ends(EVENTS))
    ack(log, chain)
    assert isinstance(log, Shrinking)
    with Session(SETTINGS, log, log.transactor(GROUP), clock) as session:
        log.topic = EVENTS
        for _ in range(2):  # the second heartbeat begins, and what was lost stays unseen by the other reader
            clock.advance(5.0)
            session.step(0.0)
        session._read_again(set())
        assert log.topic is None
        assert not session._rereading
        assert session.aggregation.repositories[chain.repository].state.seq == 4  # type: ignore[union-attr]


def test_a_wish_to_stop_ends_a_start_that_reads() -> None:
    clock, log = installation()
    send(log, Chain("x").take(1))
    log.reader = lambda positions: Endless(log, positions)  # type: ignore[method-assign]
    stop = threading.Event()
    thread = threading.Thread(
        target=lambda: run(SETTINGS, log, stop=stop, ready=lambda: None, clock=clock), daemon=True
    )
    thread.start()
    stop.set()
    thread.join(60)
    assert not thread.is_alive()


def test_a_rereading_holds_up_neither_partitions_nor_the_heartbeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hgext.vcsreplicator.aggregator.rereading.SLICE", 1)
    clock, log = installation(partitions=2)
    chains = {partition_of(chain.repository, 2): chain for chain in map(Chain, "abcdef")}
    skipped, other = chains[0], chains[1]
    send(log, skipped.take(10))
    log.acknowledge(GROUP, EVENTS, log.ends(EVENTS))
    with Session(SETTINGS, log, log.transactor(GROUP), clock) as session:
        send(log, [*skipped.take(2), *other.take(2)])
        session.step(0.0)
        ack(log, skipped, other)
        session.step(0.0)
        session.step(0.0)
        assert noticed(log, other) == [1, 2]
        heartbeats = [record.offset for record in log.records(STATE) if record.key == GROUP]
        clock.advance(5.0)
        session.step(0.0)
        assert [record.offset for record in log.records(STATE) if record.key == GROUP] > heartbeats
        assert len(noticed(log, skipped)) < 12, "it is still read again"
        for _ in range(20):
            session.step(0.0)
    assert noticed(log, skipped) == list(range(1, 13))
    assert noticed(log, other) == [1, 2]


# The log loses its newest records, and others fill their places before the aggregator's next read


def other_history(log: MemoryLog, session: Session) -> Chain:
    """Four events of another repository, all taken; the log then loses the last two."""
    other = Chain("other")
    send(log, other.take(4))
    session.step(0.0)
    assert session.aggregation.positions[EVENTS, 0] == 4
    log.lose(EVENTS, 0, 2)
    return other


def test_a_gap_where_the_log_was_filled_anew_is_no_loss_before_reading() -> None:
    clock, log = installation()
    with Session(SETTINGS, log, log.transactor(GROUP), clock) as session:
        other, chain = other_history(log, session), Chain("x")
        send(log, [*chain.take(1), *other.events[2:], *chain.take(1)])  # the first stands before the position
        ack(log, chain)
        for _ in range(4):
            session.step(0.0)
        assert noticed(log, chain) == [1, 2]
        assert log.records(ERRORS) == []


def test_the_adoption_that_stands_where_the_log_was_filled_anew_is_found() -> None:
    clock, log = installation()
    old, new = Chain("x"), Chain("x", incarnation=2)
    new.repository = old.repository
    send(log, old.take(2))
    ack(log, old)
    with Session(SETTINGS, log, log.transactor(GROUP), clock) as session:
        session.step(0.0)
        session.step(0.0)
        log.lose(EVENTS, 0, 1)
        send(log, [new.next(Type.SYNC, detail={"reason": "adopted"}), *new.take(2)])
        ack(log, new)
        for _ in range(4):
            session.step(0.0)
        assert noticed(log, old) == [1, 2, 1, 2, 3]
        assert log.records(ERRORS) == []


def test_events_where_the_log_was_filled_anew_are_found_by_levels() -> None:
    clock, log = installation()
    with Session(SETTINGS, log, log.transactor(GROUP), clock) as session:
        other, chain = other_history(log, session), Chain("x")
        send(log, [*chain.take(2), *other.events[2:]])
        ack(log, chain)
        for _ in range(4):
            clock.advance(SETTINGS.beat)
            session.step(0.0)
        assert noticed(log, chain) == [1, 2]
        assert log.records(ERRORS) == []


def test_events_of_a_fork_where_the_log_was_filled_anew_are_found() -> None:
    clock, log = installation()
    chain = Chain("x")
    with Session(SETTINGS, log, log.transactor(GROUP), clock) as session:
        [first] = chain.take(1)
        send(log, [first, replace(first, id="f" * 32), *chain.take(2)])
        session.step(0.0)
        log.lose(EVENTS, 0, 4)
        send(log, [*chain.events, *chain.take(2)])  # the last but one stands before the position
        ack(log, chain)
        for _ in range(4):
            session.step(0.0)
        assert noticed(log, chain) == [1, 2, 3, 4, 5]
        [error] = log.records(ERRORS)
        assert "event 1 (" in from_json(ErrorRecord, error.value or b"").reason


def test_a_fork_of_what_was_lost_unread_is_taken_first_and_named_later() -> None:
    clock, log = installation()
    chain, adopted = Chain("x"), Chain("x", incarnation=2)
    adopted.repository = chain.repository
    with Session(SETTINGS, log, log.transactor(GROUP), clock) as session:
        other = other_history(log, session)
        send(log, [*chain.take(1), *other.events[2:]])  # before the position
        fork = replace(chain.events[0], id="f" * 32)
        send(log, [fork, *chain.take(1)])
        session.step(0.0)
        [error] = log.records(ERRORS)
        assert f"event 2 ({chain.events[1].id}) is a fork: the log continued from 1 ({fork.id})" in str(error.value)
        send(log, [adopted.next(Type.SYNC, detail={"reason": "adopted"})])
        ack(log, adopted)
        for _ in range(4):
            session.step(0.0)
        assert noticed(log, adopted) == [1]
        assert session.aggregation.repositories[chain.repository].state.fork is None  # type: ignore[union-attr]


def test_a_gap_behind_a_fork_stays_a_fork_when_the_log_lacks_it() -> None:
    clock, log = installation()
    chain = Chain("x")
    with Session(SETTINGS, log, log.transactor(GROUP), clock) as session:
        [first] = chain.take(1)
        send(log, [first, replace(first, id="f" * 32)])
        session.step(0.0)
        gap(log, session, chain)
        assert session.aggregation.repositories[chain.repository].last == 1
        assert chain.events[-1].id in from_json(ErrorRecord, log.records(ERRORS)[-1].value or b"").reason


def test_a_history_that_was_never_adopted_makes_the_log_read_again_once() -> None:
    clock, log = installation()
    chain, foreign = Chain("x"), Chain("x", incarnation=2)
    foreign.repository = chain.repository
    with capture_logs() as lines, Session(SETTINGS, log, log.transactor(GROUP), clock) as session:
        send(log, chain.take(1))
        session.step(0.0)
        for _ in range(5):
            send(log, foreign.take(1))
            session.step(0.0)
    assert list_rereadings(lines) == [0]


def test_a_log_with_expired_records_is_not_read_again_per_repository() -> None:
    clock, log = installation()
    chains = [Chain(name) for name in "abc"]
    for chain in chains:
        chain.take(2)
        send(log, chain.take(1))
    ack(log, *chains)
    with capture_logs() as lines, Session(SETTINGS, log, log.transactor(GROUP), clock) as session:
        for _ in range(4):
            session.step(0.0)
            clock.advance(LOST_PATIENCE / 2)
    assert [noticed(log, chain) for chain in chains] == [[3], [3], [3]]
    assert list_rereadings(lines) == []


def passed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets of the records that are read again from now on."""
    offsets: list[int] = []
    take = EventIntake.take_again

    def note(intake: EventIntake, record: Record, now: float) -> RecordOutcome:
        offsets.append(record.offset)
        return take(intake, record, now)

    monkeypatch.setattr(EventIntake, "take_again", note)
    return offsets


def gap(log: MemoryLog, session: Session, chain: Chain) -> None:
    """The next but one event of the repository comes, and all is decided."""
    chain.take(1)
    send(log, chain.take(1))
    for _ in range(4):
        session.step(0.0)


def test_each_record_is_read_again_once_however_many_gaps_come(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, log = installation()
    chains = [Chain(name) for name in "abcdef"]
    with Session(SETTINGS, log, log.transactor(GROUP), clock) as session:
        for chain in chains:
            send(log, chain.take(5))
        session.step(0.0)
        offsets = passed(monkeypatch)
        for chain in chains:
            gap(log, session, chain)
    assert sorted(offsets) == [*range(35)]
    ends = [session.aggregation.repositories[chain.repository].last for chain in chains]
    assert ends == [7] * 6


def test_a_partition_is_read_whole_if_the_log_lost_what_was_read_again() -> None:
    clock, log = installation()
    other, chain = Chain("other"), Chain("x")
    with Session(SETTINGS, log, log.transactor(GROUP), clock) as session:
        send(log, other.take(4))
        session.step(0.0)
        gap(log, session, other)
        log.lose(EVENTS, 0, 4)
        send(log, [*chain.take(1), *other.events[:4], *chain.take(1)])  # the first stands where the second was
        ack(log, chain)
        for _ in range(6):
            session.step(0.0)
        assert noticed(log, chain) == [1, 2]


def test_an_invented_level_that_grows_with_the_log_is_looked_for_once() -> None:
    clock, log = installation()
    chain, other = Chain("x"), Chain("other")
    with capture_logs() as lines, Session(SETTINGS, log, log.transactor(GROUP), clock) as session:
        chain.take(20)
        for applied in range(10, 20):
            value = to_json(chain.ack("alpha", applied))
            log.append([NewRecord(topic=ACKS, key=f"alpha/{chain.repository}", value=value)])
            for _ in range(3):
                send(log, other.take(1))
                clock.advance(SETTINGS.beat)
                session.step(0.0)
    assert list_rereadings(lines) == [0]


def test_a_fork_passed_unread_is_recorded_when_it_is_read_again() -> None:
    clock, log = installation()
    chain = Chain("x")
    with Session(SETTINGS, log, log.transactor(GROUP), clock) as session:
        send(log, chain.take(2))
        session.step(0.0)
    fork = replace(chain.events[1], id="f" * 32)
    send(log, [fork, *chain.take(1)])
    log.acknowledge(GROUP, EVENTS, log.ends(EVENTS))
    with Session(SETTINGS, log, log.transactor(GROUP), clock) as session:
        send(log, chain.take(1))
        for _ in range(4):
            session.step(0.0)
        assert session.aggregation.repositories[chain.repository].state.seq == 4  # type: ignore[union-attr]
        [error] = log.records(ERRORS)
        assert fork.id in from_json(ErrorRecord, error.value or b"").reason


def test_a_fork_is_recorded_at_the_end_of_a_log_that_lost_the_rest() -> None:
    clock, log = installation()
    chain = Chain("x")
    first, second = chain.take(2)
    fork = replace(second, id="f" * 32)
    send(log, [first, second, fork, *chain.take(1)])
    log.acknowledge(GROUP, EVENTS, {0: 9})
    with Session(SETTINGS, log, log.transactor(GROUP), clock) as session:
        session.step(0.0)
        assert session.aggregation.repositories[chain.repository].last == 3
        [error] = log.records(ERRORS)
        assert fork.id in from_json(ErrorRecord, error.value or b"").reason
        log.append([NewRecord(topic=EVENTS, key=chain.repository, value=b"junk")])
        session.step(0.0)
        assert len(log.records(ERRORS)) == 2

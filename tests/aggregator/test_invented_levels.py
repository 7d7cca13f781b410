# SPDX-License-Identifier: GPL-2.0-or-later
"""A rogue mirror writes levels that it invents, in any number: the aggregator goes on, and other mirrors' levels count."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from hgext.vcsreplicator.aggregator import gate
from hgext.vcsreplicator.aggregator.decisions.outgoing import BATCH_BYTES
from hgext.vcsreplicator.aggregator.loading import GROUP
from hgext.vcsreplicator.aggregator.session import CROWDED, Session
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.log import ACKS, ERRORS, ROSTER, STATE, NewRecord, topics
from hgext.vcsreplicator.log.table import find_beginnings, read_records, read_table
from hgext.vcsreplicator.words.records import ACK_LIMIT, AGGREGATOR, Ack, AggregatorHeartbeat, ErrorRecord
from hgext.vcsreplicator.words.roster import KEY, Mirror, MirrorState, Roster
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.aggregator.aggregating import send
from testing.builders.aggregator.chains import Chain
from testing.builders.aggregator.sealing import SealingMirror
from testing.builders.log.memorylog import MemoryLog
from testing.clock import HandClock

# Characters of a note: two hundred levels with it fill a transaction of the aggregator.
LONG = 15_000


class AttackedLog(MemoryLog):
    """A log that keeps the size of each transaction."""

    def __init__(self, folder: Path, *, has_keys: bool = False) -> None:
        self.clock, self.sizes, self._folder = HandClock(), list[int](), folder
        super().__init__(self.clock)
        self.create(topics(partitions=1))
        self.beta = SealingMirror("beta", self, folder)
        keys = (self.beta.key,) if has_keys else None
        alpha = Mirror(name="alpha", state=MirrorState.ACTIVE)
        beta = Mirror(name="beta", state=MirrorState.ACTIVE, keys=keys, epoch=1 if has_keys else None)
        roster = Roster(version=1, mirrors=(alpha, beta))
        self.append([NewRecord(topic=ROSTER, key=KEY, value=to_json(roster))])
        if has_keys:
            with self.session() as session:  # makes the aggregator's key
                self.step(session, 1)
                self.beta.beat()
                self.step(session, 1)

    def commit(self, identity: str, epoch: int, messages: Sequence[NewRecord], *rest: object) -> list[tuple[int, int]]:
        self.sizes.append(sum(len(message.value or b"") for message in messages))
        return super().commit(identity, epoch, messages, *rest)  # type: ignore[arg-type]

    @contextmanager
    def session(self) -> Iterator[Session]:
        settings = AggregatorSettings(beat=1.0, key=str(self._folder / "aggregator"))
        with Session(settings, self, self.transactor(GROUP), self.clock) as session:
            yield session

    def step(self, session: Session, count: int) -> None:
        for _ in range(count):
            self.clock.advance(1.0)
            session.step(0.0)

    def push(self, *chains: Chain) -> None:
        """Append the next event of each."""
        send(self, [chain.next() for chain in chains])

    def alarms(self) -> str:
        """Those of the newest heartbeat."""
        value = read_table(self, STATE).value(STATE, AGGREGATOR)
        return "\n".join(from_json(AggregatorHeartbeat, value or b"").alarms)

    def rejects(self) -> list[ErrorRecord]:
        records = read_records(self, find_beginnings(self, ERRORS))
        return [from_json(ErrorRecord, record.value or b"") for record in records]


def write(log: MemoryLog, *acks: Ack) -> None:
    log.append([NewRecord(topic=ACKS, key=f"{ack.mirror}/{ack.repository}", value=to_json(ack)) for ack in acks])


def invent(count: int, note: str | None = None) -> Iterator[Ack]:
    """Levels of beta in repositories that do not exist."""
    some = Chain("x")
    some.take(1)
    return (replace(some.ack("beta", 1), repository=f"{number:032x}", note=note) for number in range(count))


def test_doubts_of_many_invented_levels_take_many_transactions(tmp_path: Path) -> None:
    log = AttackedLog(tmp_path)
    write(log, *invent(600, "x" * LONG))
    with log.session() as session:
        log.step(session, 12)
    assert len(log.rejects()) == 600
    assert max(log.sizes) < 2 * BATCH_BYTES


@pytest.mark.parametrize("comes", ["while it runs", "before its start"])
def test_foreign_records_are_set_aside_in_many_transactions(tmp_path: Path, comes: str) -> None:
    log = AttackedLog(tmp_path, has_keys=True)
    if comes == "before its start":
        write(log, *invent(600, "x" * LONG))
    with log.session() as session:
        if comes == "while it runs":
            write(log, *invent(600, "x" * LONG))
        log.step(session, 2)
    assert len(log.rejects()) == 600
    assert max(log.sizes) < 2 * BATCH_BYTES


def test_a_level_that_is_too_long_is_refused(tmp_path: Path) -> None:
    log = AttackedLog(tmp_path)
    write(log, *invent(1, "x" * ACK_LIMIT))
    with log.session() as session:
        assert not session.aggregation.repositories
        log.step(session, 1)
    assert f"expected at most {ACK_LIMIT}" in log.rejects()[0].reason


@pytest.mark.parametrize("writer", ["beta", "beta with a key", "another in the name of beta", "a mirror of no roster"])
def test_invented_levels_take_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str) -> None:
    monkeypatch.setattr(gate, "STRANGERS", 50)
    has_keys = writer in ("beta with a key", "another in the name of beta")
    log, chain = AttackedLog(tmp_path, has_keys=has_keys), Chain("y")
    log.push(chain)
    with log.session() as session:
        for ack in invent(200):
            if writer == "beta with a key":
                log.beta.ack(ack)
            else:
                write(log, replace(ack, mirror="gamma") if writer == "a mirror of no roster" else ack)
        log.step(session, 3)
        assert len(session.aggregation.repositories) <= 1 + 50
        assert len(session._gate.foreign) <= 50
        assert "further ones do not count" in log.alarms()
        write(log, chain.ack("alpha", 1))
        if has_keys:
            log.beta.ack(chain.ack("beta", 1))
        else:
            write(log, chain.ack("beta", 1))
        log.step(session, 1)
        assert session.aggregation.repositories[chain.repository].state.noticed == 1  # type: ignore[union-attr]


@pytest.fixture
def room_for_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "STRANGERS", 3)


@pytest.mark.usefixtures("room_for_three")
def test_a_mirror_ahead_of_the_aggregator_takes_room_only_until_the_events_come(tmp_path: Path) -> None:
    log = AttackedLog(tmp_path)
    with log.session() as session:
        for number in range(9):
            chain = Chain(str(number))
            chain.take(1)
            write(log, *(chain.ack(name, 1) for name in ("alpha", "beta")))
            log.step(session, 1)
            send(log, chain.events)
            log.step(session, 2)
            assert [each.state.noticed for each in session.aggregation.repositories.values() if each.state] == [1] * (
                number + 1
            )
    assert log.alarms() == ""


@pytest.mark.usefixtures("room_for_three")
def test_levels_without_room_count_once_the_log_has_their_events(tmp_path: Path) -> None:
    log, chains = AttackedLog(tmp_path), [Chain(str(number)) for number in range(5)]
    for chain in chains:
        chain.take(1)
    write(log, *(chain.ack(name, 1) for chain in chains for name in ("alpha", "beta")))
    with log.session() as session:
        log.step(session, 3)
        send(log, [event for chain in chains for event in chain.events])
        log.step(session, 3)
        assert not session.is_outdated
        log.clock.advance(CROWDED)
        log.step(session, 2)
        assert session.is_outdated
    with log.session() as session:
        log.step(session, 3)
        states = [repository.state for repository in session.aggregation.repositories.values()]
        assert [state.noticed for state in states if state] == [1] * 5
        assert log.alarms() == ""

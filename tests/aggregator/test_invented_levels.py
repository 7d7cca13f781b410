# SPDX-License-Identifier: GPL-2.0-or-later
"""A rogue mirror writes levels that it invents, in any number: the aggregator goes on, and other mirrors' levels count."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from hgext.vcsreplicator.aggregator.decisions.outgoing import BATCH_BYTES
from hgext.vcsreplicator.aggregator.loading import GROUP
from hgext.vcsreplicator.aggregator.session import Session
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.log import ACKS, ERRORS, ROSTER, NewRecord, topics
from hgext.vcsreplicator.log.table import find_beginnings, read_records
from hgext.vcsreplicator.words.records import Ack, ErrorRecord
from hgext.vcsreplicator.words.roster import KEY, Mirror, MirrorState, Roster
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.aggregator.chains import Chain
from testing.builders.log.memorylog import MemoryLog
from testing.clock import HandClock

# Characters of a note: two hundred levels with it fill a transaction of the aggregator.
LONG = 15_000


class AttackedLog(MemoryLog):
    """A log that keeps the size of each transaction."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__(clock)
        self.clock, self.sizes = clock, list[int]()
        self.create(topics(partitions=1))
        mirrors = tuple(Mirror(name=name, state=MirrorState.ACTIVE) for name in ("alpha", "beta"))
        roster = Roster(version=1, mirrors=mirrors, allow_empty=False)
        self.append([NewRecord(topic=ROSTER, key=KEY, value=to_json(roster))])

    def commit(self, identity: str, epoch: int, messages: Sequence[NewRecord], *rest: object) -> list[tuple[int, int]]:
        self.sizes.append(sum(len(message.value or b"") for message in messages))
        return super().commit(identity, epoch, messages, *rest)  # type: ignore[arg-type]

    @contextmanager
    def session(self) -> Iterator[Session]:
        with Session(AggregatorSettings(beat=1.0), self, self.transactor(GROUP), self.clock) as session:
            yield session

    def step(self, session: Session, count: int) -> None:
        for _ in range(count):
            self.clock.advance(1.0)
            session.step(0.0)

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


def test_doubts_of_many_invented_levels_take_many_transactions() -> None:
    log = AttackedLog(HandClock())
    write(log, *invent(600, "x" * LONG))
    with log.session() as session:
        log.step(session, 12)
    assert len(log.rejects()) == 600
    assert max(log.sizes) < 2 * BATCH_BYTES


def test_foreign_records_are_set_aside_in_many_transactions() -> None:
    log = AttackedLog(HandClock())
    with log.session() as session:
        for ack in invent(600, "x" * LONG):
            log.append([NewRecord(topic=ACKS, key=f"alpha/{ack.repository}", value=to_json(ack))])
        log.step(session, 2)
    assert len(log.rejects()) == 600
    assert max(log.sizes) < 2 * BATCH_BYTES

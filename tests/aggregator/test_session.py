# SPDX-License-Identifier: GPL-2.0-or-later
"""A session on a log in memory: what is long delays nothing else, and each thing that cannot be read is recorded once."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from hgext.vcsreplicator.aggregator.loading import GROUP
from hgext.vcsreplicator.aggregator.session import Session
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.log import ACKS, ERRORS, NOTICES, STATE, NewRecord, topics
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.event import Type
from hgext.vcsreplicator.words.records import Ack, ErrorRecord, Notice, RepositoryState
from hgext.vcsreplicator.words.roster import Verb
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.aggregator.aggregating import all_noticed, ask, send
from testing.builders.aggregator.chains import Chain
from testing.builders.log.memorylog import MemoryLog
from testing.clock import HandClock


def notices(log: MemoryLog) -> list[Notice]:
    return [from_json(Notice, record.value or b"") for record in log.records(NOTICES)]


def acknowledge(log: MemoryLog, ack: Ack) -> None:
    log.append([NewRecord(topic=ACKS, key=f"{ack.mirror}/{ack.repository}", value=to_json(ack))])


def test_a_long_backlog_delays_no_sign_of_life_and_no_release_of_others() -> None:
    clock, backlog, other = HandClock(), Chain("backlog"), Chain("other")
    log = MemoryLog(clock)
    log.create(topics(partitions=1))
    ask(log, Verb.ADD, "alpha")
    send(log, backlog.take(200))
    acknowledge(log, backlog.ack("alpha", 200))
    settings = AggregatorSettings(batch=10, beat=1.0)
    with Session(settings, log, log.transactor(GROUP), clock) as session:
        session.step(0.0)  # alpha is active
        session.step(0.0)
        assert len(notices(log)) == 10
        send(log, other.take(1))
        acknowledge(log, other.ack("alpha", 1, 0))
        clock.advance(1.0)
        session.step(0.0)
        assert session.aggregation.repositories[other.repository].released == 1
        assert [record.time for record in log.records(STATE) if record.key == "aggregator"] == [clock.now()]
        acknowledge(log, other.ack("alpha", 1))
        session.step(0.0)
        assert notices(log)[20].event == other.events[0]
        while session.aggregation.is_undecided:
            session.step(0.0)
    assert len(notices(log)) == 201


def test_a_long_replacement_of_a_history_delays_no_sign_of_life(
    monkeypatch: pytest.MonkeyPatch, limit_batch: Callable[..., None]
) -> None:
    limit_batch(size=20_000)
    clock, old, new = HandClock(), Chain("x"), Chain("x", incarnation=2)
    log = MemoryLog(clock)
    log.create(topics(partitions=1))
    send(log, old.take(200))
    transactor = log.transactor(GROUP)
    with Session(AggregatorSettings(), log, transactor, clock) as session:
        session.step(0.0)
        send(log, [new.next(Type.SYNC, detail={"reason": "adopted"})])
        before, signs = clock.now(), set[float]()

        def note_signs() -> None:
            signs.update({record.time for record in log.records(STATE) if record.key == "aggregator"})

        log.before["commit"] = lambda _: (note_signs(), clock.advance(3.0))
        session.step(0.0)
        session.commit()
    note_signs()
    times = [before, *sorted(signs), clock.now()]
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) < 15


def test_unreadable_levels_are_recorded_once_over_many_starts() -> None:
    clock = HandClock()
    log = MemoryLog(clock)
    log.create(topics(partitions=1))
    for life in range(3):
        log.append(
            [NewRecord(topic=ACKS, key=f"alpha/{life}", value=b"rubbish")]
        )  # it stands there when the life begins
        with Session(AggregatorSettings(), log, log.transactor(GROUP), clock) as session:
            log.append([NewRecord(topic=ACKS, key=f"beta/{life}", value=b"rubbish")])  # it comes while it lasts
            session.step(0.0)
            session.commit()
    recorded = [from_json(ErrorRecord, record.value or b"").key for record in log.records(ERRORS)]
    assert recorded == ["alpha/0", "beta/0", "alpha/1", "beta/1", "alpha/2", "beta/2"]


def test_unreadable_levels_are_recorded_also_in_a_log_made_anew() -> None:
    clock = HandClock()
    log = MemoryLog(clock)
    log.create(topics(partitions=1))
    log.acknowledge(GROUP, ACKS, {0: 1000})
    log.append([NewRecord(topic=ACKS, key="alpha/x", value=b"rubbish")])
    with Session(AggregatorSettings(), log, log.transactor(GROUP), clock) as session:
        session.commit()
    assert len(log.records(ERRORS)) == 1


def test_many_unreadable_levels_are_recorded_in_bounded_transactions(
    limit_batch: Callable[..., None],
) -> None:
    limit_batch(size=20_000)
    clock = HandClock()
    log = MemoryLog(clock)
    log.create(topics(partitions=1))
    log.append([NewRecord(topic=ACKS, key=f"alpha/{number}", value=b"rubbish") for number in range(100)])
    log.fail_commits = [True]  # the first one takes effect, and the aggregator does not learn it
    with pytest.raises(Unavailable):
        Session(AggregatorSettings(), log, log.transactor(GROUP), clock)
    assert 0 < len(log.records(ERRORS)) < 50
    with Session(AggregatorSettings(), log, log.transactor(GROUP), clock) as session:
        session.commit()
    assert len(log.records(ERRORS)) == 100


def test_what_waits_for_the_next_transaction_waits_for_no_group_time(limit_batch: Callable[..., None]) -> None:
    limit_batch(states=2)
    clock, chains = HandClock(), [Chain(f"x{number}") for number in range(4)]
    log = MemoryLog(clock)
    log.create(topics(partitions=1))
    ask(log, Verb.ALLOW_EMPTY, allow=True)
    with Session(AggregatorSettings(group_time=3600.0), log, log.transactor(GROUP), clock) as session:
        session.step(0.0)
        send(log, [chain.next() for chain in chains])
        for _ in chains:
            session.step(0.0)
        assert all_noticed(log, chains)


class KillingLog(MemoryLog):
    """Makes one transaction fail, before or after it took effect; the session is lost with it."""

    def __init__(self, clock: HandClock, number: int, *, is_written: bool) -> None:
        super().__init__(clock)
        self.number, self.is_written, self.commits = number, is_written, 0

    def commit(self, *arguments: Any) -> list[tuple[int, int]]:
        self.commits += 1
        if self.commits == self.number:
            self.fail_commits.append(self.is_written)
        return super().commit(*arguments)

    def state(self, chain: Chain) -> RepositoryState | None:
        values = [record.value for record in self.log_of(chain) if record.value]
        return from_json(RepositoryState, values[-1]) if values else None

    def log_of(self, chain: Chain) -> list[Any]:
        return [record for record in self.records(STATE) if record.key == chain.repository]


def replace_repository(number: int, *, is_written: bool) -> tuple[KillingLog, list[RepositoryState | None]]:
    """A repository is replaced without a word, and the transaction of this number fails."""
    clock, old, new = HandClock(), Chain("x"), Chain("x", generation=2)
    log = KillingLog(clock, number, is_written=is_written)
    log.create(topics(partitions=2))
    settings, session = AggregatorSettings(group_time=0.0, beat=5.0), None
    ask(log, Verb.ADD, "alpha")
    send(log, [*old.take(2), *new.take(1)])
    for _ in range(30):  # all has settled after 28, if any one transaction failed
        for chain in (old, new):
            known = log.state(chain)
            acknowledge(log, chain.ack("alpha", len(chain.events), known.released if known else 0))
        try:
            session = session or Session(settings, log, log.transactor(GROUP), clock)
            session.step(0.0)
        except Unavailable:
            session = None
        states = [log.state(old), log.state(new)]
        if states[1] and states[0]:
            assert states[0].deleted is bool(states[1].released)
        clock.advance(5.0)
    return log, states


@pytest.mark.more
@pytest.mark.sample(1)
@pytest.mark.parametrize("is_written", [False, True], ids=["lost", "without an answer"])
def test_a_kill_anywhere_ends_a_replaced_repository_with_its_successor(
    is_written: bool,
) -> None:
    log, whole = replace_repository(0, is_written=is_written)
    assert [state and (state.noticed, state.deleted) for state in whole] == [(2, True), (1, False)]
    told = [notice.event.id for notice in notices(log)]
    for number in range(1, log.commits + 1):
        log, states = replace_repository(number, is_written=is_written)
        assert states == whole
        assert [notice.event.id for notice in notices(log)] == told

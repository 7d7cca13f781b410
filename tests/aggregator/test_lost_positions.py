# SPDX-License-Identifier: GPL-2.0-or-later
"""What the aggregator had stored is lost, on the real logs: all is announced the same, once, in order, each with the one before."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest
from kafka import KafkaAdminClient
from structlog.testing import capture_logs

from hgext.vcsreplicator.aggregator.loading import GROUP
from hgext.vcsreplicator.aggregator.session import Session
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.log import ACKS, ERRORS, EVENTS, NOTICES, PENDING, STATE, Log, NewRecord, Record, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.status.findings import findings
from hgext.vcsreplicator.status.follower import Follower
from hgext.vcsreplicator.status.services import Expectations
from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.records import Ack, AggregatorHeartbeat, ErrorRecord, Notice
from hgext.vcsreplicator.words.roster import Verb
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.aggregator.aggregating import ask, list_rereadings, push_everywhere, send
from testing.builders.aggregator.chains import Chain
from testing.builders.log.memorylog import MemoryLog
from testing.clock import HandClock
from testing.waiting import eventually

pytestmark = pytest.mark.processes
SETTINGS = AggregatorSettings(group_time=0.0, beat=0.01)


@pytest.fixture
def log(url: str) -> Iterator[Log]:
    with open_log(url, creates=True) as log:
        log.create(topics(partitions=2))
        ask(log, Verb.ADD, "alpha")
        yield log


@pytest.fixture
def make_anew(url: str) -> Callable[[str], None]:
    """Deletes a topic and creates it again, as an operator might."""

    def again(name: str) -> None:
        if url.startswith("kafka"):
            where, prefix = url.removeprefix("kafka://").split("?topic-prefix=")
            admin = KafkaAdminClient(bootstrap_servers=where)
            admin.delete_topics([prefix + name])
            eventually(lambda: prefix + name not in admin.list_topics())
            admin.close()
        else:
            with closing(sqlite3.connect(urlsplit(url).path)) as database, database:
                of = "(SELECT s.id FROM streams s JOIN topics t ON s.topic = t.id WHERE t.name = ?)"
                for table in ("records", "latest"):
                    database.execute(f"DELETE FROM {table} WHERE stream IN {of}", (name,))
                database.execute(f"UPDATE streams SET beginning = 0, next = 0 WHERE id IN {of}", (name,))
        with open_log(url, creates=True) as fresh:
            fresh.create([topic for topic in topics(partitions=2) if topic.name == name])

    return again


def work(log: Log, until: Callable[[], bool]) -> None:
    """One life of an aggregator, which ends when this is true."""
    transactor = log.transactor(GROUP)
    with closing(transactor), Session(SETTINGS, log, transactor, SystemClock()) as session:

        def step() -> bool:
            session.step(0.02)
            return until()

        eventually(step)
        session.commit()


def acknowledge(log: Log, *chains: Chain, applied: int | None = None) -> None:
    acks = [chain.ack("alpha", len(chain.events) if applied is None else applied) for chain in chains]
    log.append([NewRecord(topic=ACKS, key=f"alpha/{ack.repository}", value=to_json(ack)) for ack in acks])


def read(log: Log, topic: str) -> list[Record]:
    reader = log.reader({(topic, 0): log.beginnings(topic)[0]})
    found: list[Record] = []
    try:
        while reader.positions()[topic, 0] < log.ends(topic)[0]:
            found += reader.poll(0.2)
    finally:
        reader.close()
    return found


def notices(log: Log) -> list[Notice]:
    return [from_json(Notice, record.value or b"") for record in read(log, NOTICES)]


def noticed(log: Log, chain: Chain) -> list[int]:
    return [notice.event.seq for notice in notices(log) if notice.event.repository == chain.repository]


def errors(log: Log) -> list[str]:
    return [from_json(ErrorRecord, record.value or b"").reason for record in read(log, ERRORS)]


def all_announced(log: Log, *chains: Chain) -> bool:
    return all(noticed(log, chain) == list(range(1, len(chain.events) + 1)) for chain in chains)


def check_chains(log: Log, *chains: Chain) -> None:
    """Everything once, in order, each notice naming the one before it in its stream."""
    assert all_announced(log, *chains)
    last: dict[tuple[str, str], str] = {}
    for notice in notices(log):
        for stream, previous in notice.previous.items():
            assert previous == last.get((notice.event.repository, stream))
            last[notice.event.repository, stream] = notice.event.id


def move_to_the_end(log: Log) -> None:
    log.acknowledge(GROUP, EVENTS, log.ends(EVENTS))


@pytest.mark.sample(1, keep=("sqlite",))
def test_a_group_moved_to_the_end_skips_nothing_that_a_mirror_has(log: Log) -> None:
    chains = [Chain(f"group/{number}") for number in range(4)]
    push_everywhere(log, chains[:3], 2)
    acknowledge(log, *chains[:3])
    work(log, lambda: all_announced(log, *chains[:3]))
    push_everywhere(log, chains, 3)  # one of them new
    move_to_the_end(log)
    acknowledge(log, *chains)
    work(log, lambda: all_announced(log, *chains))
    check_chains(log, *chains)
    assert errors(log) == []


@pytest.mark.sample(1, keep=("sqlite",))
def test_a_group_moved_to_the_end_skips_nothing_before_the_next_push(log: Log) -> None:
    """No mirror says anything: the next event does not follow the last one that is known."""
    chain, new = Chain("one"), Chain("new")
    send(log, chain.take(2))
    acknowledge(log, chain)
    work(log, lambda: all_announced(log, chain))
    send(log, [*chain.take(3), *new.take(2)])
    move_to_the_end(log)
    send(log, [*chain.take(1), *new.take(1)])
    work(log, lambda: held(log) == 7)
    acknowledge(log, chain, new)
    work(log, lambda: all_announced(log, chain, new))
    check_chains(log, chain, new)
    assert errors(log) == []


def held(log: Log) -> int:
    """How many events wait, by the last heartbeat."""
    heartbeats = [record.value for record in read(log, STATE) if record.key == "aggregator"]
    return from_json(AggregatorHeartbeat, heartbeats[-1] or b"").held if heartbeats else 0


@pytest.mark.sample(2, keep=("kafka--pending and state", "sqlite-and the group is moved to the end-pending]"))
@pytest.mark.parametrize("lost", [[PENDING], [STATE], [PENDING, STATE]], ids=lambda lost: " and ".join(lost))
@pytest.mark.parametrize("moved", [False, True], ids=["", "and the group is moved to the end"])
def test_topics_made_anew_cost_and_repeat_no_notice(
    log: Log, make_anew: Callable[[str], None], lost: list[str], moved: bool
) -> None:
    chains = [Chain(f"group/{number}") for number in range(3)]
    push_everywhere(log, chains, 3)
    acknowledge(log, *chains)
    work(log, lambda: all_announced(log, *chains))
    push_everywhere(log, chains, 3)
    work(log, lambda: held(log) == 9)
    if moved:
        push_everywhere(log, chains, 1)
        move_to_the_end(log)
    for name in lost:
        make_anew(name)
    acknowledge(log, *chains)
    work(log, lambda: all_announced(log, *chains))
    push_everywhere(log, chains, 1)
    acknowledge(log, *chains)
    work(log, lambda: all_announced(log, *chains))
    check_chains(log, *chains)
    assert errors(log) == []


def memory() -> tuple[HandClock, MemoryLog]:
    clock = HandClock()
    log = MemoryLog(clock)
    log.create(topics(partitions=1))
    ask(log, Verb.ADD, "alpha")
    return clock, log


def test_an_invented_level_has_the_log_read_again_once() -> None:
    clock, log = memory()
    chain = Chain("one")
    send(log, chain.take(2))
    with Session(AggregatorSettings(), log, log.transactor(GROUP), clock) as session:
        session.step(0.0)
        session.commit()
    with capture_logs() as lines, Session(AggregatorSettings(), log, log.transactor(GROUP), clock) as session:
        for number in range(10):
            forged = chain.ack("alpha", 2)
            forged = type(forged)(**{**{n: getattr(forged, n) for n in forged.__slots__}, "applied": 10**9})
            if number == 0:
                log.append([NewRecord(topic=ACKS, key=f"alpha/{chain.repository}", value=to_json(forged))])
            clock.advance(5.0)
            session.step(0.0)
        assert list_rereadings(lines) == [0]
        assert notices(log) == []
        [reason] = errors(log)
        assert "applied event 1000000000, which is not in the log" in reason
        acknowledge(log, chain)
        session.step(0.0)
    assert noticed(log, chain) == [1, 2]


def test_events_that_mirrors_alone_have_are_an_alarm_until_sent_again() -> None:
    clock, log = memory()
    chain = Chain("one")
    events = chain.take(3)
    send(log, events[:1])
    with Session(AggregatorSettings(), log, log.transactor(GROUP), clock) as session:

        def told() -> tuple[str, ...]:
            for _ in range(4):
                clock.advance(5.0)
                session.step(0.0)
            heartbeats = [record.value for record in read(log, STATE) if record.key == "aggregator"]
            return from_json(AggregatorHeartbeat, heartbeats[-1] or b"").alarms

        assert told() == ()
        acknowledge(log, chain)
        [alarm] = told()
        since = "(since 2023-11-14 22:13:55 UTC)"
        assert alarm.startswith(f"events missing in the log: 2 missing, 1 repository (one) {since}; ")
        send(log, events[1:2])
        assert f"1 missing, 1 repository (one) {since}; " in told()[0], "the time stays when the number changes"
        send(log, events[2:])
        assert told() == ()


def test_a_mirror_with_nothing_of_a_repository_has_no_lost_event() -> None:
    clock, log = memory()
    chain = Chain("one")
    send(log, chain.take(2))
    ack = Ack(
        mirror="alpha",
        repository=chain.repository,
        incarnation="",
        applied=0,
        serving=0,
        event="",
        digest="",
        applied_at=0.0,
        served_at=0.0,
        detached="refused",
    )
    with Session(AggregatorSettings(), log, log.transactor(GROUP), clock) as session:
        log.append([NewRecord(topic=ACKS, key=f"alpha/{chain.repository}", value=to_json(ack))])
        for _ in range(6):
            clock.advance(5.0)
            session.step(0.0)
        heartbeats = [record.value for record in read(log, STATE) if record.key == "aggregator"]
        assert [
            text for text in from_json(AggregatorHeartbeat, heartbeats[-1] or b"").alarms if "missing" in text
        ] == []
        assert read(log, ERRORS) == []


def test_levels_that_come_before_their_events_make_nothing_be_read_again() -> None:
    clock, log = memory()
    chain = Chain("one")
    with capture_logs() as lines, Session(AggregatorSettings(), log, log.transactor(GROUP), clock) as session:
        for _ in range(5):
            [event] = chain.take(1)
            acknowledge(log, chain)
            clock.advance(5.0)
            session.step(0.0)
            send(log, [event])
            clock.advance(5.0)
            session.step(0.0)
    assert all_announced(log, chain)
    assert list_rereadings(lines) == []


def test_a_mirror_always_ahead_by_one_has_nothing_read_again() -> None:
    clock, log = memory()
    chain = Chain("one")
    with capture_logs() as lines, Session(AggregatorSettings(), log, log.transactor(GROUP), clock) as session:
        before = chain.take(1)
        for _ in range(5):
            acknowledge(log, chain)
            clock.advance(5.0)
            session.step(0.0)
            send(log, before)
            before = chain.take(1)
    assert (errors(log), list_rereadings(lines)) == ([], [])


@pytest.mark.sample(1, keep=("sqlite",))
def test_what_neither_pending_nor_events_has_is_reported_everywhere(log: Log, make_anew: Callable[[str], None]) -> None:
    chain = Chain("one")
    send(log, chain.take(3))
    work(log, lambda: held(log) == 3)
    for name in (PENDING, EVENTS):
        make_anew(name)
    log.acknowledge(GROUP, EVENTS, dict.fromkeys(log.ends(EVENTS), 0))
    send(log, chain.take(2))
    acknowledge(log, chain)
    seen: list[str] = []

    def told() -> bool:
        follower = Follower(log)
        try:
            seen[:] = [finding.text for finding in findings(follower.update(), 0.0, Expectations())]
        finally:
            follower.close()
        return noticed(log, chain) == [4, 5] and any("events lost: 3 lost, 1 repository" in text for text in seen)

    work(log, told)
    assert errors(log) == [
        "one: pending and events lost 3 events without notice; no notice is published of what they lost, "
        "unless the relay sends it again"
    ]
    work(log, lambda: True)
    assert len(errors(log)) == 1


def test_events_that_expired_unread_are_an_alarm_until_sent_again() -> None:
    clock, log = memory()
    again, passed = Chain("again"), Chain("passed")
    send(log, [*again.take(1), *passed.take(1)])
    with Session(AggregatorSettings(), log, log.transactor(GROUP), clock) as session:
        session.step(0.0)
        session.finish()
    expired = again.take(2)
    send(log, [*expired, *passed.take(2)])
    log.expire(EVENTS, 0)
    send(log, passed.take(1))
    acknowledge(log, again, passed)
    with Session(AggregatorSettings(), log, log.transactor(GROUP), clock) as session:

        def alarms() -> list[str]:
            for _ in range(4):
                clock.advance(5.0)
                session.step(0.0)
            heartbeats = [record.value for record in read(log, STATE) if record.key == "aggregator"]
            return [
                text.partition(" (since")[0] for text in from_json(AggregatorHeartbeat, heartbeats[-1] or b"").alarms
            ]

        lost = "events lost: 2 lost, 1 repository (passed)"
        assert alarms() == [lost, "events missing in the log: 2 missing, 1 repository (again)"]
        assert "passed: events before 4 are missing in the log, the last was 1" in errors(log)
        send(log, expired)
        assert alarms() == [lost]
    assert (noticed(log, again), noticed(log, passed)) == ([1, 2, 3], [1, 4])

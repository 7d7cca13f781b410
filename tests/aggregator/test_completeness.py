# SPDX-License-Identifier: GPL-2.0-or-later
"""A successor at a path is announced after its predecessor, also if the predecessor's events are sent or read later."""

import time
from collections.abc import Collection

import pytest

from hgext.vcsreplicator.aggregator.completeness import LATE, SLOW, Completeness
from hgext.vcsreplicator.aggregator.decisions.aggregation import Aggregation
from hgext.vcsreplicator.aggregator.decisions.succession import DEPARTURE_PATIENCE
from hgext.vcsreplicator.aggregator.loading import GROUP
from hgext.vcsreplicator.aggregator.session import Session
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.log import ACKS, EVENTS, NOTICES, STATE, NewRecord, Record, partition_of, topics
from hgext.vcsreplicator.status.findings import findings
from hgext.vcsreplicator.status.follower import read_picture
from hgext.vcsreplicator.status.services import Expectations
from hgext.vcsreplicator.status.wording import Severity
from hgext.vcsreplicator.words.event import Type
from hgext.vcsreplicator.words.records import AggregatorHeartbeat, Notice
from hgext.vcsreplicator.words.roster import Roster, Verb
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.aggregator.aggregating import ask, send
from testing.builders.aggregator.chains import Chain
from testing.builders.log.hanging_ends import HangingEnds
from testing.builders.log.memorylog import MemoryLog, MemoryReader
from testing.clock import HandClock
from testing.waiting import eventually

SETTINGS = AggregatorSettings(group_time=0.0, beat=5.0)
# The partitions of the predecessor and of the successor.
OLD, NEW = 0, 1
PATH = next(
    path
    for path in map(str, range(1000))
    if [partition_of(Chain(path, generation=each).repository, 2) for each in (1, 2)] == [OLD, NEW]
)
# How much of the predecessor was announced before: nothing, or its creation.
KNOWN = pytest.mark.parametrize("known", [0, 1])


class Installation:
    """A log of two partitions, and a mirror that acks at once."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.log = MemoryLog(self.clock)
        self.log.create(topics(partitions=2))
        ask(self.log, Verb.ADD, "alpha")
        self.former, self.successor = Chain(PATH), Chain(PATH, generation=2)

    def session(self) -> Session:
        return Session(SETTINGS, self.log, self.log.transactor(GROUP), self.clock)

    def step(self, session: Session, seconds: float) -> None:
        """One step every five seconds, and one after the last of them."""
        for _ in range(round(seconds / SETTINGS.beat)):
            session.step(0.0)
            self.clock.advance(SETTINGS.beat)
        session.step(0.0)

    def push(self, chain: Chain, *kinds: Type) -> None:
        send(self.log, [chain.next(kind) for kind in kinds])
        value = to_json(chain.ack("alpha", len(chain.events)))
        self.log.append([NewRecord(topic=ACKS, key=f"alpha/{chain.repository}", value=value)])

    def begin(self, session: Session, known: int) -> None:
        self.step(session, 90.0)
        self.push(self.former, *[Type.CREATED][:known])
        self.step(session, 10.0)

    def leave(self, known: int) -> None:
        """The relay sends the rest of the predecessor."""
        self.push(self.former, *[Type.CREATED, Type.CHANGED, Type.DELETED][known:])

    def alarms(self) -> tuple[str, ...]:
        """What the newest heartbeat says."""
        [beat] = [record.value for record in self.log.records(STATE) if record.key == GROUP]
        return from_json(AggregatorHeartbeat, beat or b"").alarms

    def findings(self) -> list[tuple[Severity, str]]:
        """What `check` says of repositories that wait."""
        found = findings(read_picture(self.log), self.clock.now(), Expectations())
        return [(each.level, each.text) for each in found if " waits since " in each.text]

    def noticed(self) -> list[tuple[int, int]]:
        """Generation and sequence of what was announced, in order."""
        events = [from_json(Notice, record.value or b"").event for record in self.log.records(NOTICES)]
        return [(event.generation, event.seq) for event in events]


def is_about_events(alarm: str) -> bool:
    return alarm.startswith("events not read: ")


IN_ORDER = [(1, 1), (1, 2), (1, 3), (2, 1)]


@pytest.fixture
def here() -> Installation:
    return Installation()


@pytest.fixture
def late_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first poll of each reader brings nothing, as on Kafka."""
    polled, poll = set[MemoryReader](), MemoryReader.poll

    def poll_late(reader: MemoryReader, timeout: float, *, limit: int = 500) -> list[Record]:
        if reader in polled:
            return poll(reader, timeout, limit=limit)
        polled.add(reader)
        return []

    monkeypatch.setattr(MemoryReader, "poll", poll_late)


@KNOWN
@pytest.mark.usefixtures("late_reader")
def test_a_start_reads_the_predecessor_before_it_announces_a_successor(here: Installation, known: int) -> None:
    with here.session() as session:
        here.begin(session, known)
    here.leave(known)
    here.push(here.successor, Type.CREATED)
    here.log.leaderless.add((EVENTS, OLD))
    with here.session() as session:
        here.step(session, 150.0)
    assert here.noticed() == IN_ORDER[:known]
    here.log.leaderless.clear()
    with here.session() as session:
        here.step(session, 90.0)
    assert here.noticed() == IN_ORDER


@KNOWN
def test_a_successor_waits_for_a_silent_partition_and_a_minute_longer(here: Installation, known: int) -> None:
    with here.session() as session:
        here.begin(session, known)
        here.log.leaderless.add((EVENTS, OLD))
        here.push(here.successor, Type.CREATED)
        here.step(session, 150.0)
        assert here.noticed() == IN_ORDER[:known]
        here.log.leaderless.clear()
        here.step(session, DEPARTURE_PATIENCE - 10.0)
        here.leave(known)
        here.step(session, 20.0)
    assert here.noticed() == IN_ORDER


@pytest.mark.parametrize("hours", [-5, 5], ids=["ahead", "back"])
def test_a_successor_waits_a_minute_for_a_departure_by_any_clock(here: Installation, hours: int) -> None:
    with here.session() as session:
        here.begin(session, 1)
        here.push(here.successor, Type.CREATED)
        here.step(session, 5.0)
        here.clock.set_back(hours * 3600.0)
        here.step(session, DEPARTURE_PATIENCE - 20.0)
        assert here.noticed() == [(1, 1)]
        here.leave(1)
        here.step(session, 10.0)
    assert here.noticed() == IN_ORDER


@pytest.mark.parametrize("hours", [-5, 5], ids=["ahead", "back"])
def test_a_successor_of_one_that_vanished_waits_a_minute_by_any_clock(here: Installation, hours: int) -> None:
    with here.session() as session:
        here.begin(session, 1)
        here.push(here.successor, Type.CREATED)
        here.step(session, 5.0)
        here.clock.set_back(hours * 3600.0)
        here.step(session, DEPARTURE_PATIENCE + 10.0)
    assert here.noticed() == [(1, 1), (2, 1)]


def test_a_successor_from_a_clock_ahead_goes_a_minute_into_a_session(
    here: Installation,
) -> None:
    """Its arrival is stored with that time of day."""
    with here.session() as session:
        here.begin(session, 1)
        here.push(here.successor, Type.CREATED)
        here.step(session, 5.0)
    here.clock.set_back(5 * 3600.0)
    with here.session() as session:
        here.step(session, DEPARTURE_PATIENCE - 10.0)
        assert here.noticed() == [(1, 1)]
        here.step(session, 20.0)
    assert here.noticed() == [(1, 1), (2, 1)]


@pytest.mark.usefixtures("impatient")
def test_an_answer_that_came_late_is_no_answer_of_the_time_before(here: Installation) -> None:
    """The relay may have stopped to wait for the partition meanwhile."""
    with here.session() as session:
        here.begin(session, 0)
        hanging = HangingEnds(here.log)
        here.step(session, 10.0)
        here.push(here.successor, Type.CREATED)
        here.step(session, 30.0)
        hanging.answer()
        here.step(session, DEPARTURE_PATIENCE - 10.0)
        here.leave(0)
        here.step(session, 20.0)
    assert here.noticed() == IN_ORDER


@pytest.mark.parametrize("running", [0.0, 90.0])
def test_a_successor_without_a_known_predecessor_goes_after_reading(here: Installation, running: float) -> None:
    with here.session() as session:
        here.step(session, running)
        here.push(here.successor, Type.CREATED)
        session.step(0.0)
        assert here.noticed() == []
        here.clock.advance(1.0)
        session.step(0.0)
        assert bool(here.noticed()) == bool(running)
        here.step(session, DEPARTURE_PATIENCE)
    assert here.noticed() == [(2, 1)]


@pytest.mark.parametrize("is_running", [False, True])
def test_check_names_a_partition_that_has_not_answered_for_a_minute(here: Installation, is_running: bool) -> None:
    silent = {(EVENTS, OLD)}
    here.log.leaderless |= set() if is_running else silent
    with here.session() as session:
        here.log.leaderless |= silent
        here.step(session, 50.0)
        assert not any(map(is_about_events, here.alarms()))
        here.step(session, 20.0)
        [text] = filter(is_about_events, here.alarms())
        assert "a partition has no leader; notices of their repositories wait" in text
        here.log.leaderless.clear()
        here.step(session, 10.0)
        assert not any(map(is_about_events, here.alarms()))


def test_check_says_when_a_successor_will_have_waited(here: Installation) -> None:
    with here.session() as session:
        here.push(here.successor, Type.CREATED)
        here.step(session, SLOW - SETTINGS.beat)
        assert here.findings() == []
    with here.session() as session:  # another aggregator, for which the wait begins anew
        ends = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(here.clock.now() + DEPARTURE_PATIENCE))
        here.step(session, SETTINGS.beat)
        [(severity, text)] = here.findings()
        assert (severity, here.alarms()) == (Severity.WARNING, ())
        assert f"that ends by itself at {ends} UTC if all partitions of events answer" in text
        here.step(session, DEPARTURE_PATIENCE + SETTINGS.beat)
        assert (here.noticed(), here.findings()) == ([(2, 1)], [])


def test_check_says_when_the_departure_of_a_predecessor_is_waited_for(here: Installation) -> None:
    with here.session() as session:
        here.step(session, 90.0)
        here.push(here.former, Type.CREATED)
        here.step(session, 10.0)
        here.push(here.successor, Type.CREATED)
        ends = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(here.clock.now() + DEPARTURE_PATIENCE))
        here.step(session, SLOW)
        [(_, text)] = here.findings()
        assert f"that ends by itself at {ends} UTC" in text
        here.step(session, DEPARTURE_PATIENCE)
        assert (here.noticed(), here.findings()) == ([(1, 1), (2, 1)], [])


def test_check_says_why_a_successor_waits_for_a_slow_log(here: Installation) -> None:
    ends = here.log.ends

    def answer_late(topic: str, partitions: Collection[int] | None = None) -> dict[int, int]:
        if topic == EVENTS:
            here.clock.advance(LATE + 2.0)
        return ends(topic, partitions)

    with here.session() as session:
        here.begin(session, 0)
        here.log.ends = answer_late  # type: ignore[method-assign]
        here.push(here.successor, Type.CREATED)
        here.step(session, 10.0)
        assert not any(map(is_about_events, here.alarms()))
        here.step(session, 60.0)
        [text] = filter(is_about_events, here.alarms())
        assert "the log takes 7 s to say how many events it has, which is more than 5 s; a repository" in text
        assert here.noticed() == []
        here.log.ends = ends  # type: ignore[method-assign]
        here.step(session, 10.0)
        assert not any(map(is_about_events, here.alarms()))
        here.step(session, DEPARTURE_PATIENCE)
    assert here.noticed() == [(2, 1)]


@pytest.mark.usefixtures("impatient")
def test_an_answer_taken_late_by_the_loop_is_no_late_answer_of_the_log(here: Installation) -> None:
    aggregation = Aggregation(Roster(), {(EVENTS, OLD): 0, (EVENTS, NEW): 0})
    completeness = Completeness(aggregation, here.log, here.clock, 5.0)
    completeness.check()
    here.clock.advance(5.0)
    hanging = HangingEnds(here.log)
    completeness.check()
    hanging.answer()
    here.clock.advance(LATE + 2.0)
    completeness.check()
    assert completeness.find_failure(0.0) == ""


@pytest.mark.parametrize("lost", [False, True])
def test_a_time_counts_once_what_the_log_had_then_is_read_or_lost(here: Installation, lost: bool) -> None:
    aggregation = Aggregation(Roster(), {(EVENTS, OLD): 0, (EVENTS, NEW): 0})
    completeness = Completeness(aggregation, here.log, here.clock, 5.0)
    send(here.log, here.former.take(3))
    here.clock.advance(DEPARTURE_PATIENCE)
    asked = here.clock.monotonic()
    aggregation.positions[EVENTS, OLD] = 2
    completeness.check()
    send(here.log, here.former.take(3))
    here.clock.advance(5.0)
    completeness.check()
    assert aggregation.succession.read_at == float("-inf")
    if lost:
        here.log.lose(EVENTS, OLD, 4)
        here.clock.advance(5.0)
    else:
        aggregation.positions[EVENTS, OLD] = 3
    completeness.check()
    assert aggregation.succession.read_at == asked


@pytest.mark.usefixtures("impatient")
def test_a_broker_that_hangs_holds_up_no_other_work(here: Installation) -> None:
    with here.session() as session:
        here.step(session, 90.0)
        read_at = session.aggregation.succession.read_at
        hanging = HangingEnds(here.log)
        here.push(here.former, Type.CREATED)
        here.step(session, 20.0)
        assert here.noticed() == [(1, 1)]
        assert session.aggregation.succession.read_at == read_at
        assert not any(map(is_about_events, here.alarms()))
        here.step(session, 60.0)
        assert any("the log does not say how many events it has" in alarm for alarm in here.alarms())
        hanging.go_on.set()
        eventually(lambda: here.step(session, 5.0) or session.aggregation.succession.read_at > read_at)

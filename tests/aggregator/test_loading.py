# SPDX-License-Identifier: GPL-2.0-or-later
"""What a start reads, and what an idle aggregator asks the log for, on a log in memory."""

import threading
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import cast

import pytest
import structlog
from prometheus_client import REGISTRY

from hgext.vcsreplicator.aggregator.alarms import FORKED, NO_GATING, measure_silence
from hgext.vcsreplicator.aggregator.loading import GROUP, load, read_state
from hgext.vcsreplicator.aggregator.loop import run
from hgext.vcsreplicator.aggregator.metrics import SERVED_SECONDS
from hgext.vcsreplicator.aggregator.session import Session
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.log import ACKS, EVENTS, NOTICES, PENDING, ROSTER, ROSTER_REQUESTS, STATE, NewRecord, topics
from hgext.vcsreplicator.words.clock import Silence
from hgext.vcsreplicator.words.errors import BadConfig
from hgext.vcsreplicator.words.event import Type
from hgext.vcsreplicator.words.records import AGGREGATOR, AGGREGATOR_FORMAT, AggregatorHeartbeat, Notice
from hgext.vcsreplicator.words.roster import Mirror, MirrorState, Roster, Verb
from hgext.vcsreplicator.words.roster.changes import RECENT
from hgext.vcsreplicator.words.shape import from_json, to_json
from hgext.vcsreplicator.words.wire import headers
from testing.builders.aggregator.aggregating import ask, send
from testing.builders.aggregator.chains import Chain
from testing.builders.log.memorylog import MemoryLog, MemoryReader
from testing.clock import HandClock

SETTINGS = AggregatorSettings(group_time=0.0, beat=5.0)


class CountingLog(MemoryLog):
    """Counts which topics are read from their beginning, and how often the end of each is asked for."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__(clock)
        self.whole: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        self.readers: list[set[str]] = []

    def reader(self, positions: Mapping[tuple[str, int], int]) -> MemoryReader:
        self.readers.append({topic for topic, _ in positions})
        self.whole.update(topic for (topic, _), at in positions.items() if at == 0)
        return super().reader(positions)

    def ends(self, topic: str, partitions: Collection[int] | None = None) -> dict[int, int]:
        self.asked[topic] += 1
        return super().ends(topic, partitions)


@pytest.fixture
def log() -> CountingLog:
    log = CountingLog(HandClock())
    log.create(topics(partitions=1))
    ask(log, Verb.ADD, "alpha")
    return log


def open_session(log: CountingLog) -> Session:
    return Session(SETTINGS, log, log.transactor(GROUP), log.clock)


def step(session: Session, clock: HandClock, times: int = 1) -> None:
    for _ in range(times):
        session.step(0.0)
        clock.advance(SETTINGS.beat)


def test_a_start_reads_the_state_once_and_what_came_while_it_fenced(log: CountingLog) -> None:
    clock, chain, stop = log.clock, Chain("x"), threading.Event()
    assert isinstance(clock, HandClock)
    older = open_session(log)
    step(older, clock)
    log.whole.clear()
    transactor = log.transactor
    seen = []

    def fence(identity: str) -> object:
        send(log, chain.take(2))
        older.step(0.0)
        older.commit()
        return transactor(identity)

    log.transactor = fence  # type: ignore[method-assign, assignment]

    def ready() -> None:
        seen.append(log.whole[STATE])
        stop.set()

    run(SETTINGS, log, stop=stop, ready=ready, clock=clock)
    assert seen == [1]
    log.transactor = transactor  # type: ignore[method-assign]
    log.append([NewRecord(topic=ACKS, key=f"alpha/{chain.repository}", value=to_json(chain.ack("alpha", 2)))])
    session = open_session(log)
    step(session, clock)
    assert len(log.records(NOTICES)) == 2


def test_a_session_after_an_outage_loads_the_tables_with_one_reader(log: CountingLog) -> None:
    """A reader on Kafka connects anew, which takes longer than what it reads; mirrors and receivers wait."""
    step(open_session(log), cast(HandClock, log.clock))
    log.readers.clear()
    session = open_session(log)
    assert log.readers[0] == {STATE, ROSTER, PENDING}
    assert len(log.readers) == 3, "then the levels, and what follows"
    assert session.aggregation.roster.mirrors


def test_an_aggregator_of_an_older_release_does_not_start_or_fence(log: CountingLog) -> None:
    beat = AggregatorHeartbeat(time=1.0, roster=1, held=0, format=AGGREGATOR_FORMAT + 1)
    log.append([NewRecord(topic=STATE, key=GROUP, value=to_json(beat))])
    newer = log.transactor(GROUP)
    with pytest.raises(BadConfig, match="upgrade this one"):
        run(SETTINGS, log, stop=threading.Event(), ready=lambda: None, clock=log.clock)
    newer.commit([])


def test_an_idle_aggregator_asks_for_ends_at_each_heartbeat_alone(
    log: CountingLog,
) -> None:
    clock = log.clock
    assert isinstance(clock, HandClock)
    session = open_session(log)
    step(session, clock, 2)
    log.asked.clear()
    step(session, clock, 10)
    assert log.asked == {STATE: 10, EVENTS: 10, ROSTER: 1}


@pytest.mark.more
def test_positions_that_rest_are_stored_again_once_an_hour(log: CountingLog) -> None:
    clock = log.clock
    assert isinstance(clock, HandClock)
    send(log, Chain("x").take(3))
    session = open_session(log)
    step(session, clock, 2)
    assert log.stored(GROUP, EVENTS) == {0: 3}
    log.forget(GROUP, EVENTS)  # as Kafka does after a week
    step(session, clock, 700)
    assert log.stored(GROUP, EVENTS) == {}
    step(session, clock, 30)
    assert log.stored(GROUP, EVENTS) == {0: 3}


def test_a_state_shown_a_moment_after_its_commit_is_no_loss(log: CountingLog, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, chain, ends = log.clock, Chain("x"), [0]
    assert isinstance(clock, HandClock)
    session = open_session(log)
    shown = log.ends

    def late(topic: str, partitions: Collection[int] | None = None) -> dict[int, int]:
        """The end of `state` as it was at the heartbeat before."""
        if topic == STATE:
            ends.append(shown(topic)[0])
            return {0: ends[-2]}
        return shown(topic, partitions)

    step(session, clock)
    send(log, chain.take(3))
    step(session, clock)
    before = log.copied(STATE)[2][STATE, 0, chain.repository]
    log.ends = late  # type: ignore[method-assign]
    ends[:] = [shown(STATE)[0]]
    step(session, clock, 5)
    assert log.copied(STATE)[2][STATE, 0, chain.repository] == before


def test_a_replay_of_an_older_history_is_not_taken_for_the_lost_state(log: CountingLog) -> None:
    clock, older, newer = log.clock, Chain("x"), Chain("x", incarnation=2)
    assert isinstance(clock, HandClock)
    newer.repository = older.repository
    notice = Notice(event=newer.take(1)[0], time=1.0, roster=1, acks=(), previous={})
    replayed = replace(notice, event=older.take(1)[0], replay="dana, today")
    for each in (notice, replayed):
        log.append([NewRecord(topic=NOTICES, key=older.repository, value=to_json(each))])
    log.acknowledge(GROUP, EVENTS, {0: 1})
    send(log, newer.events)
    state = open_session(log).aggregation.repositories[older.repository].state
    assert state is not None
    assert state.incarnation == newer.incarnation


def test_signs_of_life_name_the_end_of_notices_also_after_a_notice(log: CountingLog) -> None:
    clock, chain = log.clock, Chain("x")
    assert isinstance(clock, HandClock)
    session = open_session(log)
    step(session, clock, 2)
    send(log, chain.take(3))
    log.append([NewRecord(topic=ACKS, key=f"alpha/{chain.repository}", value=to_json(chain.ack("alpha", 3)))])
    step(session, clock, 3)
    [beat] = (record.value for record in log.records(STATE) if record.key == AGGREGATOR)
    assert from_json(AggregatorHeartbeat, beat or b"").notices == log.ends(NOTICES)[0] == 3


def measured(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"vcsreplicator_aggregator_{name}", labels)


def silent_seconds(mirror: str) -> float | None:
    return measured("mirror_silent_seconds", mirror=mirror)


def test_a_metric_measures_the_silence_of_each_mirror(log: CountingLog) -> None:
    clock, chain = log.clock, Chain("x")
    assert isinstance(clock, HandClock)
    session = open_session(log)
    step(session, clock, 3)
    assert silent_seconds("alpha") == 10.0
    log.append([NewRecord(topic=ACKS, key=f"alpha/{chain.repository}", value=None)])
    step(session, clock)
    assert silent_seconds("alpha") == 0.0
    ask(log, Verb.DEACTIVATE, "alpha")
    step(session, clock)
    assert silent_seconds("alpha") is None


def test_a_metric_measures_how_long_the_first_event_has_waited(log: CountingLog) -> None:
    clock, chain = log.clock, Chain("x")
    assert isinstance(clock, HandClock)
    session = open_session(log)
    step(session, clock)
    assert measured("stalled_seconds") == 0.0
    send(log, chain.take(2))
    step(session, clock, 3)
    assert measured("stalled_seconds") == 2 * SETTINGS.beat
    assert measured("mirror_lag_events", mirror="alpha") == 2.0
    log.append([NewRecord(topic=ACKS, key=f"alpha/{chain.repository}", value=to_json(chain.ack("alpha", 1)))])
    step(session, clock)
    assert measured("stalled_seconds") == 0.0
    assert measured("mirror_lag_events", mirror="alpha") == 1.0
    log.append([NewRecord(topic=ACKS, key=f"alpha/{chain.repository}", value=to_json(chain.ack("alpha", 2)))])
    step(session, clock)
    assert measured("mirror_lag_events", mirror="alpha") == 0.0


def test_metrics_tell_what_each_mirror_has_not_applied(log: CountingLog) -> None:
    clock, chain = log.clock, Chain("x")
    assert isinstance(clock, HandClock)
    session = open_session(log)
    ask(log, Verb.ADD, "beta")
    send(log, chain.take(3))
    for ack in (chain.ack("alpha", 3, serving=2), chain.ack("beta", 1)):
        log.append([NewRecord(topic=ACKS, key=f"{ack.mirror}/{chain.repository}", value=to_json(ack))])
    step(session, clock, 3)

    def figures(mirror: str) -> tuple[float | None, float | None]:
        return measured("mirror_lag_events", mirror=mirror), measured("mirror_held_notices", mirror=mirror)

    assert (figures("alpha"), figures("beta")) == ((0.0, 0.0), (2.0, 2.0))
    ack = chain.ack("beta", 3, serving=1)
    log.append([NewRecord(topic=ACKS, key=f"beta/{chain.repository}", value=to_json(ack))])
    step(session, clock)
    assert (figures("alpha"), figures("beta")) == ((0.0, 1.0), (0.0, 2.0))


def test_metrics_tell_how_long_a_push_took_to_its_notice_and_each_mirror(log: CountingLog) -> None:
    clock, chain = log.clock, Chain("x")
    assert isinstance(clock, HandClock)
    SERVED_SECONDS.clear()
    session = open_session(log)
    ask(log, Verb.ADD, "beta")
    [event] = chain.take(1)
    send(log, [event])
    clock.advance(event.time + 4.0 - clock.now())
    began = measured("notice_seconds_count") or 0.0, measured("notice_seconds_sum") or 0.0
    for mirror, took in (("alpha", 2.5), ("beta", -1.0)):  # a clock of beta that is behind
        ack = chain.ack(mirror, 1, time=event.time + took)
        log.append([NewRecord(topic=ACKS, key=f"{mirror}/{chain.repository}", value=to_json(ack))])
    step(session, clock, 3)
    assert (measured("notice_seconds_count"), measured("mirror_served_seconds_count", mirror="alpha")) == (
        began[0] + 1,
        1.0,
    )
    assert 4.0 <= (measured("notice_seconds_sum") or 0.0) - began[1] < 60.0
    assert [measured("mirror_served_seconds_sum", mirror=mirror) for mirror in ("alpha", "beta")] == [2.5, 0.0]
    for verb in (Verb.DEACTIVATE, Verb.REMOVE):
        ask(log, verb, "beta")
    step(session, clock, 3)
    assert measured("mirror_served_seconds_sum", mirror="alpha") == 2.5
    assert measured("mirror_served_seconds_sum", mirror="beta") is None


def test_a_metric_counts_the_alarms_that_last_and_forgets_others(log: CountingLog) -> None:
    clock, chain = log.clock, Chain("x")
    assert isinstance(clock, HandClock)
    session = open_session(log)
    ask(log, Verb.DEACTIVATE, "alpha")
    send(log, chain.take(1))
    step(session, clock, 2)
    assert measured("alarms", alarm=NO_GATING) == 1.0
    ask(log, Verb.ACTIVATE, "alpha")
    step(session, clock, 2)
    assert measured("alarms", alarm=NO_GATING) is None


def test_the_first_heartbeat_after_a_start_carries_the_alarms(log: CountingLog) -> None:
    """Else `vcsreplicator check` would find nothing wrong until the second one."""
    clock, chain = log.clock, Chain("x")
    assert isinstance(clock, HandClock)
    ask(log, Verb.DEACTIVATE, "alpha")
    send(log, chain.take(1))
    step(open_session(log), clock, 2)
    log.append([NewRecord(topic=STATE, key=GROUP, value=to_json(AggregatorHeartbeat(time=1.0, roster=1, held=0)))])
    step(open_session(log), clock)
    [beat] = [from_json(AggregatorHeartbeat, each.value or b"") for each in log.records(STATE) if each.key == GROUP]
    assert beat.time > 1.0
    assert [text for text in beat.alarms if "no mirror gates" in text or NO_GATING in text], beat.alarms


def test_a_forked_repository_is_an_alarm_until_its_history_is_adopted(log: CountingLog) -> None:
    clock, chain = log.clock, Chain("x")
    assert isinstance(clock, HandClock)
    session = open_session(log)
    send(log, chain.take(2))
    first = clock.now()
    for digit in "fe":
        send(log, [replace(chain.events[1], id=digit * 32)])
        step(session, clock, 2)
        state = session.aggregation.repositories[chain.repository].state
        assert state is not None
        assert (state.fork, state.forked_at) == (digit * 32, first), "since the first"
    assert measured("alarms", alarm=FORKED) == 1.0
    send(log, [Chain("x", incarnation=2).next(Type.SYNC, detail={"reason": "adopted"})])
    step(session, clock, 2)
    assert measured("alarms", alarm=FORKED) is None
    state = session.aggregation.repositories[chain.repository].state
    assert state is not None
    assert state.forked_at is None


def test_a_mirror_that_has_just_become_active_gets_time_to_begin() -> None:
    silence, alpha = Silence(0.0), Mirror(name="alpha", state=MirrorState.ACTIVE, since=1.0)
    roster = Roster(version=1, mirrors=(alpha,))
    assert [measure_silence(roster, silence, now) for now in (100.0, 130.0)] == [{"alpha": 0.0}, {"alpha": 30.0}]


def test_a_state_that_was_read_before_the_older_one_was_fenced_is_read_on(log: CountingLog) -> None:
    clock, chain, stop = log.clock, Chain("x"), threading.Event()
    assert isinstance(clock, HandClock)
    older = open_session(log)
    step(older, clock)
    state = read_state(log, stop)
    send(log, chain.take(2))
    log.append([NewRecord(topic=ACKS, key=f"alpha/{chain.repository}", value=to_json(chain.ack("alpha", 2)))])
    step(older, clock, 2)
    aggregation = load(log, limit=10, poison=None, stop=stop, state=state)
    found = aggregation.repositories[chain.repository].state
    assert found is not None
    assert found.noticed == 2
    assert [
        message.key for message in aggregation.batch().messages if message.topic == STATE
    ] == []  # none was made of notices


def test_old_requests_are_not_decided_again_after_the_log_lost_the_newest(log: CountingLog) -> None:
    clock = log.clock
    assert isinstance(clock, HandClock)
    for number in range(RECENT + 5):
        ask(log, Verb.ALLOW_EMPTY, allow=number % 2 == 0)
    first = open_session(log)
    step(first, clock, 2)
    log.lose(ROSTER_REQUESTS, 0, 1)
    second = open_session(log)
    step(second, clock, 2)
    assert second.aggregation.roster.version == first.aggregation.roster.version


def test_lines_about_unreadable_records_name_repository_and_place(log: CountingLog) -> None:
    event = Chain("x").next()
    for topic, key in ((STATE, event.repository), (PENDING, f"{event.repository}/seven"), (NOTICES, event.repository)):
        log.append([NewRecord(topic=topic, key=key, value=b"not JSON", headers=headers(event, "hg://master"))])
    beat = AggregatorHeartbeat(time=1.0, roster=1, held=0, notices=0)
    log.append([NewRecord(topic=STATE, key="aggregator", value=to_json(beat))])
    with structlog.testing.capture_logs() as lines:
        load(log, limit=10, poison=None, stop=threading.Event())
    about = [line for line in lines if line["event"].endswith("cannot be read")]
    assert [line.get("topic") for line in about] == [STATE, PENDING, None]
    named = {(line["repository"], line["seq"], line["event_id"], line["offset"]) for line in about}
    assert named == {(event.repository, str(event.seq), event.id, 0)}

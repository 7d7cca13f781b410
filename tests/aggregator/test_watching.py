# SPDX-License-Identifier: GPL-2.0-or-later
"""Heartbeats while the log does not say where some of its topics end."""

from collections.abc import Collection

import pytest
import structlog

from hgext.vcsreplicator.aggregator.loading import GROUP
from hgext.vcsreplicator.aggregator.session import Session
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.aggregator.watching import AGAIN
from hgext.vcsreplicator.log import ACKS, EVENTS, NOTICES, STATE, NewRecord, partition_of, topics
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.records import AggregatorHeartbeat, MirrorHeartbeat, Notice
from hgext.vcsreplicator.words.roster import Verb
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.aggregator.aggregating import ask, send
from testing.builders.aggregator.chains import Chain
from testing.builders.log.memorylog import MemoryLog
from testing.clock import HandClock

SETTINGS = AggregatorSettings(group_time=0.0, beat=5.0)


class Silent(MemoryLog):
    """A log that does not say where the topics in `silent` end, and takes `takes` seconds to find that out."""

    def __init__(self, clock: HandClock, partitions: int = 1) -> None:
        super().__init__(clock)
        self.silent: set[str] = set()
        self.takes = 0.0
        self.clock = clock
        self.create(topics(partitions=partitions))
        ask(self, Verb.ADD, "alpha")

    def ends(self, topic: str, partitions: Collection[int] | None = None) -> dict[int, int]:
        if topic in self.silent:
            self.clock.advance(self.takes)
            raise Unavailable(f"topic {topic}: a partition has no leader")
        return super().ends(topic, partitions)

    def session(self) -> Session:
        return Session(SETTINGS, self, self.transactor(GROUP), self.clock)

    def step(self, session: Session) -> None:
        session.step(0.0)
        self.clock.advance(SETTINGS.beat)

    def push(self, chain: Chain) -> None:
        send(self, chain.take(1))
        value = to_json(chain.ack("alpha", len(chain.events)))
        self.append([NewRecord(topic=ACKS, key=f"alpha/{chain.repository}", value=value)])

    def beat(self) -> AggregatorHeartbeat:
        [record] = [record for record in self.records(STATE) if record.key == "aggregator"]
        return from_json(AggregatorHeartbeat, record.value or b"")

    def noticed(self, chain: Chain) -> list[int]:
        notices = [from_json(Notice, record.value or b"") for record in self.records(NOTICES)]
        return [notice.event.seq for notice in notices if notice.event.repository == chain.repository]


@pytest.fixture
def log() -> Silent:
    return Silent(HandClock())


@pytest.mark.parametrize("topic", [STATE, NOTICES])
def test_a_topic_whose_end_is_not_known_does_not_end_the_session(log: Silent, topic: str) -> None:
    chain = Chain("x")
    with log.session() as session:
        log.push(chain)
        log.step(session)
        log.step(session)
        known = log.beat()
        log.silent.add(topic)
        for count in (2, 3):
            log.push(chain)
            log.step(session)
            assert log.noticed(chain) == list(range(1, count + 1))
        # Without the end of `state`, the heartbeat is put off; with an older end of `notices` a start reads more of them.
        assert (log.beat().time > known.time, log.beat().notices) == (topic == NOTICES, known.notices)
        log.silent.clear()
        log.step(session)
        assert log.beat().notices == 3


def test_no_mirror_is_called_silent_because_the_aggregator_was_stopped(log: Silent) -> None:
    with log.session() as session:
        log.push(Chain("x"))
        log.step(session)
        log.step(session)
        log.clock.advance(10 * SETTINGS.silence)  # as by SIGSTOP
        with structlog.testing.capture_logs() as lines:
            log.step(session)
            assert lines == []
            for _ in range(round(SETTINGS.silence / SETTINGS.beat)):
                log.step(session)
        assert [line["event"] for line in lines] == ["mirror silent"]


def test_a_heartbeat_says_which_mirrors_have_two_instances(log: Silent) -> None:
    def beat(mirror: str, instance: str) -> int:
        value = to_json(MirrorHeartbeat(mirror=mirror, time=1.0, positions={}, version="1", instance=instance))
        [(_, offset)] = log.append([NewRecord(topic=ACKS, key=mirror, value=value)])
        log.step(session)
        return offset

    with log.session() as session:
        for instance in ("a@here", "a@here", ""):
            beat("alpha", instance)
        beat("stranger", "a@here")
        beat("stranger", "b@there")
        assert log.beat().namesakes is None
        there = beat("alpha", "b@there")
        here = beat("alpha", "a@here")
        assert log.beat().namesakes == {"alpha": {"b@there": there, "a@here": here}}
        newest = beat("alpha", "c" * 300)
        assert log.beat().namesakes == {"alpha": {"a@here": here, "c" * 200: newest}}


def test_a_loss_of_state_that_was_not_looked_for_is_mended_after_a_kill(log: Silent) -> None:
    chain = Chain("x")
    with log.session() as session:
        log.push(chain)
        log.step(session)
        log.step(session)
        older = log.copied(STATE)
        log.push(chain)
        log.step(session)
        log.restore(STATE, older)
        log.silent.add(STATE)
        log.step(session)
    log.silent.clear()
    with log.session() as session:
        for _ in range(3):
            log.step(session)
    assert log.noticed(chain) == [1, 2]


def test_a_level_ahead_is_found_while_another_partition_has_no_leader() -> None:
    log = Silent(HandClock(), partitions=2)
    chains = {partition_of(chain.repository, 2): chain for chain in map(Chain, "abcdefgh")}
    with log.session() as session:
        for chain in chains.values():
            chain.take(3)
            value = to_json(chain.ack("alpha", 3))
            log.append([NewRecord(topic=ACKS, key=f"alpha/{chain.repository}", value=value)])
        log.leaderless.add((EVENTS, 0))
        for _ in range(3):
            log.step(session)
        assert session._ahead.count_missing() == {chains[1].repository: 3}
        log.leaderless.clear()
        for _ in range(3):
            log.step(session)
        assert session._ahead.count_missing() == {chain.repository: 3 for chain in chains.values()}


@pytest.mark.parametrize("topic", [STATE, NOTICES])
def test_the_first_heartbeat_is_put_off_if_an_end_is_not_known(log: Silent, topic: str) -> None:
    with log.session() as session:
        log.silent.add(topic)
        session.step(0.0)
        assert not [record for record in log.records(STATE) if record.key == "aggregator"]
        log.silent.clear()
        log.clock.advance(AGAIN)
        session.step(0.0)
        assert log.beat().time == log.clock.now()


def test_a_heartbeat_that_was_put_off_is_due_soon_after_a_failure(log: Silent) -> None:
    with log.session() as session:
        log.silent.add(STATE)
        log.takes = 2 * AGAIN
        session.step(0.0)
        log.silent.clear()
        for wait, is_due in ((0.9 * AGAIN, False), (0.1 * AGAIN, True)):
            log.clock.advance(wait)
            session.step(0.0)
            assert any(record.key == "aggregator" for record in log.records(STATE)) is is_due


def test_each_sign_of_life_says_how_many_partitions_the_aggregator_reads() -> None:
    log = Silent(HandClock(), partitions=3)
    with log.session() as session:
        log.step(session)
    assert log.beat().partitions == 3

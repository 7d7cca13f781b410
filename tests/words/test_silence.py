# SPDX-License-Identifier: GPL-2.0-or-later
"""Silence is measured by the observer's own clock: machines whose clocks differ by an hour see the same."""

import pytest
from structlog.testing import capture_logs

from hgext.vcsreplicator.aggregator.loading import GROUP
from hgext.vcsreplicator.aggregator.session import Session
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.log import ACKS, ROSTER, STATE, NewRecord, topics
from hgext.vcsreplicator.status.findings import findings
from hgext.vcsreplicator.status.follower import Follower
from hgext.vcsreplicator.status.health import Endpoint, HealthSettings
from hgext.vcsreplicator.status.services import Expectations
from hgext.vcsreplicator.words.clock import Silence
from hgext.vcsreplicator.words.records import AggregatorHeartbeat, MirrorHeartbeat
from hgext.vcsreplicator.words.roster import KEY, Mirror, MirrorState, Roster
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.aggregating import list_silent
from testing.builders.log.memorylog import MemoryLog
from testing.clock import HandClock

HOUR = 3600.0
BASE = 1_700_000_000.0


class Machines:
    """The log, the mirror, the aggregator and who looks at them, each on a machine with a clock of its own; one time for all."""

    def __init__(self, log: float = 0.0, mirror: float = 0.0, aggregator: float = 0.0, observer: float = 0.0) -> None:
        self.offsets = (mirror, aggregator)
        self.clocks = [HandClock(BASE + each) for each in (log, mirror, aggregator, observer)]
        self.of_log, self.of_mirror, self.of_aggregator, self.of_observer = self.clocks
        self.log = MemoryLog(self.of_log)
        self.log.create(topics(partitions=1))
        alpha = Mirror(name="alpha", state=MirrorState.ACTIVE, since=self.of_aggregator.now())
        self.write(ROSTER, KEY, Roster(version=1, mirrors=(alpha,)))

    def write(self, topic: str, key: str, value: object) -> None:
        self.log.append([NewRecord(topic=topic, key=key, value=to_json(value))])

    def beat(self, *, mirror: bool = True, aggregator: bool = True) -> None:
        if mirror:
            self.write(
                ACKS, "alpha", MirrorHeartbeat(mirror="alpha", time=self.of_mirror.now(), positions={}, version="1")
            )
        if aggregator:
            self.write(STATE, "aggregator", AggregatorHeartbeat(time=self.of_aggregator.now(), roster=1, held=0))

    def advance(self, seconds: float) -> None:
        for clock in self.clocks:
            clock.advance(seconds)


SKEWS = [
    {},
    *({who: hours * HOUR} for who in ("log", "mirror", "aggregator", "observer") for hours in (-1, 1)),
    {"mirror": HOUR, "aggregator": -HOUR},
]


@pytest.fixture(params=SKEWS, ids=str)
def machines(request: pytest.FixtureRequest) -> Machines:
    return Machines(**request.param)


def running(machines: Machines, clock: HandClock) -> Session:
    """An aggregator."""
    return Session(AggregatorSettings(), machines.log, machines.log.transactor(GROUP), clock)


def test_the_aggregator_alarms_a_mirror_after_60_seconds_of_its_clock(machines: Machines) -> None:
    machines.beat()
    machines.advance(10.0)
    clock = machines.of_aggregator
    with capture_logs() as lines, running(machines, clock) as session:
        for _ in range(20):
            machines.beat(aggregator=False)
            session.step(0.0)
            assert list_silent(lines) == []
            machines.advance(5.0)
        for _ in range(11):
            session.step(0.0)
            assert list_silent(lines) == []
            machines.advance(5.0)
        session.step(0.0)
        assert list_silent(lines) == ["alpha"]
        machines.beat(aggregator=False)
        machines.advance(5.0)
        session.step(0.0)
        assert list_silent(lines) == []


def test_a_mirror_that_never_spoke_has_time_since_the_aggregator_began(machines: Machines) -> None:
    machines.advance(10 * HOUR)
    clock = machines.of_aggregator
    with capture_logs() as lines, running(machines, clock) as session:
        for _ in range(12):
            session.step(0.0)
            assert list_silent(lines) == []
            machines.advance(5.0)
        session.step(0.0)
        assert list_silent(lines) == ["alpha"]


def test_health_knows_a_dead_aggregator_and_mirror_after_30_seconds(machines: Machines) -> None:
    machines.beat()
    machines.advance(HOUR)
    endpoint = Endpoint(machines.log, "alpha", HealthSettings(), machines.of_observer)
    assert endpoint()["ready"]
    for _ in range(20):
        machines.advance(5.0)
        machines.beat()
        assert endpoint()["ready"]
    for _ in range(6):
        machines.advance(5.0)
        assert endpoint()["ready"]
    machines.advance(1.0)
    assert endpoint()["reasons"] == ["the mirror is silent for 31 s"]
    assert endpoint()["degraded"] == ["the aggregator is silent for 31 s"]
    machines.beat(mirror=False)
    assert endpoint()["reasons"] == ["the mirror is silent for 31 s"]
    assert endpoint()["degraded"] == []


def texts(machines: Machines, *, mirror: bool, aggregator: bool) -> list[str]:
    """What one look finds, during which the mirror and the aggregator beat, or do not."""
    follower = Follower(machines.log, machines.of_observer)

    def pause(seconds: float) -> None:
        machines.advance(seconds)
        machines.beat(mirror=mirror, aggregator=aggregator)

    now = follower.present(pause)
    found = [finding.text for finding in findings(follower.picture, now, Expectations())]
    follower.close()
    return found


def test_one_look_at_a_living_installation_finds_nothing_for_any_clocks(machines: Machines) -> None:
    machines.beat()
    machines.advance(7.0)
    assert texts(machines, mirror=True, aggregator=True) == []


def test_one_look_finds_a_dead_installation_for_any_clocks(machines: Machines) -> None:
    machines.beat()
    machines.advance(100.0)
    aggregator, mirror = texts(machines, mirror=False, aggregator=False)
    assert "aggregator has sent no heartbeat" in aggregator
    assert "mirror alpha is silent" in mirror


def test_one_look_finds_the_dead_among_the_living_for_any_clocks(machines: Machines) -> None:
    machines.beat()
    machines.advance(100.0)
    machines.beat(mirror=False)
    [text] = texts(machines, mirror=False, aggregator=True)
    assert "mirror alpha is silent" in text


def test_a_sign_that_was_seen_before_is_no_sign_of_life() -> None:
    silence = Silence(0.0)
    assert silence.seconds("alpha", 5.0) == 5.0
    silence.heard("alpha", 1, 10.0)
    silence.heard("alpha", 1, 20.0)
    assert silence.seconds("alpha", 30.0) == 20.0
    silence.heard("alpha", 0, 30.0)  # a re-created log counts from the beginning
    assert silence.seconds("alpha", 30.0) == 0.0


def test_a_pause_of_the_observer_is_nobodys_silence() -> None:
    silence = Silence(0.0)
    silence.heard("alpha", 1, 5.0)
    silence.listen(8.0, 10.0)
    assert silence.seconds("alpha", 8.0) == 3.0
    silence.heard("beta", 1, 99.0)
    silence.listen(100.0, 10.0)
    assert {who: silence.seconds(who, 100.0) for who in ("alpha", "beta", "gamma")} == {
        "alpha": 13.0,
        "beta": 0.0,
        "gamma": 18.0,
    }

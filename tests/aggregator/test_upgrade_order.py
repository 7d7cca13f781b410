# SPDX-License-Identifier: GPL-2.0-or-later
"""Releases of different age beside each other: an older aggregator refuses to take over, and older mirrors are named."""

import json
import threading
from collections.abc import Callable

import pytest

from hgext.vcsreplicator.aggregator.alarms import NEWER, SILENT, alarms, survey
from hgext.vcsreplicator.aggregator.loading import GROUP, IDENTITY
from hgext.vcsreplicator.aggregator.loop import run
from hgext.vcsreplicator.aggregator.session import Session
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.log import ACKS, STATE, NewRecord, topics
from hgext.vcsreplicator.words.errors import BadConfig
from hgext.vcsreplicator.words.records import (
    AGGREGATOR_FORMAT,
    MIRROR_FORMAT,
    UNSEALED_FORMAT,
    AggregatorHeartbeat,
    MirrorHeartbeat,
)
from hgext.vcsreplicator.words.roster import Mirror, MirrorState
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.chains import Chain
from testing.builders.aggregator.fed_aggregation import FedAggregation
from testing.builders.log.memorylog import MemoryLog
from testing.clock import HandClock


def test_an_aggregator_refuses_what_a_newer_one_wrote() -> None:
    clock = HandClock()
    log = MemoryLog(clock)
    log.create(topics(partitions=1))
    newer = log.transactor(IDENTITY)
    beat = AggregatorHeartbeat(time=1.0, roster=0, held=0, format=AGGREGATOR_FORMAT + 1)
    newer.commit([NewRecord(topic=STATE, key=IDENTITY, value=to_json(beat))])
    with pytest.raises(
        BadConfig, match=r"topic state: written by an aggregator of a newer release .* upgrade this one"
    ):
        run(AggregatorSettings(), log, stop=threading.Event(), ready=lambda: pytest.fail("took over"), clock=clock)
    newer.commit([], group=GROUP, positions={})  # not fenced


def test_an_aggregator_takes_over_from_an_older_one_and_says_so() -> None:
    clock = HandClock()
    log = MemoryLog(clock)
    log.create(topics(partitions=1))
    log.append([NewRecord(topic=STATE, key=IDENTITY, value=b'{"time":1.0,"roster":0,"held":0}')])
    stop = threading.Event()
    run(AggregatorSettings(), log, stop=stop, ready=stop.set, clock=clock)
    with Session(AggregatorSettings(), log, log.transactor(IDENTITY), clock) as session:
        session.step(0.0)
    [beat] = [record.value for record in log.records(STATE) if record.key == IDENTITY]
    assert json.loads(beat or b"")["format"] == UNSEALED_FORMAT


def hear(fed: FedAggregation, name: str, **members: int) -> list[str]:
    beat = to_json(MirrorHeartbeat(mirror=name, time=1.0, positions={}, version="0.0.9", **members))
    fed.aggregation.levels.take(fed.record(ACKS, name, beat), fed.now)
    found = alarms(fed.aggregation, survey(fed.aggregation, fed.silence, fed.now), 60.0)
    return [alarm.describe(0.0) for alarm in found]


def test_a_mirror_that_does_not_say_its_floor_is_named_until_upgraded() -> None:
    fed = FedAggregation("alpha", "beta")
    assert hear(fed, "alpha", format=MIRROR_FORMAT) == []
    [text] = hear(fed, "beta")
    assert text.startswith("mirror of an older release beta: it does not say from which event on it can serve, ")
    assert text.endswith("; upgrade it (since 1970-01-01 00:00:00 UTC)")
    assert hear(fed, "gamma") == [text]  # not in the roster
    assert hear(fed, "beta", format=MIRROR_FORMAT) == []


def test_events_that_a_newer_aggregator_stored_wait_under_their_own_alarm(
    upgrade: Callable[[], Callable[[], None]],
) -> None:
    """Whom they wait for cannot be read, and is asked for a mirror that joined."""
    fed, chain = FedAggregation(Mirror(name="alpha", state=MirrorState.ACTIVE, joined={"0": 0})), Chain("x")
    go_back = upgrade()
    fed.event(chain.next(version=2))
    fed.commit()
    go_back()
    fed.restart()
    fed.commit()
    survey(fed.aggregation, fed.silence, fed.now)
    fed.now += 100.0
    found = alarms(fed.aggregation, survey(fed.aggregation, fed.silence, fed.now), 60.0)
    assert [each.kind for each in found if each.kind != SILENT] == [NEWER]

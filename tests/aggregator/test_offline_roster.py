# SPDX-License-Identifier: GPL-2.0-or-later
"""What an operator decides while no aggregator runs, on a log in memory."""

import pytest

from hgext.vcsreplicator.aggregator.loading import load_roster
from hgext.vcsreplicator.aggregator.offline_roster import decide_offline
from hgext.vcsreplicator.log import ROSTER, ROSTER_REQUESTS, NewRecord, topics
from hgext.vcsreplicator.words.errors import Refused
from hgext.vcsreplicator.words.roster import RosterRequest, Verb
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.log.memorylog import MemoryLog


def allow_empty(identifier: str) -> RosterRequest:
    return RosterRequest(id=identifier, verb=Verb.ALLOW_EMPTY, mirror=None, who="dana", time=1.0, reason="", allow=True)


def test_a_request_that_was_refused_offline_before_is_not_refused_again() -> None:
    log = MemoryLog()
    log.create(topics(partitions=1))
    waiting = allow_empty("waiting")
    log.append([NewRecord(topic=ROSTER_REQUESTS, key=waiting.id, value=to_json(waiting))])
    for identifier in ("first", "second"):
        decide_offline(log, allow_empty(identifier))
    decided = load_roster(log).recent
    assert [(each.request.id, each.refusal is None) for each in decided] == [
        ("waiting", False),
        ("first", True),
        ("second", True),
    ]


def test_what_needs_an_aggregator_is_refused_and_changes_nothing() -> None:
    log = MemoryLog()
    log.create(topics(partitions=1))
    request = RosterRequest(id="add", verb=Verb.ADD, mirror="beta", who="dana", time=1.0, reason="")
    with pytest.raises(Refused, match="add: only an aggregator can do that; --offline is for rules, "):
        decide_offline(log, request)
    assert not load_roster(log).mirrors


def test_a_roster_that_its_topic_lost_is_changed_offline_all_the_same() -> None:
    log = MemoryLog()
    log.create(topics(partitions=1))
    decide_offline(log, allow_empty("first"))
    log.lose(ROSTER, 0, 1)
    _, roster = decide_offline(log, allow_empty("second"))
    assert [each.request.id for each in roster.recent] == ["first", "second"]

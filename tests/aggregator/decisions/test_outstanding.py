# SPDX-License-Identifier: GPL-2.0-or-later
"""What is kept as outstanding, against a walk of all repositories."""

from collections import Counter
from dataclasses import replace
from typing import Any

from hgext.vcsreplicator.aggregator.decisions.aggregation import Aggregation
from hgext.vcsreplicator.aggregator.decisions.outstanding import LOOKED_AT, Outstanding
from hgext.vcsreplicator.aggregator.decisions.poison import Poison
from hgext.vcsreplicator.aggregator.decisions.repository import Repository
from hgext.vcsreplicator.aggregator.decisions.standing import Standing
from hgext.vcsreplicator.aggregator.decisions.succession import DEPARTURE_PATIENCE
from hgext.vcsreplicator.words.roster import Mirror, MirrorState, Verb
from testing.builders.aggregator.chains import Chain, identifier
from testing.builders.aggregator.fed_aggregation import FedAggregation


def walk(aggregation: Aggregation) -> dict[str, Any]:
    """The same figures, from every repository and every level."""
    lags, unserved = Counter[str](), Counter[str]()
    found: dict[str, Any] = {name: {} for name in ("held", "firsts", "alone", "newer", "broken", "forked", "ahead")}
    roster = aggregation.roster
    for name, repository in aggregation.repositories.items():
        state, queue = repository.state, repository.queue
        if state and state.fork and not state.deleted:
            found["forked"][name] = state.path
        if queue or repository.newer:
            found["held"][name] = len(queue) + len(repository.newer)
        if queue:
            found["firsts"][name] = state.incarnation if state else None, queue[0].seq
        if repository.newer or repository.is_stored_newer:
            found["newer"][name] = len(repository.newer) + (len(queue) if repository.is_stored_newer else 0)
        for mirror, lag in repository.measure_lags(roster):
            lags[mirror] += lag
        ahead = [mirror for mirror in repository.acks if repository.standing(mirror) is Standing.AHEAD]
        levels = {mirror: at for mirror in ahead if (at := repository.acks[mirror].applied)}
        if levels and not repository.is_refused:
            found["ahead"][name] = levels
        if name in aggregation.poison.faults:
            found["broken"][name] = len(queue) + len(repository.newer)
            continue
        if not queue or repository.is_refused:
            continue
        gating = repository.gating(roster)
        if not gating and not roster.allow_empty:
            found["alone"][name] = len(queue)
        released = state.released if state else 0
        for mirror in gating:
            ack = repository.ack(mirror.name)
            applied, serving = (ack.applied, ack.serving) if ack else (0, 0)
            unserved[mirror.name] += sum(held.seq > (serving if held.seq <= released else applied) for held in queue)
    return {**found, "lags": +lags, "unserved": +unserved}


def kept(aggregation: Aggregation) -> dict[str, Any]:
    outstanding = aggregation.find_outstanding()
    members = ("held", "firsts", "alone", "newer", "broken", "forked", "ahead")
    sums = {"lags": +outstanding.lags, "unserved": +outstanding.unserved}
    return {**{name: getattr(outstanding, name) for name in members}, **sums}


def test_a_level_that_ends_is_a_lag_again() -> None:
    fed, chain = FedAggregation("alpha", "beta"), Chain("x")
    fed.event(*chain.take(2))
    fed.ack(chain.ack("alpha", 2), chain.ack("beta", 2))
    fed.commit()
    assert kept(fed.aggregation) == walk(fed.aggregation)
    assert not kept(fed.aggregation)["lags"]
    fed.bury_ack("beta", chain.repository)
    assert kept(fed.aggregation) == walk(fed.aggregation)
    assert kept(fed.aggregation)["lags"] == {"beta": 2}


def test_a_repository_that_a_mirror_is_deactivated_for_is_no_lag_any_more() -> None:
    fed, chain = FedAggregation("alpha", "beta"), Chain("x")
    fed.event(*chain.take(2))
    fed.ack(chain.ack("alpha", 2))
    fed.commit()
    assert kept(fed.aggregation)["unserved"] == {"beta": 2}
    fed.ask(Verb.DEACTIVATE, "beta", repository=chain.repository)
    assert kept(fed.aggregation) == walk(fed.aggregation)
    assert not kept(fed.aggregation)["lags"]


def test_a_repository_that_was_replaced_at_its_path_lags_nowhere() -> None:
    fed, chain = FedAggregation("alpha", Mirror(name="beta", state=MirrorState.INACTIVE)), Chain("x")
    fed.event(*chain.take(2))
    fed.ack(chain.ack("alpha", 2))
    fed.commit()
    assert kept(fed.aggregation)["lags"] == {"beta": 2}
    after = Chain("x", generation=2)
    fed.event(after.next())
    fed.ack(after.ack("alpha", 1))
    fed.now += DEPARTURE_PATIENCE
    fed.commit()
    assert kept(fed.aggregation) == walk(fed.aggregation)
    assert kept(fed.aggregation)["lags"] == {"beta": 1}


def test_a_fork_that_counts_at_the_end_of_its_partition_is_outstanding() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(2))
    fed.aggregation.events.ends = {0: 10}
    fed.event(replace(chain.events[-1], id=identifier("fork")))
    assert not kept(fed.aggregation)["forked"]
    fed.aggregation.events.ends = {}
    fed.aggregation.events.settle_forks(0, fed.now)
    assert kept(fed.aggregation) == walk(fed.aggregation)
    assert kept(fed.aggregation)["forked"] == {chain.repository: "x"}


def test_what_waits_for_a_newer_aggregator_is_outstanding_at_once() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(chain.next(), chain.next(version=2))
    assert kept(fed.aggregation)["newer"] == {chain.repository: 1}
    fed.event(chain.next())
    assert kept(fed.aggregation) == walk(fed.aggregation)
    assert kept(fed.aggregation)["newer"] == {chain.repository: 2}


def test_as_many_changes_as_one_update_looks_at_leave_nothing_behind() -> None:
    figures = Outstanding(Poison())
    for number in range(LOOKED_AT):
        figures.note(Repository(str(number)))
        assert not figures.is_behind
    figures.note(Repository("one more"))
    assert figures.is_behind

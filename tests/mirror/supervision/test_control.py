# SPDX-License-Identifier: GPL-2.0-or-later
"""What the aggregator says, as a mirror takes it: states that cannot be right, those that are over, and a mirror that came back."""

from dataclasses import replace

import pytest

from hgext.vcsreplicator.log import ROSTER, STATE
from hgext.vcsreplicator.words.event import Type
from hgext.vcsreplicator.words.records import AGGREGATOR, AggregatorHeartbeat
from hgext.vcsreplicator.words.roster import KEY, Mirror, MirrorState, Roster
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.chains import Chain
from testing.builders.aggregator.states import state_of
from testing.builders.mirror.supervising import Bench, Deletion


@pytest.mark.parametrize("wrong", ["path", "key"])
def test_a_state_of_a_path_outside_or_of_another_key_is_rejected(bench: Bench, wrong: str) -> None:
    event = Chain("r").next()
    state = state_of(event, path="../r" if wrong == "path" else "r")
    key = event.repository if wrong == "path" else "e" * 32
    bench.records(bench.record(STATE, key, to_json(state)))
    assert len(bench.writer.others) == 1
    assert list(bench.mirror.state.table) == []
    assert bench.mirror.control.state_of(event.repository) is None


def test_a_mirror_keeps_nothing_of_a_state_for_each_mirror_or_stream(bench: Bench) -> None:
    event = Chain("r").next()
    state = state_of(event, serials={"alpha": 1, "beta": 2}, streams={"pulse": "a" * 32})
    bench.records(bench.record(STATE, event.repository, to_json(state)))
    assert bench.mirror.control.state_of(event.repository) == state_of(event)


def test_nothing_is_kept_of_a_repository_whose_deletion_is_noticed(bench: Bench) -> None:
    chain = Chain("r")
    created, deleted = chain.next(), chain.next(Type.DELETED)
    over = state_of(deleted, deleted=True, released=2, noticed=2)
    for state in (state_of(created), over):
        bench.records(bench.record(STATE, chain.repository, to_json(state)))
    assert bench.mirror.control.state_of(chain.repository) is None


def test_a_mirror_removed_and_added_unseen_says_its_levels_again(bench: Bench) -> None:
    event = Chain("r").next()
    mirror = Mirror(name="alpha", state=MirrorState.ACTIVE, since=1.0)
    bench.records(bench.record(ROSTER, KEY, to_json(Roster(version=1, mirrors=(mirror,)))))
    bench.read(event)
    bench.applied(event)
    bench.writer.acks.clear()
    bench.records(bench.record(ROSTER, KEY, to_json(Roster(version=3, mirrors=(replace(mirror, since=2.0),)))))
    assert bench.writer.acks[event.repository].applied == 1


def test_a_mirror_with_other_keys_says_all_its_levels_again(bench: Bench) -> None:
    event = Chain("r").next()
    bench.read(event)
    bench.applied(event)
    bench.writer.acks.clear()
    for has_other_keys in (False, True):
        bench.writer.has_other_keys = has_other_keys
        bench.records(bench.record(ROSTER, KEY, to_json(Roster(version=1))))
        assert bool(bench.writer.acks) == has_other_keys


def heard(bench: Bench, *overwritten: str) -> None:
    """The aggregator says that another program overwrote these acks."""
    beat = AggregatorHeartbeat(time=bench.clock.now(), roster=1, held=0, overwritten=overwritten)
    bench.records(bench.record(STATE, AGGREGATOR, to_json(beat)))
    bench.clock.advance(1.0)


def test_a_mirror_writes_again_what_another_program_overwrote(bench: Bench) -> None:
    events = [Chain(name).next() for name in ("known", "unread")]
    bench.read(events[0])
    bench.applied(events[0])
    bench.records(bench.record(STATE, events[1].repository, to_json(state_of(events[1]))))
    former = dict(bench.writer.acks)
    bench.writer.acks.clear()
    keys = [f"alpha/{repository}" for repository in (events[0].repository, events[1].repository, "stranger")]
    heard(bench, *keys, "beta/other")
    assert not bench.writer.acks, "without a key, its own would count no more"
    bench.writer.is_sealing = True
    heard(bench, *keys, "beta/other")
    assert bench.writer.acks == former
    assert bench.writer.withdrawn == [events[1].repository, "stranger"]


def test_the_ack_of_a_deletion_that_waits_is_not_withdrawn(bench: Bench) -> None:
    deletion = Deletion(bench)
    waiting = replace(deletion.state, noticed=1)
    deletion.restart(deletion.acks, waiting)
    bench.writer.acks.clear()
    bench.writer.is_sealing = True
    heard(bench, f"alpha/{deletion.repository}")
    assert bench.writer.acks[deletion.repository].applied == 2
    assert bench.writer.withdrawn == []

# SPDX-License-Identifier: GPL-2.0-or-later
"""What the aggregator says, as a mirror takes it: states that cannot be right, those that are over, and a mirror that came back."""

from dataclasses import replace

import pytest

from hgext.vcsreplicator.log import ROSTER, STATE
from hgext.vcsreplicator.words.event import Type
from hgext.vcsreplicator.words.roster import KEY, Mirror, MirrorState, Roster
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.chains import Chain
from testing.builders.aggregator.states import state_of
from testing.builders.mirror.supervising import Bench


@pytest.mark.parametrize("wrong", ["path", "key"])
def test_a_state_of_a_path_outside_or_of_another_key_is_rejected(bench: Bench, wrong: str) -> None:
    event = Chain("r").next()
    state = state_of(event, path="../r" if wrong == "path" else "r")
    key = event.repository if wrong == "path" else "e" * 32
    bench.records(bench.record(STATE, key, to_json(state)))
    assert len(bench.writer.others) == 1
    assert list(bench.mirror.state.table) == []
    assert bench.mirror.control.state_of(event.repository) is None


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

# SPDX-License-Identifier: GPL-2.0-or-later
"""What a push that sends its own events reads of the log before it continues a history."""

from dataclasses import replace
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import STATE, NewRecord, topics
from hgext.vcsreplicator.outbox.forks import fork_at_path, known_state, known_states
from hgext.vcsreplicator.words.errors import MalformedEvent
from hgext.vcsreplicator.words.records import RepositoryState
from hgext.vcsreplicator.words.shape import from_json
from testing.builders.aggregator.states import some_state
from testing.builders.log.memorylog import MemoryLog

GOLDEN = Path(__file__).parents[1] / "relay" / "golden" / "state.json"


def test_a_state_that_cannot_be_read_stops_no_other_repository() -> None:
    """Of a state of its own a push must know; it reads the others only to find one at the path where it begins."""
    log = MemoryLog()
    log.create(topics())
    state = from_json(RepositoryState, GOLDEN.read_bytes())
    log.append([NewRecord(topic=STATE, key=state.repository, value=GOLDEN.read_bytes())])
    log.append([NewRecord(topic=STATE, key="e" * 32, value=b"nonsense")])
    assert known_state(log, state.repository) == state
    assert known_states(log) == [state]
    with pytest.raises(MalformedEvent):
        known_state(log, "e" * 32)


def test_only_a_repository_that_lives_at_the_path_is_in_the_way() -> None:
    other = some_state(path="x", generation=2)
    fork = fork_at_path([some_state(path="y", generation=2), other], "x", 2, None)
    assert fork is not None
    assert fork.repository == other.repository
    for states, generation, repository in [
        ([replace(other, path="y")], 2, None),
        ([replace(other, deleted=True)], 2, None),
        ([other], 3, None),
        ([other], 2, other.repository),
    ]:
        assert fork_at_path(states, "x", generation, repository) is None

# SPDX-License-Identifier: GPL-2.0-or-later
"""What a push that sends its own events reads of the log before it continues a history."""

from pathlib import Path

import pytest

from hgext.vcsreplicator.log import STATE, NewRecord, topics
from hgext.vcsreplicator.outbox.forks import known_state, known_states
from hgext.vcsreplicator.words.errors import MalformedEvent
from hgext.vcsreplicator.words.records import RepositoryState
from hgext.vcsreplicator.words.shape import from_json
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

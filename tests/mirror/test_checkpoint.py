# SPDX-License-Identifier: GPL-2.0-or-later
"""A checkpoint that a worker sends is small: a mirror keeps one of each repository."""

import pickle
import tracemalloc
from dataclasses import replace

from hgext.vcsreplicator.mirror.checkpoint import Checkpoint, before_first, checkpoint_of
from hgext.vcsreplicator.words.event import ClientSettings
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.chains import identifier

# Bytes of a checkpoint in a mirror, besides its texts and numbers.
SMALL = 300


def read(number: int) -> Checkpoint:
    """A checkpoint as a worker reads it from its file."""
    first = before_first(identifier("repository", number), identifier("incarnation", number), f"repo{number}", 1)
    return checkpoint_of(to_json(replace(first, seq=7, settings=ClientSettings(publishing=True))))


def test_a_checkpoint_of_a_worker_is_equal_and_shares_what_many_have() -> None:
    first, second = pickle.loads(pickle.dumps((read(1), read(2))))
    assert (first, second) == (read(1), read(2))
    assert first.settings is second.settings
    assert first.moved is second.moved
    assert first.tip is second.tip
    moved = replace(read(1), moved={"stable": None}, hgrc={"web": {"contact": "dana"}})
    assert pickle.loads(pickle.dumps(moved)) == moved


def test_a_thousand_checkpoints_of_workers_take_little_memory() -> None:
    packed = pickle.dumps([read(1) for _ in range(1000)])
    pickle.loads(packed)  # the shared texts exist from now on
    tracemalloc.start()
    try:
        kept = pickle.loads(packed)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size / len(kept) < SMALL

# SPDX-License-Identifier: GPL-2.0-or-later
"""What applying an event leaves to others."""

from typing import Any

import pytest
from mercurial import localrepo

from testing.builders.mirror.mirroring import Bench
from tests.hg.replica.conftest import Worker

pytestmark = pytest.mark.processes


def test_caches_are_not_filled_while_mirrors_wait_for_the_ack(
    bench: Bench, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    author = bench.author("r")
    author.push()
    filled: list[tuple[Any, ...]] = []
    monkeypatch.setattr(localrepo.localrepository, "updatecaches", lambda *arguments, **_: filled.append(arguments))
    outcome = worker.perform(author)
    assert (outcome.serving, filled) == (author.seq, [])

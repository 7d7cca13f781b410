# SPDX-License-Identifier: GPL-2.0-or-later
"""A mirror's worker in the test's own process, at work for a bench."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hgext.vcsreplicator.hg.replica.repository import OpenRepositories, prepare
from hgext.vcsreplicator.hg.replica.work import TaskRunner
from hgext.vcsreplicator.mirror.pool import CONFIGURATION
from hgext.vcsreplicator.mirror.task import ReadEvent, Task, TaskOutcome
from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.wire import decode
from testing.builders.mirror.author import Author
from testing.builders.mirror.mirroring import Bench


class Worker:
    """A mirror's worker in this process; each task brings what the repository's master has made since the last."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._done: dict[str, int] = {}

    def perform(self, author: Author, *, released: int | None = None, **members: Any) -> TaskOutcome:
        done = self._done.get(author.repository, 0)
        self._done[author.repository] = len(author.frames)
        items = tuple(
            ReadEvent(frame=decode(frame), partition=0, offset=offset, size=len(frame))
            for offset, (_event, frame) in enumerate(author.frames[done:], done)
        )
        runner = TaskRunner(self._bench.settings(), OpenRepositories(prepare(), 4), SystemClock())
        task = Task(
            repository=author.repository,
            path=author.path,
            folder=str(self._bench.where(author)),
            incarnation=author.incarnation,
            released=author.seq if released is None else released,
            items=() if "heal" in members else items,
        )
        return runner.perform(replace(task, **members))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    (tmp_path / "worker.hgrc").write_text(CONFIGURATION)
    monkeypatch.setenv("HGRCPATH", str(tmp_path / "worker.hgrc"))
    monkeypatch.setenv("HGRCSKIPREPO", "1")
    with Bench(tmp_path) as bench:
        yield bench


@pytest.fixture
def worker(bench: Bench) -> Worker:
    return Worker(bench)

# SPDX-License-Identifier: GPL-2.0-or-later
"""A repair that cannot be done leaves everything as it is, the mirror's acknowledgement included."""

from dataclasses import replace
from pathlib import Path

import pytest

from hgext.vcsreplicator.hg.replica.repository import OpenRepositories, prepare
from hgext.vcsreplicator.hg.replica.work import TaskRunner
from hgext.vcsreplicator.mirror.pool import CONFIGURATION
from hgext.vcsreplicator.mirror.task import ReadEvent, Task
from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.levels import Reason
from hgext.vcsreplicator.words.wire import decode
from testing.builders.mirroring import Bench

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("reason", [Reason.GAP, Reason.CORRUPT])
def test_a_repair_on_a_mirror_without_a_master_leaves_the_ack_where_the_repository_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: Reason
) -> None:
    (tmp_path / "worker.hgrc").write_text(CONFIGURATION)
    monkeypatch.setenv("HGRCPATH", str(tmp_path / "worker.hgrc"))
    monkeypatch.setenv("HGRCSKIPREPO", "1")
    with Bench(tmp_path) as bench:
        author = bench.author("repo")
        author.push()
        frames = [frame for _key, frame in author.frames]
        items = tuple(
            ReadEvent(frame=decode(frame), partition=0, offset=offset, size=len(frame))
            for offset, frame in enumerate(frames)
        )
        runner = TaskRunner(replace(bench.settings(), master=None), OpenRepositories(prepare(), 4), SystemClock())
        task = Task(
            repository=author.repository,
            path=author.path,
            folder=str(bench.where(author)),
            incarnation=author.incarnation,
            released=len(items),
            items=items,
        )
        before = runner.perform(task)
        assert before.trouble is None
        after = runner.perform(replace(task, items=(), heal=reason))
    assert after.trouble is not None
    assert "master is not set: there is nothing to heal from" in after.trouble.note
    assert (after.checkpoint, after.folder, after.serving) == (before.checkpoint, before.folder, len(items))

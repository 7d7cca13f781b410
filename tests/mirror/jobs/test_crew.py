# SPDX-License-Identifier: GPL-2.0-or-later
"""The order in which a crew does its jobs: workers that answer at once, a clock moved by hand."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from hgext.vcsreplicator.mirror import MirrorSettings
from hgext.vcsreplicator.mirror.jobs import crew
from hgext.vcsreplicator.mirror.pool import Answered
from testing.clock import HandClock


class Pool:
    """One worker, whose answer is its task."""

    def __init__(self, _settings: MirrorSettings, report: Any, _clock: object) -> None:
        self._report, self._is_busy = report, False

    def idle(self, _lane: object) -> Any:
        return None if self._is_busy else SimpleNamespace()

    def give(self, worker: Any, task: object) -> None:
        self._is_busy = True
        self._report(Answered(worker=worker, answer=task))

    def freed(self, _answered: Answered) -> None:
        self._is_busy = False

    def close(self, _patience: float) -> None:
        pass


def test_a_job_that_goes_on_at_once_does_not_wait_for_later_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crew, "WorkerPool", Pool)
    clock, done = HandClock(), list[str]()
    clock.advance(1.0)

    def decide(job: str, _answer: object) -> float | None:
        done.append(job)
        return 0.0 if done.count(job) == 1 else None

    settings = MirrorSettings(name="alpha", root="/repos")
    crew.work(settings, ["a", "b"], make_task=str, decide=decide, stop=threading.Event(), clock=clock)
    assert done == ["a", "a", "b", "b"]

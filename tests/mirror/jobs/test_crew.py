# SPDX-License-Identifier: GPL-2.0-or-later
"""The order in which a crew does its jobs: workers that answer at once, a clock moved by hand."""

import itertools
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


@pytest.fixture(autouse=True)
def _played_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "WorkerPool", Pool)


def test_a_job_that_goes_on_at_once_does_not_wait_for_later_ones() -> None:
    clock, done = HandClock(), list[str]()
    clock.advance(1.0)

    def decide(job: str, _answer: object) -> float | None:
        done.append(job)
        return 0.0 if done.count(job) == 1 else None

    settings = MirrorSettings(name="alpha", root="/repos")
    crew.work(settings, ["a", "b"], make_task=str, decide=decide, stop=threading.Event(), clock=clock)
    assert done == ["a", "a", "b", "b"]


@pytest.mark.parametrize(("share", "apart"), [(0.1, 10.0), (0.5, 2.0), (1.0, 1.0)])
def test_a_worker_works_for_its_share_of_the_time(monkeypatch: pytest.MonkeyPatch, share: float, apart: float) -> None:
    monkeypatch.setattr(crew, "TURN", 0.0001)
    clock, began = HandClock(), list[float]()

    def note_start(job: str) -> str:
        began.append(clock.monotonic())
        return job

    settings = MirrorSettings(name="alpha", root="/repos", heavy_workers=1)
    crew.work(
        settings,
        ["a", "b", "c"],
        make_task=note_start,
        decide=lambda _job, _answer: None,
        stop=threading.Event(),
        clock=clock,
        share=share,
        each_turn=lambda: clock.advance(1.0),  # what a task takes
    )
    assert [later - earlier for earlier, later in itertools.pairwise(began)] == [apart, apart]

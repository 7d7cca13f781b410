# SPDX-License-Identifier: GPL-2.0-or-later
"""What keeps the dashboard bounded and honest: searches end, feeds are few, and a watcher that fails ends the service."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from hgext.vcsreplicator.dashboard import feed, tracing, watcher
from hgext.vcsreplicator.dashboard.drawing import draw_timeline
from hgext.vcsreplicator.dashboard.server import run
from hgext.vcsreplicator.status.timeline import Stage, TimelineStep
from hgext.vcsreplicator.words.errors import BadConfig
from tests.dashboard.conftest import AS_READER, Installation, Site, fill, pages, settings
from tests.dashboard.test_browser import free_port


@pytest.fixture
def busy() -> Installation:
    """An installation with a repository whose first events are not remembered."""
    installation = Installation()
    for _ in range(25):
        installation.push("public/busy")
    return installation


def ask_for_first(site: Site, installation: Installation) -> str:
    repository = installation.chains["public/busy"].repository
    return site.get(f"/repository/{repository}/event/1", headers=AS_READER).text


def test_a_search_ends_at_its_deadline(busy: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class At(threading.Timer):
        def start(self) -> None:
            self.function()

    with pages(busy, settings(tmp_path)) as site:
        assert "notice written" in ask_for_first(site, busy)
        monkeypatch.setattr(threading, "Timer", At)
        assert "was not found within 10 s" in ask_for_first(site, busy)


def test_only_so_many_searches_run_at_a_time_and_each_gives_its_place_back(busy: Installation, tmp_path: Path) -> None:
    with pages(busy, settings(tmp_path)) as site:
        with tracing._searching(), tracing._searching():
            assert "other searches of the log are under way" in ask_for_first(site, busy)
        for _ in range(3):
            assert "notice written" in ask_for_first(site, busy)


def test_a_feed_too_many_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "FEEDS", 1)
    followed = feed.Feed(SimpleNamespace(announced=()), lambda request: str)  # type: ignore[arg-type]
    request = SimpleNamespace(headers={}, state=SimpleNamespace(role=None))

    async def open_two() -> list[int]:
        first = await followed.answer(request)  # type: ignore[arg-type]
        body = first.body_iterator  # type: ignore[attr-defined]
        await anext(body)
        second = await followed.answer(request)  # type: ignore[arg-type]
        await body.aclose()
        third = await followed.answer(request)  # type: ignore[arg-type]
        return [answer.status_code for answer in (first, second, third)]

    assert asyncio.run(open_two()) == [200, 503, 200]


def test_a_watcher_that_fails_ends_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(watcher, "make_view", fail)
    stop, address = threading.Event(), ("127.0.0.1", free_port())
    with pytest.raises(RuntimeError, match="a bug"):
        run(settings(tmp_path), fill().sources, address=address, stop=stop, ready=lambda: None)


def test_an_address_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"dashboard\.listen: 203\.0\.113\.9:1 cannot be used"):
        run(
            settings(tmp_path),
            Installation().sources,
            address=("203.0.113.9", 1),
            stop=threading.Event(),
            ready=lambda: None,
        )


def test_clocks_that_differ_leave_all_dots_in_the_picture() -> None:
    steps = [
        TimelineStep(stage=Stage.COMMITTED, text="", at=100.0),
        TimelineStep(stage=Stage.LOGGED, text="", at=101.0),
        TimelineStep(stage=Stage.APPLIED, text="", at=90.0, mirror="early"),
        TimelineStep(stage=Stage.SERVED, text="", at=110.0, mirror="early"),
        TimelineStep(stage=Stage.ANNOUNCED, text="", at=102.0),
    ]
    picture = draw_timeline(steps)
    assert [lane.label for lane in picture.lanes] == ["master to log", "early", "notice"]
    assert all(0 <= lane.start <= lane.end <= 100 for lane in picture.lanes)
    assert all(0 <= dot.x <= 100 for lane in picture.lanes for dot in lane.dots)
    assert picture.seconds == 20


def test_a_timeline_of_one_instant_is_drawn() -> None:
    picture = draw_timeline([TimelineStep(stage=Stage.COMMITTED, text="", at=5.0)])
    assert picture.seconds == 0
    assert all(0 <= lane.start <= lane.end <= 100 for lane in picture.lanes)

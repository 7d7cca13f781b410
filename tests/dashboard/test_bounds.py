# SPDX-License-Identifier: GPL-2.0-or-later
"""What keeps the dashboard bounded and honest: searches end, feeds are few, and a watcher that fails ends the service."""

import asyncio
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from starlette.responses import Response
from starlette.types import Message

from hgext.vcsreplicator.dashboard import feed, tracing, watcher
from hgext.vcsreplicator.dashboard.drawing import draw_timeline
from hgext.vcsreplicator.dashboard.server import run
from hgext.vcsreplicator.dashboard.settings import DashboardRole
from hgext.vcsreplicator.dashboard.watcher import Pace
from hgext.vcsreplicator.demo.ports import free_port
from hgext.vcsreplicator.status import Picture
from hgext.vcsreplicator.status.follower import Follower
from hgext.vcsreplicator.status.timeline import Stage, TimelineStep
from hgext.vcsreplicator.words.errors import BadConfig
from testing.waiting import eventually
from tests.dashboard.conftest import AS_READER, AwayLog, Installation, Site, fill, pages, settings, watching


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


def test_a_watcher_that_waits_for_records_ends_when_it_is_closed(busy: Installation) -> None:
    others = set(threading.enumerate())
    with watching(busy.sources, pace=Pace(wait=3600.0)) as following:
        eventually(lambda: following.view is not None)
    assert set(threading.enumerate()) <= others


def test_a_search_ends_at_its_deadline(busy: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class At(threading.Timer):
        def start(self) -> None:
            self.function()

    with pages(busy, settings(tmp_path)) as site:
        assert "notice written" in ask_for_first(site, busy)
        monkeypatch.setattr(threading, "Timer", At)
        assert "was not found within 10 s" in ask_for_first(site, busy)


def test_only_so_many_searches_run_at_a_time_and_each_gives_way(busy: Installation, tmp_path: Path) -> None:
    with pages(busy, settings(tmp_path)) as site:
        with tracing.hold_search(), tracing.hold_search():
            assert "other searches of the log are under way" in ask_for_first(site, busy)
        for _ in range(3):
            assert "notice written" in ask_for_first(site, busy)


def test_a_feed_too_many_is_refused() -> None:
    silent = SimpleNamespace(announced=(), note_interest=lambda: None)
    followed = feed.Feed(silent, lambda request: str)  # type: ignore[arg-type]
    request = SimpleNamespace(headers={}, state=SimpleNamespace(role=DashboardRole.GUEST))

    async def ask() -> Response:
        return await followed.answer(request)  # type: ignore[arg-type]

    async def leave() -> Message:
        return {"type": "http.disconnect"}

    async def drop(message: Message) -> None:
        """Take what is sent, and keep nothing."""

    async def open_all() -> list[int]:
        """The first has not sent anything when the one too many asks, and its reader leaves before it does."""
        first, *others = [await ask() for _ in range(feed.FEEDS + 1)]
        await first({"type": "http", "asgi": {"spec_version": "2.3"}}, leave, drop)
        answers = [first, *others, await ask()]
        return [answer.status_code for answer in answers]

    assert asyncio.run(open_all()) == [*[200] * feed.FEEDS, 503, 200]


def test_a_watcher_that_fails_ends_the_service(tmp_path: Path) -> None:
    installation = fill()
    installation.log.before["ends"] = Mock(side_effect=RuntimeError("a bug"))
    stop, address = threading.Event(), ("127.0.0.1", free_port())
    with pytest.raises(RuntimeError, match="a bug"):
        run(settings(tmp_path), installation.sources, address=address, stop=stop, ready=lambda: None)


def test_views_are_made_only_while_they_are_asked_for() -> None:
    installation, pace = fill(), Pace(pause=0.0, rest=0.0, interest=0.0)
    with watching(installation.sources, pace=pace) as followed:
        eventually(lambda: followed.view is not None)
        first, announced = followed.view, len(followed.announced)
        for number in range(1, 4):
            installation.push("public/new")
            eventually(lambda wanted=announced + number: len(followed.announced) == wanted)
        assert followed.view is first
        pace.interest = 60.0
        eventually(lambda: not followed._is_answer())
        asked = followed.fetch_view()
        assert asked is not None
        assert asked is not first
        assert [event.seq for event in asked.events[installation.chains["public/new"].repository]] == [3, 2, 1]


def test_a_page_that_needs_a_view_ends_the_wait_for_records() -> None:
    with watching(fill().sources, pace=Pace(pause=0.01, rest=0.0, wait=3600.0, patience=3600.0)) as followed:
        eventually(lambda: followed.view is not None)
        first = followed.view
        eventually(lambda: not followed._is_answer())
        assert followed.fetch_view() is not first


def test_a_view_that_is_overdue_as_soon_as_it_is_made_is_an_answer() -> None:
    with watching(fill().sources, pace=Pace(pause=0.0, rest=0.0, wait=3600.0, patience=3600.0)) as followed:
        eventually(lambda: followed.view is not None)
        first = followed.view
        assert followed.fetch_view() is not first


def test_the_time_of_the_first_reading_does_not_put_off_the_second_view(monkeypatch: pytest.MonkeyPatch) -> None:
    update, slow = Follower.update, [3600.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + waited[0], time=time.time)
    waited = [0.0]

    def read(self: Follower) -> Picture:
        waited[0] += slow.pop() if slow else 0.0  # the first reading takes an hour
        return update(self)

    monkeypatch.setattr(Follower, "update", read)
    monkeypatch.setattr(watcher, "time", clock)
    with watching(fill().sources, pace=Pace(pause=0.01)) as followed:
        eventually(lambda: followed.view is not None)
        first = followed.view
        followed.note_interest()
        eventually(lambda: followed.view is not first)


def test_an_open_feed_keeps_views_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    followed = feed.Feed(
        SimpleNamespace(announced=(), note_interest=lambda: asked.append(True)),  # type: ignore[arg-type]
        lambda request: lambda repository, path: path,
    )
    request = SimpleNamespace(headers={}, state=SimpleNamespace(role=DashboardRole.GUEST))
    monkeypatch.setattr(feed, "BEAT", 0.0)

    async def read_three() -> None:
        answer = await followed.answer(request)  # type: ignore[arg-type]
        body = answer.body_iterator  # type: ignore[attr-defined]
        for _ in range(3):
            await anext(body)
        await body.aclose()

    asyncio.run(read_three())
    assert len(asked) == 2


def test_a_page_waits_for_no_view_while_the_log_is_away() -> None:
    installation = fill()
    log = AwayLog(installation)
    with watching(installation.sources, log, Pace(pause=0.01, reading=0.01, patience=3600.0)) as followed:  # type: ignore[arg-type]
        eventually(lambda: followed.view is not None)
        log.is_away = True
        eventually(lambda: followed.trouble is not None)
        assert followed.fetch_view() is not None


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
    assert [track.label for track in picture.tracks] == ["master to log", "early", "notice"]
    assert all(0 <= track.start <= track.end <= 100 for track in picture.tracks)
    assert all(0 <= x <= 100 for track in picture.tracks for x, _ in track.dots)
    assert picture.seconds == 20


def test_a_timeline_of_one_instant_is_drawn() -> None:
    picture = draw_timeline([TimelineStep(stage=Stage.COMMITTED, text="", at=5.0)])
    assert picture.seconds == 0
    assert all(0 <= track.start <= track.end <= 100 for track in picture.tracks)

# SPDX-License-Identifier: GPL-2.0-or-later
"""Samples of a week: taken without a reader, kept over a restart, bounded, and drawn with their gaps."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from hgext.vcsreplicator.dashboard.graphs import history
from hgext.vcsreplicator.dashboard.graphs.curves import POINTS, SPANS, draw_graphs
from hgext.vcsreplicator.dashboard.graphs.history import KEPT, MINUTE, History, MinuteSample
from hgext.vcsreplicator.dashboard.recent import RecentEvents
from hgext.vcsreplicator.dashboard.settings import DashboardRole
from hgext.vcsreplicator.dashboard.view import make_sample
from hgext.vcsreplicator.status.follower import Follower
from hgext.vcsreplicator.words.errors import BadConfig
from testing.waiting import eventually
from tests.dashboard.conftest import AS_READER, SECRET, Installation, Site, fill, pages, settings

NOW = 1_700_000_000.0


def sample(minute: int, **members: object) -> MinuteSample:
    """The sample of so many minutes ago."""
    made = MinuteSample(at=NOW - minute * MINUTE, pushes=minute, waiting=0, lags={"beta": float(minute)})
    return replace(made, **members)  # type: ignore[arg-type]


def test_a_sample_has_what_the_last_minute_was_like() -> None:
    installation = Installation()
    for _ in range(3):
        installation.push("public/tools")
    installation.push("public/tools", serving=("alpha",))
    installation.clock.advance(9)
    events, follower = RecentEvents(installation.log), Follower(installation.log)
    while events.read_on(0.0):
        pass
    made = make_sample(follower.update(), events, installation.clock.now())
    assert (made.pushes, made.waiting) == (3, 1)
    assert made.median == pytest.approx(0.18)
    assert made.slow == pytest.approx(0.18)
    assert made.lags["alpha"] == 0
    assert 9 <= made.lags["beta"] < 9.1


def test_samples_are_taken_although_no_page_is_read(tmp_path: Path) -> None:
    installation = fill()
    with pages(installation, settings(tmp_path)) as site:
        eventually(lambda: "There is no sample" not in site.get("/graphs", headers=AS_READER).text)


def test_samples_outlive_a_restart_and_those_of_a_week_ago_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "KEPT", 5)
    path = str(tmp_path / "history.db")
    kept = History(path)
    for minute in range(8, 0, -1):
        kept.add(sample(minute))
        kept.close()
    assert [each.pushes for each in kept.samples] == [5, 4, 3, 2, 1]
    assert History(path).samples == kept.samples
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(*) FROM samples").fetchone() == (5,)


def test_a_damaged_sample_is_left_out_and_no_database_is_a_line(tmp_path: Path) -> None:
    path = str(tmp_path / "history.db")
    kept = History(path)
    kept.add(sample(2))
    kept.close()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("INSERT INTO samples VALUES (1, 1, '{\"at\": []}')")
    assert History(path).samples == (sample(2),)
    (tmp_path / "other.db").write_text("no database " * 100)
    with pytest.raises(BadConfig, match=r"^dashboard\.history: .*other\.db"):
        History(str(tmp_path / "other.db"))


def test_a_sample_that_cannot_be_written_is_shown_all_the_same(tmp_path: Path) -> None:
    kept = History(str(tmp_path / "a" / "history.db"))
    (tmp_path / "a" / "history.db").unlink()
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "a").write_text("a file where the folder was")
    kept.add(sample(1))
    kept.close()
    assert kept.samples == (sample(1),)


def test_samples_after_the_present_are_dropped_when_the_clock_went_back() -> None:
    kept = History()
    for minute in (3, 2, 1, 2):
        kept.add(sample(minute, waiting=minute))
    assert [each.waiting for each in kept.samples] == [3, 2]


def test_a_line_has_a_gap_where_there_was_no_sample() -> None:
    minutes = [*range(55, 30, -1), *range(20, -1, -1)]
    pushes, took, lags, waiting = draw_graphs([sample(minute) for minute in minutes], SPANS["hour"], NOW)
    [curve] = pushes.curves
    assert len(curve.lines) == 2
    assert (curve.newest, curve.highest, pushes.top) == (0, 55, 55)
    assert [curve.label for curve in lags.curves] == ["beta"]
    assert [curve.lines for curve in took.curves] == [(), ()]
    assert waiting.top == 1.0
    assert all(0 <= float(y) <= 160 for line in curve.lines for y in re.findall(r",([\d.]+)", line))


def test_a_week_is_drawn_in_few_points_and_many_mirrors_in_few_lines() -> None:
    lags = {f"m{number}": float(number) for number in range(40)}
    samples = [sample(minute, lags=lags if minute < 9 else {}) for minute in range(KEPT - 1, -1, -7)]
    graphs = draw_graphs(samples, SPANS["week"], NOW)
    assert len(graphs[0].curves[0].lines[0].split()) == POINTS
    assert [curve.label for curve in graphs[2].curves] == [f"m{number}" for number in range(34, 40)]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with pages(fill(), settings(tmp_path, anonymous=DashboardRole.GUEST)) as site:
        yield site


def test_a_guest_sees_graphs_without_private_names(site: Site) -> None:
    for span in ("hour", "day", "week", "year"):
        answer = site.get(f"/graphs?span={span}")
        assert answer.status_code == 200
        assert SECRET not in answer.text
        assert answer.text.count("<svg") == 4
        assert "are lost when the dashboard stops" in answer.text


def test_a_sample_that_stands_alone_is_drawn_so_large_that_one_sees_it(tmp_path: Path) -> None:
    """As after the dashboard's first minute, when the pictures would look empty."""
    with pages(fill(), settings(tmp_path)) as site:
        eventually(lambda: "<polyline" in site.get("/graphs", headers=AS_READER).text)
        lines = re.findall(r'<polyline class="([^"]*)" points="([^"]*)"', site.get("/graphs", headers=AS_READER).text)
    assert lines
    assert {kind.endswith(" lone") for kind, _ in lines} == {True}

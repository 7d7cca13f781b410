# SPDX-License-Identifier: GPL-2.0-or-later
"""What the thread that follows the log knows of the time, and the picture that it lends."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from hgext.vcsreplicator.dashboard import watcher
from hgext.vcsreplicator.dashboard.watcher import LogWatcher, Pace
from hgext.vcsreplicator.log import STATE
from hgext.vcsreplicator.status import Picture
from hgext.vcsreplicator.status.follower import WATCH
from hgext.vcsreplicator.status.services import Expectations
from hgext.vcsreplicator.words.errors import Unavailable
from testing.waiting import eventually
from tests.dashboard.conftest import AwayLog, fill, watching


def test_a_dashboard_that_starts_after_all_died_calls_none_alive() -> None:
    installation = fill()
    installation.clock.advance(100.0)
    with watching(installation.sources) as followed:
        # Nothing says how old the newest record is, until none came for a while; the thread reads on meanwhile.
        due = eventually(lambda: followed._due != watcher._AT_ONCE and followed._due)
        eventually(lambda: followed._due > due)
        assert followed.view is None
        assert followed.trouble is not None
        installation.clock.advance(WATCH)
        view = eventually(lambda: followed.view)
        assert any("the aggregator has sent no heartbeat" in finding.text for finding in view.findings)


def test_a_sign_of_life_gives_a_dashboard_its_first_view() -> None:
    installation = fill()
    installation.clock.advance(100.0)
    with watching(installation.sources) as followed:
        installation.clock.advance(1.0)
        installation.beat()
        view = eventually(lambda: followed.view)
        assert view.now == installation.clock.now()
        assert not any("no heartbeat" in finding.text for finding in view.findings)


def count_events(picture: Picture, now: float) -> int:
    return sum(state.seq for state in picture.states.values())


def ask(followed: LogWatcher) -> int:
    return followed.use_picture(count_events, patience=60.0)


def test_a_picture_that_is_lent_has_what_was_committed_before() -> None:
    installation = fill()
    # Only the question ends the wait for records.
    with watching(installation.sources, pace=Pace(wait=3600.0, reading=3600.0)) as followed:
        eventually(lambda: followed.view)
        before = ask(followed)
        for number in range(1, 20):
            installation.push("public/new")
            assert ask(followed) == before + number


def test_a_picture_that_is_lent_has_the_destinations_and_the_time() -> None:
    installation = fill()
    with watching(installation.sources) as followed:
        eventually(lambda: followed.view)
        installation.log.acknowledge("notifier-hooks", "notices", {0: 2})
        installation.clock.advance(5.0)
        lags, now = followed.use_picture(lambda picture, now: (dict(picture.lacking), now), patience=60.0)
        assert lags == {"hooks": installation.log.ends("notices")[0] - 2}
        assert now == installation.clock.now()


def test_a_picture_is_lent_while_records_keep_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher.RecentEvents, "read_on", lambda self, timeout: True)
    # The thread would read on for longer than any machine runs, as on a machine that has just started.
    with watching(fill().sources, pace=Pace(pause=1e9)) as followed:
        eventually(lambda: followed.view)
        assert ask(followed) > 0


def test_no_picture_is_lent_before_the_log_was_read_nor_after_the_end() -> None:
    followed = LogWatcher(fill().sources.log, Expectations())
    with pytest.raises(Unavailable, match="was not read yet"):
        ask(followed)
    with watching(fill().sources) as followed:
        eventually(lambda: followed.view)
    with pytest.raises(Unavailable, match="the dashboard stops"):
        ask(followed)


def test_no_picture_is_lent_while_the_log_is_away() -> None:
    installation = fill()
    log = AwayLog(installation)
    # The question is the first that finds the log away.
    with watching(installation.sources, log, Pace(reading=3600.0)) as followed:  # type: ignore[arg-type]
        eventually(lambda: followed.view)
        log.is_away = True
        with ThreadPoolExecutor(5) as askers:
            for asked in [askers.submit(ask, followed) for _ in range(5)]:
                with pytest.raises(Unavailable, match=r"no broker answers at kafka\.internal"):
                    asked.result(60)
        log.is_away = False
        installation.push("public/new")
        eventually(lambda: followed.trouble is None)
        assert ask(followed) == count_events(followed.view.picture, 0.0)  # type: ignore[union-attr]


def test_a_picture_has_nothing_that_the_log_has_lost() -> None:
    installation = fill()
    older = installation.log.copied(STATE)
    with watching(installation.sources) as followed:
        eventually(lambda: followed.view)
        before = ask(followed)
        for path in ("public/firefox", "public/tools"):
            installation.push(path)
        assert ask(followed) == before + 2
        installation.log.restore(STATE, older)
        with contextlib.suppress(Unavailable):  # the first that notices it may be the reader of the newest events
            assert ask(followed) == before
        eventually(lambda: followed.trouble is None)
        assert ask(followed) == before


def test_no_picture_is_lent_while_the_time_is_not_known() -> None:
    installation = fill()
    with watching(installation.sources) as followed:
        eventually(lambda: followed.view)
        installation.clock.set_back(3600.0)
        with pytest.raises(Unavailable, match="the time by the log's clock is not known"):
            ask(followed)
        installation.clock.advance(1.0)
        installation.beat()
        assert ask(followed) > 0


def test_what_the_use_of_a_picture_raises_reaches_its_caller_alone() -> None:
    with watching(fill().sources) as followed:
        eventually(lambda: followed.view)
        with pytest.raises(ZeroDivisionError):
            followed.use_picture(lambda picture, now: 1 / 0, patience=60.0)
        assert ask(followed) > 0


def test_a_picture_that_does_not_come_in_time_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    go, used = threading.Event(), []
    with watching(fill().sources) as followed, ThreadPoolExecutor(1) as askers:
        eventually(lambda: followed.view)
        slow = askers.submit(followed.use_picture, lambda picture, now: go.wait(60), patience=60.0)
        with pytest.raises(Unavailable, match="no picture within 0"):
            followed.use_picture(lambda picture, now: used.append(now), patience=0.1)
        go.set()
        assert slow.result(60)
        assert ask(followed) > 0
        assert used == [], "for a caller that is gone nothing is done"


def test_views_compare_topics_now_and_then_and_a_question_each_time() -> None:
    installation, pace = fill(), Pace(pause=0.0, wait=0.01)
    compared = list[int]()
    compare = installation.log.compare
    installation.log.compare = lambda needed: compared.append(1) or compare(needed)  # type: ignore[method-assign]
    with watching(installation.sources, pace=pace) as followed:
        first = eventually(lambda: followed.view)
        followed.note_interest()
        installation.clock.advance(1.0)
        installation.beat()
        eventually(lambda: followed.view is not first)
        assert len(compared) == 1
        ask(followed)
        assert len(compared) == 2
        pace.topics = 0.0
        followed._topics_due = 0.0
        eventually(lambda: len(compared) > 3)

# SPDX-License-Identifier: GPL-2.0-or-later
"""What the thread that follows the log shows of the time."""

import threading

from hgext.vcsreplicator.dashboard import watcher
from hgext.vcsreplicator.status.follower import WATCH
from testing.waiting import eventually
from tests.dashboard.conftest import fill, watching


def test_a_dashboard_that_starts_after_all_services_died_never_calls_them_alive() -> None:
    installation = fill()
    installation.clock.advance(100.0)
    with watching(installation.sources) as followed:
        # Nothing says how old the newest record is, until none came for a while.
        looked = threading.Event()
        assert not looked.wait(3 * watcher.WAIT)
        assert followed.view is None
        assert followed.trouble is not None
        installation.clock.advance(WATCH)
        view = eventually(lambda: followed.view)
        assert any("the aggregator has given no sign of life" in finding.text for finding in view.findings)


def test_a_sign_of_life_gives_a_dashboard_its_first_view() -> None:
    installation = fill()
    installation.clock.advance(100.0)
    with watching(installation.sources) as followed:
        installation.clock.advance(1.0)
        installation.beat()
        view = eventually(lambda: followed.view)
        assert view.now == installation.clock.now()
        assert not any("no sign of life" in finding.text for finding in view.findings)

# SPDX-License-Identifier: GPL-2.0-or-later
"""Reports of services, where the log does not take them."""

from typing import Any

import pytest

from hgext.vcsreplicator.log import reports
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.levels import ServiceTrouble


class LogWithoutTopic:
    """A log that takes `TIMEOUT` seconds of the service's time to say that it has no such topic."""

    def __init__(self) -> None:
        self.now, self.asked = 1000.0, 0

    def append(self, records: Any, *, timeout: float) -> None:
        self.asked += 1
        self.now += timeout
        raise Unavailable("no topic services")


def test_a_log_without_the_topic_costs_little_of_a_services_time(monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogWithoutTopic()
    monkeypatch.setattr(reports.time, "monotonic", lambda: log.now)
    reporter = reports.ServiceReporter(log, "relay hg")  # type: ignore[arg-type]
    for turn in range(120):
        # a trouble that is another one each time is reported at once where the log takes it
        reporter.report([ServiceTrouble(text=f"disk {turn} full", since=1.0)], now=log.now)
        log.now += 0.5
    assert 2 <= log.asked <= 4

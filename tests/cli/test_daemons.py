# SPDX-License-Identifier: GPL-2.0-or-later
"""The aggregator's page /status while the log hangs."""

from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import pytest

from hgext.vcsreplicator.cli.daemons import _status_page
from testing.waiting import eventually
from tests.status.test_health import answers, get, hanging, serving

__all__ = ["answers", "hanging"]

pytestmark = pytest.mark.processes


def test_while_the_log_hangs_live_answers_and_status_is_unavailable(hanging: Any) -> None:
    with serving(**{"/status": _status_page(hanging)}) as port, ThreadPoolExecutor(4) as clients:
        assert len(get(port, "/status")["repositories"]) == 1
        hanging.answers.clear()
        asked = [clients.submit(get, port, "/status") for _ in range(4)]
        answers = as_completed(asked)
        for _ in range(3):
            said = {"ready": False, "reasons": ["another request waits for the log"]}
            assert next(answers).result() == said
        assert get(port, "/live") == {"alive": True}
        hanging.answers.set()
        assert len(next(answers).result()["repositories"]) == 1
        eventually(lambda: "repositories" in get(port, "/status"))

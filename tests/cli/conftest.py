# SPDX-License-Identifier: GPL-2.0-or-later
"""What a verb that goes on until it is interrupted meets in the process of the tests."""

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from hgext.vcsreplicator.cli import listen, status, verify


@pytest.fixture
def within_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verbs leave signals and log lines to the run of tests."""
    for verb in (listen, verify):
        monkeypatch.setattr(verb, "stop_on_signals", threading.Event)
        monkeypatch.setattr(verb, "configure_logging", lambda role: None)


@pytest.fixture
def between_views(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have a watched status be interrupted after its first view, or after one more for each of these acts before it."""

    def go_on(*acts: Callable[[], object]) -> None:
        left = list(acts)

        def sleep(_seconds: float) -> None:
            if not left:
                raise KeyboardInterrupt
            left.pop(0)()

        monkeypatch.setattr(status, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))

    return go_on

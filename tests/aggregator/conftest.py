# SPDX-License-Identifier: GPL-2.0-or-later
"""Each kind of log, for tests of what an aggregator writes, how much it writes at once, and its next release."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hgext.vcsreplicator.aggregator import completeness
from hgext.vcsreplicator.aggregator.decisions import outgoing
from hgext.vcsreplicator.words import wire


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.services)])
def url(request: pytest.FixtureRequest, tmp_path: Path, unique_name: str) -> str:
    if request.param == "kafka":
        return f"{request.getfixturevalue('kafka').url}?topic-prefix={unique_name}."
    return f"sqlite://{tmp_path / 'log.db'}"


@pytest.fixture
def limit_batch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has a transaction end at fewer bytes, or states, than a log takes in time."""

    def limit(*, size: int = outgoing.BATCH_BYTES, states: int = outgoing.BATCH_STATES) -> None:
        monkeypatch.setattr(outgoing, "BATCH_BYTES", size)
        monkeypatch.setattr(outgoing, "BATCH_STATES", states)

    return limit


@pytest.fixture
def upgrade(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Callable[[], None]]:
    """Makes this a release that knows one version more; what it returns takes that back."""

    def begin() -> Callable[[], None]:
        known = wire.VERSION
        monkeypatch.setattr(wire, "VERSION", known + 1)
        return lambda: monkeypatch.setattr(wire, "VERSION", known)

    return begin


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The aggregator waits for an answer of the log for a moment only."""
    monkeypatch.setattr(completeness, "PAUSE", 0.01)

# SPDX-License-Identifier: GPL-2.0-or-later
"""What a process knows of brokers, which its clients share."""

import pytest

from hgext.vcsreplicator.log.kafka import connections


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> connections.HangingBrokers:
    """What the process knows of brokers, for this test alone: nothing yet."""
    monkeypatch.setattr(connections, "HANGING", connections.HangingBrokers())
    return connections.HANGING


@pytest.fixture
def suspicious(unknown: connections.HangingBrokers, monkeypatch: pytest.MonkeyPatch) -> connections.HangingBrokers:
    """The same, where each request that is under way makes its broker suspect."""
    for name in ("SUSPICION", "LONE_SUSPICION"):
        monkeypatch.setattr(connections, name, 0.0)
    return unknown

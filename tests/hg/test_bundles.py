# SPDX-License-Identifier: GPL-2.0-or-later
"""Bundles of events, and what making them does to the process."""

import pytest
from mercurial import encoding

from hgext.vcsreplicator.hg.bundles import RepositoryOpener


def test_a_push_that_sends_its_own_events_keeps_the_rules_of_the_repositories_it_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(encoding.environ, b"HGRCSKIPREPO", raising=False)
    RepositoryOpener(skip_hgrc=False)
    assert b"HGRCSKIPREPO" not in encoding.environ

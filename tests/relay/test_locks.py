# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's port to Mercurial does not wait for locks, and says what it refuses."""

import os
from pathlib import Path

import pytest
from mercurial import ui as uimod

from hgext.vcsreplicator.hg.master.relaying import MasterRepositories
from hgext.vcsreplicator.outbox.file import Outbox
from hgext.vcsreplicator.words.errors import Refused
from pushlog.versions import factory, initialize


def test_a_repository_whose_lock_is_held_is_announced_later(tmp_path: Path) -> None:
    initialize()
    folder = str(tmp_path / "a")
    repo = factory.repository(uimod.ui.load(), os.fsencode(folder), create=True).unfiltered()
    relay = MasterRepositories({str(tmp_path): ""}, "hg://master")
    with repo.lock():
        assert not relay.announce(folder)
    assert Outbox(repo.svfs).newest() is None
    assert relay.announce(folder)
    newest = Outbox(repo.svfs).newest()
    assert newest is not None
    assert (newest.path, newest.seq) == ("a", 1)


def test_a_repository_whose_path_mirrors_cannot_have_is_refused(tmp_path: Path) -> None:
    initialize()
    folder = str(tmp_path / "blank ")
    factory.repository(uimod.ui.load(), os.fsencode(folder), create=True)
    with pytest.raises(Refused, match=r"'blank ' begins or ends.*rename the repository"):
        MasterRepositories({str(tmp_path): ""}, "hg://master").announce(folder)

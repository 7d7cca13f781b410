# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's port to Mercurial does not wait for locks, and says what it refuses."""

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from mercurial import ui as uimod

from hgext.vcsreplicator.hg.relaying import MasterRepositories
from hgext.vcsreplicator.outbox.file import Outbox
from hgext.vcsreplicator.words.errors import Refused
from hgext.vcsreplicator.words.event import UNKNOWN_SETTINGS
from pushlog.versions import factory, initialize
from testing.unwritable import unwritable


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


def test_the_relay_states_no_setting_of_a_hgrc_that_it_does_not_read(tmp_path: Path) -> None:
    initialize()
    folder = tmp_path / "a"
    repo = factory.repository(uimod.ui.load(), os.fsencode(folder), create=True).unfiltered()
    (folder / ".hg" / "hgrc").write_text("[phases]\npublish = no\n")
    assert MasterRepositories({str(tmp_path): ""}, "hg://master").announce(str(folder))
    [place] = Outbox(repo.svfs).kept()
    assert place.entry.event.settings.for_clients(is_push=False) == UNKNOWN_SETTINGS


def test_a_repository_whose_path_mirrors_cannot_have_is_refused(tmp_path: Path) -> None:
    initialize()
    folder = str(tmp_path / "blank ")
    factory.repository(uimod.ui.load(), os.fsencode(folder), create=True)
    with pytest.raises(Refused, match=r"'blank ' begins or ends.*rename the repository"):
        MasterRepositories({str(tmp_path): ""}, "hg://master").announce(folder)


@pytest.fixture
def foreign() -> Iterator[tuple[str, MasterRepositories]]:
    """A repository that another user made, below a folder that every user may enter."""
    initialize()
    with tempfile.TemporaryDirectory() as root:
        os.chmod(root, 0o755)
        folder = os.path.join(root, "a")
        factory.repository(uimod.ui.load(), os.fsencode(folder), create=True)
        yield folder, MasterRepositories({root: ""}, "hg://master")


def test_a_lock_that_the_relay_may_not_take_is_an_error_with_its_file(foreign: tuple[str, MasterRepositories]) -> None:
    folder, relay = foreign
    store = os.path.join(folder, ".hg", "store")
    for job in (relay.announce, relay.recover):
        with unwritable(store), pytest.raises(PermissionError) as raised:
            job(folder)
        assert (raised.value.errno, raised.value.filename) == (errno.EACCES, f"{store}/lock")
    assert relay.announce(folder)

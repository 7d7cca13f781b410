# SPDX-License-Identifier: GPL-2.0-or-later
"""A lock whose removal failed keeps nobody out while its process lives on."""

import os
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest
from mercurial import ui as uimod

from hgext.vcsreplicator.hg.serving import left_locks
from pushlog.versions import factory, initialize
from testing.unwritable import unwritable
from testing.waiting import eventually


@pytest.fixture
def repo() -> Iterator[Any]:
    """A repository below a folder that every user may enter."""
    initialize()
    left_locks.install()
    with tempfile.TemporaryDirectory() as root:
        os.chmod(root, 0o755)
        yield factory.repository(uimod.ui.load(), os.fsencode(os.path.join(root, "a")), create=True)


@pytest.mark.parametrize("name", ["lock", "wlock"])
def test_a_lock_that_a_disk_did_not_let_go_is_removed_later(repo: Any, name: str) -> None:
    held = getattr(repo, name)()
    path = held.vfs.join(held.f)
    with unwritable(os.path.dirname(path)):
        held.release()
        time.sleep(1.5 * left_locks.PAUSE)  # an attempt fails
        assert os.path.lexists(path)
    eventually(lambda: not os.path.lexists(path), "the lock is removed")
    getattr(repo, name)(wait=False).release()


def test_a_lock_that_is_taken_meanwhile_is_left_alone(repo: Any) -> None:
    held = repo.lock()
    path = held.vfs.join(held.f)
    with unwritable(os.path.dirname(path)):
        held.release()
    os.unlink(path)  # by an operator
    with repo.lock(wait=False):
        time.sleep(2.5 * left_locks.PAUSE)
        assert os.path.lexists(path)
    assert not os.path.lexists(path)


def test_a_fork_does_not_remove_the_lock_of_its_parent(repo: Any) -> None:
    with repo.lock() as held:
        child = os.fork()
        if not child:
            held.release()
            time.sleep(1.5 * left_locks.PAUSE)
            os._exit(0)
        os.waitpid(child, 0)
        assert os.path.lexists(held.vfs.join(held.f))

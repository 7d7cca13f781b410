# SPDX-License-Identifier: GPL-2.0-or-later
"""Events that are written in transactions of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mercurial.localrepo import localrepository

from ....outbox.file import Outbox
from ..announcing import Announcement
from ..capture import capture_of
from ..repository import LIFECYCLE, OWN, REQUEST

if TYPE_CHECKING:
    from ....outbox.entry import NewestEvent


def announce(repo: localrepository, announcement: Announcement, *, check_first: bool = False) -> None:
    """Write one event in a transaction of its own.

    With `check_first` the repository is compared with its newest event first, as for any change, and differences are announced.
    """
    name = REQUEST if check_first else LIFECYCLE
    with repo.lock(), repo.transaction(name) as tr:
        capture_of(tr).announcements.append(announcement)


def announce_outside(repo: localrepository) -> NewestEvent:
    """Write events of changes from outside, if any, and return the newest event then."""
    with repo.lock(), repo.transaction(OWN + b"level"):
        pass
    return read_newest(repo)


def read_newest(repo: localrepository) -> NewestEvent:
    """Read the newest event of a repository that has one."""
    newest = Outbox(repo.svfs).newest()
    assert newest is not None
    return newest

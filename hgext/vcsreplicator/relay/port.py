# SPDX-License-Identifier: GPL-2.0-or-later
"""What the relay needs of Mercurial; the command hands it in."""

from typing import Protocol

from ..outbox.bundles import Bundle
from ..outbox.entry import Entry


class MasterPort(Protocol):
    """The repositories of a master; implemented by `hg.master.relaying`."""

    def make_bundle(self, folder: str, entry: Entry) -> Bundle:
        """Make the bundle of an entry of the repository in `folder`; raises ChangesetsGone."""

    def recover(self, folder: str) -> bool:
        """Roll back an abandoned transaction, unless another process holds the lock; whether it did."""

    def announce(self, folder: str) -> bool:
        """Write a repository's first event; False if its lock is held elsewhere. Refused if it cannot be replicated."""

    def finish(self, root: str) -> list[str]:
        """Finish the strips, deletions and renames that a kill interrupted; describe those that could not be finished."""

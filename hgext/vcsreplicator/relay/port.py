# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's port to Mercurial; the command passes the implementation in."""

from typing import Protocol

from ..outbox.bundles import Bundle
from ..outbox.entry import Entry


class MasterPort(Protocol):
    """The repositories of a master; implemented by `hg.relaying`."""

    def make_bundle(self, folder: str, entry: Entry) -> Bundle:
        """Make the bundle of an entry of the repository in `folder`.

        Raises ChangesetsGone if the entry's changesets are gone.
        """

    def recover(self, folder: str) -> bool:
        """Roll back an abandoned transaction; return whether that was done.

        Leaves a transaction whose process lives, and so holds the lock. Raises OSError if this user may not take the lock.
        """

    def announce(self, folder: str) -> bool:
        """Write a repository's first event; return False if its lock is held elsewhere.

        Raises Refused if the repository cannot be replicated, OSError if this user may not take the lock.
        """

    def place(self, folder: str) -> tuple[str, int] | None:
        """Return the wire path of a folder, and the generation of the next repository there.

        None if no repository can be there.
        """

    def finish(self, root: str) -> list[str]:
        """Finish the strips, deletions and renames that a kill interrupted.

        Returns a description of each that could not be finished.
        """

    def is_changed_outside(self, folder: str) -> bool | None:
        """Return whether the changelog is another than the newest event left it.

        False if there is no event. None if that is unknown: a process works there.
        """

    def find_refusal(self, folder: str) -> str | None:
        """Return why pushes are refused or would do harm: the history is damaged or lost, or the pushlog's file an older copy.

        None if nothing is wrong. Raises Unavailable while a process works there, OSError if this user may not read the files.
        """

# SPDX-License-Identifier: GPL-2.0-or-later
"""The storage of pushes.

Pushes are in a file that commits with Mercurial's transaction, and in the SQLite database behind it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mercurial.localrepo import localrepository

_JOURNAL = f"{__package__}.journal"


@functools.cache
def complete_journals() -> None:
    """Wrap what `journal` completes, once per process, for every repository in it.

    The first strip or rollback loads that module; no push does.
    """
    from .. import seams

    seams.wrap("mercurial.localrepo", "localrepository._writejournal", _drop_former_backups)
    seams.wrap("mercurial.transaction", "transaction.endgroup", seams.loading(_JOURNAL, "endgroup"))
    seams.wrap("mercurial.transaction", "rollback", seams.loading(_JOURNAL, "rollback"))


def _drop_former_backups(orig: Any, repo: localrepository, desc: bytes) -> None:
    """Begin a journal without the list of backups that a killed process left.

    Mercurial removes the list after the commit, and makes the next journal before the next list. Killed both times in between, it
    would roll back to what was there before the first transaction, which is committed. A kill of `journal.rollback` leaves a list,
    too.
    """
    try:
        repo.svfs.unlink(b"journal.backupfiles")
    except FileNotFoundError:
        pass
    else:
        from . import disk

        disk.sync_folder(repo.svfs.join(b""))
    orig(repo, desc)

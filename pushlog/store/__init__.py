# SPDX-License-Identifier: GPL-2.0-or-later
"""The storage of pushes.

Pushes are in a file that commits with Mercurial's transaction, and in the SQLite database behind it.
"""

from __future__ import annotations

import functools
import os
from typing import IO, TYPE_CHECKING, Any

from mercurial import error

if TYPE_CHECKING:
    from mercurial.localrepo import localrepository
    from mercurial.transaction import transaction as Transaction

_JOURNAL = f"{__package__}.journal"


@functools.cache
def complete_journals() -> None:
    """Wrap what `journal` completes or replaces, and writes that would lose something, for all repositories, once.

    The first strip, abort or rollback loads that module; no push does.
    """
    from .. import seams

    seams.wrap("mercurial.util", "atomictempfile.close", _sync_phases)
    seams.wrap("mercurial.localrepo", "localrepository._writejournal", _drop_former_backups)
    seams.wrap("mercurial.transaction", "transaction._abort", seams.loading(_JOURNAL, "abort"))
    seams.wrap("mercurial.transaction", "transaction.add", _refuse_damaged)
    seams.wrap("mercurial.transaction", "transaction.endgroup", seams.loading(_JOURNAL, "endgroup"))
    seams.wrap("mercurial.transaction", "rollback", seams.loading(_JOURNAL, "rollback"))
    seams.wrap("mercurial.transaction", "_playback", seams.loading(_JOURNAL, "play_back"))
    seams.wrap("mercurial.transaction", "read_backup_files", _drop_foreign_backups)


def _sync_phases(orig: Any, file: Any) -> None:
    """Have the content of a file of phases on the disk before it has its name.

    Mercurial replaces the file without a sync. After a power cut it could be empty, which means that everything is public: clients
    would see what is secret, and pull drafts as public.
    """
    if not file._fp.closed and os.path.basename(file._tempname).startswith(b".phaseroots-") and file._fp.tell():
        file._fp.flush()
        os.fdatasync(file._fp.fileno())
    orig(file)


def _refuse_damaged(orig: Any, tr: Transaction, file: bytes, offset: int) -> None:
    """Journal a file, or raise Abort before content is appended to a file not as long as its index says.

    Mercurial appends at the file's end, while the index has the new version begin where the one before ended. So after a cut, or
    behind what is left of another transaction, none could read it. Mercurial journals a file with its size by the index, before
    its first append (`tests/hg/master/test_outside_processes.py`). A strip does so within a group, to cut the file.
    """
    is_contents = offset and file.endswith(b".d") and not tr._queue
    if is_contents and file not in tr._offsetmap and file not in tr._newfiles and file not in tr._backupmap:
        try:
            size = os.stat(tr._opener.join(file)).st_size
        except FileNotFoundError:
            size = 0
        if size != offset:
            from .frames import TornRecord

            raise error.Abort(
                b"%s is damaged: it has %d bytes, and its index names %d" % (file, size, offset),
                hint=b"nothing was changed; an administrator runs 'hg verify' in the repository, and restores it",
            ) from TornRecord(file, size, f"{offset} bytes expected")
    orig(tr, file, offset)


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


def _drop_foreign_backups(orig: Any, report: Any, fp: IO[bytes]) -> list[tuple[bytes, bytes, bytes, bool]]:
    """Read the list of the last transaction's backups without other files.

    Each commit removes the files of this list, and every account that may write to the store may have written it. Mercurial reads
    the list with `transaction.read_backup_files` (`tests/pushlog/store/rollback/test_playback.py`).
    """
    return [entry for entry in orig(report, fp) if _is_backup_of_last(entry[2])]


def _is_backup_of_last(backup: bytes) -> bool:
    folder, base = os.path.split(backup)
    # Under its absolute name a share backs up the bookmarks of its repository.
    is_inside = not folder.startswith(b"/") and b".." not in folder.split(b"/")
    return not backup or base == b"undo.backup.bookmarks.bck" or (is_inside and base.startswith(b"undo.backup."))

# SPDX-License-Identifier: GPL-2.0-or-later
"""Makes Mercurial's journal complete, and synced, before a strip or rollback.

A rollback after a kill truncates exactly the files that the journal names. Mercurial's own strip names them one by one, and its
rollback uses a list that is no journal at all: killed in the middle, both leave a store in which one file is truncated and its
partner is not.

Seams of Mercurial and what they must keep doing: `repair.strip` names its files within one group and cuts after `endgroup`;
`transaction.rollback` cuts by the list it is given, and removes that at its end (`tests/pushlog/store/test_kills.py`).
"""

from __future__ import annotations

from typing import Any

from mercurial import error
from mercurial.transaction import transaction as Transaction
from mercurial.vfs import abstractvfs

from .. import versions
from . import disk

JOURNAL, UNDO = b"journal", b"undo"
# The list of backups of either.
BACKUPS = b"%s.backupfiles"


def endgroup(orig: Any, tr: Transaction) -> None:
    """Journal a group of files whole, or raise OSError with none journalled."""
    known = {*tr._offsetmap, *tr._newfiles, *tr._backupmap, *versions.temporary_files(tr)}
    sizes: dict[bytes, int] = {}
    for file, size in tr._queue[-1]:
        if file not in known:
            sizes.setdefault(file, size)
    tr._file.seek(0)
    journal = tr._file.read() + b"".join(b"%s\0%d\n" % entry for entry in sizes.items())
    former, tr._file = tr._file, disk.replace(tr._opener, tr._journal, journal)
    former.close()
    tr._offsetmap.update({file: size for file, size in sizes.items() if size})
    tr._newfiles.update(file for file, size in sizes.items() if not size)
    orig(tr)  # ends the group, and finds its files journalled


def rollback(
    orig: Any,
    opener: abstractvfs,
    vfsmap: Any,
    file: bytes,
    *arguments: Any,
    skip_journal_pattern: Any = None,
    **options: Any,
) -> None:
    """Turn the transaction to undo into an interrupted one, then recover it."""
    if file == UNDO:
        if opener.exists(JOURNAL):
            raise error.Abort(b"abandoned transaction found", hint=b"run 'hg recover' to clean up transaction")
        _journal_backups(opener, skip_journal_pattern)
        opener.rename(UNDO, JOURNAL)
        disk.sync_folder(opener.join(b""))
        opener.tryunlink(BACKUPS % UNDO)
        file, skip_journal_pattern = JOURNAL, None
    orig(opener, vfsmap, file, *arguments, skip_journal_pattern=skip_journal_pattern, **options)


def _journal_backups(opener: abstractvfs, skipped: Any) -> None:
    """Write the list of backups to restore, without those that this rollback skips."""
    lines = opener.tryread(BACKUPS % UNDO).splitlines(keepends=True)
    kept = [line for line in lines if not (skipped and b"\0" in line and skipped.match(line.split(b"\0")[1]))]
    disk.replace(opener, BACKUPS % JOURNAL, b"".join(kept)).close()

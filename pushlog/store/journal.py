# SPDX-License-Identifier: GPL-2.0-or-later
"""Makes the journal of a strip complete, and rolls back inside the repository, on a full disk too.

A rollback after a kill truncates exactly the files that the journal names. Mercurial's own strip names them one by one, and its
rollback uses a list that is no journal at all: killed in the middle, both leave a store in which one file is truncated and its
partner is not.

Seams of Mercurial and what they must keep doing: `repair.strip` names its files within one group and cuts after `endgroup`
(`tests/pushlog/store/test_kills.py`). Each recovery and `hg rollback` goes through `transaction.rollback`, each abort through
`transaction._playback`, which are replaced (`tests/pushlog/store/rollback/test_playback.py`). Before that, an abort closes
`transaction._file` and `_backupsfile` (`tests/pushlog/store/test_journal.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from mercurial import error
from mercurial.transaction import transaction as Transaction
from mercurial.vfs import abstractvfs

from .. import versions
from . import disk
from .opening import open_regular
from .rollback import journalled, playback
from .rollback.playback import BACKUPS
from .rollback.playback import JOURNAL as JOURNAL

UNDO = b"undo"


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


def abort(orig: Any, tr: Transaction) -> None:
    """Roll back a transaction of this process on a full disk too.

    Mercurial first reads and closes both files of the journal, and ends with OSError where the disk has no room for their last
    lines; the rollback would be left to the next process. What such a line names was not touched yet.
    """
    try:
        tr._file.flush()
    except OSError:
        with contextlib.suppress(OSError):
            tr._file.close()
        tr._file = open(tr._opener.join(tr._journal), "r+b", opener=open_regular)  # noqa: SIM115 (the transaction closes it)
        tr._file.truncate(tr._file.read().rfind(b"\n") + 1)
    with contextlib.suppress(OSError):
        tr._backupsfile.close()
    orig(tr)


def rollback(
    _orig: Any,
    opener: abstractvfs,
    vfsmap: Mapping[bytes, abstractvfs],
    file: bytes,
    report: Any,
    checkambigfiles: Any = None,
    skip_journal_pattern: Any = None,
) -> None:
    """Roll back as `playback` does; what is to be undone is interrupted first.

    Raises Abort for a journal that no transaction of Mercurial writes.
    """
    with playback.Places(opener, vfsmap) as places:
        if file == UNDO:
            if opener.exists(JOURNAL):
                raise error.Abort(b"abandoned transaction found", hint=b"run 'hg recover' to clean up transaction")
            _journal_backups(opener, places.store.read(BACKUPS % UNDO), skip_journal_pattern)
            opener.rename(UNDO, JOURNAL)
            disk.sync_folder(opener.join(b""))
            opener.tryunlink(BACKUPS % UNDO)
        playback.roll_back(places, JOURNAL, report, checkambigfiles)


def play_back(
    _orig: Any,
    journal: bytes,
    report: Any,
    opener: abstractvfs,
    vfsmap: Mapping[bytes, abstractvfs],
    entries: Iterable[tuple[bytes, int]],
    backupentries: Iterable[tuple[bytes, bytes, bytes, bool]],
    unlink: bool = True,
    checkambigfiles: Any = None,
) -> None:
    """Undo a transaction of this process, as `playback` does.

    Other accounts may have written into the file of its journal, so a name that leads out of the repository raises Abort. What the
    process itself backed up may have any name inside.
    """
    with playback.Places(opener, vfsmap) as places:
        cuts = [journalled.Cut(*entry) for entry in entries]
        saved = [journalled.Saved(*entry) for entry in backupentries]
        playback.play(places, journal, report, cuts, saved, checkambigfiles)


def _journal_backups(opener: abstractvfs, backups: bytes, skipped: Any) -> None:
    """Write the list of backups to restore, without those that this rollback skips."""
    lines = backups.splitlines(keepends=True)
    kept = [line for line in lines if not (skipped and b"\0" in line and skipped.match(line.split(b"\0")[1]))]
    disk.replace(opener, BACKUPS % JOURNAL, b"".join(kept)).close()

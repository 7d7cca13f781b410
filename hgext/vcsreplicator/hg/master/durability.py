# SPDX-License-Identifier: GPL-2.0-or-later
"""What reaches the disk before the pusher hears "ok".

Mercurial syncs nothing. Without a power cut that does not matter; with one, the order on disk decides:

`store`   (0) the journal, before something is appended that counts without an index, and before a file is replaced; (1) the
          journal, before the changelog's index is written; (2) everything the transaction touched; (3) the outbox; (4) after the
          commit, the folder in which the journal stopped to exist. Bookmarks are written between (3) and the commit, and synced
          there. After a power cut the push is there whole, or is rolled back.
`outbox`  (3) and (4), and the journal before (3). The event is there, the changesets may have to come back from the pusher or a
          mirror; cheaper.
"""

import os
from collections.abc import Iterable
from typing import Any

from ..settings import Durability

LATE = b"~outbox"  # generators run sorted by name too
OUTBOX = b"outbox."
APPENDED = (b".d", b".log", b"obsstore")  # ends of names; content, and records, that count as soon as they are there
REPLACED = (b"bookmarks", b"fncache", b"phaseroots")
MANY = 24  # files; beyond, one syncfs of the whole file system is cheaper


def sync_before_change(repo: Any, tr: Any) -> None:
    """Step 0, from now on in this transaction.

    Mercurial appends to the content of a log (`00changelog.d`) at its end. What a power cut left there of a push that nothing
    rolled back would shift the next push's content, which the index then places wrongly: an accepted push could not be read. Rows
    of the pushlog and markers would be there without their push. And a file that is replaced (phases, bookmarks, the list of
    files) may be empty after a power cut, its backup unknown.

    Seams: `transaction.add` and `addbackup` write to the journal before the file is touched (`test_push_power.py`).
    """
    add, add_backup = tr.add, tr.addbackup

    def add_and_sync(file: bytes, offset: int) -> None:
        is_new = file not in tr._offsetmap and file not in tr._newfiles
        add(file, offset)
        if is_new and file.endswith(APPENDED) and not file.startswith(OUTBOX):  # for which step 2 is
            sync_journal(repo)

    def add_backup_and_sync(file: bytes, *arguments: Any, **keywords: Any) -> None:
        known = len(tr._backupentries)
        add_backup(file, *arguments, **keywords)
        if len(tr._backupentries) > known and file in REPLACED:
            sync_journal(repo)
            _sync_folder(os.path.dirname(tr._vfsmap[tr._backupentries[-1][0]].join(file)))

    tr.add, tr.addbackup = add_and_sync, add_backup_and_sync


def sync_journal(repo: Any) -> None:
    """Step 1: what is needed to undo is on disk before what may have to be undone."""
    for name in (b"journal", b"journal.backupfiles"):
        _sync_file(repo.svfs.join(name))
    _sync_folder(repo.svfs.join(b""))


def before_outbox(repo: Any, tr: Any, durability: Durability) -> None:
    """Step 2; in any case the journal, which names the outbox by now: an event that is not committed must be undone."""
    paths = list(_touched(repo, tr)) if durability is Durability.STORE else [repo.svfs.join(b"journal")]
    if len(paths) > MANY:
        _sync_file_system(repo.svfs.join(b""))
        return
    for path in paths:
        _sync_file(path)


def sync_late_files(repo: Any, tr: Any, durability: Durability) -> None:
    """What Mercurial writes between the outbox and the commit (bookmarks) is synced as soon as it is written."""
    generators = tr._filegenerators.values()
    late = [
        tr._vfsmap[location].join(name) for _, names, _, location, is_late in generators if is_late for name in names
    ]
    if late and durability is Durability.STORE:

        def sync() -> None:
            for path in late:
                _sync_file(path)
            for folder in {os.path.dirname(path) for path in late}:
                _sync_folder(folder)

        tr.addfilegenerator(LATE, (), sync, location=b"plain", post_finalize=True)


def after_outbox(repo: Any, name: bytes) -> None:
    """Step 3."""
    _sync_file(repo.svfs.join(name))


def after_commit(repo: Any) -> None:
    """Step 4; raises OSError."""
    _sync_folder(repo.svfs.join(b""))


def _touched(repo: Any, tr: Any) -> Iterable[bytes]:
    """Every file that the transaction appended to, created or replaced so far, and the journal that says so.

    Not the outbox, which is synced once its record stands there; nor a file that still is its own backup, for it is the old one.
    """
    yield repo.svfs.join(b"journal")
    yield repo.svfs.join(b"journal.backupfiles")
    for name in (*tr._offsetmap, *tr._newfiles):
        if not name.startswith(OUTBOX):
            yield repo.svfs.join(name)
    for location, name, backup, _cache in tr._backupentries:
        vfs = tr._vfsmap[location]
        if name and not (backup and _same(vfs.join(name), vfs.join(backup))):
            yield vfs.join(name)


def _same(path: bytes, other: bytes) -> bool:
    try:
        return os.path.samefile(path, other)
    except FileNotFoundError:
        return False


def _sync_file(path: bytes) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(path: bytes) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_file_system(path: bytes) -> None:
    import ctypes  # 2 ms, which most pushes need not pay

    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        library = ctypes.CDLL(None, use_errno=True)
        if library.syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), "syncfs failed")
    finally:
        os.close(descriptor)

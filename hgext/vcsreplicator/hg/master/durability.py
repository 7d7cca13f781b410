# SPDX-License-Identifier: GPL-2.0-or-later
"""The syncs to disk before a push is confirmed to the pusher.

Mercurial syncs nothing. That matters only at a power cut; then the order on disk decides:

`store`   (0) the journal, before an append, and before a file is replaced; once for all files that a push's changesets name;
          (1) the journal, before the changelog's index is written; (2) everything the transaction touched; (3) the outbox; (4)
          after the commit, the folder from which the journal was removed. Bookmarks are written between (3) and the commit, and
          synced there. After a power cut the push is there whole, or is rolled back.
          A strip is several transactions without an event, in which everything is synced before each begins and before it commits,
          and content before its file is replaced. Everything is on disk before the strip's event, too.
`outbox`  (3) and (4), and the journal before (3). The event survives; the changesets may have to come back from the pusher or a
          mirror; cheaper.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from mercurial import vfs
from mercurial.localrepo import localrepository
from mercurial.transaction import transaction as Transaction

from pushlog import seams
from pushlog.store import disk

from ...outbox.file import Outbox

if TYPE_CHECKING:
    from mercurial import util

    from ..settings import Durability
    from .repository import MasterRepository

# The file generator that runs last: they run sorted by name, as finalizers do.
LATE = b"~outbox"
# The name under which the extension `share` writes bookmarks after the commit.
SHARED = b"share-bookmarks"
OUTBOX = b"outbox."
MANIFESTS = b"00manifest.i"
# Ends of the names of files that are appended to.
APPENDED = (b".d", b".i", b".log", b"obsstore")
# Files that are journalled before step 1 and appended after it.
RESERVED = (OUTBOX, b"pushlog.log", b"00changelog.i")
# What leads out of the store, or is no name of a file; a later check refuses such a push.
_ODD_NAME = re.compile(rb"\0|(?:^|/)(?:|\.\.?)(?:/|$)")
# An index of files, in a format of 7.2, and how the names of its parts begin.
INDEX = b"fileindex"
REPLACED = (b"bookmarks", INDEX, b"fncache", b"phaseroots")
# Files to sync one by one; for more, one syncfs of the whole file system is cheaper.
MANY = 24


def sync_before_change(repo: localrepository, tr: Transaction) -> None:
    """Do step 0 from now on in this transaction.

    A power cut may leave an appended file with its new size, and zeros or a part of what was appended. Without the journal these
    would remain. An index of the manifests or of a file could not be read then, and content (`00changelog.d`) would shift the next
    push's, so that the index would point to the wrong place. Pushlog rows and markers would remain without their push. And a
    replaced file (phases, bookmarks, the list of files) may be empty after a power cut, its backup unknown.

    Seams: `transaction.add` and `addbackup` write to the journal before the file is touched (`tests/hg/master/test_power.py`).
    """
    add, add_backup = tr.add, tr.addbackup

    def add_and_sync(file: bytes, offset: int) -> None:
        is_new = file not in tr._offsetmap and file not in tr._newfiles
        if is_new and not tr._queue and file.startswith(MANIFESTS[:-1]):
            for named, size in _list_named(repo, tr):
                add(named, size)
        add(file, offset)
        # The end of a group, which only a strip has, syncs the journal.
        if is_new and not tr._queue and file.endswith(APPENDED) and not file.startswith(RESERVED):
            sync_journal(repo)

    def add_backup_and_sync(file: bytes, *arguments: Any, **keywords: Any) -> None:
        known = len(tr._backupentries)
        add_backup(file, *arguments, **keywords)
        if len(tr._backupentries) > known and os.path.basename(file) in REPLACED:
            sync_journal(repo)
            disk.sync_folder(os.path.dirname(tr._vfsmap[tr._backupentries[-1][0]].join(file)))

    tr.add, tr.addbackup = add_and_sync, add_backup_and_sync  # type: ignore[method-assign]


def _list_named(repo: localrepository, tr: Transaction) -> Iterator[tuple[bytes, int]]:
    """List the indexes to which the content of the transaction's changesets will be appended, each with its size.

    They follow the manifests. Content in files of its own is left out: Mercurial journals it with the size by its index.
    """
    yield MANIFESTS, _size_of(repo.svfs.join(MANIFESTS))
    changelog: Any = repo.unfiltered().changelog
    added = range(tr.changes[b"origrepolen"], len(changelog))
    for name in {name for rev in added for name in changelog.changelogrevision(rev).files}:
        index = b"data/%s.i" % name
        if not _ODD_NAME.search(name):
            with contextlib.suppress(OSError):  # it is journalled alone, before it is appended to
                yield index, _size_of(repo.svfs.join(index))


def _size_of(path: bytes) -> int:
    try:
        return os.stat(path).st_size
    except (FileNotFoundError, NotADirectoryError):
        return 0


def reserve_and_sync(repo: localrepository, tr: Transaction) -> None:
    """Do step 1 for the outbox too, with one sync of the journal.

    The sync covers the changelog, the outbox, and the pushlog, which has journalled its file by then.
    """
    Outbox(repo.svfs).reserve(tr)
    sync_journal(repo)


def sync_journal(repo: localrepository) -> None:
    """Sync the journal, which undoes what is written next."""
    for name in (b"journal", b"journal.backupfiles"):
        _sync_file(repo.svfs.join(name))
    disk.sync_folder(repo.svfs.join(b""))


@contextlib.contextmanager
def replacing_synced(repo: MasterRepository) -> Iterator[None]:
    """With `store`, sync each replaced file before it has its name, within the block.

    A strip replaces the list of files and the markers without a backup in the journal.
    """
    if repo.replication_settings.durability != "store":
        yield
        return
    with seams.wrapped("mercurial.util", "atomictempfile.close", _close_synced):
        yield


def _close_synced(original: Callable[[util.atomictempfile], None], file: util.atomictempfile) -> None:
    if not file._fp.closed:
        file._fp.flush()
        os.fdatasync(file._fp.fileno())
    original(file)


def sync_repository(repo: localrepository) -> None:
    """Sync everything written so far, with one syncfs of the file system."""
    _sync_file_system(repo.svfs.join(b""))


def before_outbox(repo: localrepository, tr: Transaction, durability: Durability) -> None:
    """Do step 2, at least for the journal: an uncommitted event must be undone."""
    paths = list(_list_touched(repo, tr)) if durability == "store" else [repo.svfs.join(b"journal")]
    if len(paths) > MANY:
        sync_repository(repo)
        return
    for path in paths:
        _sync_file(path)


def sync_late_files(tr: Transaction, durability: Durability) -> None:
    """Have the bookmarks synced, and the index of files of a format of 7.2: they are written between the outbox and the commit."""
    generators = tr._filegenerators.values()
    late = [
        tr._vfsmap[location].join(name) for _, names, _, location, is_late in generators if is_late for name in names
    ]
    if late and durability == "store":

        def sync() -> None:
            folders = {os.path.dirname(path) for path in late}
            # Mercurial appends to what belongs to that index past its transaction.
            parts = [
                os.path.join(each, name) for each in folders for name in os.listdir(each) if name.startswith(INDEX)
            ]
            for path in {*late, *parts}:
                _sync_file(path)
            for folder in folders:
                disk.sync_folder(folder)

        tr.addfilegenerator(LATE, (), sync, location=b"plain", post_finalize=True)


def write_shared_bookmarks(repo: localrepository, tr: Transaction, durability: Durability) -> None:
    """Have the bookmarks of a share written to its repository before the commit, too.

    The extension `share` writes them after the commit, so a kill would lose what the event announces
    (`tests/hg/master/abandoned.t`). An absolute name is the same for every process that rolls back.
    """
    folder = vfs.vfs(repo.sharedpath)
    folder.createmode = repo.store.createmode
    path = folder.join(b"bookmarks")

    def write() -> None:
        tr.addbackup(path, location=b"plain")
        with folder(b"bookmarks", b"w", atomictemp=True, checkambig=True) as file:
            repo._bookmarks._write(file)
        if durability == "store":
            _sync_file(path)
            disk.sync_folder(repo.sharedpath)

    tr.addfilegenerator(SHARED, (), write, location=b"plain", post_finalize=True)
    tr.addpostclose(SHARED, lambda _tr: None)


def after_outbox(repo: localrepository, name: bytes) -> None:
    """Do step 3."""
    _sync_file(repo.svfs.join(name))


def _list_touched(repo: localrepository, tr: Transaction) -> Iterable[bytes]:
    """List the files that the transaction touched so far, and the journal.

    It appended to them, created or replaced them, and the journal names them. The outbox is left out, because it is synced after
    its record is written. Files that still are their own backups are left out too: they are not replaced yet.
    """
    yield repo.svfs.join(b"journal")
    yield repo.svfs.join(b"journal.backupfiles")
    for name in (*tr._offsetmap, *tr._newfiles):
        if not name.startswith(OUTBOX):
            yield repo.svfs.join(name)
    for location, name, backup, _cache in tr._backupentries:
        place = tr._vfsmap[location]
        if name and not (backup and _is_same_file(place.join(name), place.join(backup))):
            yield place.join(name)


def _is_same_file(path: bytes, other: bytes) -> bool:
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


def _sync_file_system(path: bytes) -> None:
    # 2 ms that most pushes do not need.
    import ctypes

    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        library = ctypes.CDLL(None, use_errno=True)
        if library.syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), "syncfs failed")
    finally:
        os.close(descriptor)

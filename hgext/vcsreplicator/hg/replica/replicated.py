# SPDX-License-Identifier: GPL-2.0-or-later
"""The checkpoints of a mirrored repository, in `.hg/store/replicated.log`.

The file has one record per event, written in the event's transaction. The last record is the mirror's level. Earlier ones are for
the release of earlier events; those before the newest release are useless and are cut off periodically.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from mercurial.localrepo import localrepository
from mercurial.transaction import transaction

from pushlog.store import disk
from pushlog.store.appendfile import AppendFile

from ...mirror.checkpoint import FILE, MAGIC, Checkpoint, checkpoint_of
from ...words.shape import to_json

if TYPE_CHECKING:
    from pushlog.store.appendfile import Folder

# From this size on the file is cut.
TRIM_BYTES = 1 << 20


def read(repo: localrepository) -> Checkpoint | None:
    """Read the last checkpoint, None without; raises TornRecord or MalformedEvent."""
    last = AppendFile(repo.svfs, FILE, MAGIC).last()
    return None if last is None else checkpoint_of(last.payload)


def find(repo: localrepository, seq: int) -> tuple[Checkpoint, Mapping[str, str | None]] | None:
    """Find the newest kept checkpoint up to `seq`, and the bookmarks moved since.

    The checkpoint that a strip lowers before it begins does not count, because it shows less than was applied.
    """
    moved: dict[str, str | None] = {}
    for checkpoint in read_backwards(repo.svfs):
        if checkpoint.seq <= seq and not checkpoint.stripping:
            return checkpoint, moved
        moved.update(checkpoint.moved)
    return None


def hgrc_since(repo: localrepository, seq: int, released: int) -> Mapping[str, Mapping[str, str]] | None:
    """Find the newest configuration brought by events above `seq`, up to `released`."""
    brought = (each.hgrc for each in _read_back_to(repo, seq) if each.seq <= released)
    return next((hgrc for hgrc in brought if hgrc is not None), None)


def after(repo: localrepository, seq: int) -> list[Checkpoint]:
    """List the kept checkpoints above `seq` that can be shown, the lowest first."""
    return [checkpoint for checkpoint in _read_back_to(repo, seq) if not checkpoint.stripping][::-1]


def _read_back_to(repo: localrepository, seq: int) -> Iterator[Checkpoint]:
    """Read the kept checkpoints above `seq`, the newest first."""
    return itertools.takewhile(lambda checkpoint: checkpoint.seq > seq, read_backwards(repo.svfs))


def read_backwards(store: Folder) -> Iterator[Checkpoint]:
    """Read the kept checkpoints lazily, the newest first.

    Raises TornRecord, MalformedEvent or OSError.
    """
    file = AppendFile(store, FILE, MAGIC)
    record = file.last()
    while record is not None:
        yield checkpoint_of(record.payload)
        record = file.last(before=record.start) if record.start else None


def append(repo: localrepository, tr: transaction, checkpoints: Sequence[Checkpoint]) -> None:
    """Make these the newest checkpoints once `tr` commits."""
    payloads = [to_json(checkpoint) for checkpoint in checkpoints]

    def write(tr: transaction) -> None:
        AppendFile(repo.svfs, FILE, MAGIC).append(tr, payloads)

    tr.addfinalize(b"replicated", write)


def record(repo: localrepository, checkpoint: Checkpoint) -> None:
    """Make this the newest checkpoint, in a transaction; the caller holds the lock."""
    with repo.transaction(b"replicated") as tr:
        append(repo, tr, [checkpoint])


def trim(repo: localrepository, released: int) -> None:
    """Cut off checkpoints before `released`, if the file is large and half may go.

    While less may go, as when a release waits long, only the first and the last one are read. The caller holds the lock, outside a
    transaction. The new file takes the old one's name in one step: a crash leaves either.
    """
    file = AppendFile(repo.svfs, FILE, MAGIC)
    if file.tail() < TRIM_BYTES:
        return
    first, last = next(file.records(), None), file.last()
    if first is None or last is None:
        return
    oldest, newest = checkpoint_of(first.payload).seq, checkpoint_of(last.payload).seq
    if oldest >= released or released - oldest < newest - released:
        return
    kept = (record.start for record in file.records() if checkpoint_of(record.payload).seq >= released)
    start = next(kept, None)
    if start is None:
        return
    disk.replace(repo.svfs, FILE, repo.svfs.read(FILE)[start:]).close()

# SPDX-License-Identifier: GPL-2.0-or-later
"""The levels of a mirrored repository, in `.hg/store/replicated.log`: one record an event, written in the event's transaction.

The last record is how far the mirror is. Earlier ones say what a release of an earlier event shows; those before the newest
release are of no use and are cut away from time to time.
"""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pushlog.store.appendfile import AppendFile

from ...mirror.checkpoint import FILE, MAGIC, Checkpoint, checkpoint_of
from ...words.shape import to_json

TRIM_BYTES = 1 << 20


def read(repo: Any, tr: Any = None) -> Checkpoint | None:
    """The level of the repository, None if it never was a mirror's; raises appendfile.TornRecord or MalformedEvent if damaged."""
    last = AppendFile(repo.svfs, FILE, MAGIC).last(tr)
    return None if last is None else checkpoint_of(last.payload)


def find(repo: Any, seq: int) -> tuple[Checkpoint, Mapping[str, str | None]] | None:
    """The newest kept level that is not above `seq`, and the bookmarks that were moved since, as they were at it.

    The level that a strip lowers before it begins shows less than was applied: it is no answer.
    """
    file = AppendFile(repo.svfs, FILE, MAGIC)
    record, moved = file.last(), {}
    while record is not None:
        level = checkpoint_of(record.payload)
        if level.seq <= seq and not level.stripping:
            return level, moved
        moved = {**moved, **level.moved}
        record = file.last(before=record.start) if record.start else None
    return None


def hgrc_since(repo: Any, seq: int, released: int) -> Mapping[str, Mapping[str, str]] | None:
    """The newest configuration that an event after `seq` and up to `released` brought; None if none did."""
    return next((level.hgrc for level in _back_to(repo, seq) if level.seq <= released and level.hgrc is not None), None)


def after(repo: Any, seq: int) -> list[Checkpoint]:
    """The kept levels above `seq` of which a release can be shown, the lowest first."""
    return [level for level in _back_to(repo, seq) if not level.stripping][::-1]


def _back_to(repo: Any, seq: int) -> Iterator[Checkpoint]:
    """The kept levels above `seq`, the newest first."""
    file = AppendFile(repo.svfs, FILE, MAGIC)
    record = file.last()
    while record is not None and (level := checkpoint_of(record.payload)).seq > seq:
        yield level
        record = file.last(before=record.start) if record.start else None


def append(repo: Any, tr: Any, levels: Sequence[Checkpoint]) -> None:
    """Makes these the newest levels once `tr` commits."""
    payloads = [to_json(level) for level in levels]
    tr.addfinalize(b"replicated", lambda tr: AppendFile(repo.svfs, FILE, MAGIC).append(tr, payloads))


def record(repo: Any, level: Checkpoint) -> None:
    """Makes this the newest level, for work that needs no transaction of its own; the caller holds the lock."""
    with repo.transaction(b"replicated") as tr:
        append(repo, tr, [level])


def trim(repo: Any, released: int) -> None:
    """Cuts away levels before `released` once the file is large; the caller holds the lock, no transaction is open.

    The new file takes the name of the old one in one step: a crash leaves either.
    """
    file = AppendFile(repo.svfs, FILE, MAGIC)
    if file.tail() < TRIM_BYTES:
        return
    keep = [record for record in file.records() if checkpoint_of(record.payload).seq >= released]
    if not keep:
        return
    with repo.svfs(FILE) as old:
        old.seek(keep[0].start)
        rest = old.read()
    name = repo.svfs.join(FILE)
    with open(name + b".new", "wb") as new:
        new.write(rest)
        new.flush()
        os.fsync(new.fileno())
    shutil.copymode(name, name + b".new")
    os.replace(name + b".new", name)

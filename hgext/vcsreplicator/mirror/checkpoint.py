# SPDX-License-Identifier: GPL-2.0-or-later
"""How far a mirror is in one repository.

A checkpoint is written in the transaction that applied its event, and is the truth after any crash.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any

from ..outbox.entry import NewestEvent
from ..words.digest import START
from ..words.event import NULL_NODE, UNKNOWN_SETTINGS, ClientSettings
from ..words.path import REPLICA_FILE
from ..words.shape import from_json

FILE, MAGIC = REPLICA_FILE, b"VRL1"
# How many former incarnations are remembered.
FORMER_KEPT = 16
# Bytes of a record: a snapshot may move every bookmark.
_LIMIT = 256 * 1024 * 1024
# What most checkpoints have, once for all of them.
_NOTHING_MOVED: Mapping[str, str | None] = {}
_SETTINGS: dict[ClientSettings, ClientSettings] = {}


class Checkpoint(NewestEvent):
    """The repository after event `seq`, as the mirror has it.

    `length` and `tip` are the mirror's own changelog then (unfiltered) and `push` its newest push id: a release of this event
    shows these. `partition` and `offset` say where the event stood in the log (-1: it did not come from there). `former` are the
    incarnations that this repository had before. `deleted`: this event was its deletion, and its folder must be removed.
    `moved` are the bookmarks that it set, moved or deleted, as they were before it (None: there was none): a release of an earlier
    event still shows these; a strip names none. `hgrc` is the configuration that this event brought, and `settings` are the
    master's at this event, as far as they are known; both take effect at its release.
    `stripping`: a strip was begun, and only the first `length` changesets are certain.
    """

    length: int
    tip: str
    push: int | None
    time: float
    partition: int = -1
    offset: int = -1
    former: tuple[str, ...] = ()
    deleted: bool = False
    stripping: bool = False
    moved: Mapping[str, str | None] = field(default_factory=dict)
    hgrc: Mapping[str, Mapping[str, str]] | None = None
    settings: ClientSettings = UNKNOWN_SETTINGS

    def contradicts(self, newest_known: tuple[int, str, str] | None) -> bool:
        """Return whether the aggregator saw another event at our sequence.

        `newest_known` has the sequence, id and digest of that event.
        """
        if newest_known is None:
            return False
        seq, *event = newest_known
        return seq == self.seq and event != [self.id, self.digest]

    def __reduce__(self) -> "tuple[Callable[..., Checkpoint], tuple[Any, ...]]":
        """Travel between processes as members alone: a mirror keeps a checkpoint of each repository."""
        return _restore, tuple(_share(getattr(self, name)) for name in self.list_members())


def checkpoint_of(record: bytes) -> Checkpoint:
    """Return the checkpoint in a record of the file; raises MalformedEvent."""
    return from_json(Checkpoint, record, limit=_LIMIT)


def _restore(*members: Any) -> Checkpoint:
    checkpoint = Checkpoint.__new__(Checkpoint)
    for name, member in zip(Checkpoint.list_members(), members, strict=True):
        object.__setattr__(checkpoint, name, _share(member))  # one by one, so that all share the names
    return checkpoint


def _share(member: Any) -> Any:
    """Return an equal member that all checkpoints of this process share, if there is one."""
    if type(member) is str:
        return sys.intern(member)
    if type(member) is ClientSettings:
        return _SETTINGS.setdefault(member, member)
    return _NOTHING_MOVED if member == _NOTHING_MOVED else member


def before_first(repository: str, incarnation: str, path: str, generation: int) -> Checkpoint:
    return Checkpoint(
        repository=repository,
        incarnation=incarnation,
        path=path,
        generation=generation,
        seq=0,
        id="",
        digest=START,
        length=0,
        tip=NULL_NODE,
        push=None,
        time=0.0,
    )


def with_former(checkpoint: Checkpoint, before: Checkpoint | None) -> Checkpoint:
    """Add what is known from the repository's checkpoint before, of any incarnation."""
    if before is None or before.repository != checkpoint.repository:
        return checkpoint
    names = [*before.former, *([before.incarnation] if before.incarnation != checkpoint.incarnation else [])]
    settings = checkpoint.settings.after(before.settings)
    return replace(checkpoint, former=tuple(names[-FORMER_KEPT:]), settings=settings)


# All checkpoints of this process share the room for the names of members if the first has all of them: Python 3.11 takes some of
# that room away with each value that is made without them.
_restore(*Checkpoint.list_members())

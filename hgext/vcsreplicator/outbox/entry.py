# SPDX-License-Identifier: GPL-2.0-or-later
"""The records of an outbox, and how each event follows from the event before it."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from typing import Self

from ..words import digest
from ..words.event import Changes, Event, MasterSettings, NamedEvent, PushConnection, Tip, Type
from ..words.value import Value


class MirrorNeeds(enum.StrEnum):
    """A mirror's needs besides the event.

    They are nothing, a bundle made of the entry's `first` and `markers`, or the master.
    """

    NOTHING = "nothing"
    BUNDLE = "bundle"
    MASTER = "master"


class Entry(Value):
    """A record of the outbox: the event, and the sources of its bundle.

    The bundle holds the revisions `first` up to before `event.after.length`, and `markers` (binary, base64). `connection` is where
    the push came from, if the master records it.
    """

    event: Event
    needs: MirrorNeeds
    first: int = 0
    markers: tuple[str, ...] = ()
    connection: PushConnection | None = None


class NewestEvent(NamedEvent):
    """A repository's newest event; before the first `seq` is 0 and `id` empty."""

    @classmethod
    def of(cls, event: Event) -> Self:
        """Return the identity and level after `event`."""
        return cls(**{name: getattr(event, name) for name in NamedEvent.list_members()})


class OutboxEnd(Value):
    """The newest event, and the changelog as that event left it."""

    newest: NewestEvent
    after: Tip


def new_id() -> str:
    """Return a unique identifier: 32 hexadecimal digits."""
    return os.urandom(16).hex()


def before_first_event(path: str, generation: int, repository: str | None = None) -> NewestEvent:
    """Return the identity of a repository that has no event yet, or begins a new history."""
    return NewestEvent(
        repository=repository or new_id(),
        incarnation=new_id(),
        path=path,
        generation=generation,
        seq=0,
        id="",
        digest=digest.START,
    )


def next_event(
    before: NewestEvent,
    kind: Type,
    *,
    time: float,
    source: str,
    changes: Changes,
    after: Tip,
    settings: MasterSettings,
    hgrc: Mapping[str, Mapping[str, str]] | None = None,
    detail: Mapping[str, str] | None = None,
) -> Event:
    """Return the event that follows `before`, with a new id."""
    return Event(
        type=kind,
        repository=before.repository,
        incarnation=before.incarnation,
        path=before.path,
        generation=before.generation,
        seq=before.seq + 1,
        id=new_id(),
        previous=before.id or None,
        digest=digest.advance(before.digest, kind, changes),
        time=time,
        source=source,
        changes=changes,
        after=after,
        settings=settings,
        hgrc=hgrc,
        detail=detail,
    )

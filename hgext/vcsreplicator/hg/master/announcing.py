# SPDX-License-Identifier: GPL-2.0-or-later
"""Events that do not follow from a transaction's own changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...outbox.entry import MirrorNeeds, NewestEvent, before_first_event
from ...words.event import NO_CHANGES, Changes, Tip, Type
from ...words.value import Value


class Announcement(Value):
    """An event to come that does not follow from the transaction's own changes.

    `identify` changes the identity that precedes the event. `first` is where the revisions of its bundle begin, `source` what it
    names as the origin of the change (default: its type).
    """

    kind: Type
    source: str | None = None
    needs: MirrorNeeds = MirrorNeeds.NOTHING
    first: int = 0
    changes: Changes = NO_CHANGES
    after: Tip | None = None
    identify: Callable[[NewestEvent | None], NewestEvent] | None = None
    hgrc: Mapping[str, Mapping[str, str]] | None = None
    detail: Mapping[str, str] | None = None


def announce_created(
    now: Tip, path: str, generation: int, origin: str, *, hgrc: Mapping[str, Mapping[str, str]]
) -> Announcement:
    """Return the first event of a repository, as it is now."""
    return Announcement(
        kind=Type.CREATED,
        needs=MirrorNeeds.MASTER if now.length else MirrorNeeds.NOTHING,
        after=now,
        identify=lambda _before: before_first_event(path, generation),
        hgrc=hgrc,
        detail={"origin": origin},
    )

# SPDX-License-Identifier: GPL-2.0-or-later
"""Public streams: which of them an event appears in, and the ids of its messages.

A stream is one type of public message of one repository: a receiver that takes `changegroup.1` of a repository sees a chain in
which each message names the one before. An event may appear in several streams (a push with changesets and markers), in one
message each; so the id of a message is `EVENT.STREAM`, unique and the same at every repeat to every destination.

The notice's `previous` (kept in `RepositoryState.streams`) holds ids of events; `message_id` makes message ids of them.
"""

import enum

from .event import Event, Type, read_disclosure


class Stream(enum.StrEnum):
    """The types of public messages; the value is the `type` that receivers see."""

    NEWREPO = "newrepo.1"
    CHANGEGROUP = "changegroup.1"
    OBSOLETE = "obsolete.1"
    BOOKMARK = "bookmark.1"
    PHASE = "phase.1"
    REPODELETED = "repodeleted.1"
    REPORENAMED = "reporenamed.1"


def streams(event: Event) -> tuple[Stream, ...]:
    """Return the streams of this event, in the order in which its messages are sent."""
    if event.type is Type.CHANGED:
        changes, said = event.changes, read_disclosure(event)
        # Changesets that are all secret are in no message.
        parts = (
            (Stream.CHANGEGROUP, changes.added if said.heads or not changes.heads_added else None),
            (Stream.OBSOLETE, changes.markers),
            (Stream.BOOKMARK, said.bookmarks),
            (Stream.PHASE, said.phases),
        )
        return tuple(stream for stream, what in parts if what)
    if event.type is Type.CREATED and (event.detail or {}).get("origin") == "adopted":
        return ()  # it existed before replication began, like thousands of others: new to us, not to receivers
    return _WHOLE.get(event.type, ())


def message_id(event_id: str, stream: str) -> str:
    return f"{event_id}.{stream}"


def event_of(message: str) -> str:
    """Return the id of the event that the message with this id is about."""
    return message.partition(".")[0]


_WHOLE = {Type.CREATED: (Stream.NEWREPO,), Type.DELETED: (Stream.REPODELETED,), Type.RENAMED: (Stream.REPORENAMED,)}

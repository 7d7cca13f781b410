# SPDX-License-Identifier: GPL-2.0-or-later
"""Hand-made events and notices for tests of what comes after the aggregator."""

import hashlib
from collections.abc import Mapping, Sequence

from hgext.vcsreplicator.log import NOTICES, Log, topics
from hgext.vcsreplicator.log import NewRecord as LogMessage
from hgext.vcsreplicator.words import digest
from hgext.vcsreplicator.words.event import (
    Bookmark,
    Changes,
    Event,
    Marker,
    MasterSettings,
    NodeSet,
    PhaseMove,
    PushConnection,
    PushEntry,
    Tip,
    Type,
)
from hgext.vcsreplicator.words.records import MirrorProof, Notice
from hgext.vcsreplicator.words.shape import to_json
from hgext.vcsreplicator.words.streams import streams
from hgext.vcsreplicator.words.wire import SIGNED, connection_headers

CREATED_AT = 1460975081.0


def identifier(*words: object) -> str:
    """32 hexadecimal digits that depend on the words alone."""
    return hashlib.sha256("/".join(map(str, words)).encode()).hexdigest()[:32]


def node(*words: object) -> str:
    """40 hexadecimal digits that depend on the words alone."""
    return hashlib.sha1("/".join(map(str, words)).encode()).hexdigest()


def an_event(
    path: str = "try",
    seq: int = 1,
    *,
    type: Type = Type.CHANGED,
    push: PushEntry | None = None,
    added: bool = True,
    markers: Sequence[Marker] = (),
    bookmarks: Sequence[Bookmark] = (),
    phases: Sequence[PhaseMove] = (),
    detail: Mapping[str, str] | None = None,
) -> Event:
    """Make a push of one changeset, or what the arguments say."""
    changed = type is Type.CHANGED
    head = node(path, seq)
    changes = Changes(
        added=NodeSet(count=1, sha256="1" * 64) if changed and added else None,
        heads_added=(head,) if changed and added else (),
        markers=tuple(markers),
        markers_sha256="2" * 64 if markers else None,
        bookmarks=tuple(bookmarks),
        phases=tuple(phases),
        push=push if push or not (changed and added) else a_push(seq),
    )
    return Event(
        type=type,
        repository=identifier(path),
        incarnation=identifier(path, "incarnation"),
        path=path,
        generation=1,
        seq=seq,
        id=identifier(path, seq),
        previous=None if seq == 1 else identifier(path, seq - 1),
        digest=digest.advance(digest.START, type, changes),
        time=CREATED_AT + seq,
        source="serve" if changed else "init",
        changes=changes,
        after=Tip(length=seq, node=head),
        settings=MasterSettings(),
        detail=detail,
    )


def a_push(number: int = 1) -> PushEntry:
    """Make a row of the pushlog."""
    return PushEntry(id=number, user="dana@example.com", date=int(CREATED_AT))


def a_notice(event: Event | None = None, previous: Mapping[str, str | None] | None = None) -> Notice:
    """Make the event's notice.

    In each of its streams the event before it came before, unless the arguments say otherwise.
    """
    event = event or an_event()
    if previous is None:
        previous = {stream.value: event.previous for stream in streams(event)}
    proof = MirrorProof(mirror="alpha", applied_at=event.time + 0.1, served_at=event.time + 0.2)
    return Notice(event=event, time=event.time + 0.3, roster=1, acks=(proof,), previous=previous)


def publish(log: Log, *notices: Notice, connection: PushConnection | None = None, signed: str | None = None) -> None:
    """Append the notices as the aggregator would, all of pushes from one place, and with this header if it is signed."""
    headers = {**connection_headers(connection), **({} if signed is None else {SIGNED: signed})}
    log.append(
        [LogMessage(topic=NOTICES, key=each.event.repository, value=to_json(each), headers=headers) for each in notices]
    )


def publish_pushes(log: Log, path: str, first: int, last: int) -> None:
    """Publish notices of pushes `first` to `last` to one repository."""
    publish(log, *(a_notice(an_event(path, seq)) for seq in range(first, last + 1)))


def with_topics(log: Log) -> Log:
    """Create all topics in the log and return it."""
    log.create(topics())
    return log

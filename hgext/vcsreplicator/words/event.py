# SPDX-License-Identifier: GPL-2.0-or-later
"""Events: immutable facts about one repository, and the pieces they are made of.

Nodes are 40 lower-case hexadecimal digits. Times are seconds since the epoch, UTC, as float; a pushlog date is whole seconds.
Text that Mercurial holds as bytes travels as UTF-8, with bytes that are none as surrogate escapes. Bytes are made of these
values in `wire`, nowhere else.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Mapping
from typing import Annotated

from .errors import MalformedEvent
from .path import check_path
from .shape import EARLIEST, LATEST, Count, NumberRange, Time, extensible, from_json
from .value import Value

VERSION = 1
NULL_NODE = "0" * 40
# Most histories that one adoption replaces: that of the outbox, that of the log, and those that they replaced.
MOST_REPLACED = 32

# Compiled at their first use: a push, which defines events, has none to check.
_NODE = r"[0-9a-f]{40}\Z"
_HASH = r"[0-9a-f]{64}\Z"
_IDENTIFIER = r"[0-9a-f]{32}\Z"
# A line of Mercurial's file ends with the name of a bookmark: a line feed in it would make another bookmark.
_BOOKMARK = r"[^\x00-\x1f\x7f\ud800-\udc7f\udd00-\udfff]+\Z"
_compiled = functools.cache(re.compile)


class Type(enum.StrEnum):
    """The type of an event; records contain its value."""

    CREATED = "created"
    CHANGED = "changed"
    HGRC = "hgrc"
    RENAMED = "renamed"
    DELETED = "deleted"
    SYNC = "sync"
    STRIPPED = "stripped"
    CENSORED = "censored"


class Tip(Value):
    """The unfiltered changelog after the event: its length and its last node."""

    length: Count
    node: str


class PushEntry(Value):
    """One row of the pushlog: id, user and date as recorded by the master."""

    id: Count
    user: str
    date: Annotated[int, NumberRange(EARLIEST, LATEST)]


@extensible
class PushConnection(Value):
    """The origin of a push, as far as it is known.

    It is not part of the event, but a header beside it (`wire`). `address` is the other end of the connection, `forwarded` the
    proxies' X-Forwarded-For, `client` the user agent.
    """

    address: str | None = None
    forwarded: str | None = None
    client: str | None = None


class NodeSet(Value):
    """Changesets added or removed, without naming each.

    `count` is their number, `sha256` the SHA-256 over their 20-byte nodes in the order of their addition.
    """

    count: Count
    sha256: str


class PhaseMove(Value):
    """The changesets that moved to `phase` (0 public, 1 draft, 2 secret), sorted.

    The heads of the set name those that moved down, its roots those that moved up. An added changeset begins with the
    highest phase that its parents had before the event. `hg.observe` has the details, and carries moves out.
    """

    phase: int
    nodes: tuple[str, ...]


class Bookmark(Value):
    """The absolute value of a bookmark after the event; None when it is gone."""

    name: str
    node: str | None


class MarkerNode(Value):
    """A changeset named by a marker, as the master knew it at push time.

    A changeset that the master did not know, or that was secret there, has only its node.
    """

    node: str
    known: bool
    visible: bool | None
    desc: str | None
    push: PushEntry | None


class Marker(Value):
    """An obsolescence marker in its public form; the bundle has its exact bytes."""

    precursor: MarkerNode
    successors: tuple[MarkerNode, ...]
    user: str | None
    time: float


class Changes(Value):
    """The changes of a transaction to a repository, by node; empty where unchanged.

    `markers_sha256` is SHA-256 over the sorted binary forms of the markers (null without markers). `heads_added` in ascending
    revision order, the public `heads` of a push; `heads_removed` are the other parents of the added, sorted: none of them is still
    a head (only a search of all heads would show which of them was one). A strip changes revision numbers, so both are sorted then:
    the changesets that became heads, and the former heads that are no longer heads.
    """

    added: NodeSet | None
    removed: NodeSet | None = None
    heads_added: tuple[str, ...] = ()
    heads_removed: tuple[str, ...] = ()
    phases: tuple[PhaseMove, ...] = ()
    bookmarks: tuple[Bookmark, ...] = ()
    markers: tuple[Marker, ...] = ()
    markers_sha256: str | None = None
    push: PushEntry | None = None


NO_CHANGES = Changes(added=None)


# What `evolution` of MasterSettings says.
OFFERS_MARKERS, OFFERS_NO_MARKERS = ("exchange=yes",), ("exchange=no",)


class ClientSettings(Value):
    """The master's settings that decide what a client does with an answer.

    With `publishing`, a client takes all that it pulls for public, and its next push makes it public on the master. With
    `exchange`, a client gets obsolescence markers. None: not known.
    """

    publishing: bool | None = None
    exchange: bool | None = None

    def after(self, before: ClientSettings) -> ClientSettings:
        """Return these settings, and for those not known the ones before."""
        return ClientSettings(
            publishing=before.publishing if self.publishing is None else self.publishing,
            exchange=before.exchange if self.exchange is None else self.exchange,
        )


UNKNOWN_SETTINGS = ClientSettings()


class Disclosure(Value):
    """The part of changes that messages may name.

    That is nothing of secret changesets. `heads` are those of the added changesets that clients see: neither secret nor hidden by
    markers. `phases` names no changeset that was added as a secret one. A bookmark that went to a secret changeset is gone, and one
    that stayed among them is left out.
    """

    heads: tuple[str, ...]
    phases: tuple[PhaseMove, ...]
    bookmarks: tuple[Bookmark, ...]


# The key of `detail` with a Disclosure as JSON; without it messages may name all.
DISCLOSED = "disclosed"


def read_disclosure(event: Event) -> Disclosure:
    """Return what messages may name of a change; raises MalformedEvent."""
    text = (event.detail or {}).get(DISCLOSED)
    if text is not None:
        return from_json(Disclosure, text.encode("utf-8", "surrogatepass"))
    changes = event.changes
    return Disclosure(heads=changes.heads_added, phases=changes.phases, bookmarks=changes.bookmarks)


class MasterSettings(Value):
    """The master's settings that decide what a repository's content means.

    They are the settings of the process that made the event. The relay, which reads no repository's hgrc, states `requirements`
    alone. `evolution` is `exchange=yes` or `exchange=no`. Masters of former releases stated the words of `experimental.evolution`
    there, and their relays that the repository is publishing, which they did not know.
    """

    requirements: tuple[str, ...] = ()
    evolution: tuple[str, ...] = ()
    publishing: bool | None = None

    def for_clients(self, *, is_push: bool) -> ClientSettings:
        """Return the settings for clients, as far as the event's writer knew them.

        No relay writes an event that `is_push`.
        """
        publishing, exchange = self.publishing, None
        if self.evolution in (OFFERS_MARKERS, OFFERS_NO_MARKERS):
            exchange = self.evolution == OFFERS_MARKERS
        elif publishing and not is_push:
            publishing = None
        elif "all" in self.evolution or {"createmarkers", "exchange"} <= {*self.evolution}:
            exchange = True
        return ClientSettings(publishing=publishing, exchange=exchange)


class NamedEvent(Value):
    """The names of an event, and its digest.

    `seq` counts from 1 without holes within an incarnation; `digest` is the running digest after the event (see `digest`).
    """

    repository: str
    incarnation: str
    path: str
    generation: Count
    seq: Count
    id: str
    digest: str


class Event(NamedEvent):
    """One fact about one repository.

    `previous` is the id of the event before (None for the first). `detail` says more in words of the type:
    renamed: `from`; created: `origin` (init, clone, adopted); stripped: none; censored: `file`, `node`;
    changed: `disclosed`, if messages may not name all changes (see `Disclosure`);
    sync: `reason` (requested, outside, adopted), `bootstrap`, and if adopted `replaces`: the former incarnations, separated by
    blanks: that of the outbox, that of the log if it is another, then the earlier ones of the outbox, newest first.
    `hgrc` is the replicated part of the configuration, section → key → value
    (types created, hgrc, sync; None: not part of this event, empty: no configuration).
    """

    type: Type
    version: int = VERSION
    previous: str | None
    time: Time
    source: str
    changes: Changes
    after: Tip
    settings: MasterSettings
    hgrc: Mapping[str, Mapping[str, str]] | None = None
    detail: Mapping[str, str] | None = None


class Heartbeat(Value):
    """A record that `hg sendheartbeat` writes to each partition of `events`.

    It has no sequence and concerns no repository.
    """

    time: Time
    sender: str


def event_names(event: NamedEvent) -> dict[str, str | int]:
    """Return the names of an event for a log line.

    They are those of the repository alone before its first event. `wire.names_of` has the names of a record.
    """
    names: dict[str, str | int] = {"repository": event.repository, "path": event.path}
    return names | {"seq": event.seq, "event_id": event.id} if event.seq else names


def replaced_incarnations(event: Event) -> tuple[str, ...]:
    """Return the incarnations that an adoption says it replaces.

    These are MOST_REPLACED at most, and none if an older release wrote the event.
    """
    named = (event.detail or {}).get("replaces", "").split()[:MOST_REPLACED]
    return tuple(name for name in named if is_identifier(name) and name != event.incarnation)


def is_identifier(text: str) -> bool:
    """Return whether the text has the form of a repository's or an event's id."""
    return bool(_compiled(_IDENTIFIER).match(text))


def is_node(text: str) -> bool:
    """Return whether the text has the form of a changeset's node."""
    return bool(_compiled(_NODE).match(text))


def check_event(event: Event) -> Event:
    """Return the event; raise MalformedEvent unless each of its members is sound."""
    check_names(event)
    if event.previous is not None:
        _expect(_IDENTIFIER, event.previous, "previous")
    if (event.previous is None) != (event.seq == 1):
        raise MalformedEvent(f"event {event.id}: seq {event.seq} and previous do not fit")
    check_changes(event.changes)
    if DISCLOSED in (event.detail or {}):
        said = read_disclosure(event)
        check_changes(Changes(added=None, heads_added=said.heads, phases=said.phases, bookmarks=said.bookmarks))
    _expect(_NODE, event.after.node, "after.node")
    return event


def check_names(event: NamedEvent) -> None:
    """Raise MalformedEvent unless each name of an event is sound, and its digest."""
    check_path(event.path)
    for name in ("repository", "incarnation", "id"):
        _expect(_IDENTIFIER, getattr(event, name), name)
    _expect(_HASH, event.digest, "digest")
    if event.seq < 1 or event.generation < 1:
        raise MalformedEvent(
            f"event {event.id}: expected seq and generation from 1, got {event.seq} and {event.generation}"
        )


def check_place(repository: str, path: str) -> None:
    """Raise MalformedEvent unless id and path are well-formed: both name folders."""
    check_path(path)
    _expect(_IDENTIFIER, repository, "repository")


def check_changes(changes: Changes) -> None:
    """Raise MalformedEvent unless each member of the changes is sound."""
    wrong = [move.phase for move in changes.phases if move.phase not in (0, 1, 2)]
    if wrong:
        raise MalformedEvent(f"phases: expected 0, 1 or 2, got {wrong[0]}")
    nodes = [("heads", node) for node in (*changes.heads_added, *changes.heads_removed)]
    nodes += [("phases", node) for move in changes.phases for node in move.nodes]
    nodes += [("bookmarks", each.node) for each in changes.bookmarks if each.node is not None]
    nodes += [("markers", each.node) for marker in changes.markers for each in (marker.precursor, *marker.successors)]
    for name, node in nodes:
        _expect(_NODE, node, name)
    for bookmark in changes.bookmarks:
        if bookmark.node is not None:
            _expect(_BOOKMARK, bookmark.name, "bookmark")
    for added in (changes.added, changes.removed):
        if added is not None:
            _expect(_HASH, added.sha256, "added")
    if changes.markers_sha256 is not None:
        _expect(_HASH, changes.markers_sha256, "markers_sha256")


def _expect(form: str, value: str, name: str) -> None:
    if not _compiled(form).match(value):
        raise MalformedEvent(f"{name}: expected {form[:-2]}, got {value[:70]!r}")

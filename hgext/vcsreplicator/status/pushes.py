# SPDX-License-Identifier: GPL-2.0-or-later
"""The search for events by what people know of a push: a changeset, its user, a bookmark."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ..log import EVENTS, Log, Record
from ..log.table import find_beginnings, read_records
from ..words import wire
from ..words.errors import Rejected
from ..words.event import Changes, Disclosure, Event

# The beginning of a changeset's hash, as people give it.
SHORTEST = 4
CHANGESET = re.compile(rf"[0-9a-fA-F]{{{SHORTEST},40}}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class PushQuery:
    """What an event must have; an empty member fits any.

    `changeset` is the beginning of a hash in lower case, `repository` an id or a part of the path, `user` and `bookmark` are parts
    of names; letters may have either case. `since` is when the event was committed, at the earliest.
    """

    changeset: str = ""
    user: str = ""
    bookmark: str = ""
    repository: str = ""
    since: float = 0.0

    def fits(
        self, *, repository: str, path: str, user: str | None, bookmarks: Iterable[str], nodes: Iterable[str], at: float
    ) -> bool:
        return (
            at >= self.since
            and (not self.repository or self.repository == repository or _contains(path, self.repository))
            and (not self.user or _contains(user or "", self.user))
            and (not self.bookmark or any(_contains(name, self.bookmark) for name in bookmarks))
            and (not self.changeset or any(node.startswith(self.changeset) for node in nodes))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPush:
    """An event that fits a query, its record, and the changeset that shows it."""

    event: Event
    record: Record
    changeset: str


def name_nodes(changes: Changes | Disclosure) -> list[str]:
    """Name the changesets that an event names: the new heads, and where bookmarks went."""
    heads = changes.heads_added if isinstance(changes, Changes) else changes.heads
    return list(dict.fromkeys([*heads, *(each.node for each in changes.bookmarks if each.node)]))


def find_pushes(
    log: Log, query: PushQuery, list_changesets: Callable[[bytes], Iterable[str]] | None = None
) -> Iterator[FoundPush]:
    """Yield each event that fits, where it first appears; those of different repositories have no order.

    Reads all of `events`. A changeset is found if its event names it; with `list_changesets`, which lists those of a bundle or
    raises Rejected, also inside a bundle that travels in the log. A query without changeset and bookmark finds pushes alone.
    """
    wanted, known = query.changeset.encode(), set[str]()
    for record in read_records(log, find_beginnings(log, EVENTS)):
        value = record.value or b""
        if record.time < query.since or (list_changesets is None and wanted not in value):
            continue
        try:
            frame = wire.decode(value)
            event = frame.header.event
            if event is None or event.id in known:
                continue
            nodes = name_nodes(event.changes)
            if list_changesets is not None and frame.body:
                nodes += list_changesets(frame.body)
        except Rejected:
            continue
        push = event.changes.push
        bookmarks = [each.name for each in event.changes.bookmarks]
        is_push = push is not None or query.changeset or query.bookmark
        user = push.user if push else None
        if is_push and query.fits(
            repository=event.repository, path=event.path, user=user, bookmarks=bookmarks, nodes=nodes, at=event.time
        ):
            known.add(event.id)
            shown = next((node for node in nodes if node.startswith(query.changeset)), "")
            yield FoundPush(event=event, record=record, changeset=shown)


def _contains(text: str, part: str) -> bool:
    return part.casefold() in text.casefold()

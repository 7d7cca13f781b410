# SPDX-License-Identifier: GPL-2.0-or-later
"""Changes from outside: a Mercurial without the extension changed the repository behind its newest event.

What the pushlog knows of them is told push by push, as if it had been seen: changesets, heads and the phases that they have
now. Then comes one `sync`, for bookmarks, markers, phases of what was there before, and what no push brought; mirrors look at the
master for that. Only the `sync` comes

- if what the newest event left is not the beginning of what is there (a strip, a restored store);
- of a repository that is not publishing: what phases its changesets had when they came is not known, and a mirror that was told
  others could not do what it is told;
- of more than `MANY` changesets, and of a push that no event can hold, for all this is done while a pusher waits;
- if the pushlog cannot be read.
"""

from collections.abc import Callable, Iterator
from typing import Any

from mercurial import error
from mercurial.node import bin, hex

from ...outbox import Needs
from ...words.event import NULL_NODE, PushEntry, Tip, Type
from .. import observe
from . import pushes, refusals
from .announcing import Announcement

# Changesets that are told push by push.
MANY = 5_000


def announcements(repo: Any, before: Tip, now: Tip) -> list[Announcement]:
    """What is to be told of a repository that was at `before` when its newest event was written, and is at `now`."""
    detail = {"reason": "outside", "bootstrap": "false"}
    sync = Announcement(kind=Type.SYNC, needs=Needs.MASTER, after=now, detail=detail)
    return [*_told(repo.unfiltered(), before, now), sync]


def _told(repo: Any, before: Tip, now: Tip) -> list[Announcement]:
    """The pushes, if all of them can be told; none of any otherwise."""
    if not before.length < now.length <= before.length + MANY or _node(repo, before.length - 1) != before.node:
        return []
    if not repo.publishing():
        return []
    try:
        with pushes.reading_pushes(repo) as push_of:
            found = list(_pushes(repo, before, now, push_of))
    except error.Abort as problem:
        repo.ui.log(b"vcsreplicator", b"pushes from outside are not told one by one: %s\n", problem.message)
        return []
    return found if all(refusals.fits(announced.changes) for announced in found) else []


def _pushes(repo: Any, before: Tip, now: Tip, push_of: Callable[[bytes], Any]) -> Iterator[Announcement]:
    """Of each push that the pushlog knows; what nobody pushed goes before the push that came behind it."""
    first = start = before.length
    last_id = 0
    while start < now.length:
        row = push_of(_node(repo, start).encode())
        if row is None:
            start += 1
            continue
        push, nodes = pushes.entry_of(row), row[3]
        end = start + len(nodes)
        if push is None or push.id <= last_id or not _stand_there(repo, nodes, start, end):
            return  # a push that was torn apart: its parts cannot be told as one; or one that no event can hold
        if first < start:
            yield _added(repo, first, start, None)
        yield _added(repo, start, end, push)
        first, start, last_id = end, end, push.id


def _stand_there(repo: Any, nodes: list[bytes], start: int, end: int) -> bool:
    """Whether the changesets of a push are these revisions."""
    get_rev = repo.changelog.index.get_rev
    return {get_rev(bin(node)) for node in nodes} == set(range(start, end))


def _added(repo: Any, first: int, end: int, push: PushEntry | None) -> Announcement:
    return Announcement(
        kind=Type.CHANGED,
        source="outside",
        needs=Needs.BUNDLE,
        first=first,
        changes=observe.added(repo, first, end, push=push),
        after=Tip(length=end, node=_node(repo, end - 1)),
    )


def _node(repo: Any, rev: int) -> str:
    return NULL_NODE if rev < 0 else hex(repo.changelog.node(rev)).decode()

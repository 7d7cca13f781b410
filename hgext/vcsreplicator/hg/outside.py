# SPDX-License-Identifier: GPL-2.0-or-later
"""Changes from outside: a Mercurial without the extension changed the repository behind its newest event.

What the pushlog knows of them is told push by push, as if it had been seen: changesets, heads and the phases that they have
now. Then comes one `sync`, for bookmarks, markers, phases of what was there before, and what no push brought; mirrors look at the
master for that. If what the newest event left is not the beginning of what is there (a strip, a restored store), only the
`sync` comes.
"""

from collections.abc import Iterator
from typing import Any

from mercurial.node import bin, hex

from ..event import NULL_NODE, PushEntry, Tip, Type
from ..outbox import Needs
from . import capture, observe
from .capture import Announcement


def announcements(repo: Any, before: Tip, now: Tip) -> list[Announcement]:
    """What is to be told of a repository that was at `before` when its newest event was written, and is at `now`."""
    detail = {"reason": "outside", "bootstrap": "false"}
    sync = Announcement(kind=Type.SYNC, needs=Needs.MASTER, after=now, detail=detail)
    return [*_pushes(repo.unfiltered(), before, now), sync]


def _pushes(repo: Any, before: Tip, now: Tip) -> Iterator[Announcement]:
    """Of each push that the pushlog knows; what nobody pushed goes before the push that came behind it."""
    if now.length <= before.length or _node(repo, before.length - 1) != before.node:
        return
    first = start = before.length
    last_id = 0
    while start < now.length:
        row = capture.pushed(repo, _node(repo, start))
        if row is None:
            start += 1
            continue
        pushid, user, date, nodes = row
        end = start + len(nodes)
        if pushid <= last_id or not _stand_there(repo, nodes, start, end):
            return  # a push that was torn apart: its parts cannot be told as one
        if first < start:
            yield _added(repo, first, start, None)
        yield _added(repo, start, end, PushEntry(id=pushid, user=capture.utf8(user), date=date))
        first, start, last_id = end, end, pushid


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

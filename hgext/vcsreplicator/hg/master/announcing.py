# SPDX-License-Identifier: GPL-2.0-or-later
"""Events that do not follow from a transaction's own changes.

Among them are events of changes from outside, made by a Mercurial without the extension since the newest event of the repository.
Each push in the pushlog becomes an event, as if it had been captured: changesets, heads and their present phases. Then comes one
`sync`, at which mirrors compare with the master: for bookmarks, markers, phases of older changesets, and changesets without a
push. There is only the `sync`

- for a repository that is not publishing: the phases that its changesets arrived with are not known, and a mirror could not carry
  out an event that names others;
- for more than `MANY` changesets, and for a push that no event can hold: a pusher waits meanwhile;
- if the pushlog cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from mercurial import error
from mercurial.localrepo import localrepository
from mercurial.node import bin

from ...outbox.entry import MirrorNeeds, NewestEvent, before_first_event
from ...words.event import NO_CHANGES, Changes, PushEntry, Tip, Type
from ...words.value import Value
from .. import observe
from . import creation, pushes, refusals
from .disclosure import disclose

if TYPE_CHECKING:
    from .pushes import PushRow
    from .repository import MasterRepository

# Most changesets from outside whose pushes get events of their own.
MANY = 5_000


class Announcement(Value):
    """An event to come that does not follow from the transaction's own changes.

    `identify` changes the identity that precedes the event; if it takes the next generation of a path, that is noted below `root`.
    `first` is where the revisions of its bundle begin, `source` what it names as the origin of the change (default: its type).
    """

    kind: Type
    source: str | None = None
    needs: MirrorNeeds = MirrorNeeds.NOTHING
    first: int = 0
    changes: Changes = NO_CHANGES
    after: Tip | None = None
    identify: Callable[[NewestEvent | None], NewestEvent] | None = None
    root: str | None = None
    hgrc: Mapping[str, Mapping[str, str]] | None = None
    detail: Mapping[str, str] | None = None


def announce_created(repo: MasterRepository, origin: str, *, hgrc: Mapping[str, Mapping[str, str]]) -> Announcement:
    """Return the first event of a repository as it is now."""
    now, root, path = observe.tip(repo), repo.replication_root, repo.replication_path
    return Announcement(
        kind=Type.CREATED,
        needs=MirrorNeeds.MASTER if now.length else MirrorNeeds.NOTHING,
        after=now,
        identify=lambda _before: before_first_event(path, creation.read_generation(root, path) + 1),
        root=root,
        hgrc=hgrc,
        detail={"origin": origin},
    )


def announce_outside(repo: localrepository, before: Tip, now: Tip) -> list[Announcement]:
    """Return the events that lead from the newest event's state to the present one, which begins with it."""
    return [*_announce_pushes(repo.unfiltered(), before, now), ask_master(now)]


def ask_master(now: Tip) -> Announcement:
    """Return the event at which mirrors compare with the master."""
    detail = {"reason": "outside", "bootstrap": "false"}
    return Announcement(kind=Type.SYNC, needs=MirrorNeeds.MASTER, after=now, detail=detail)


def _announce_pushes(repo: localrepository, before: Tip, now: Tip) -> list[Announcement]:
    """Return an event for each push if every push can have one; otherwise none."""
    if now.length > before.length + MANY or not repo.publishing():
        return []
    try:
        with pushes.reading_pushes(repo) as push_of:
            found = list(_find_pushes(repo, before, now, push_of))
    except error.Abort as problem:
        repo.ui.log(b"vcsreplicator", b"pushes from outside get no events of their own: %s\n", problem.message)
        return []
    return found if all(refusals.fits(announced.changes) for announced in found) else []


def _find_pushes(
    repo: localrepository, before: Tip, now: Tip, push_of: Callable[[bytes], PushRow | None]
) -> Iterator[Announcement]:
    """Yield an event for each push, and before it one for changesets without a push."""
    first = start = before.length
    last_id = 0
    while start < now.length:
        row = push_of(observe.find_node(repo.changelog, start).encode())
        if row is None:
            start += 1
            continue
        push, nodes = pushes.entry_of(row), row[3]
        end = start + len(nodes)
        if push is None or push.id <= last_id or not _are_revisions(repo, nodes, start, end):
            # A push whose changesets are not consecutive, or too large for an event.
            return
        if first < start:
            yield _announce_added(repo, first, start, None)
        yield _announce_added(repo, start, end, push)
        first, start, last_id = end, end, push.id


def _are_revisions(repo: localrepository, nodes: list[bytes], start: int, end: int) -> bool:
    """Return whether the changesets of a push are these revisions."""
    get_rev = repo.changelog.index.get_rev
    return {get_rev(bin(node)) for node in nodes} == set(range(start, end))


def _announce_added(repo: localrepository, first: int, end: int, push: PushEntry | None) -> Announcement:
    changes = observe.added(repo, first, end, push=push)
    return Announcement(
        kind=Type.CHANGED,
        source="outside",
        needs=MirrorNeeds.BUNDLE,
        first=first,
        changes=changes,
        after=Tip(length=end, node=observe.find_node(repo.changelog, end - 1)),
        detail=disclose(repo, changes, range(first, end), {}),
    )

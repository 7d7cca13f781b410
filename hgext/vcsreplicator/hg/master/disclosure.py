# SPDX-License-Identifier: GPL-2.0-or-later
"""The part of an event's changes that messages may name.

That is nothing of secret changesets, which no client of the server can see, and no head that obsolescence markers hide: a reader of
the message could not pull it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mercurial.localrepo import localrepository
from mercurial.node import bin
from mercurial.phases import public, secret

from ...words.event import DISCLOSED, Bookmark, Changes, Disclosure, PhaseMove
from ...words.shape import to_json
from .. import observe
from ..text import local

# The node of a bookmark before a change, by its name in Mercurial.
BookmarksBefore = Mapping[bytes, bytes | None]


def disclose(
    repo: localrepository, changes: Changes, added: range, bookmarks: BookmarksBefore
) -> Mapping[str, str] | None:
    """Return the detail of an event with these changes.

    Returns None if messages may name all of them. `added` are the revisions that it added.
    """
    repo = repo.unfiltered()
    has_secrets = any(roots for phase, roots in repo._phasecache._phaseroots.items() if phase >= secret)
    # Markers hide drafts alone.
    has_drafts = any(move.phase != public for move in changes.phases) and bool(added)
    if not has_secrets and not (has_drafts and repo.obsstore):
        return None
    get_rev = repo.changelog.index.get_rev

    def is_secret(node: bytes) -> bool:
        rev = get_rev(node)
        return rev is not None and observe.phase_of(repo, rev) >= secret

    found = Disclosure(
        heads=_find_heads(repo, changes, added),
        phases=_find_moves(changes, lambda node: get_rev(node) in added),
        bookmarks=_find_bookmarks(changes, bookmarks, is_secret),
    )
    everything = Disclosure(heads=changes.heads_added, phases=changes.phases, bookmarks=changes.bookmarks)
    return None if found == everything else {DISCLOSED: to_json(found).decode("ascii")}


def _find_heads(repo: localrepository, changes: Changes, added: range) -> tuple[str, ...]:
    """Return the heads of the added changesets that clients see."""
    repo.invalidatevolatilesets()  # the transaction may have brought markers
    is_shown = repo.filtered(b"served").changelog.hasnode
    if all(is_shown(bin(node)) for node in changes.heads_added):
        return changes.heads_added
    changelog = repo.changelog
    shown = {rev for rev in added if is_shown(changelog.node(rev))}
    return tuple(observe.find_node(changelog, rev) for rev in sorted(observe.heads_of(changelog, shown)))


def _find_moves(changes: Changes, is_added: Callable[[bytes], bool]) -> tuple[PhaseMove, ...]:
    """Return the moves without changesets that were added as secret ones."""
    left = [
        (move.phase, tuple(node for node in move.nodes if move.phase < secret or not is_added(bin(node))))
        for move in changes.phases
    ]
    return tuple(PhaseMove(phase=phase, nodes=nodes) for phase, nodes in left if nodes)


def _find_bookmarks(
    changes: Changes, before: BookmarksBefore, is_secret: Callable[[bytes], bool]
) -> tuple[Bookmark, ...]:
    """Return the moves of bookmarks as a client of the server sees them."""
    found = []
    for bookmark in changes.bookmarks:
        old = before.get(local(bookmark.name))
        node = bookmark.node if bookmark.node is None or not is_secret(bin(bookmark.node)) else None
        if node is not None or (old is not None and not is_secret(old)):
            found.append(Bookmark(name=bookmark.name, node=node))
    return tuple(found)

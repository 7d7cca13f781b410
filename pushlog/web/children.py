# SPDX-License-Identifier: GPL-2.0-or-later
"""The children of a changeset in hgweb's pages, at a cost that does not grow with the history.

Mercurial asks every later changeset for its parents, at every page. A process that serves pages remembers instead who is whose
child: eight bytes a changeset for the repositories asked of last. The first question reads all parents, later ones those of what
was added since; after a change of the repository the nodes are compared, for a strip may have come between. Of the newest
changesets, of which most pages are, Mercurial's way is the shorter one.
"""

from __future__ import annotations

import threading
import weakref
from array import array
from typing import TYPE_CHECKING, Any

from mercurial import context, util
from mercurial.node import nullrev

if TYPE_CHECKING:
    from mercurial.context import changectx

_KEPT = 16  # repositories
_ENOUGH = 4  # bytes of a node
_FEW = 500  # later changesets, whose parents cost less than to compare all nodes
_known: Any = util.lrucachedict(_KEPT)
_lock = threading.Lock()


class Children:
    """Who is whose child in a repository, hidden changesets included; for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forget()

    def of(self, changelog: Any, revision: int) -> list[int]:
        """The children of a revision of this (unfiltered) changelog, ascending."""
        with self._lock:
            try:
                self._follow(changelog)
            except BaseException:
                self._forget()
                raise
            first = self._first[revision]
            found = [first, *self._others.get(revision, ())] if first else []
        return [each for each in found if each < len(changelog)]

    def _forget(self) -> None:
        self._first = array("i")  # by revision; 0 for none, as revision 0 is nobody's child
        self._others: dict[int, list[int]] = {}
        self._nodes = bytearray()  # the beginning of each node
        # changelogs that were found to tell the same, each with its length and tip then
        self._same: Any = weakref.WeakKeyDictionary()

    def _follow(self, changelog: Any) -> None:
        node, length = changelog.node, len(changelog)
        state = length, node(length - 1)
        if self._same.get(changelog) != state:
            known = b"".join(node(revision)[:_ENOUGH] for revision in range(min(length, len(self._first))))
            if not self._nodes.startswith(known):  # stripped, perhaps added again in another order
                self._forget()
            self._same[changelog] = state
        known_length = len(self._first)
        if length <= known_length:
            return
        self._first.frombytes(bytes(self._first.itemsize * (length - known_length)))
        first, parents = self._first, changelog.parentrevs
        for revision in range(known_length, length):
            self._nodes += node(revision)[:_ENOUGH]
            for parent in parents(revision):
                if parent == nullrev:
                    continue
                if first[parent]:
                    self._others.setdefault(parent, []).append(revision)
                else:
                    first[parent] = revision


def children(orig: Any, ctx: changectx, hide: int | None = None) -> Any:
    """Wraps `webutil.children`: the same answer for a changeset; a file's children are few."""
    if isinstance(ctx, context.basefilectx) or ctx.rev() in (None, nullrev):
        return orig(ctx, hide)
    repo = ctx.repo()
    if len(repo.changelog) - ctx.rev() <= _FEW:
        return orig(ctx, hide)
    with _lock:
        known = _known.get(repo.spath)
        if known is None:
            known = _known[repo.spath] = Children()
    filtered = repo.changelog.filteredrevs
    found = [each for each in known.of(repo.unfiltered().changelog, ctx.rev()) if each not in filtered]
    return orig(_Parent([repo[each] for each in found]), hide)


class _Parent:
    """What `webutil.children` asks for the children."""

    def __init__(self, children: list[Any]) -> None:
        self._children = children

    def children(self) -> list[Any]:
        return self._children

# SPDX-License-Identifier: GPL-2.0-or-later
"""The children of a changeset in hgweb's pages, at a cost that does not grow with the history.

Mercurial asks every later changeset for its parents, at every page. A process that serves pages remembers instead who is whose
child: four bytes a changeset for the repositories asked of last. The first question reads all parents, later ones those of what
was added since.
"""

from __future__ import annotations

import threading
from array import array
from typing import Any

from mercurial import context, util
from mercurial.node import nullrev

_KEPT = 16  # repositories
_known: Any = util.lrucachedict(_KEPT)
_lock = threading.Lock()


class Children:
    """Who is whose child in one changelog, hidden changesets included; for several threads."""

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
            return [first, *self._others.get(revision, ())] if first else []

    def _forget(self) -> None:
        self._first = array("i")  # by revision; 0 for none, as revision 0 is nobody's child
        self._others: dict[int, list[int]] = {}
        self._tip = b""

    def _follow(self, changelog: Any) -> None:
        known, length = len(self._first), len(changelog)
        if known > length or (known and changelog.node(known - 1) != self._tip):
            self._forget()
            known = 0
        if known == length:
            return
        self._first.frombytes(bytes(self._first.itemsize * (length - known)))
        first, parents = self._first, changelog.parentrevs
        for revision in range(known, length):
            for parent in parents(revision):
                if parent == nullrev:
                    continue
                if first[parent]:
                    self._others.setdefault(parent, []).append(revision)
                else:
                    first[parent] = revision
        self._tip = changelog.node(length - 1)


def children(orig: Any, ctx: Any, hide: int | None = None) -> Any:
    """Wraps `webutil.children`: the same answer for a changeset; a file's children are few."""
    if isinstance(ctx, context.basefilectx) or ctx.rev() in (None, nullrev):
        return orig(ctx, hide)
    repo = ctx.repo()
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

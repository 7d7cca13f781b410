# SPDX-License-Identifier: GPL-2.0-or-later
"""The children of a changeset in hgweb's pages.

Their cost does not grow with the history. Mercurial asks every later changeset for its parents, at every page. A process that
serves pages remembers the children instead: eight bytes a changeset, for the repositories last asked for. The first lookup reads
all parents, each later one the parents of new changesets. After a change of the repository the nodes are compared, because of
possible strips. For the newest changesets, which most pages show, Mercurial's way is shorter.
"""

from __future__ import annotations

import threading
import types
import weakref
from array import array
from typing import TYPE_CHECKING, Any

from mercurial import context, util
from mercurial.node import nullrev

if TYPE_CHECKING:
    from mercurial.context import changectx

# Repositories that are remembered.
_KEPT = 16
# Bytes of a node that are compared.
_COMPARED_BYTES = 4
# Later changesets whose parents cost less to read than all nodes to compare.
_FEW = 500
_known: Any = util.lrucachedict(_KEPT)
_lock = threading.Lock()


class Children:
    """The children of each changeset, hidden ones too; for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forget_all()

    def of(self, changelog: Any, revision: int) -> list[int]:
        """Return the children of a revision of this (unfiltered) changelog, ascending."""
        with self._lock:
            try:
                self._read_changelog(changelog)
            except BaseException:
                self._forget_all()
                raise
            first = self._first[revision]
            found = [first, *self._others.get(revision, ())] if first else []
        return [each for each in found if each < len(changelog)]

    def _forget_all(self) -> None:
        # By revision; 0 for none, as revision 0 is the child of no other.
        self._first = array("i")
        self._others: dict[int, list[int]] = {}
        # The beginning of each node.
        self._nodes = bytearray()
        # Changelogs that had the same content, each with its length and tip then.
        self._states_read: Any = weakref.WeakKeyDictionary()

    def _read_changelog(self, changelog: Any) -> None:
        node, length = changelog.node, len(changelog)
        state = length, node(length - 1)
        if self._states_read.get(changelog) != state:
            known = b"".join(node(revision)[:_COMPARED_BYTES] for revision in range(min(length, len(self._first))))
            if not self._nodes.startswith(known):  # stripped, perhaps added again in another order
                self._forget_all()
            self._states_read[changelog] = state
        known_length = len(self._first)
        if length <= known_length:
            return
        self._first.frombytes(bytes(self._first.itemsize * (length - known_length)))
        first, parents = self._first, changelog.parentrevs
        for revision in range(known_length, length):
            self._nodes += node(revision)[:_COMPARED_BYTES]
            for parent in parents(revision):
                if parent == nullrev:
                    continue
                if first[parent]:
                    self._others.setdefault(parent, []).append(revision)
                else:
                    first[parent] = revision


def children(orig: Any, ctx: changectx, hide: int | None = None) -> Any:
    """Wrap `webutil.children` for changesets, with the same answer."""
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
    # `webutil.children` asks for nothing else.
    return orig(types.SimpleNamespace(children=lambda: [repo[each] for each in found]), hide)

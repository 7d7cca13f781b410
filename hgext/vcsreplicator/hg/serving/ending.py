# SPDX-License-Identifier: GPL-2.0-or-later
"""Histories that end with the release: of a view's changelog and files."""

from collections.abc import Callable, Iterable
from typing import Any

from mercurial import changelog, error
from mercurial.filelog import filelog
from mercurial.node import hex, nullrev


class HiddenRevisions(frozenset[int]):
    """The revisions that one of our views hides.

    `length` is the number of changesets that it shows.

    `heads` are the index in which they were looked up and their nodes, ascending; None before the first lookup. They are valid as
    long as this object: Mercurial drops it when a repository object rereads its changelog, phases or markers.
    """

    length: int
    heads: tuple[Any, list[bytes]] | None = None


class _EndedChangelog(changelog.changelog):
    """A view's changelog that ends with the release: the rest does not exist.

    A request asks for each of perhaps very many heads: all are looked up once, and `node` and `rev` are shortcuts that raise the
    same errors.
    """

    _filteredrevs: HiddenRevisions

    def __len__(self) -> int:
        return self._filteredrevs.length

    def node(self, rev: int) -> bytes:
        if rev in self._filteredrevs:
            raise error.FilteredIndexError(rev)
        try:
            node: bytes = self.index[rev][7]
        except IndexError:
            return super().node(rev)
        return node

    def rev(self, node: bytes) -> int:
        number = self.index.get_rev(node)
        if number is None:
            return super().rev(node)
        hidden = self._filteredrevs
        if number not in hidden:
            return number
        reason = b"filtered node" if number < hidden.length else b"no node"
        raise error.FilteredLookupError(hex(node), self.display_id, reason)

    def headrevs(self, revs: Iterable[int] | None = None, stop_rev: int | None = None) -> list[int]:
        if revs is None and not len(self):
            return [nullrev]
        return super().headrevs(revs, stop_rev)

    def _head_node_ids(self) -> list[bytes]:
        hidden, index = self._filteredrevs, self.index
        if hidden.heads is None or hidden.heads[0] is not index:
            hidden.heads = index, [index[number][7] for number in self.headrevs()]
        return hidden.heads[1].copy()


def end_changelog(
    orig: Callable[..., changelog.changelog], whole: changelog.changelog, hidden: frozenset[int]
) -> changelog.changelog:
    """Give a view its changelog, ended if `hidden` says so.

    A module's class, not one in a closure: a class made at run time lives until the garbage collector finds it.
    """
    shown = orig(whole, hidden)
    if isinstance(hidden, HiddenRevisions):
        shown.__class__ = type("releasedchangelog", (_EndedChangelog, shown.__class__), {})
    return shown


def end_file_history(history: filelog, first: int) -> None:
    """Forget, in this object, a file's revisions from changeset `first` on."""
    length = count = len(history)
    while count and history.linkrev(count - 1) >= first:
        count -= 1
    if count < length:
        del history.get_revlog().index[count:-1]

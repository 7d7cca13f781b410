# SPDX-License-Identifier: GPL-2.0-or-later
"""What the pushlog knows of a transaction and of changesets, if it is on."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from mercurial import extensions
from mercurial.node import hex

from ...words.event import Marker, MarkerNode, PushEntry
from ...words.shape import EARLIEST, LARGEST, LATEST
from ..text import text, utf8


def push_entry(repo: Any, tr: Any) -> PushEntry | None:
    """The pushlog's entry of this transaction, if it is a push and the pushlog is on."""
    pushlog = _pushlog()
    return entry_of(pushlog.entry_of_transaction(repo, tr)) if pushlog else None


def entry_of(row: Any) -> PushEntry | None:
    """A row of the pushlog as events have it; None for one that no event can hold: its number or date is an edit of somebody's."""
    if row is None or not 0 <= row[0] <= LARGEST or not EARLIEST <= row[2] <= LATEST:
        return None
    return PushEntry(id=row[0], user=utf8(row[1]), date=row[2])


@contextlib.contextmanager
def reading_pushes(repo: Any) -> Iterator[Callable[[bytes], Any]]:
    """Within, a function gives the pushlog's (id, user, date, nodes) of the push that brought a changeset, None if it knows none.

    The pushlog is opened once for all of them; raises Abort if it cannot be read.
    """
    pushlog = _pushlog()
    if pushlog is None:
        yield lambda _node: None
        return
    with pushlog.reading(repo) as push_of_node:
        yield push_of_node


def public_markers(repo: Any, markers: list[Any]) -> tuple[Marker, ...]:
    """Markers in their public form, with what the repository knows of each changeset at this moment."""
    if not markers:
        return ()
    repo.invalidatevolatilesets()
    with reading_pushes(repo) as push_of:
        known = _Known(repo, push_of)
        return tuple(
            Marker(
                precursor=known.node(precursor),
                successors=tuple(known.node(node) for node in successors),
                user=utf8(dict(metadata).get(b"user")),
                time=float(date[0]),
            )
            for precursor, successors, _flags, metadata, date, _parents in markers
        )


class _Known:
    """What the repository knows of changesets that markers name; looks at each once."""

    def __init__(self, repo: Any, push_of: Callable[[bytes], Any]) -> None:
        self._repo, self._push_of = repo, push_of
        self._served = repo.filtered(b"served").changelog
        self._seen: dict[bytes, MarkerNode] = {}

    def node(self, node: bytes) -> MarkerNode:
        if node not in self._seen:
            self._seen[node] = self._look(node)
        return self._seen[node]

    def _look(self, node: bytes) -> MarkerNode:
        name = hex(node).decode()
        rev = self._repo.changelog.index.get_rev(node)
        if rev is None:
            return MarkerNode(node=name, known=False, visible=None, desc=None, push=None)
        return MarkerNode(
            node=name,
            known=True,
            visible=self._served.hasnode(node),
            desc=text(self._repo[rev].description()),
            push=entry_of(self._push_of(hex(node))),
        )


def _pushlog() -> Any:
    try:
        return extensions.find(b"pushlog").api
    except KeyError:
        return None

# SPDX-License-Identifier: GPL-2.0-or-later
"""Pushes as the values of the JSON interface.

Clients of ``json-pushes`` see hidden (obsolete) changesets in a separate list, and secret ones not at all. Changesets that this
process cannot see yet are left out as if they had not been pushed.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

from mercurial import encoding, util
from mercurial.localrepo import localrepository
from mercurial.node import bin, hex

from ..limit import NamedChangesets, Pushed
from ..store.entry import Push
from .gitnodes import GitNodes
from .query import Query

# Changesets of a push whose hashes are one piece of an answer.
_SLICE = 1000
_encode = json.JSONEncoder(sort_keys=True).encode


class Answers:
    """The changesets of one request's pushes in ``repo``, the view that it may see."""

    def __init__(self, repo: localrepository):
        self._named = NamedChangesets(repo)
        self._everything, self._index = self._named.everything, self._named.index
        self._markers = self._everything.obsstore
        self._git = GitNodes(repo)

    def changesets(self, push: Push, query: Query) -> list[Pushed]:
        """Return the changesets of ``push`` that the query asks for, in the push's order."""
        pushed = [changeset for node in push.nodes if (changeset := self._named.find(node)) is not None]
        if query.branch:
            branch_of = self._everything.revbranchcache().branchinfo
            pushed = [changeset for changeset in pushed if text(branch_of(changeset.revision)[0]) == query.branch]
        return pushed[-1:] if query.is_tips_only else pushed

    def visible(self, push: Push, query: Query) -> list[Pushed]:
        """Return the changesets that are not hidden, of `changesets`, newest first."""
        return [changeset for changeset in reversed(self.changesets(push, query)) if not changeset.is_hidden]

    def json(self, push: Push, query: Query) -> str | None:
        """Return a push as JSON text, None if there is nothing in it to show.

        The short form is put together by hand: an answer may have thousands of pushes.
        """
        if len(push.nodes) == 1 and not query.branch and not query.is_full:
            simple = self._encode_one_visible(push)
            if simple is not None:
                return simple
        return "".join(self.json_pieces(push, query)) or None

    def json_pieces(self, push: Push, query: Query) -> Iterator[str]:
        """Yield `json` in pieces, none if there is nothing to show.

        A push may have hundreds of thousands of changesets.
        """
        pushed = self.changesets(push, query)
        if not pushed:
            return
        visible = [changeset for changeset in pushed if not changeset.is_hidden]
        show, many = (self._show_full, 1) if query.is_full else (self._show_short, _SLICE)
        yield '{"changesets": ['
        yield from self._join_shown(visible, show, many)
        yield f'], "date": {push.date}'
        if visible:
            yield ', "git_changesets": ['
            yield from self._join_shown(visible, self._show_git_node, _SLICE)
            yield "]"
        if len(visible) < len(pushed):
            yield ', "obsoletechangesets": ['
            yield from self._join_shown([changeset for changeset in pushed if changeset.is_hidden], show, many)
            yield "]"
        yield f', "user": {_quote(push.user)}}}'

    def _encode_one_visible(self, push: Push) -> str | None:
        """Return the JSON of a push with one visible changeset, None for others."""
        revision = self._index.get_rev(bin(push.nodes[0]))
        if revision is None or revision in self._named.hidden:
            return None
        return (
            f'{{"changesets": ["{push.nodes[0]}"], "date": {push.date}, "git_changesets": [{_quote(self._git.of(revision))}], '
            f'"user": {_quote(push.user)}}}'
        )

    @util.nogc
    def json_members(self, pushes: list[Push], query: Query) -> str:
        """Return members of the object of pushes, a comma in front of each.

        Without garbage collection, which would visit the strings repeatedly.
        """
        return "".join([f', "{push.id}": {text}' for push in pushes if (text := self.json(push, query)) is not None])

    def context(self, changeset: Pushed) -> Any:
        return self._everything[changeset.revision]

    def _join_shown(self, changesets: list[Pushed], show: Callable[[Pushed], str], many: int) -> Iterator[str]:
        """Yield the inside of a JSON list, this many changesets at a time."""
        for first in range(0, len(changesets), many):
            yield (", " if first else "") + ", ".join(map(show, changesets[first : first + many]))

    def _show_short(self, changeset: Pushed) -> str:
        return f'"{changeset.node}"'

    def _show_git_node(self, changeset: Pushed) -> str:
        return _quote(self._find_git_node(changeset.revision))

    def _show_full(self, changeset: Pushed) -> str:
        context = self.context(changeset)
        parents = list(context.parents()) or [self._everything[-1]]
        value = {
            "author": text(context.user()),
            "branch": text(context.branch()),
            "desc": text(context.description()),
            "files": [path(name) for name in context.files()],
            "git_node": self._find_git_node(changeset.revision),
            "git_parents": [self._find_git_node(parent.rev()) for parent in parents],
            "node": changeset.node,
            "parents": [parent.hex().decode("ascii") for parent in parents],
            "tags": [text(tag) for tag in context.tags()],
        }
        precursors = sorted(
            {hex(marker[0]).decode("ascii") for marker in self._markers.predecessors.get(context.node(), ())}
        )
        if precursors:
            value["precursors"] = precursors
        return dumps(value)

    def _find_git_node(self, revision: int) -> str | None:
        return None if revision < 0 else self._git.of(revision)


def text(local: bytes) -> str:
    """Decode a text without lone surrogates, which strict JSON readers refuse."""
    return encoding.fromlocal(local).decode("utf-8", "replace")


def path(name: bytes) -> str:
    """Decode a file name, which Mercurial keeps as bytes."""
    return name.decode("utf-8", "replace")


@functools.lru_cache(maxsize=4096)
def _quote(value: str | None) -> str:
    return dumps(value)


def dumps(value: Any) -> str:
    """Return JSON in ASCII that is harmless inside HTML, members sorted."""
    return _encode(value).replace("<", "\\u003c").replace(">", "\\u003e")

# SPDX-License-Identifier: GPL-2.0-or-later
"""What web pages and wire commands show of the pushlog.

A mirror may hold more than it may serve. Another extension decides by repository attributes ``_pushlog_limit`` and
``_pushlog_view`` (see `pushlog.api`). Without one, web answers stop at ``last_push_id`` of ``.hg/replicated-data``, a canonical
CBOR map, where that file has one.

Of a push, a client gets the changesets that its view of the repository names (`NamedChangesets`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mercurial import phases
from mercurial.localrepo import localrepository
from mercurial.node import bin
from mercurial.utils import cborutil

from .store.appendfile import open_regular

REPLICATED_DATA = b"replicated-data"
# Mercurial's views that show public changesets alone: what they hide is hidden for its phase.
PUBLIC_VIEWS = (b"immutable", b"base")


def visible_limit(repo: localrepository) -> int | None:
    """Return the last push id that another extension shows, None without limit."""
    decide = getattr(repo.unfiltered(), "_pushlog_limit", None)
    return None if decide is None else decide()


def with_hidden(repo: localrepository) -> Any:
    """Return the view to look up changesets: with hidden ones, without withheld ones.

    A view of public changesets withholds all others, and the view of clients those that are secret.
    """
    view: bytes | None = repo.filtername
    if view in PUBLIC_VIEWS:
        return repo
    decide = getattr(repo, "_pushlog_view", None)
    if decide is not None:
        return repo.unfiltered().filtered(decide())
    is_of_clients = view is not None and view.startswith(b"served")
    return repo.unfiltered().filtered(b"served.hidden") if is_of_clients else repo.unfiltered()


def withholds(repo: localrepository) -> bool:
    """Return whether this view withholds drafts, which it may show later."""
    decide = getattr(repo, "_pushlog_view", None)
    return repo.filtername in PUBLIC_VIEWS or (decide is not None and decide() == repo.filtername)


def served_limit(repo: localrepository) -> int | None:
    """Return the present limit, which may be beyond that of this repository object."""
    decide = getattr(repo.unfiltered(), "_pushlog_served", None)
    return web_limit(repo) if decide is None else decide()


def web_limit(repo: localrepository) -> int | None:
    """Return the last push id that web answers show, None without limit.

    It is `visible_limit`, or that of `.hg/replicated-data`, unless damaged, if no extension decides.
    """
    repo = repo.unfiltered()
    if getattr(repo, "_pushlog_limit", None) is not None:
        return visible_limit(repo)
    try:
        with open(repo.vfs.join(REPLICATED_DATA), "rb", opener=open_regular) as file:
            data = file.read()
        fields = cborutil.decodeall(data)[0] if data else {}
    except (FileNotFoundError, cborutil.CBORDecodeError, IndexError, TypeError, ValueError, OverflowError, MemoryError):
        return None  # MemoryError: cborutil allocates as many bytes as a length in the file says
    last = fields.get(b"last_push_id") if isinstance(fields, dict) else None
    return last if type(last) is int else None


class Pushed(NamedTuple):
    """A changeset of a push as this view of the repository shows it."""

    node: str
    revision: int
    is_hidden: bool


class NamedChangesets:
    """The changesets that a view of the repository names, and finds.

    It names the changesets that it shows, and hidden changesets that are obsolete and not secret. A view of public changesets names
    nothing that it hides. ``everything`` is `with_hidden` of the view.
    """

    def __init__(self, repo: localrepository) -> None:
        self.everything = with_hidden(repo)
        self.hidden = repo.changelog.filteredrevs
        self.index = self.everything.changelog.index
        self._withheld = self.everything.changelog.filteredrevs
        self._is_public = repo.filtername in PUBLIC_VIEWS

    def find(self, node: str) -> Pushed | None:
        """Return a changeset by its 40 hex digits; None if not named, or not there."""
        revision = self.index.get_rev(bin(node))
        if revision is None or revision in self._withheld:
            return None
        is_hidden = revision in self.hidden
        if is_hidden and not self._is_obsolete(revision):
            return None
        return Pushed(node, revision, is_hidden)

    def names(self, node: str) -> bool:
        """Return whether the view names a changeset, or may once that is there."""
        if not self.hidden and not self._is_public:
            return True
        revision = self.index.get_rev(bin(node))
        if revision is None:
            return not self._is_public
        return revision not in self.hidden or self.find(node) is not None

    def _is_obsolete(self, revision: int) -> bool:
        """Return whether a hidden changeset is obsolete and not secret."""
        context = self.everything[revision]
        return bool(context.phase() < phases.secret and context.obsolete())

# SPDX-License-Identifier: GPL-2.0-or-later
"""The limit up to which web pages and wire commands show a mirror's pushlog.

A mirror may hold more than it may serve. Another extension decides by repository attributes ``_pushlog_limit`` and
``_pushlog_view`` (see `pushlog.api`). Without one, web answers stop at ``last_push_id`` of ``.hg/replicated-data``, a canonical
CBOR map, where that file has one.
"""

from __future__ import annotations

from typing import Any

from mercurial.localrepo import localrepository
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

    A view of public changesets withholds all others.
    """
    if repo.filtername in PUBLIC_VIEWS:
        return repo
    decide = getattr(repo, "_pushlog_view", None)
    return repo.unfiltered() if decide is None else repo.unfiltered().filtered(decide())


def served_limit(repo: localrepository) -> int | None:
    """Return the present limit, which may be beyond that of this repository object."""
    decide = getattr(repo.unfiltered(), "_pushlog_served", None)
    return web_limit(repo) if decide is None else decide()


def web_limit(repo: localrepository) -> int | None:
    """Return the last push id that web answers show, None without limit.

    It is `visible_limit`, or that of `.hg/replicated-data` if no extension decides.
    """
    repo = repo.unfiltered()
    if getattr(repo, "_pushlog_limit", None) is not None:
        return visible_limit(repo)
    try:
        with open(repo.vfs.join(REPLICATED_DATA), "rb", opener=open_regular) as file:
            data = file.read()
        fields = cborutil.decodeall(data)[0] if data else {}
    except (FileNotFoundError, cborutil.CBORDecodeError, IndexError):
        return None
    last = fields.get(b"last_push_id") if isinstance(fields, dict) else None
    return last if isinstance(last, int) else None

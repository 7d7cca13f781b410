# SPDX-License-Identifier: GPL-2.0-or-later
"""Hashes of a repository's content by kind, the same for any order of arrival."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from mercurial.localrepo import localrepository
from mercurial.node import hex

from pushlog import seams

from . import observe


def lines(repo: localrepository, *, raw: bool = True) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each line.

    With `raw`, the hash of the marker file's bytes is added if there are markers.
    """
    served = repo.filtered(b"served")
    visible, heads = served.changelog, list(served.changelog.headrevs())
    every, every_head = repo.changelog, list(repo.changelog.headrevs()) if len(repo) else []
    yield "visible/total revisions", f"{len(list(visible))}/{len(every)}"
    yield "visible/total heads", f"{len(heads)}/{len(every_head)}"
    yield "normal", _hash_items(every.node(rev) for rev in visible)
    yield "unfiltered", _hash_items(every.node(rev) for rev in every)
    yield "phases", _hash_items(every.node(rev) + b"%d" % repo._phasecache.phase(repo, rev) for rev in every)
    yield "heads", _hash_items(every.node(rev) for rev in heads)
    yield "unfiltered heads", _hash_items(every.node(rev) for rev in every_head)
    yield "bookmarks", _hash_items(b"%s=%s" % (name, hex(node)) for name, node in repo._bookmarks.items())
    yield "pushlog", _hash_items(_encode_pushes(repo))
    if repo.obsstore:
        markers = observe.encode_markers(repo.obsstore)
        yield "obsolete records", f"{len(markers)}/{_hash_items(markers)}"
        if raw:
            yield "obsstore", hashlib.sha256(repo.svfs.tryread(b"obsstore")).hexdigest()


def _encode_pushes(repo: localrepository) -> Iterator[bytes]:
    pushlog = seams.find_extension(b"pushlog")
    for number, user, date, nodes in pushlog.api.pushes(repo, 1) if pushlog else ():
        yield b"%d %s %d %s" % (number, user, date, b" ".join(nodes))


def _hash_items(items: Iterable[bytes]) -> str:
    """Return the SHA-256 over the sorted items, each with its length."""
    digest = hashlib.sha256()
    for item in sorted(items):
        digest.update(b"%d:" % len(item) + item)
    return digest.hexdigest()

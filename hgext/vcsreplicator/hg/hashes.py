# SPDX-License-Identifier: GPL-2.0-or-later
"""Hashes of everything that a repository holds.

Master and mirror compare fingerprints at one sequence. They are read without a lock: the newest event is read before and after, and
if a transaction changed it meanwhile, all is read again. So pushes never wait for a comparison. An operator compares copies by
`lines`, which are the same for any order of arrival.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from mercurial.localrepo import localrepository
from mercurial.node import hex

from pushlog import seams

from ..outbox.entry import NewestEvent
from ..words.errors import Changing, Unavailable
from . import observe

if TYPE_CHECKING:
    from ..mirror.comparison import Fingerprint

# How often a repository is read that changes meanwhile.
ATTEMPTS = 5


def fingerprint(repo: localrepository, read_newest: Callable[[], NewestEvent | None]) -> Fingerprint:
    """Return the present fingerprint of a repository.

    `read_newest` reads the newest event of a master, or the checkpoint of a mirror. Raises Unavailable if the repository has no
    event, and Changing if it changes faster than it is read, or is damaged.
    """
    repo = repo.unfiltered()
    for _ in range(ATTEMPTS):
        before = read_newest()
        if before is None:
            raise Unavailable("the repository has no event yet")
        repo.invalidateall()
        try:
            found = _read_once(repo, before)
        except (LookupError, OSError):
            # It changed during the reading; or it is damaged, and then every attempt fails.
            continue
        if read_newest() == before and not repo.svfs.exists(b"journal"):
            return found
    raise Changing("the repository changes while it is read")


def _read_once(repo: localrepository, newest: NewestEvent) -> Fingerprint:
    changelog = repo.changelog
    length = len(changelog)
    from ..mirror.comparison import Fingerprint  # of a mirror's package: servers that compare nothing do not load it

    return Fingerprint(
        repository=newest.repository,
        incarnation=newest.incarnation,
        seq=newest.seq,
        id=newest.id,
        digest=newest.digest,
        length=length,
        changesets=_hash_pieces(map(changelog.node, range(length))),
        heads=_hash_pieces(sorted(map(changelog.node, changelog.index.headrevs()))),
        phases=_hash_pieces(
            b"%d %s\n" % (phase, hex(node)) for phase, roots in observe.phase_roots(repo).items() for node in roots
        ),
        bookmarks=_hash_pieces(
            b"%s %s\n" % item for item in sorted((name, hex(node)) for name, node in repo._bookmarks.items())
        ),
        markers=_hash_pieces(sorted(observe.encode_markers(list(repo.obsstore)))),
        pushlog=_hash_pieces(push + b"\n" for push in _encode_pushes(repo)),
    )


def _encode_pushes(repo: localrepository) -> Iterable[bytes]:
    from pushlog import api

    for number, user, date, nodes in api.pushes(repo, 1):
        yield b"%d %s %d %s" % (number, user, date, b" ".join(nodes))


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
    yield "phases", _hash_items(every.node(rev) + b"%d" % observe.phase_of(repo, rev) for rev in every)
    yield "heads", _hash_items(every.node(rev) for rev in heads)
    yield "unfiltered heads", _hash_items(every.node(rev) for rev in every_head)
    yield "bookmarks", _hash_items(b"%s=%s" % (name, hex(node)) for name, node in repo._bookmarks.items())
    yield "pushlog", _hash_items(_encode_pushes(repo) if seams.find_extension(b"pushlog") else ())
    if repo.obsstore:
        markers = observe.encode_markers(repo.obsstore)
        yield "obsolete records", f"{len(markers)}/{_hash_items(markers)}"
        if raw:
            yield "obsstore", hashlib.sha256(repo.svfs.tryread(b"obsstore")).hexdigest()


def _hash_items(items: Iterable[bytes]) -> str:
    """Return the SHA-256 over the sorted items, each with its length."""
    return _hash_pieces(b"%d:" % len(item) + item for item in sorted(items))


def _hash_pieces(pieces: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()

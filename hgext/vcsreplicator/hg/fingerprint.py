# SPDX-License-Identifier: GPL-2.0-or-later
"""Hashes of everything that a repository holds at one sequence.

Master and mirror compare them. They are read without a lock: the newest event is read before and after, and if a transaction
changed it meanwhile, all is read again. So pushes never wait for a comparison.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from mercurial.localrepo import localrepository
from mercurial.node import hex

from ..outbox.entry import NewestEvent
from ..words.errors import Unavailable
from . import observe

if TYPE_CHECKING:
    from ..mirror.comparison import Fingerprint

# Readings of a repository that changes while it is read.
ATTEMPTS = 5


def fingerprint(repo: localrepository, read_newest: Callable[[], NewestEvent | None]) -> Fingerprint:
    """Return the present fingerprint of a repository.

    `read_newest` reads the newest event of a master, or the checkpoint of a mirror. Raises Unavailable if the repository has no
    event, or changes faster than it is read.
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
            # It changed during the reading, or is damaged; then every attempt fails.
            continue
        if read_newest() == before and not repo.svfs.exists(b"journal"):
            return found
    raise Unavailable("the repository changes while it is read")


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
        phases=_hash_pieces(_encode_phases(repo)),
        bookmarks=_hash_pieces(
            b"%s %s\n" % item for item in sorted((name, hex(node)) for name, node in repo._bookmarks.items())
        ),
        markers=_hash_pieces(sorted(observe.encode_markers(list(repo.obsstore)))),
        pushlog=_hash_pieces(_encode_pushlog(repo)),
    )


def _encode_phases(repo: localrepository) -> Iterable[bytes]:
    roots = repo._phasecache._phaseroots
    for phase in observe.PHASES:
        for node in sorted(map(repo.changelog.node, roots.get(phase, ()))):
            yield b"%d %s\n" % (phase, hex(node))


def _encode_pushlog(repo: localrepository) -> Iterable[bytes]:
    from pushlog import api

    for number, user, date, nodes in api.pushes(repo, 1):
        yield b"%d %s %d %s\n" % (number, user, date, b" ".join(nodes))


def _hash_pieces(pieces: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()

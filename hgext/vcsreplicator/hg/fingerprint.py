# SPDX-License-Identifier: GPL-2.0-or-later
"""Everything a repository is, as a few hashes, at a sequence: equal on master and mirror, or they differ and in what.

Read without a lock: the level is read before and after, and what a transaction touched meanwhile is read again. So pushes never
wait for a comparison.
"""

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from mercurial.node import hex

from ..mirror.comparison import Fingerprint
from ..words.errors import Unavailable
from . import observe

ATTEMPTS = 5


class AnyLevel(Protocol):
    """What a level of the master and one of a mirror have in common."""

    @property
    def repository(self) -> str: ...
    @property
    def incarnation(self) -> str: ...
    @property
    def seq(self) -> int: ...
    @property
    def id(self) -> str: ...
    @property
    def digest(self) -> str: ...


def fingerprint(repo: Any, level_now: Callable[[], AnyLevel | None]) -> Fingerprint:
    """The fingerprint of this moment; raises Unavailable if the repository has no level, or changes faster than it is read."""
    repo = repo.unfiltered()
    for _ in range(ATTEMPTS):
        before = level_now()
        if before is None:
            raise Unavailable("the repository has no event yet")
        repo.invalidateall()
        try:
            found = _read(repo, before)
        except (LookupError, OSError):
            continue  # read while it was changed, or damaged: then it is so at every attempt
        if level_now() == before and not repo.svfs.exists(b"journal"):
            return found
    raise Unavailable("the repository changes while it is read")


def _read(repo: Any, level: AnyLevel) -> Fingerprint:
    changelog = repo.changelog
    length = len(changelog)
    return Fingerprint(
        repository=level.repository,
        incarnation=level.incarnation,
        seq=level.seq,
        id=level.id,
        digest=level.digest,
        length=length,
        changesets=_hash(map(changelog.node, range(length))),
        heads=_hash(sorted(map(changelog.node, changelog.index.headrevs()))),
        phases=_hash(_phases(repo)),
        bookmarks=_hash(
            b"%s %s\n" % item for item in sorted((name, hex(node)) for name, node in repo._bookmarks.items())
        ),
        markers=_hash(sorted(observe.encode_markers(list(repo.obsstore)))),
        pushlog=_hash(_pushlog(repo)),
    )


def _phases(repo: Any) -> Iterable[bytes]:
    roots = repo._phasecache._phaseroots
    for phase in observe.PHASES:
        for node in sorted(map(repo.changelog.node, roots.get(phase, ()))):
            yield b"%d %s\n" % (phase, hex(node))


def _pushlog(repo: Any) -> Iterable[bytes]:
    from pushlog import api

    for number, user, date, nodes in api.pushes(repo, 1):
        yield b"%d %s %d %s\n" % (number, user, date, b" ".join(nodes))


def _hash(pieces: Iterable[bytes]) -> str:
    total = hashlib.sha256()
    for piece in pieces:
        total.update(piece)
    return total.hexdigest()

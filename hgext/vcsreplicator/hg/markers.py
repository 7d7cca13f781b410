# SPDX-License-Identifier: GPL-2.0-or-later
"""Obsolescence markers of stripped changesets alone, which a strip deletes.

Mercurial's strip truncates first and deletes them afterwards. After a kill in between the changesets are gone, and a second strip
would not find the markers.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable

from mercurial import obsutil, repair
from mercurial.localrepo import localrepository

from . import observe


def find_exclusive(repo: localrepository, nodes: Iterable[bytes]) -> tuple[str, ...]:
    """Find the markers that a strip of exactly these changesets deletes."""
    encoded = observe.encode_markers(obsutil.exclusivemarkers(repo, nodes))
    return tuple(sorted(base64.b64encode(marker).decode() for marker in encoded))


def delete(repo: localrepository, markers: Iterable[str]) -> None:
    """Delete the markers that are there, all or none; the caller holds the lock."""
    doomed = {base64.b64decode(marker) for marker in markers}
    here = enumerate(observe.encode_markers(repo.obsstore)) if doomed else ()
    indices = [index for index, marker in here if marker in doomed]
    if indices:
        repair.deleteobsmarkers(repo.obsstore, indices)
        repo.invalidateall()

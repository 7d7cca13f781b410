# SPDX-License-Identifier: GPL-2.0-or-later
"""The file versions that a changeset adds.

They come from manifests, because the changeset's list of files is only the pusher's claim.
"""

from __future__ import annotations

from mercurial.localrepo import localrepository


def brought(repo: localrepository, rev: int) -> dict[bytes, bytes]:
    """Return path and file node of the versions in `rev` but in none of its parents."""
    manifests = [repo[number].manifest() for number in (rev, *repo.changelog.parentrevs(rev))]
    manifest, first, second = manifests
    changed = first.diff(manifest)
    new = {path: node for path, (_before, (node, _flags)) in changed.items() if node is not None}
    return {path: node for path, node in new.items() if node not in (first.get(path), second.get(path))}

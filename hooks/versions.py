# SPDX-License-Identifier: GPL-2.0-or-later
"""Which file versions a changeset brings.

They are taken from manifests, as the changeset's list of files is the pusher's word.
"""

from __future__ import annotations

from mercurial.localrepo import localrepository


def brought(repo: localrepository, rev: int) -> dict[bytes, bytes]:
    """Return path and file node of what `rev` has and none of its parents has."""
    manifests = [repo[number].manifest() for number in (rev, *repo.changelog.parentrevs(rev))]
    manifest, first, second = manifests
    changed = first.diff(manifest)
    new = {path: node for path, (_before, (node, _flags)) in changed.items() if node is not None}
    return {path: node for path, node in new.items() if node not in (first.get(path), second.get(path))}

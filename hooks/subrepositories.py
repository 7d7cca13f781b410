# SPDX-License-Identifier: GPL-2.0-or-later
"""No subrepositories.

A push whose changesets add or change `.hgsub` or `.hgsubstate` is refused; removing them is welcome.

    [hooks]
    pretxnopen.streams = python:hooks.streams.refuse
    pretxnchangegroup.subrepositories = python:hooks.subrepositories.refuse

A subrepository's URL makes every clone run other programs against other machines, and its target may disappear.
"""

from __future__ import annotations

from typing import Any

from mercurial.localrepo import localrepository
from mercurial.ui import ui as Ui

FILES = (b".hgsub", b".hgsubstate")


def refuse(ui: Ui, repo: localrepository, node: bytes, source: bytes = b"", **_arguments: Any) -> bool:
    """Refuse subrepositories; `node` is the first new changeset.

    A strip is never refused: the changesets that it adds again would be lost.
    """
    if source == b"strip":
        return False
    repo = repo.unfiltered()
    for rev in range(repo[node].rev(), len(repo)):
        new = _list_new_versions(repo, rev)
        for path in FILES:
            if path in new:
                ui.warn(b"changeset %s changes %s: subrepositories are not taken here\n" % (bytes(repo[rev]), path))
                return True
    return False


def _list_new_versions(repo: localrepository, rev: int) -> dict[bytes, bytes]:
    """Return path and file node of the versions in `rev` but in none of its parents.

    They come from manifests, because the changeset's list of files is only the pusher's claim.
    """
    manifest, first, second = (repo[number].manifest() for number in (rev, *repo.changelog.parentrevs(rev)))
    changed = first.diff(manifest)
    new = {path: node for path, (_before, (node, _flags)) in changed.items() if node is not None}
    return {path: node for path, node in new.items() if node not in (first.get(path), second.get(path))}

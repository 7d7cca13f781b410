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

from . import versions

FILES = (b".hgsub", b".hgsubstate")


def refuse(ui: Ui, repo: localrepository, node: bytes, source: bytes = b"", **_arguments: Any) -> bool:
    """Refuse subrepositories; `node` is the first new changeset.

    A strip is never refused: the changesets that it adds again would be lost.
    """
    if source == b"strip":
        return False
    repo = repo.unfiltered()
    for rev in range(repo[node].rev(), len(repo)):
        new = versions.brought(repo, rev)
        for path in FILES:
            if path in new:
                ui.warn(b"changeset %s changes %s: subrepositories are not taken here\n" % (bytes(repo[rev]), path))
                return True
    return False

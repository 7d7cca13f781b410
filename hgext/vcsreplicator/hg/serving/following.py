# SPDX-License-Identifier: GPL-2.0-or-later
"""The master's settings that decide what a client does with a mirror's answer.

A mirror answers by the settings of the release that it shows, not by its own hgrc. `docs/serving.md` has a table of Mercurial's
settings, and says why a mirror leaves the others alone.
"""

from mercurial import error
from mercurial.localrepo import localrepository

from .views import held_release

# What an operator sees as the source of these settings, with `hg config --source`.
_SOURCE = b"vcsreplicator"


def follow_master(repo: localrepository) -> None:
    """Set this repository object to answer by the master's settings at its release.

    Raises Abort for a filter of Mercurial's that would not end with the release.

    If the release does not say whether the master is publishing, clients get each changeset's phase: it is public if it became so
    by a push to a publishing master, so no client makes public what the master has as draft.
    """
    settings, ui = held_release(repo).settings, repo.ui
    if ui.config(b"experimental", b"extra-filter-revs") is not None:
        raise error.Abort(
            b"config: [experimental] extra-filter-revs: a mirror cannot filter by it; remove it, or set [server] view"
        )
    ui.setconfig(b"phases", b"publish", settings.publishing is True, _SOURCE)
    if settings.exchange is not None:
        ui.setconfig(b"experimental", b"evolution.exchange", settings.exchange, _SOURCE)
        # Without this key Mercurial does not read the other one, and warns each client of markers that are not enabled.
        ui.setconfig(b"experimental", b"evolution.createmarkers", True, _SOURCE)

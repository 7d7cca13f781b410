# SPDX-License-Identifier: GPL-2.0-or-later
"""No copies of a whole store.

A push that brings one is refused. Mercurial writes such a copy past the other hooks, so no other policy would see it. The pushlog
refuses them too.

    [hooks]
    pretxnopen.streams = python:hooks.streams.refuse

Clones and pulls may bring copies. A process that has once run this hook refuses pushed ones in all of its repositories.
"""

from __future__ import annotations

from typing import Any

from mercurial import error
from mercurial.localrepo import localrepository
from mercurial.ui import ui as Ui

from pushlog.streams import refuse_pushed


def refuse(ui: Ui, repo: localrepository, **_arguments: Any) -> bool:
    """Refuse pushed copies of a store from now on: a `pretxnopen` hook.

    Mercurial opens the transaction of a push before it reads its content. Raises ConfigError if it is configured not to.
    """
    if ui.configbool(b"experimental", b"bundle2lazylocking"):
        text = (
            b"config: [experimental] bundle2lazylocking: expected no, as copies of a store could not be refused with it"
        )
        raise error.ConfigError(text)
    refuse_pushed()
    return False

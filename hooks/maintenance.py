# SPDX-License-Identifier: GPL-2.0-or-later
"""Read-only for maintenance: every push is refused with the operator's message; clones and pulls go on.

    [hooks]
    pretxnopen.maintenance = python:hooks.maintenance.refuse
    prepushkey.maintenance = python:hooks.maintenance.refuse

    [maintenance]
    # Pushes are refused while this file exists; what it holds is told to the pusher. Relative to the repository's .hg.
    file = /etc/mercurial/maintenance
    # Or always, with this message.
    message =

Acts when a client's transaction opens, so bookmarks, phases and markers are refused as changesets are, and before anything was
written. What is done on the server itself goes on. A file that cannot be read refuses too. The second hook is for old
clients, which send a bookmark, a phase or a marker by a command of its own: without it they are refused, in ruder words.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mercurial.localrepo import localrepository
    from mercurial.ui import ui as Ui

CLIENTS = (b"serve", b"push")  # beginnings of the names of transactions that clients open; "pushkey" too
OUTWARD = b"push-response"  # somebody on the server pushed from here to elsewhere
BOOKMARKS = b"bookmarks"  # the name where a client moves a bookmark by the old command; the server's own is "bookmark"
USUAL = b"this repository is read-only for maintenance; please push again later"


def refuse(ui: Ui, repo: localrepository, txnname: bytes = b"", namespace: bytes = b"", **_arguments: Any) -> bool:
    """A `pretxnopen` and `prepushkey` hook."""
    is_client = txnname == BOOKMARKS or (txnname.startswith(CLIENTS) and not txnname.startswith(OUTWARD))
    if not namespace and not is_client:
        return False
    message = _message(ui, repo)
    if message is None:
        return False
    ui.warn(b"%s\n" % (message.strip() or USUAL))
    return True


def _message(ui: Ui, repo: localrepository) -> bytes | None:
    """What to tell the pusher; None without maintenance."""
    settings: dict[bytes, bytes] = dict(ui.configitems(b"maintenance"))
    if settings.get(b"message"):
        return settings[b"message"]
    file = settings.get(b"file")
    if not file:
        return None
    try:
        with open(os.path.join(repo.path, file), "rb") as told:
            return told.read(4000)
    except FileNotFoundError:
        return None
    except OSError:
        return USUAL

# SPDX-License-Identifier: GPL-2.0-or-later
"""Read-only for maintenance.

Every push is refused with the operator's message; clones and pulls go on.

    [hooks]
    pretxnopen.maintenance = python:hooks.maintenance.refuse
    prepushkey.maintenance = python:hooks.maintenance.refuse

    [maintenance]
    # Pushes are refused while this file exists; its content is the message for the pusher. Relative to the repository's .hg.
    file = /etc/mercurial/maintenance
    # Or always, with this message.
    message =

The message is that of an Abort: over HTTP Mercurial sends nothing of what a hook prints before the transaction is open.

Acts when a client's transaction opens, so bookmarks, phases and markers are refused like changesets, before anything is written.
Commands on the server itself still work. A file that cannot be read refuses too. The second hook is for old clients, which send a
bookmark, a phase or a marker by a separate command: without it they are refused with a less clear message.
"""

from __future__ import annotations

from typing import Any

from mercurial import error
from mercurial.localrepo import localrepository
from mercurial.ui import ui as Ui

# Beginnings of the names of transactions that clients open; "pushkey" too.
CLIENTS = (b"serve", b"push")
# A user of the server pushes from here to another repository.
OUTWARD = b"push-response"
# A client moves a bookmark by the old command; the server's own transaction is named "bookmark".
BOOKMARKS = b"bookmarks"
USUAL = b"this repository is read-only for maintenance; please push again later"


def refuse(ui: Ui, repo: localrepository, txnname: bytes = b"", namespace: bytes = b"", **_arguments: Any) -> bool:
    """Refuse during maintenance: a `pretxnopen` and `prepushkey` hook.

    Raises Abort with the operator's message. For `prepushkey` it prints the message and returns True instead, because an Abort
    would end an old client's connection.
    """
    is_client = txnname == BOOKMARKS or (txnname.startswith(CLIENTS) and not txnname.startswith(OUTWARD))
    if not namespace and not is_client:
        return False
    message = _read_message(ui, repo)
    if message is None:
        return False
    message = message.strip() or USUAL
    if not namespace:
        raise error.Abort(message)
    ui.warn(b"%s\n" % message)
    return True


def _read_message(ui: Ui, repo: localrepository) -> bytes | None:
    """Return the message for the pusher; None without maintenance."""
    settings: dict[bytes, bytes] = dict(ui.configitems(b"maintenance"))
    if settings.get(b"message"):
        return settings[b"message"]
    file = settings.get(b"file")
    if not file:
        return None
    try:
        # Where the pushlog is loaded, it follows no link in the `.hg`: the pusher would read another user's file.
        with repo.vfs(file, b"rb", auditpath=False) as message:
            content: bytes = message.read(4000)
            return content
    except FileNotFoundError:
        return None
    except OSError:
        return USUAL

# SPDX-License-Identifier: GPL-2.0-or-later
"""Links to pushed changesets, shown to the pusher.

    [hooks]
    changegroup.urls = python:hooks.urls.show

    [push-urls]
    # what stands before the repository's path in public URLs, and the folder that the path is relative to
    base = https://hg.example/
    root = /repos

Runs after the push is committed and cannot fail it. Beyond ten changesets one link to the push's page replaces the list; without
the pushlog it is a link to the newest changeset.
"""

from __future__ import annotations

import os
import urllib.parse
from typing import Any

from mercurial import extensions
from mercurial.localrepo import localrepository
from mercurial.ui import ui as Ui

# Most changesets that get a link each.
MOST = 10


def show(ui: Ui, repo: localrepository, node: bytes, source: bytes = b"", **_arguments: Any) -> bool:
    """Show the URLs of a push; `node` is the first new changeset."""
    settings = dict(ui.configitems(b"push-urls"))
    base, root = settings.get(b"base"), settings.get(b"root")
    if not base or not root or source not in (b"serve", b"push"):
        return False
    url = _make_url(base, root, repo.root)
    if url is None:
        return False
    served = repo.filtered(b"served").changelog
    new = [served.node(rev).hex().encode() for rev in served.revs(repo.unfiltered()[node].rev())]
    if not new:
        return False
    ui.status(b"\nView your %s here:\n" % (b"change" if len(new) == 1 else b"changes"))
    for place in [b"rev/" + name for name in new] if len(new) <= MOST else [_make_page(new[-1])]:
        ui.status(b"  %s/%s\n" % (url, place))
    return False


def _make_url(base: bytes, root: bytes, folder: bytes) -> bytes | None:
    """Return the repository's public URL; None outside the root."""
    path = os.path.relpath(os.path.realpath(folder), os.path.realpath(root))
    if path.startswith(b"..") or path == b".":
        return None
    return base.rstrip(b"/") + b"/" + urllib.parse.quote_from_bytes(path).encode()


def _make_page(newest: bytes) -> bytes:
    try:
        extensions.find(b"pushlog")
    except KeyError:
        return b"rev/" + newest
    return b"pushloghtml?changeset=" + newest

# SPDX-License-Identifier: GPL-2.0-or-later
"""The repositories that a request's path names, and which could take a push.

Without Mercurial: the process that listens asks before it takes a body.
"""

import enum
import os
import re
from collections.abc import Iterator
from urllib.parse import parse_qs

from ...words import path as wire

# What an hgrc has that permits pushes, or that may permit them.
_PERMITS = re.compile(rb"allow[-_]push|%include")
# Commands whose body is what is pushed, and where LFS uploads to.
_UPLOADS = ("unbundle", "putlfile", "/.hg/lfs/objects/")
# Bytes of a repository's hgrc that are searched for it.
_SEARCHED = 1024**2


class Pushes(enum.Enum):
    """Where a server's configuration permits pushes of clients without a name."""

    NOWHERE = "nowhere"
    BY_REPOSITORY = "where a repository's own hgrc says it"
    EVERYWHERE = "everywhere"


def could_push(folder: bytes, pushes: Pushes, method: str, where: str, query: str) -> bool:
    """Return whether a request is a push that Mercurial could permit.

    So is an upload of largefiles or LFS. Mercurial decides once the body is there. An unreadable repository permits none.
    """
    if method == "PUT":
        where, upload, _ = where.partition("/.hg/lfs/objects/")
    else:
        upload = parse_qs(query).get("cmd", [""])[-1] if method == "POST" else ""
    if pushes is Pushes.NOWHERE or upload not in _UPLOADS:
        return False
    wanted = where.strip("/").encode("latin-1", "replace")
    place = os.path.join(folder, wanted, b".hg")
    if wanted and (wanted, True) not in [(name, is_there) for name, _, is_there in follow_path(folder, where)]:
        return False
    if pushes is Pushes.EVERYWHERE:
        return os.path.isdir(place)
    is_share = os.path.lexists(os.path.join(place, b"sharedpath"))  # with the settings of another one
    return is_share or any(_may_permit(os.path.join(place, name)) for name in (b"hgrc", b"hgrc-not-shared"))


def _may_permit(hgrc: bytes) -> bool:
    """Return whether an hgrc may permit pushes; do not wait for a pipe."""
    try:
        with open(hgrc, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            return _PERMITS.search(file.read(_SEARCHED) or b"") is not None
    except OSError:
        return False


def is_ours(part: bytes) -> bool:
    """Return whether this folder is a mirror's own, or of what a master deleted.

    No repository's path has a part that begins with `~`.
    """
    return part.startswith(b"~") or part == b".vcsreplicator"


def follow_path(folder: bytes, where: str) -> Iterator[tuple[bytes, bytes, bool]]:
    """Yield the names that a request's path begins with, shortest first.

    Each comes as (name, place, whether it is a repository). As in a scan, what is inside of a repository is not reached by a
    link, which a pusher may have made.
    """
    virtual, is_inside = b"", os.path.isdir(os.path.join(folder, b".hg"))
    # WSGI hands paths over as Latin-1 text.
    for part in where.strip("/").encode("latin-1", "replace").split(b"/"):
        if part in (b"", b".", b"..", b".hg") or is_ours(part) or b"\0" in part:
            return
        virtual = virtual + b"/" + part if virtual else part
        place = os.path.join(folder, virtual)
        if len(virtual) > wire.MAX_PATH or (is_inside and os.path.islink(place)):
            return
        is_repository = os.path.isdir(os.path.join(place, b".hg"))
        yield virtual, place, is_repository
        is_inside |= is_repository

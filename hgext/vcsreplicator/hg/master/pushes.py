# SPDX-License-Identifier: GPL-2.0-or-later
"""The pushlog's entries of a transaction and of changesets.

Without the extension pushlog, there are none. The module also says where a push came from.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from mercurial.localrepo import localrepository
from mercurial.node import hex
from mercurial.phases import secret

from pushlog import seams

from ...words.event import Marker, MarkerNode, PushConnection, PushEntry
from ...words.shape import EARLIEST, LARGEST, LATEST
from ..observe import phase_of
from ..text import text, utf8

if TYPE_CHECKING:
    from mercurial.obsolete import _Marker

    # Id, user, date and nodes of a push.
    PushRow = tuple[int, bytes, int, list[bytes]]

# Most characters of an address, of a list of addresses, and of a client's name.
ADDRESS_LIMIT, FORWARDED_LIMIT, CLIENT_LIMIT = 100, 1000, 500


def push_entry(repo: localrepository) -> PushEntry | None:
    """Return the pushlog's entry of the running transaction, if it is a push."""
    pushlog = seams.find_extension(b"pushlog")
    return entry_of(pushlog.api.entry_of_transaction(repo)) if pushlog else None


def has_fetched(repo: localrepository) -> bool:
    """Return whether the running transaction records pushes of another server."""
    pushlog = seams.find_extension(b"pushlog")
    return pushlog is not None and bool(pushlog.api.has_fetched(repo))


def entry_of(row: PushRow | None) -> PushEntry | None:
    """Return a row of the pushlog as events have it.

    None if there is no row, or if no event can hold its id or date.
    """
    if row is None or not 0 <= row[0] <= LARGEST or not EARLIEST <= row[2] <= LATEST:
        return None
    return PushEntry(id=row[0], user=utf8(row[1]), date=row[2])


def pusher_connection(url: bytes, environment: Mapping[bytes, bytes]) -> PushConnection | None:
    """Return where a push came from.

    `url` is the push's `url` in Mercurial, `environment` that of the request or of the SSH session. Each part is cut to its
    limit, and bytes that are no UTF-8 become U+FFFD. None if nothing is known, and for changes that no client pushed
    (`tests/hg/master/test_connection.py`).
    """
    if url.startswith((b"remote:http:", b"remote:https:")):
        address, forwarded, client = (
            environment.get(name) or b"" for name in (b"REMOTE_ADDR", b"HTTP_X_FORWARDED_FOR", b"HTTP_USER_AGENT")
        )
    elif url.startswith(b"remote:ssh:"):
        session = environment.get(b"SSH_CONNECTION") or environment.get(b"SSH_CLIENT") or b""
        address, forwarded, client = session.partition(b" ")[0], b"", b""
    else:
        return None
    known = PushConnection(
        address=_decode_text(address)[:ADDRESS_LIMIT] or None,
        forwarded=_last_entries(_decode_text(forwarded)) or None,
        client=_decode_text(client)[:CLIENT_LIMIT] or None,
    )
    return None if known == PushConnection() else known


def _decode_text(value: bytes) -> str:
    return value.decode("utf-8", "replace").strip()


def _last_entries(forwarded: str) -> str:
    """Cut a list of addresses to FORWARDED_LIMIT characters, between two entries.

    Its left end is cut off, because a client can write anything there.
    """
    if len(forwarded) <= FORWARDED_LIMIT:
        return forwarded
    return forwarded[-FORWARDED_LIMIT:].partition(",")[2].strip()


def reading_pushes(repo: localrepository) -> AbstractContextManager[Callable[[bytes], PushRow | None]]:
    """Provide a function from a changeset's node to the row of its push.

    The node is hexadecimal. The function returns None if the pushlog has no push of the changeset, or there is no pushlog. The
    pushlog is opened once for all calls; raises Abort if it cannot be read.
    """
    pushlog = seams.find_extension(b"pushlog")
    return pushlog.api.reading(repo) if pushlog else contextlib.nullcontext(lambda _node: None)


def public_markers(repo: localrepository, markers: list[_Marker]) -> tuple[Marker, ...]:
    """Return markers in public form, with this repository's data of each changeset.

    A secret changeset is described as an unknown one, because no client of the server can see it. Each changeset is read once.
    """
    repo.invalidatevolatilesets()
    served, find_rev = repo.filtered(b"served").changelog, repo.changelog.index.get_rev
    with reading_pushes(repo) as push_of:

        @functools.cache
        def describe(node: bytes) -> MarkerNode:
            name, rev = hex(node).decode(), find_rev(node)
            if rev is None or phase_of(repo, rev) >= secret:
                return MarkerNode(node=name, known=False, visible=None, desc=None, push=None)
            desc, push = text(repo[rev].description()), entry_of(push_of(hex(node)))
            return MarkerNode(node=name, known=True, visible=served.hasnode(node), desc=desc, push=push)

        return tuple(
            Marker(
                precursor=describe(precursor),
                successors=tuple(map(describe, successors)),
                user=next((utf8(value) for name, value in reversed(metadata) if name == b"user"), None),
                time=float(date[0]),
            )
            for precursor, successors, _flags, metadata, date, _parents in markers
        )

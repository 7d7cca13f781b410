# SPDX-License-Identifier: GPL-2.0-or-later
"""The running digest of a repository's changes.

Equal digests at equal sequence mean equal histories of changes. digest(0) is SHA-256 over the empty text,
digest(N) = SHA-256(digest(N−1) as 32 bytes + canonical change N). The canonical change names nodes, never revision numbers, so a
mirror computes the same from what it observed itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence

from .event import Changes, NodeSet, Type
from .shape import plain

START = hashlib.sha256(b"").hexdigest()


def advance(digest: str, kind: Type, changes: Changes) -> str:
    """Return the digest after a change, 64 hexadecimal digits."""
    return hashlib.sha256(bytes.fromhex(digest) + canonical(kind, changes)).hexdigest()


def canonical(kind: Type, changes: Changes) -> bytes:
    """Return the canonical form of a change, JSON in ASCII.

    It does not depend on the order in which heads, phases and bookmarks were observed; of the markers it has the hash.
    """
    phases = {move.phase: sorted(move.nodes) for move in changes.phases if move.nodes}
    bookmarks = sorted((bookmark.name, bookmark.node) for bookmark in changes.bookmarks)
    content = {
        "type": kind.value,
        "added": plain(changes.added),
        "removed": plain(changes.removed),
        "heads": [sorted(changes.heads_added), sorted(changes.heads_removed)],
        "phases": [[phase, nodes] for phase, nodes in sorted(phases.items())],
        "bookmarks": bookmarks,
        "markers": changes.markers_sha256,
        "push": plain(changes.push),
    }
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode("ascii")


def node_set(nodes: Sequence[bytes]) -> NodeSet | None:
    """Return the set of these 20-byte nodes, in this order; None for none."""
    if not nodes:
        return None
    return NodeSet(count=len(nodes), sha256=hashlib.sha256(b"".join(nodes)).hexdigest())


def marker_hash(encoded: Iterable[bytes]) -> str | None:
    """Return SHA-256 over the sorted binary forms of markers; None for none."""
    items = sorted(encoded)
    return hashlib.sha256(b"".join(items)).hexdigest() if items else None

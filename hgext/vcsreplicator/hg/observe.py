# SPDX-License-Identifier: GPL-2.0-or-later
"""What a transaction did to a repository, seen from inside it: the same function on the master and on every mirror.

Master and mirror must come to equal `Changes` from equal changes, or their digests part. So everything here names nodes, orders
what has no order of its own, and leaves out what took no effect. All of it costs what changed, never what the repository holds.

How phases are told (`Changes.phases`):

- an added changeset begins with the highest phase that its parents had before, public without any: so Mercurial adds it when
  told to add it public;
- what moved up from there (towards secret) is told by the *roots* of the set that went to that phase;
- what moved down (towards public) is told by the *heads* of the set that went to that phase.

`move_phases` carries such moves out, after the bundle was added. Phases
above secret (internal, archived) never leave a repository and are left out.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from mercurial import obsolete, phases, repair
from mercurial.node import bin, hex, nullrev

from ..words.digest import marker_hash, node_set
from ..words.event import NULL_NODE, Bookmark, Changes, PhaseMove, PushEntry, Tip
from ..words.value import Value
from .text import local, text

PHASES = (phases.public, phases.draft, phases.secret)


class Mark(Value):
    """How far a transaction had come at some moment: what it did later is what one event did."""

    length: int
    phases: Mapping[int, int]
    bookmarks: Mapping[bytes, bytes | None]
    markers: frozenset[Any]


def start(tr: Any) -> Mark:
    """The mark of a transaction's beginning, to be had at any time in it."""
    return Mark(length=tr.changes[b"origrepolen"], phases={}, bookmarks={}, markers=frozenset())


def mark(repo: Any, tr: Any) -> Mark:
    """The mark of this moment in `tr`."""
    return Mark(
        length=len(repo.unfiltered().changelog),
        phases={rev: new for revs, (_, new) in tr.changes[b"phases"] for rev in revs},
        bookmarks={name: new for name, (_, new) in tr.changes[b"bookmarks"].items()},
        markers=frozenset(tr.changes[b"obsmarkers"]),
    )


def observe(repo: Any, tr: Any, *, since: Mark | None = None, push: PushEntry | None = None) -> Changes:
    """What `tr` did to `repo` since the mark (None: since it began), `push` being the pushlog entry that belongs to it.

    The markers' public form is not filled in: it says what the master knew (`capture`), and is outside the digest.
    """
    repo = repo.unfiltered()
    since = since or start(tr)
    changelog = repo.changelog
    added = range(since.length, len(changelog))
    heads_added, heads_removed = _heads(changelog, added)
    return Changes(
        added=node_set([changelog.node(rev) for rev in added]),
        heads_added=heads_added,
        heads_removed=heads_removed,
        phases=_phases(repo, tr.changes[b"phases"], since, len(changelog)),
        bookmarks=_bookmarks(tr.changes[b"bookmarks"], since),
        markers_sha256=marker_hash(encode_markers(markers_since(tr, since))),
        push=push,
    )


def added(repo: Any, first: int, end: int, *, push: PushEntry | None) -> Changes:
    """What a transaction would have done that added these revisions in the phases that they have now, and did nothing else."""
    repo = repo.unfiltered()
    changelog, revs = repo.changelog, range(first, end)
    heads_added, heads_removed = _heads(changelog, revs)
    moved = [((rev,), (None, repo._phasecache.phase(repo, rev))) for rev in revs]
    since = Mark(length=first, phases={}, bookmarks={}, markers=frozenset())
    return Changes(
        added=node_set([changelog.node(rev) for rev in revs]),
        heads_added=heads_added,
        heads_removed=heads_removed,
        phases=_phases(repo, moved, since, end),
        markers_sha256=marker_hash([]),
        push=push,
    )


def tip(repo: Any) -> Tip:
    """The changelog of this moment, hidden changesets included."""
    changelog = repo.unfiltered().changelog
    length = len(changelog)
    return Tip(length=length, node=hex(changelog.node(length - 1)).decode() if length else NULL_NODE)


def markers_since(tr: Any, since: Mark) -> list[Any]:
    """The markers that `tr` added since the mark, as Mercurial's tuples, in an order of their own."""
    return sorted(tr.changes[b"obsmarkers"] - since.markers, key=repr)


def encode_markers(markers: Iterable[Any]) -> list[bytes]:
    """Each marker in the binary form of version 1."""
    return list(obsolete.encodemarkers(markers, False, obsolete._fm1version))


def move_phases(repo: Any, tr: Any, moves: Iterable[PhaseMove]) -> None:
    """Carries out the phase moves of an event; what is there already stays. Raises an unknown node's LookupError."""
    for move in sorted(moves, key=lambda move: move.phase):
        nodes = [bin(node) for node in move.nodes]
        phases.advanceboundary(repo, tr, move.phase, nodes)
        phases.retractboundary(repo, tr, move.phase, nodes)


def bookmarks(repo: Any, names: Iterable[str]) -> dict[str, str | None]:
    """Where these bookmarks are now; None for one that does not exist."""
    here = repo._bookmarks
    return {name: hex(here[mark]).decode() if (mark := local(name)) in here else None for name in names}


def bookmarks_after_strip(repo: Any, gone: set[int]) -> dict[str, str]:
    """Where a strip of these revisions moves the bookmarks on them: Mercurial does it last, in a transaction of its own."""
    target, names = repair._bookmarkmovements(repo, gone)
    return {text(name): hex(repo[target].node()).decode() for name in names}


def move_bookmarks(repo: Any, tr: Any, moves: Mapping[str, str]) -> None:
    """Puts these bookmarks there."""
    repo._bookmarks.applychanges(repo, tr, [(local(name), bin(node)) for name, node in moves.items()])


def bookmark_values(bookmarks: Iterable[Bookmark]) -> list[tuple[bytes, bytes | None]]:
    """The bookmarks of an event as Mercurial's `applychanges` takes them."""
    return [(local(bookmark.name), bin(bookmark.node) if bookmark.node else None) for bookmark in bookmarks]


def _heads(changelog: Any, added: range) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(heads among the added, by revision; others that got a child among the added, sorted)."""
    parents = {parent for rev in added for parent in changelog.parentrevs(rev) if parent != nullrev}
    heads = tuple(_hex(changelog, rev) for rev in added if rev not in parents)
    covered = sorted(_hex(changelog, rev) for rev in parents if rev < added.start)
    return heads, tuple(covered)


def _phases(repo: Any, changes: Iterable[Any], since: Mark, end: int) -> tuple[PhaseMove, ...]:
    """The moves before revision `end`; deterministic in what was there at the mark and is there now, whatever came in between."""
    changelog = repo.changelog
    moved = {rev: move for revs, move in changes for rev in revs}
    started: dict[int, int] = {}

    def before(rev: int) -> int:
        if rev >= since.length:
            return started[rev]
        old, _ = moved.get(rev, (None, None))
        return since.phases[rev] if rev in since.phases else repo._phasecache.phase(repo, rev) if old is None else old

    down: dict[int, set[int]] = {}
    up: dict[int, set[int]] = {}
    for rev in sorted({*moved, *range(since.length, end)}):
        if rev >= since.length:
            started[rev] = max(
                before(parent) if parent != nullrev else phases.public for parent in changelog.parentrevs(rev)
            )
        now = moved[rev][1] if rev in moved else before(rev)
        if now != before(rev) and now in PHASES:
            (up if now > before(rev) else down).setdefault(now, set()).add(rev)
    moves = []
    for phase in PHASES:
        told = _heads_of(changelog, down.get(phase, set())) | _roots_of(changelog, up.get(phase, set()))
        if told:
            moves.append(PhaseMove(phase=phase, nodes=tuple(sorted(_hex(changelog, rev) for rev in told))))
    return tuple(moves)


def _heads_of(changelog: Any, revs: set[int]) -> set[int]:
    return revs - {parent for rev in revs for parent in changelog.parentrevs(rev)}


def _roots_of(changelog: Any, revs: set[int]) -> set[int]:
    return {rev for rev in revs if not any(parent in revs for parent in changelog.parentrevs(rev))}


def _bookmarks(changes: Mapping[bytes, Any], since: Mark) -> tuple[Bookmark, ...]:
    moved = []
    for name, (old, new) in changes.items():
        if since.bookmarks.get(name, old) != new:
            moved.append(Bookmark(name=text(name), node=hex(new).decode() if new else None))
    return tuple(sorted(moved, key=lambda bookmark: bookmark.name))


def _hex(changelog: Any, rev: int) -> str:
    return hex(changelog.node(rev)).decode()  # type: ignore[no-any-return]

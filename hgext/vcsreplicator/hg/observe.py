# SPDX-License-Identifier: GPL-2.0-or-later
"""The changes of a transaction to a repository, seen from inside it.

The same function observes on the master and on every mirror. Master and mirror must make equal `Changes` from equal changes, or
their digests differ. So everything here names nodes, sorts unordered sets, and leaves out changes without effect. The cost depends
on the size of the change, never on that of the repository.

The form of `Changes.phases`:

- an added changeset begins with the highest phase that its parents had before, public without parents: Mercurial does the same
  when it adds a changeset as public;
- changesets that moved up from there (towards secret) are named by the *roots* of the set that went to that phase;
- changesets that moved down (towards public) are named by the *heads* of the set that went to that phase.

`move_phases` carries out such moves, after the bundle was added. Mirrors get all changesets, and have none of Mercurial's phases
above secret (archived, internal): to them, and so in everything here, these are secret. A bundle has no phases, because it may be
made long after the commit: it would have those of that later moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mercurial import obsolete, phases, repair
from mercurial.localrepo import localrepository
from mercurial.node import bin, hex, nullrev
from mercurial.transaction import transaction as Transaction

from pushlog import versions

from ..words.digest import marker_hash, node_set
from ..words.event import NULL_NODE, Bookmark, Changes, PhaseMove, PushEntry, Tip
from ..words.value import Value
from .text import local, text

if TYPE_CHECKING:
    from mercurial.changelog import changelog as Changelog
    from mercurial.obsolete import _Marker

    # Revisions, and their phases before (None: as in the repository) and after.
    PhaseChange = tuple[Iterable[int], tuple[int | None, int]]

# The phases that are replicated.
PHASES = (phases.public, phases.draft, phases.secret)


class Mark(Value):
    """A point in a transaction: its later changes belong to the next event."""

    length: int
    phases: Mapping[int, int]
    bookmarks: Mapping[bytes, bytes | None]
    markers: frozenset[_Marker]


def start(tr: Transaction) -> Mark:
    """Return the mark of a transaction's beginning; may be called at any time in it."""
    return Mark(length=tr.changes[b"origrepolen"], phases={}, bookmarks={}, markers=frozenset())


def mark(repo: localrepository, tr: Transaction) -> Mark:
    """Return the mark of now in `tr`."""
    return Mark(
        length=len(repo.unfiltered().changelog),
        phases={rev: new for revs, (_, new) in tr.changes[b"phases"] for rev in revs},
        bookmarks={name: new for name, (_, new) in tr.changes[b"bookmarks"].items()},
        markers=frozenset(tr.changes[b"obsmarkers"]),
    )


def observe(
    repo: localrepository, tr: Transaction, *, since: Mark | None = None, push: PushEntry | None = None
) -> Changes:
    """Return what `tr` did to `repo` since the mark (None: since it began).

    `push` is the pushlog's entry of the transaction. The markers' public form is not filled in: it holds what the master had
    (`capture`), and is outside the digest.
    """
    repo = repo.unfiltered()
    since = since or start(tr)
    changelog = repo.changelog
    added = range(since.length, len(changelog))
    heads_added, heads_removed = _head_changes(changelog, added)
    return Changes(
        added=node_set([changelog.node(rev) for rev in added]),
        heads_added=heads_added,
        heads_removed=heads_removed,
        phases=_phase_moves(repo, tr.changes[b"phases"], since, len(changelog)),
        bookmarks=_bookmark_moves(tr.changes[b"bookmarks"], since),
        markers_sha256=marker_hash(encode_markers(markers_since(tr, since))),
        push=push,
    )


def added(repo: localrepository, first: int, end: int, *, push: PushEntry | None) -> Changes:
    """Return the changes of a transaction that added just these revisions."""
    repo = repo.unfiltered()
    changelog, revs = repo.changelog, range(first, end)
    heads_added, heads_removed = _head_changes(changelog, revs)
    moved: list[PhaseChange] = [((rev,), (None, phase_of(repo, rev))) for rev in revs]
    since = Mark(length=first, phases={}, bookmarks={}, markers=frozenset())
    return Changes(
        added=node_set([changelog.node(rev) for rev in revs]),
        heads_added=heads_added,
        heads_removed=heads_removed,
        phases=_phase_moves(repo, moved, since, end),
        push=push,
    )


def phase_of(repo: localrepository, rev: int) -> int:
    """Return the phase that a revision has on mirrors."""
    return min(repo._phasecache.phase(repo, rev), phases.secret)


def phase_roots(repo: localrepository) -> dict[int, list[bytes]]:
    """Return the sorted roots of draft and secret on mirrors, if there are any.

    They follow from the phase of each changeset alone: Mercurial also keeps roots that change nothing.
    """
    changelog, found = repo.changelog, dict[int, list[bytes]]()
    for rev in set[int]().union(*repo._phasecache._phaseroots.values()):
        phase = phase_of(repo, rev)
        below = max(
            phase_of(repo, parent) if parent != nullrev else phases.public for parent in changelog.parentrevs(rev)
        )
        if phase > below:
            found.setdefault(phase, []).append(changelog.node(rev))
    return {phase: sorted(found[phase]) for phase in sorted(found)}


def tip(repo: localrepository) -> Tip:
    """Return length and last node of the changelog, hidden changesets included."""
    changelog = repo.unfiltered().changelog
    length = len(changelog)
    return Tip(length=length, node=hex(changelog.node(length - 1)).decode() if length else NULL_NODE)


def read_newest(repo: localrepository) -> None:
    """Read the newest changeset, what is stored of its manifest, and the phases.

    Raises what Mercurial raises if a file of them is damaged, cut or missing.
    """
    changelog = repo.unfiltered().changelog
    manifest = changelog.changelogrevision(changelog.tip()).manifest
    storage: Any = repo.manifestlog.getstorage(b"")
    if (rev := storage.rev(manifest)) != nullrev:
        versions.read_revisions(storage._revlog, rev, rev)
    phase_roots(repo.unfiltered())


def begins_with(repo: localrepository, length: int, node: str) -> bool:
    """Return whether the changelog begins with so many changesets up to this node."""
    changelog = repo.unfiltered().changelog
    return length <= len(changelog) and hex(changelog.node(length - 1)).decode() == node


def markers_since(tr: Transaction, since: Mark) -> list[_Marker]:
    """Return the markers that `tr` added since the mark, in a fixed order."""
    return sorted(tr.changes[b"obsmarkers"] - since.markers, key=repr)


def encode_markers(markers: Iterable[_Marker]) -> list[bytes]:
    """Encode each marker in the binary form of version 1."""
    return list(obsolete.encodemarkers(markers, False, obsolete._fm1version))


def move_phases(repo: localrepository, tr: Transaction, moves: Iterable[PhaseMove]) -> None:
    """Carry out an event's phase moves; raises LookupError for an unknown node."""
    for move in sorted(moves, key=lambda move: move.phase):
        nodes = [bin(node) for node in move.nodes]
        phases.advanceboundary(repo, tr, move.phase, nodes)
        phases.retractboundary(repo, tr, move.phase, nodes)


def bookmarks(repo: localrepository, names: Iterable[str]) -> dict[str, str | None]:
    """Return where these bookmarks are now; None for a missing bookmark."""
    nodes = {name: repo._bookmarks.get(local(name)) for name in names}
    return {name: hex(node).decode() if node is not None else None for name, node in nodes.items()}


def bookmarks_after_strip(repo: localrepository, gone: set[int]) -> dict[str, str]:
    """Return where a strip moves bookmarks, which it does last, in a transaction."""
    target, names = repair._bookmarkmovements(repo, gone)
    return {text(name): hex(repo[target].node()).decode() for name in names}


def move_bookmarks(repo: localrepository, tr: Transaction, moves: Mapping[str, str | None]) -> None:
    """Set bookmarks to these nodes; None removes one."""
    values = [(local(name), bin(node) if node else None) for name, node in moves.items()]
    repo._bookmarks.applychanges(repo, tr, values)


def _head_changes(changelog: Changelog, added: range) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the heads among the added, and the older changesets that they cover.

    Whether a covered one was a head before is not asked: all its possible children would have to be examined.
    """
    parents = {parent for rev in added for parent in changelog.parentrevs(rev) if parent != nullrev}
    heads = tuple(find_node(changelog, rev) for rev in added if rev not in parents)
    covered = sorted(find_node(changelog, rev) for rev in parents if rev < added.start)
    return heads, tuple(covered)


def _phase_moves(repo: localrepository, changes: Iterable[PhaseChange], since: Mark, end: int) -> tuple[PhaseMove, ...]:
    """Return the phase moves of revisions before `end` since the mark."""
    changelog = repo.changelog
    moved = {rev: (old, min(new, phases.secret)) for revs, (old, new) in changes for rev in revs}
    before = _PhasesBefore(repo, moved, since)
    down: dict[int, set[int]] = {}
    up: dict[int, set[int]] = {}
    for rev in sorted({*moved, *range(since.length, end)}):
        then = before.phase(rev)
        # A clone that copies files (`--stream`) tells the transaction nothing of phases.
        now = moved[rev][1] if rev in moved else phase_of(repo, rev)
        if now != then:
            (up if now > then else down).setdefault(now, set()).add(rev)
    moves = []
    for phase in PHASES:
        named = heads_of(changelog, down.get(phase, set())) | _roots_of(changelog, up.get(phase, set()))
        if named:
            moves.append(PhaseMove(phase=phase, nodes=tuple(sorted(find_node(changelog, rev) for rev in named))))
    return tuple(moves)


class _PhasesBefore:
    """The phases of revisions at a mark; ask for added ones in ascending order."""

    def __init__(self, repo: localrepository, moved: Mapping[int, tuple[int | None, int]], since: Mark) -> None:
        self._repo, self._moved, self._since = repo, moved, since
        self._added: dict[int, int] = {}

    def phase(self, rev: int) -> int:
        if rev >= self._since.length:
            if rev not in self._added:
                parents = self._repo.changelog.parentrevs(rev)
                self._added[rev] = max(self.phase(parent) if parent != nullrev else phases.public for parent in parents)
            return self._added[rev]
        if rev in self._since.phases:
            return min(self._since.phases[rev], phases.secret)
        old, _ = self._moved.get(rev, (None, None))
        return phase_of(self._repo, rev) if old is None else min(old, phases.secret)


def heads_of(changelog: Changelog, revs: set[int]) -> set[int]:
    """Return the revisions that have no child among them."""
    return revs - {parent for rev in revs for parent in changelog.parentrevs(rev)}


def _roots_of(changelog: Changelog, revs: set[int]) -> set[int]:
    return {rev for rev in revs if not any(parent in revs for parent in changelog.parentrevs(rev))}


def _bookmark_moves(changes: Mapping[bytes, tuple[bytes | None, bytes | None]], since: Mark) -> tuple[Bookmark, ...]:
    moved = []
    for name, (old, new) in changes.items():
        if since.bookmarks.get(name, old) != new:
            moved.append(Bookmark(name=text(name), node=hex(new).decode() if new else None))
    return tuple(sorted(moved, key=lambda bookmark: bookmark.name))


def find_node(changelog: Changelog, rev: int) -> str:
    """Return the node of a revision as it stands in events."""
    return hex(changelog.node(rev)).decode()

# SPDX-License-Identifier: GPL-2.0-or-later
"""One event per transaction, committed with it: the finalizer that sorts last.

Order inside Mercurial's `close`: hooks that may refuse; phases; finalizers by name (changelog, pushlog, then ours); bookmarks; the
journal goes away, which is the commit. So our record says what will be true, in a file that the same journal truncates, and a
refused push never comes this far. After the commit nothing here raises.

Seams of Mercurial and what they must keep doing: `localrepo.transaction` is called for every transaction (`master-push.t`);
finalizers run sorted by name, after the `pretxnclose` hooks (`master-refused.t`); `_afterlock` runs with the locks released and its
output reaches the pusher (`master-relay.t`).
"""

import base64
import contextlib
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from mercurial import bookmarks, config, error, extensions, phases
from mercurial.node import hex
from mercurial.utils import stringutil

from pushlog.appendfile import TornRecord

from .. import outbox
from ..errors import MalformedEvent
from ..event import Changes, Event, Marker, MarkerNode, PushEntry, Settings, Tip, Type
from ..outbox import RECORD_LIMIT, End, Entry, Level, Needs, Outbox
from ..shape import EARLIEST, LARGEST, LATEST, to_json
from ..value import Value
from . import durability, observe
from .allowed import allowed
from .creation import TRANSACTION as CREATION
from .requirement import LOCK
from .settings import Settings as Configuration
from .text import local, text

FINALIZER = b"~outbox"  # sorts behind every other name in use
FIRST = b"!outbox"  # and before every other
EVENT_LIMIT = 4 * 1024 * 1024 - 64 * 1024  # bytes of JSON; `wire.HEADER_LIMIT` with room for the attachment
EVENT_REST = 16 * 1024  # of that, for everything but the changes
REFUSED_REQUIREMENTS = {
    b"lfs": "LFS",
    b"largefiles": "largefiles",
    b"narrowhg-experimental": "narrow clones",
    b"treemanifest": "tree manifests",
}
LIFECYCLE = b"vcsreplicator-event"  # the transaction of an event that was prepared by `lifecycle`
NOTHING = Changes(added=None)
_CONTROL = r"[\x00-\x1f\x7f]"


class Announcement(Value):
    """An event to come that does not follow from the transaction's own changes; `level` replaces the identity before it.

    `first` is where the revisions of its bundle begin, `source` what it names as the origin of the change (default: its type).
    """

    kind: Type
    source: str | None = None
    needs: Needs = Needs.NOTHING
    first: int = 0
    changes: Changes = NOTHING
    after: Tip | None = None
    level: Callable[[Level | None], Level] | None = None
    hgrc: Mapping[str, Mapping[str, str]] | None = None
    detail: Mapping[str, str] | None = None


class Capture:
    """What one outermost transaction of a repository tells; made when it opens, kept as an attribute of it.

    `written` are the entries it appended, filled in by the finalizer; `committed` when, on the monotonic clock.
    """

    def __init__(self, repo: Any, path: str, configuration: Configuration, end: End | None) -> None:
        self.repo, self.path, self.configuration, self.end = repo, path, configuration, end
        self.announcements: list[Announcement] = []
        self.written: list[Entry] = []
        self.committed = 0.0

    def finalize(self, tr: Any) -> None:
        """Appends what `tr` did, if anything, to the outbox; raises Abort, which refuses the push, if that cannot be told."""
        entries = self._entries(tr)
        if entries:
            refuse_format(self.repo)  # a push can bring the first large file
            box = Outbox(self.repo.svfs)
            box.reserve(tr)
            durability.before_outbox(self.repo, tr, self.configuration.durability)
            name = box.append(tr, entries)
            durability.after_outbox(self.repo, name)
            durability.sync_late_files(self.repo, tr, self.configuration.durability)
            self.written = entries

    def _entries(self, tr: Any) -> list[Entry]:
        level = self.end.level if self.end else None
        entries = []
        for announced in self.announcements:
            entries.append(self._announced(level, announced))
            level = outbox.level_of(entries[-1].event)
        refuse_odd_phases(tr)
        changes = observe.observe(self.repo, tr, push=push_entry(self.repo, tr))
        if changes.bookmarks and has_own_bookmarks(self.repo):
            changes = replace(changes, bookmarks=())
        refuse_odd_bookmarks(changes)
        if changes != NOTHING:
            assert level is not None  # a repository without events announces its creation first
            entries.append(self._changed(level, tr, changes))
        return [fitting(entry) for entry in entries]

    def _announced(self, level: Level | None, announced: Announcement) -> Entry:
        level = announced.level(level) if announced.level else level
        event = self._event(
            level,
            announced.kind,
            source=announced.source or announced.kind.value,
            changes=announced.changes,
            after=announced.after or observe.tip(self.repo),
            hgrc=announced.hgrc,
            detail=announced.detail,
        )
        return Entry(event=event, needs=announced.needs, first=announced.first)

    def _changed(self, level: Level, tr: Any, changes: Changes) -> Entry:
        markers = observe.markers_since(tr, observe.start(tr))
        refuse_odd_markers(markers)
        changes = replace(changes, markers=public_markers(self.repo, markers))
        source = tr.hookargs.get(b"source") or tr.hookargs.get(b"txnname") or b""
        event = self._event(level, Type.CHANGED, source=text(source), changes=changes, after=observe.tip(self.repo))
        return Entry(
            event=event,
            needs=Needs.BUNDLE if changes.added or markers else Needs.NOTHING,
            first=tr.changes[b"origrepolen"],
            markers=tuple(base64.b64encode(marker).decode() for marker in observe.encode_markers(markers)),
        )

    def _event(self, level: Level | None, kind: Type, **members: Any) -> Event:
        assert level is not None
        return outbox.next_event(level, kind, time=time.time(), settings=settings_of(self.repo), **members)


def begin(
    repo: Any, path: str, configuration: Configuration, generation: Callable[[], int], *, transaction: bytes
) -> Capture:
    """Before a transaction: what is there must be what the newest event says, or another event has to come first.

    Raises Abort for a repository that may not take a change: forked, copied, moved or damaged.
    """
    box = Outbox(repo.svfs)
    end = end_of(box)
    capture = Capture(repo=repo, path=path, configuration=configuration, end=end)
    if transaction == LIFECYCLE:
        return capture
    refuse_fork(box)
    refuse_format(repo)
    now = observe.tip(repo)
    if end is None:
        origin = ("clone" if now.length else "init") if transaction == CREATION else "adopted"
        capture.announcements.append(created(now, path, generation(), origin, hgrc=hgrc_of(repo)))
    else:
        refuse_other_path(end.level, path)
        if end.after != now:
            from . import outside

            capture.announcements += outside.announcements(repo, end.after, now)
    return capture


def end_of(box: Outbox) -> End | None:
    """What the newest entry says of the repository; raises Abort if that cannot be read."""
    try:
        return box.end()
    except (TornRecord, MalformedEvent) as problem:
        raise error.Abort(
            f"this repository takes no changes: {problem}".encode(),
            hint=b"bring it back from a backup; or move .hg/store/outbox.* away, and it begins anew on all mirrors",
        ) from problem


def created(now: Tip, path: str, generation: int, origin: str, *, hgrc: Any) -> Announcement:
    """The first event of a repository, as it is now."""
    return Announcement(
        kind=Type.CREATED,
        needs=Needs.MASTER if now.length else Needs.NOTHING,
        after=now,
        level=lambda _before: outbox.first_level(path, generation),
        hgrc=hgrc,
        detail={"origin": origin},
    )


def hgrc_of(repo: Any) -> dict[str, dict[str, str]]:
    """What of the repository's own hgrc travels."""
    content = config.config()
    try:
        name = os.path.join(repo.sharedpath, b"hgrc")
        with open(name, "rb") as file:
            content.read(name, file)
    except FileNotFoundError:
        return {}
    return allowed(
        {utf8(section): {utf8(key): utf8(value) for key, value in content.items(section)} for section in content}
    )


def refuse_format(repo: Any) -> None:
    """Raises Abort for content that no mirror would get."""
    for requirement, name in REFUSED_REQUIREMENTS.items():
        if requirement in repo.requirements:
            raise error.Abort(
                f"this repository uses {name}, which is not replicated".encode(),
                hint=b"convert it, or keep it outside [vcsreplicator-roots]",
            )


def refuse_odd_markers(markers: list[Any]) -> None:
    """Raises Abort for a marker that reads back from disk as another one: master and mirrors would never agree on it again."""
    for _precursor, _successors, _flags, _metadata, (seconds, zone), _parents in markers:
        if zone % 60 or not math.isfinite(seconds):
            raise error.Abort(
                b"an obsolescence marker has a date that cannot be stored: %r %r" % (seconds, zone),
                hint=b"its time zone must be whole minutes",
            )


def refuse_odd_phases(tr: Any) -> None:
    """Raises Abort for changesets that go to a phase that never travels: mirrors would go on to show them, or show them at all."""
    for revs, (_old, new) in tr.changes[b"phases"]:
        if revs and new not in observe.PHASES:
            raise error.Abort(
                b"changesets of a replicated repository cannot become %s" % phases.phasenames[new],
                hint=b"strip them, or mark them as obsolete",
            )


def refuse_odd_bookmarks(changes: Changes) -> None:
    """Raises Abort for a bookmark whose name does not survive Mercurial's own files and protocol, all lines and columns."""
    for bookmark in changes.bookmarks:
        name = bookmark.name
        if bookmark.node is not None and (not name or name != name.strip() or re.search(_CONTROL, name)):
            raise error.Abort(
                b"a bookmark cannot have this name: %s" % stringutil.pprint(local(name)),
                hint=b"no control characters, and no blanks at its ends",
            )


def has_own_bookmarks(repo: Any) -> bool:
    """Whether this is a share whose bookmarks are its own, not those of the repository that is replicated."""
    if repo.sharedpath == repo.path or bookmarks.bookmarksinstore(repo):
        return False
    return b"bookmarks" not in repo.vfs.tryread(b"shared").splitlines()


def refuse_fork(box: Outbox) -> None:
    """Raises Abort while the log tells another history than this outbox."""
    reason = box.fork()
    if reason:
        raise error.Abort(
            f"this repository takes no changes: {reason}".encode(),
            hint=b"see 'hg help replicateadopt'",
        )


def refuse_other_path(level: Level, path: str) -> None:
    """Raises Abort if the repository's folder was moved or copied behind our back."""
    if level.path != path:
        raise error.Abort(
            f"this repository was {level.path} and is {path} now".encode(),
            hint=b"if it was moved, run 'hg replicaterename'; if it is a copy, run 'hg replicateadopt'",
        )


def settings_of(repo: Any) -> Settings:
    """What of the configuration decides what the repository means."""
    return Settings(
        requirements=tuple(sorted(name.decode("ascii") for name in repo.requirements - {LOCK})),
        evolution=tuple(name.decode("ascii") for name in repo.ui.configlist(b"experimental", b"evolution")),
        publishing=repo.publishing(),
    )


def push_entry(repo: Any, tr: Any) -> PushEntry | None:
    """The pushlog's entry of this transaction, if it is a push and the pushlog is on."""
    pushlog = _pushlog()
    return entry_of(pushlog.entry_of_transaction(repo, tr)) if pushlog else None


def entry_of(row: Any) -> PushEntry | None:
    """A row of the pushlog as events have it; None for one that no event can hold: its number or date is an edit of somebody's."""
    if row is None or not 0 <= row[0] <= LARGEST or not EARLIEST <= row[2] <= LATEST:
        return None
    return PushEntry(id=row[0], user=utf8(row[1]), date=row[2])


@contextlib.contextmanager
def reading_pushes(repo: Any) -> Iterator[Callable[[bytes], Any]]:
    """Within, a function gives the pushlog's (id, user, date, nodes) of the push that brought a changeset, None if it knows none.

    The pushlog is opened once for all of them; raises Abort if it cannot be read.
    """
    pushlog = _pushlog()
    if pushlog is None:
        yield lambda _node: None
        return
    with pushlog.reading(repo) as push_of_node:
        yield push_of_node


def public_markers(repo: Any, markers: list[Any]) -> tuple[Marker, ...]:
    """Markers in their public form, with what the repository knows of each changeset at this moment."""
    if not markers:
        return ()
    repo.invalidatevolatilesets()
    with reading_pushes(repo) as push_of:
        known = _Known(repo, push_of)
        return tuple(
            Marker(
                precursor=known.node(precursor),
                successors=tuple(known.node(node) for node in successors),
                user=utf8(dict(metadata).get(b"user")),
                time=float(date[0]),
            )
            for precursor, successors, _flags, metadata, date, _parents in markers
        )


class _Known:
    """What the repository knows of changesets that markers name; looks at each once."""

    def __init__(self, repo: Any, push_of: Callable[[bytes], Any]) -> None:
        self._repo, self._push_of = repo, push_of
        self._served = repo.filtered(b"served").changelog
        self._seen: dict[bytes, MarkerNode] = {}

    def node(self, node: bytes) -> MarkerNode:
        if node not in self._seen:
            self._seen[node] = self._look(node)
        return self._seen[node]

    def _look(self, node: bytes) -> MarkerNode:
        name = hex(node).decode()
        rev = self._repo.changelog.index.get_rev(node)
        if rev is None:
            return MarkerNode(node=name, known=False, visible=None, desc=None, push=None)
        return MarkerNode(
            node=name,
            known=True,
            visible=self._served.hasnode(node),
            desc=text(self._repo[rev].description()),
            push=entry_of(self._push_of(hex(node))),
        )


def fitting(entry: Entry) -> Entry:
    """The entry, if one record of the log can hold its event; else without the markers' descriptions; else Abort.

    Abort also if the outbox could not read it back: a marker may carry any number of notes.
    """
    event = entry.event
    if len(to_json(entry)) > RECORD_LIMIT:
        raise _too_large(event.changes, b"push it in parts")
    if len(to_json(event)) <= EVENT_LIMIT:
        return entry
    bare = [
        replace(m, precursor=_bare(m.precursor), successors=tuple(map(_bare, m.successors)))
        for m in event.changes.markers
    ]
    event = replace(event, changes=replace(event.changes, markers=tuple(bare)))
    size = len(to_json(event))
    if size <= EVENT_LIMIT:
        return replace(entry, event=event)
    raise _too_large(event.changes, b"push it in parts")


def refuse_large(changes: Changes, *, hint: bytes) -> None:
    """Raises Abort for changes that no event can hold, before anything is done."""
    if not fits(changes):
        raise _too_large(changes, hint)


def fits(changes: Changes) -> bool:
    """Whether an event can hold these changes."""
    return len(to_json(changes)) <= EVENT_LIMIT - EVENT_REST


def _too_large(changes: Changes, hint: bytes) -> error.Abort:
    counts = f"{len(changes.heads_added) + len(changes.heads_removed)} heads, {len(changes.bookmarks)} bookmarks"
    return error.Abort(
        f"this change is too large for one event: {counts}, {len(changes.markers)} markers".encode(), hint=hint
    )


def _bare(node: MarkerNode) -> MarkerNode:
    return replace(node, desc=None)


def utf8(value: Any) -> Any:
    """UTF-8 bytes as text, odd bytes as surrogate escapes; None stays None."""
    return None if value is None else value.decode("utf-8", "surrogateescape")


def _pushlog() -> Any:
    try:
        return extensions.find(b"pushlog").api
    except KeyError:
        return None

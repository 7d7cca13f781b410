# SPDX-License-Identifier: GPL-2.0-or-later
"""One event per transaction, committed with it: the finalizer that sorts last.

Order inside Mercurial's `close`: hooks that may refuse; phases; finalizers by name (changelog, pushlog, then ours); bookmarks; the
journal goes away, which is the commit. So our record says what will be true, in a file that the same journal truncates, and a
refused push never comes this far. After the commit nothing here raises.

Seams of Mercurial and what they must keep doing (`tests/hg/master/push.t`, `refused.t`): `localrepo.transaction` is called for
every transaction; finalizers run sorted by name, after the `pretxnclose` hooks; `_afterlock` runs with the locks released and its
output reaches the pusher.
"""

import base64
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mercurial import bookmarks, config, error

from pushlog.store.appendfile import TornRecord

from ... import outbox
from ...outbox import End, Entry, Needs, NewestEvent, Outbox
from ...words.errors import MalformedEvent
from ...words.event import Changes, Event, MasterSettings, Type
from .. import observe
from ..allowed import allowed
from ..requirement import LOCK
from ..settings import ExtensionSettings as Configuration
from ..text import text, utf8
from . import durability, outside
from .announcing import LIFECYCLE, NOTHING, Announcement, created
from .creation import TRANSACTION as CREATION
from .pushes import public_markers, push_entry
from .refusals import (
    fitting,
    refuse_fork,
    refuse_format,
    refuse_odd_bookmarks,
    refuse_odd_markers,
    refuse_odd_phases,
    refuse_other_path,
)

FINALIZER = b"~outbox"  # sorts behind every other name in use
FIRST = b"!outbox"  # and before every other


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

    def _announced(self, level: NewestEvent | None, announced: Announcement) -> Entry:
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

    def _changed(self, level: NewestEvent, tr: Any, changes: Changes) -> Entry:
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

    def _event(self, level: NewestEvent | None, kind: Type, **members: Any) -> Event:
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


def has_own_bookmarks(repo: Any) -> bool:
    """Whether this is a share whose bookmarks are its own, not those of the repository that is replicated."""
    if repo.sharedpath == repo.path or bookmarks.bookmarksinstore(repo):
        return False
    return b"bookmarks" not in repo.vfs.tryread(b"shared").splitlines()


def settings_of(repo: Any) -> MasterSettings:
    """What of the configuration decides what the repository means."""
    return MasterSettings(
        requirements=tuple(sorted(name.decode("ascii") for name in repo.requirements - {LOCK})),
        evolution=tuple(name.decode("ascii") for name in repo.ui.configlist(b"experimental", b"evolution")),
        publishing=repo.publishing(),
    )

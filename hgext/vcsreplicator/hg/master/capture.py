# SPDX-License-Identifier: GPL-2.0-or-later
"""One event per transaction, committed with it: the finalizer that sorts last.

Order inside Mercurial's `close`: hooks that may refuse; phases; finalizers by name (changelog, pushlog, then ours); bookmarks; the
journal is removed, which is the commit. So our record describes the state after the commit, in a file that the same journal
truncates, and a refused push never comes this far. After the commit nothing here raises.

Seams of Mercurial and what they must keep doing (`tests/hg/master/push.t`, `refused.t`): `localrepo.transaction` is called for
every transaction; finalizers run sorted by name, after the `pretxnclose` hooks; `_afterlock` runs with the locks released and its
output reaches the pusher.
"""

from __future__ import annotations

import binascii
import os
import time
from typing import TYPE_CHECKING

from mercurial import bookmarks, config, encoding, error, extensions, obsolete
from mercurial.localrepo import localrepository
from mercurial.transaction import transaction as Transaction

from pushlog.store.appendfile import TornRecord

from ...outbox.entry import Entry, MirrorNeeds, NewestEvent, OutboxEnd, next_event
from ...outbox.file import Outbox
from ...words.errors import MalformedEvent
from ...words.event import NO_CHANGES, OFFERS_MARKERS, OFFERS_NO_MARKERS, Changes, MasterSettings, Tip, Type
from ...words.value import replace
from .. import observe
from ..requirement import LOCK
from ..text import text, utf8
from . import creation, durability, repository
from .disclosure import disclose
from .formats import refuse_content, refuse_format, refuse_incomplete
from .pushes import has_fetched, public_markers, push_entry, pusher_connection
from .refusals import (
    fitting,
    name_unreadable,
    refuse_cut_changelog,
    refuse_fork,
    refuse_lost_history,
    refuse_many_markers,
    refuse_odd_bookmarks,
    refuse_odd_markers,
    refuse_odd_phases,
    refuse_unknown_place,
)
from .repository import CAPTURE, LIFECYCLE

if TYPE_CHECKING:
    from ...relay.client import RelayLine
    from .announcing import Announcement
    from .repository import MasterRepository

# Sorts behind every other name in use.
FINALIZER = b"~outbox"
# Sorts before every other name in use.
FIRST = b"!outbox"


class Capture:
    """The events of one outermost transaction of a repository.

    It is made when the transaction opens, and kept as an attribute of the transaction. The finalizer fills in `written`, the
    entries that it appended; `committed` is the time of the commit, on the monotonic clock.
    """

    def __init__(self, repo: MasterRepository, end: OutboxEnd | None) -> None:
        self.repo, self.end = repo, end
        self.announcements: list[Announcement] = []
        self.written: list[Entry] = []
        self.committed = 0.0

    def finalize(self, tr: Transaction) -> None:
        """Append the events of `tr` to the outbox.

        Raises Abort, which refuses the push, if an event cannot hold a change, or mirrors would not get all of it.
        """
        entries = self._make_entries(tr)
        if entries:
            # Once more: a push can bring another format.
            refuse_format(self.repo)
            refuse_content(self.repo, tr.changes[b"origrepolen"])
            # What an operator pulls may be a long history.
            if tr.hookargs.get(b"source") in (b"serve", b"push"):
                refuse_incomplete(self.repo, tr, tr.changes[b"origrepolen"])
            box, promised = Outbox(self.repo.svfs), self.repo.replication_settings.durability
            box.reserve(tr)
            durability.before_outbox(self.repo, tr, promised)
            name = box.append(tr, entries)
            durability.after_outbox(self.repo, name)
            # Not before: after what fails until here, the next attempt takes the same generation, and announces the same origin.
            for announcement, entry in zip(self.announcements, entries, strict=False):
                if announcement.root is not None:
                    creation.note_generation(announcement.root, entry.event.path, entry.event.generation)
            durability.sync_late_files(tr, promised)
            if tr.changes[b"bookmarks"] and has_shared_bookmarks(self.repo):
                durability.write_shared_bookmarks(self.repo, tr, promised)
            self.written = entries

    def _make_entries(self, tr: Transaction) -> list[Entry]:
        newest = self.end.newest if self.end else None
        entries = []
        for announcement in self.announcements:
            entries.append(self._make_announced(newest, announcement))
            newest = NewestEvent.of(entries[-1].event)
        refuse_odd_phases(tr)
        changes = observe.observe(self.repo, tr, push=push_entry(self.repo))
        # Bookmarks in a share's own file are not replicated. Even in a share that was made to share bookmarks, a process without
        # the extension `share` writes to that file.
        if changes.bookmarks and _has_file_of_bookmarks(self.repo) and not has_shared_bookmarks(self.repo):
            changes = replace(changes, bookmarks=())
        refuse_odd_bookmarks(self.repo, changes)
        if changes != NO_CHANGES:
            # A repository without events announces its creation first.
            assert newest is not None
            entries.append(self._make_changed(newest, tr, changes))
            newest = NewestEvent.of(entries[-1].event)
        if has_fetched(self.repo) or _has_copied_markers(self.repo, tr):
            from . import announcing

            # An event carries the pushlog row of its own push only; mirrors fetch these rows, and markers, from the master.
            entries.append(self._make_announced(newest, announcing.ask_master(observe.tip(self.repo))))
        return [fitting(entry) for entry in entries]

    def _make_announced(self, before: NewestEvent | None, announcement: Announcement) -> Entry:
        before = announcement.identify(before) if announcement.identify else before
        assert before is not None
        event = next_event(
            before,
            announcement.kind,
            time=time.time(),
            source=announcement.source or announcement.kind.value,
            changes=announcement.changes,
            after=announcement.after or observe.tip(self.repo),
            settings=read_master_settings(self.repo),
            hgrc=announcement.hgrc,
            detail=announcement.detail,
        )
        return Entry(event=event, needs=announcement.needs, first=announcement.first)

    def _make_changed(self, before: NewestEvent, tr: Transaction, changes: Changes) -> Entry:
        markers = observe.markers_since(tr, observe.start(tr))
        refuse_odd_markers(markers)
        refuse_many_markers(markers, changes)
        if markers:
            changes = replace(changes, markers=public_markers(self.repo, markers))
        connection = None
        if changes.push is not None and self.repo.replication_settings.record_connection:
            connection = pusher_connection(tr.hookargs.get(b"url") or b"", self.repo.ui.environ)
        source = tr.hookargs.get(b"source") or tr.hookargs.get(b"txnname") or b""
        event = next_event(
            before,
            Type.CHANGED,
            time=time.time(),
            source=text(source),
            changes=changes,
            after=observe.tip(self.repo),
            settings=read_master_settings(self.repo),
            detail=disclose(
                self.repo,
                changes,
                range(tr.changes[b"origrepolen"], len(self.repo.unfiltered())),
                {name: old for name, (old, _) in tr.changes[b"bookmarks"].items()},
            ),
        )
        return Entry(
            event=event,
            needs=MirrorNeeds.BUNDLE if changes.added or markers else MirrorNeeds.NOTHING,
            first=tr.changes[b"origrepolen"],
            markers=tuple(
                binascii.b2a_base64(marker, newline=False).decode() for marker in observe.encode_markers(markers)
            ),
            connection=connection,
        )


def compare_and_begin(repo: MasterRepository, line: RelayLine | None, *, transaction: bytes) -> Capture:
    """Compare the repository with its newest event before a transaction.

    If it has more, another event comes first. A transaction named LIFECYCLE is not compared. `line` leads to the relay. Raises
    Abort for a repository that must refuse changes: it is forked, copied, moved or damaged, lost changesets, or has no events
    although the log may have another repository at its path.
    """
    box = Outbox(repo.svfs)
    end = read_end(box)
    capture = Capture(repo, end)
    if transaction == LIFECYCLE:
        return capture
    refuse_fork(box, is_empty=end is None)
    refuse_format(repo)
    now = observe.tip(repo)
    if end is None:
        from . import announcing

        if transaction != creation.TRANSACTION:
            refuse_unknown_place(repo, line, is_requested=transaction == repository.REQUEST)
        origin = _describe_origin(repo, now, transaction)
        capture.announcements.append(announcing.announce_created(repo, origin, hgrc=read_hgrc(repo)))
    else:
        if end.newest.path != repo.replication_path:
            raise error.Abort(
                f"this repository was {end.newest.path} and is {repo.replication_path} now".encode(),
                hint=b"if it was moved, run 'hg replicaterename'; if it is a copy, run 'hg replicateadopt'",
            )
        refuse_cut_changelog(repo)
        if end.after != now:
            refuse_lost_history(repo, end.after)
            from . import announcing

            capture.announcements += announcing.announce_outside(repo, end.after, now)
    return capture


def _describe_origin(repo: MasterRepository, now: Tip, transaction: bytes) -> str:
    """Say how a repository without events came into being.

    If its first event could not be written when it was made, this is another transaction.
    """
    if transaction != creation.TRANSACTION and not creation.was_made(repo.replication_root, repo.replication_path):
        return "adopted"
    return "clone" if now.length else "init"


def capture_of(tr: Transaction) -> Capture:
    """Return the capture of a running transaction; raises Abort outside the roots."""
    captured: Capture | None = getattr(tr, CAPTURE, None)
    if captured is None:
        raise repository.not_configured()
    return captured


def read_end(box: Outbox) -> OutboxEnd | None:
    """Read what the newest entry says, or raise Abort if it cannot be read."""
    try:
        return box.end()
    except OSError as problem:
        raise name_unreadable(problem) from problem
    except (TornRecord, MalformedEvent) as problem:
        raise error.Abort(
            f"this repository refuses changes: {problem}".encode(),
            hint=b"restore it from a backup, or move .hg/store/outbox.* away to start a new history on all mirrors",
        ) from problem


def read_hgrc(repo: localrepository) -> dict[str, dict[str, str]]:
    """Read the part of the repository's own hgrc that is replicated.

    Raises ConfigError, which quotes nothing: the hgrc may be a link to another user's file, or include one.
    """
    from ..allowed import allowed

    content = config.config()
    try:
        name = os.path.join(repo.sharedpath, b"hgrc")
        with open(name, "rb") as file:
            content.read(name, file)
    except FileNotFoundError:
        return {}
    except error.ConfigError:
        raise error.ConfigError(b"expected settings in it, and in what it includes", name) from None
    return allowed(
        {utf8(section): {utf8(key): utf8(value) for key, value in content.items(section)} for section in content}
    )


def _has_copied_markers(repo: localrepository, tr: Transaction) -> bool:
    """Return whether the transaction copied files of history, as a clone with `--stream` does, and markers among them.

    Of what it copies, Mercurial notes neither phases nor markers in the transaction.
    """
    is_new = tr.changes[b"origrepolen"] == 0 and bool(len(repo.unfiltered().changelog))
    if not is_new or any(old is None and 0 in revs for revs, (old, _new) in tr.changes[b"phases"]):
        return False
    return bool(repo.obsstore)


def has_shared_bookmarks(repo: localrepository) -> bool:
    """Return whether this is a share that moves the bookmarks of its repository."""
    is_written_there = any(name == b"share" for name, _module in extensions.extensions())
    is_shared = is_written_there and _has_file_of_bookmarks(repo)
    return is_shared and b"bookmarks" in repo.vfs.tryread(b"shared").splitlines()


def _has_file_of_bookmarks(repo: localrepository) -> bool:
    """Return whether this is a share with a file of bookmarks of its own."""
    return repository.is_share(repo) and not bookmarks.bookmarksinstore(repo)


def read_master_settings(repo: localrepository) -> MasterSettings:
    """Read the settings that decide what the repository's content means.

    The relay reads no repository's hgrc and loads no extension, so it cannot know which settings clients meet.
    """
    requirements = tuple(sorted(name.decode("ascii") for name in repo.requirements - {LOCK}))
    if b"HGRCSKIPREPO" in encoding.environ:
        return MasterSettings(requirements=requirements)
    offers_markers = obsolete.isenabled(repo, obsolete.exchangeopt)
    return MasterSettings(
        requirements=requirements,
        evolution=OFFERS_MARKERS if offers_markers else OFFERS_NO_MARKERS,
        publishing=repo.publishing(),
    )

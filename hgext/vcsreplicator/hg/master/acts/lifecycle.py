# SPDX-License-Identifier: GPL-2.0-or-later
"""The completion of interrupted acts, and the adoption of a repository.

A kill can interrupt acts that are no single transaction (strip, delete, rename). Each act is: a note of the intent; the act; its
event, in the repository's own outbox with its own sequence; the note is removed. After a kill at any point, `finish` finds out what
is done already, and does the rest.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from mercurial import error

from ....outbox.entry import MirrorNeeds, NewestEvent, before_first_event, new_id
from ....outbox.file import Fork, Outbox
from ....words.digest import START
from ....words.errors import MalformedEvent
from ....words.event import Type
from .. import capture, creation, intents, refusals, repository, twins
from ..announcing import Announcement, announce_created
from . import moving, stripping, writing

if TYPE_CHECKING:
    from ..intents import Intent
    from ..repository import MasterRepository


def finish_interrupted(repo: MasterRepository, intent: Intent) -> None:
    """Finish the act of this note that a kill interrupted in this repository.

    The caller holds the lock. Raises Abort if the repository is to be moved, which happens once the lock is released, and for a
    strip in a share, which lacks the changesets that Mercurial set aside.
    """
    root = repo.replication_root
    try:
        intents.confine(intent, root, repo.replication_settings.roots)
    except MalformedEvent as problem:
        raise intents.unusable(creation.intent_file(root, intent.path), problem) from problem
    if not intent.concerns(Outbox(repo.svfs).newest()):
        # Its repository has been moved, this is another.
        intents.remove(root, intent.path)
        return
    if intent.kind == Type.STRIPPED.value and repository.is_share(repo):
        hint = b"the relay finishes it within a minute, or the next change of %s does" % os.fsencode(intent.folder)
        raise error.Abort(b"an interrupted strip is not finished in a share", hint=hint)
    repo.ui.warn(b"an interrupted %s is being finished\n" % intents.act_of(intent))
    finish(repo, intent)
    if intent.to is not None:
        repo._afterlock(lambda _success: moving.finish_move(root, intent))
        raise error.Abort(b"this repository was %s" % intent.kind.encode())


def finish(repo: MasterRepository, intent: Intent, *, wait: bool = True) -> None:
    """Do the rest of an interrupted act, except `moving.finish_move`.

    The caller holds the lock. Does nothing where all is done. Without `wait`, raises LockError if another process sends the
    repository's events.
    """
    end = Outbox(repo.svfs).end()
    if end is None or not intent.concerns(end.newest):
        # Its repository was moved, and this is another one.
        intents.remove(repo.replication_root, intent.path)
        return
    if intent.kind == Type.STRIPPED.value:
        with repository.without_hooks(repo):
            stripping.finish_strip(repo, intent, is_announced=end.newest.seq > intent.seq, wait=wait)
        intents.remove(repo.replication_root, intent.path)
    elif end.newest.seq == intent.seq:
        if intent.kind == Type.DELETED.value:
            writing.announce(repo, Announcement(kind=Type.DELETED))
        elif intent.kind == Type.RENAMED.value:
            moving.announce_renamed(repo, intent)


def adopt(repo: MasterRepository) -> NewestEvent:
    """Take this repository as it is, and return its newest event.

    A copy becomes a new repository, as does one whose outbox is lost; others get a new incarnation. The event returned names the
    repository's identity. Unsent events that can follow the log's newest event are sent before.
    """
    box = Outbox(repo.svfs)
    with repo.lock():
        end = capture.read_end(box)
        # Mirrors and consumers know the path's repository: its history is replaced, by one of its own.
        other = _find_other(repo, box)
        if end is None and other is not None:
            with box.sending(wait=True):
                box.forget_history()
                writing.announce(repo, _announce_adopted(repo, other, (), capture.read_hgrc(repo)))
        elif end is None:
            with box.sending(wait=True):
                box.forget_history()
            writing.announce(repo, Announcement(kind=Type.SYNC), check_first=True)
        else:
            is_copy = end.newest.path != repo.replication_path
            if is_copy:
                twins.refuse(repo.replication_path, repository.folder_of(repo), repo.replication_settings.roots)
            with box.sending(wait=True):
                fork = box.fork()
                if is_copy or fork is not None:
                    # These events are the original's, or cannot follow the log's newest event: the new event covers their changes.
                    *_, newest = box.kept()
                    box.mark_sent(newest.sent())
                    box.set_fork(None)
                hgrc = capture.read_hgrc(repo)
                if is_copy:
                    writing.announce(repo, announce_created(repo, "adopted", hgrc=hgrc))
                else:
                    writing.announce(repo, _announce_adopted(repo, fork, box.replaced(), hgrc))
    return writing.read_newest(repo)


def _find_other(repo: MasterRepository, box: Outbox) -> Fork | None:
    """Return the fork that names another repository whose path this is; None without."""
    found = box.fork() or refusals.read_copied(repo)
    return found if found is not None and found.repository is not None else None


def _announce_adopted(
    repo: MasterRepository, fork: Fork | None, former: tuple[str, ...], hgrc: Mapping[str, Mapping[str, str]]
) -> Announcement:
    """Return the event that replaces the history of the outbox, and of a fork.

    If the fork names another repository, the event is of that one.
    """
    detail: dict[str, str] = {"reason": "adopted", "bootstrap": "false"}
    other = None
    if fork is not None and fork.repository is not None and fork.generation is not None:
        other = before_first_event(repo.replication_path, fork.generation, fork.repository)
        creation.note_generation(repo.replication_root, repo.replication_path, fork.generation)

    def identify(before: NewestEvent | None) -> NewestEvent:
        # Older releases read the first two alone.
        names = before.incarnation if before else None, fork.incarnation if fork else None, *former
        detail["replaces"] = " ".join(dict.fromkeys(filter(None, names)))
        begin = other or before
        assert begin is not None
        return replace(begin, incarnation=new_id(), seq=0, id="", digest=START)

    return Announcement(kind=Type.SYNC, needs=MirrorNeeds.MASTER, identify=identify, detail=detail, hgrc=hgrc)

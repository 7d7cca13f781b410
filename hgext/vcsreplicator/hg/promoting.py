# SPDX-License-Identifier: GPL-2.0-or-later
"""The outbox with which a mirror's repository goes on, and what a former master did not send."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mercurial import error
from mercurial.localrepo import localrepository
from mercurial.transaction import transaction as Transaction

from ..outbox.entry import Entry, MirrorNeeds
from ..outbox.file import Outbox
from ..words.errors import Refused
from ..words.event import NO_CHANGES, Event, MasterSettings, NamedEvent, Tip, Type
from ..words.value import replace
from .bundles import RepositoryOpener, make_bundle
from .master.capture import FINALIZER
from .master.repository import OWN

if TYPE_CHECKING:
    from ..mirror.checkpoint import Checkpoint


def continue_outbox(repo: localrepository, checkpoint: Checkpoint, logged: Event | None) -> None:
    """Write an outbox whose newest event is that of the checkpoint, and is in the log.

    `logged` is this event as the log has it, None if it has expired there. Does nothing if the outbox follows from this event
    already. Killed on the way, the repository refuses pushes, or its newest event is sent again, and a second call completes the
    outbox. Raises Refused for an outbox of another history, and if another process has locked the repository.
    """
    box = Outbox(repo.svfs)
    try:
        with repo.wlock(wait=False), repo.lock(wait=False), box.sending(wait=True):
            newest = box.newest()
            if newest is None:
                box.set_fork(None)
                entry = Entry(event=_make_event(checkpoint, logged), needs=MirrorNeeds.MASTER)

                def append(tr: Transaction) -> None:
                    box.append(tr, [entry])

                with repo.transaction(OWN + b"promoted") as tr:
                    tr.addfinalize(FINALIZER, append)
            elif newest.incarnation != checkpoint.incarnation or newest.seq < checkpoint.seq:
                raise Refused(f"{checkpoint.path}: it has an outbox of another history; move .hg/store/outbox.* away")
            first = next(box.kept(), None)
            if first is not None and first.entry.event.id == checkpoint.id and box.sent() is None:
                place = (
                    {} if checkpoint.offset < 0 else {"partition": checkpoint.partition, "offset": checkpoint.offset}
                )
                box.mark_sent(replace(first.sent(), **place))
    except error.LockError as problem:
        raise Refused(f"{checkpoint.path}: another process has locked it; stop the mirror's web servers") from problem


def save_changesets(opener: RepositoryOpener, folder: str, first: int, file: str) -> bool:
    """Write the changesets from this revision on to a new bundle; return False if none.

    `hg unbundle` makes them public. Raises OSError, and Refused for a damaged repository.
    """
    try:
        repo = opener.open(folder)
        if first >= len(repo):
            return False
        with open(file, "xb") as bundle:
            bundle.writelines(make_bundle(repo, first, len(repo)))
        return True
    except error.Error as problem:
        raise Refused(str(problem)) from problem


def _make_event(checkpoint: Checkpoint, logged: Event | None) -> Event:
    """Return the newest event as it is in the log, with the mirror's own changelog after it.

    Of an expired one only what the next event follows from is known; should the log lose it, mirrors compare with the master.
    """
    after = Tip(length=checkpoint.length, node=checkpoint.tip)
    if logged is not None and logged.id == checkpoint.id:
        return replace(logged, after=after)
    names = {name: getattr(checkpoint, name) for name in NamedEvent.list_members()}
    return Event(
        **names,
        type=Type.SYNC,
        previous=None if checkpoint.seq == 1 else "0" * 32,
        time=checkpoint.time,
        source="promoted",
        changes=NO_CHANGES,
        after=after,
        settings=MasterSettings(),
        detail={"reason": "promoted", "bootstrap": "false"},
    )

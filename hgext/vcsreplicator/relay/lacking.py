# SPDX-License-Identifier: GPL-2.0-or-later
"""Troubles of a master's repositories, for the relay or, in its place, `check`."""

import contextlib
import os
from collections.abc import Collection, Iterable

from ..log import Log
from ..outbox.file import FORK, FORMER, LEAVING, Outbox, TornRecord, outbox_of
from ..outbox.losses import EventPlace, find_standing
from ..status import SILENT
from ..status.findings import REFUSES
from ..words.errors import ReplicationError
from ..words.records import ServiceTrouble
from .scan import find_repositories

# Separates a repository's folder from the reason why its events wait.
WAITS = ": events wait in its outbox: "

ADOPT = "bring back the pushes that it lacks if you have them, then run `hg replicateadopt` in it (docs/push.md, Forks)"

PROMOTE = "promote the mirror (docs/operating.md), or take the master back: vcsreplicator handover --undo"

DEMOTE = "save what was not sent: vcsreplicator demote (docs/operating.md), and stop this relay"

# What to do about a damaged outbox, which refuses changes.
RESTORE = (
    "; restore the repository from a backup, or move .hg/store/outbox.* away to start a new history on all mirrors"
)


def has_outbox(roots: Iterable[str]) -> bool:
    """Return whether a repository below the roots has an outbox.

    Only a master's repositories have one, and a mirror may use the same roots.
    """
    for root in roots:
        for folder in find_repositories(root):
            with contextlib.suppress(OSError):
                if outbox_of(folder).segments():
                    return True
    return False


def find_trouble(folder: str, box: Outbox, now: float, hint: str, *, patience: float = SILENT) -> ServiceTrouble | None:
    """Find the trouble of a repository's outbox; None if there is none.

    The repository refuses pushes, events have waited in its outbox for more than `patience` seconds (which is urgent after SILENT),
    or the outbox cannot be read. `hint` says why events may wait, or where to look. An event from the future is from before the
    clock was set back: since when it waits is unknown, so it counts as late.
    """
    try:
        fork = box.fork()
        if fork is not None:
            since = os.stat(os.path.join(folder, ".hg", "store", FORK.decode())).st_mtime
            remedy = {LEAVING: PROMOTE, FORMER: DEMOTE}.get(fork.master or "", ADOPT)
            return ServiceTrouble(text=f"{folder}{REFUSES}{fork.reason}; {remedy}", since=since, is_urgent=True)
        first = next(box.unsent(), None)
        if first is None:
            # What was sent may be damaged, and then no event can follow.
            box.newest()
    except (OSError, ReplicationError, TornRecord) as error:
        text = f"{folder}: its outbox cannot be read: {error}{'' if isinstance(error, OSError) else RESTORE}"
        return ServiceTrouble(text=text, since=now, is_urgent=True)
    if first is None or (waits := abs(now - first.entry.event.time)) <= patience:
        return None
    since = min(first.entry.event.time, now)
    return ServiceTrouble(text=f"{folder}{WAITS}{hint}", since=since, is_urgent=waits > SILENT)


def leave_out_sent(
    troubles: Iterable[ServiceTrouble], folders: Collection[str]
) -> tuple[list[ServiceTrouble], set[str]]:
    """Leave out the troubles of those outboxes from which all events are sent.

    `folders` are the repositories of which events were sent. Returns the other troubles, and those of the folders whose events
    still wait.
    """
    kept, waiting = [], set()
    for trouble in troubles:
        folder, separator, _ = trouble.text.partition(WAITS)
        if separator and folder in folders:
            if not _has_unsent(folder):
                continue
            waiting.add(folder)
        kept.append(trouble)
    return kept, waiting


def _has_unsent(folder: str) -> bool:
    """Return whether events wait in the outbox, or it cannot be read."""
    try:
        return outbox_of(folder).has_unsent()
    except (OSError, ReplicationError, TornRecord):
        return True


def find_lacking(roots: Iterable[str], log: Log, now: float) -> list[ServiceTrouble]:
    """Find troubles of the outboxes, and sent events that the log has lost.

    In each partition it looks only for the newest event, because a log loses its newest records first. `now` is the time of this
    machine, whose clock stamped the events.
    """
    found: list[ServiceTrouble] = []
    newest: dict[int, tuple[EventPlace, str]] = {}
    for root in roots:
        for folder in find_repositories(root):
            box = outbox_of(folder)
            trouble = find_trouble(folder, box, now, "does the relay run?")
            if trouble is not None:
                found.append(trouble)
            sent = None
            with contextlib.suppress(OSError):
                sent = box.sent()
            if sent is not None and sent.partition is not None and sent.offset is not None:
                place = EventPlace(id=sent.id, offset=sent.offset)
                if sent.partition not in newest or newest[sent.partition][0].offset < place.offset:
                    newest[sent.partition] = place, folder
    standing = find_standing(log, {partition: place for partition, (place, _) in newest.items()})
    for partition in newest.keys() - standing:
        folder = newest[partition][1]
        text = (
            f"{folder}: the log has lost its newest event, and perhaps others; the relay sends them again: does it run?"
        )
        found.append(ServiceTrouble(text=text, since=now, is_urgent=True))
    return found

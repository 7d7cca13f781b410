# SPDX-License-Identifier: GPL-2.0-or-later
"""Troubles of a master's repositories, for the relay or, in its place, `check`."""

import contextlib
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from ..log import Log
from ..outbox.file import FORK, Outbox, TornRecord, outbox_of
from ..outbox.losses import EventPlace, find_standing
from ..status import SILENT
from ..status.findings import REFUSES
from ..words.errors import ReplicationError
from ..words.records import RepositoryState, ServiceTrouble
from .scan import find_repositories, is_folder

# Separates a repository's folder from the reason why its events wait.
WAITS = ": events wait in its outbox: "

ADOPT = "bring back the pushes that it lacks if you have them, then run `hg replicateadopt` in it (docs/push.md, Forks)"

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
            return ServiceTrouble(text=f"{folder}{REFUSES}{fork.reason}; {ADOPT}", since=since, is_urgent=True)
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


def find_gone(
    states: Mapping[str, RepositoryState],
    roots: Mapping[str, str],
    known: Collection[str],
    before: Mapping[str, float],
    now: float,
    *,
    source: str,
    unreadable: Collection[str] = (),
) -> dict[str, float]:
    """Return the repositories that are gone from these roots, and since when, by id.

    The log knows them, but no folder of the roots has them any more. `known` are the folders of the last round, `before` is the
    result of the round before. Repositories of a master with another `source` do not count, nor do those that may be in an
    `unreadable` folder.
    """
    there, found = set(known), {}
    for name, state in states.items():
        if state.source not in (None, source):
            continue
        places = list(find_places(state.path, roots))
        hidden = any(f"{place}/".startswith(f"{folder}/") for place in places for folder in unreadable)
        if (
            places
            and not hidden
            and not state.deleted
            and there.isdisjoint(places)
            and not _may_be_deleted(name, roots)
        ):
            found[name] = before.get(name, now)
    return found


def find_unmounted(
    states: Mapping[str, RepositoryState], gone: Iterable[str], roots: Mapping[str, str], known: Collection[str]
) -> dict[str, int]:
    """Return the empty folders that may be mount points, and what each had.

    That is the number of its repositories among those that are `gone`. A root is empty if no folder of
    a repository is in it. A folder below a root has no entry at all, and had several repositories.
    """
    empty = [root for root in roots if not any(f"{each}/".startswith(f"{root.rstrip('/')}/") for each in known)]
    counts = Counter[str]()
    for name in gone:
        folders = set()  # a root may be below another one
        for root, prefix in roots.items():
            for place in find_places(states[name].path, {root: prefix}):
                folders.add(root if root in empty else _find_empty(root, os.path.dirname(place)))
        counts.update(folder for folder in folders if folder is not None)
    return {folder: count for folder, count in counts.items() if folder in roots or count > 1}


def _find_empty(root: str, folder: str) -> str | None:
    """Return the folder, or the first one above it that is there, if it is empty."""
    while folder.startswith(f"{root.rstrip('/')}/"):
        try:
            return None if os.listdir(folder) else folder
        except FileNotFoundError:
            folder = os.path.dirname(folder)
        except OSError:
            break
    return None


def describe_unmounted(folder: str, count: int) -> str:
    """Say that a folder is empty which may be a mount point."""
    had = "1 repository was" if count == 1 else f"{count} repositories were"
    return f"{folder}: is empty, {had} there: is its file system mounted?"


def _may_be_deleted(name: str, roots: Iterable[str]) -> bool:
    """Return whether a root has, or may have, the repository among its deleted ones."""
    try:
        return any(is_folder(os.path.join(root, ".vcsreplicator", "deleted", name)) for root in roots)
    except OSError:
        return True


def find_places(path: str, roots: Mapping[str, str]) -> Iterable[str]:
    """Yield the folders that have this wire path."""
    for root, prefix in roots.items():
        inside = path.removeprefix(prefix.strip("/") + "/") if prefix.strip("/") else path
        if inside != path or not prefix.strip("/"):
            yield os.path.join(root, inside)


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

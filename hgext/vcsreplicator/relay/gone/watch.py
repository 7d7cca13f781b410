# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's watch for repositories that were removed by hand.

It reports them. With `removed = "announce"` it also writes their deletion into the log, but only of a repository that it saw go:
the previous round saw the repository, and the folder that is left above it is still the same, on the repository's file system.
Then it makes a note, the empty file `ROOT/.vcsreplicator/removed/ID`, so that a restart does not forget it. An unmounted root
hides its notes too. Killed before the note, the relay only reports the repository. Killed behind the deletion, it finds that in
the log, and writes no second one.
"""

import os
import shlex
import threading
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager

import structlog

from ...log import Log
from ...log.table import ReadStopped
from ...outbox.folder import walk
from ...words.clock import Clock
from ...words.errors import ReplicationError
from ...words.event import is_identifier
from ...words.records import RepositoryState, ServiceTrouble
from ..fork import StateWatch
from ..rounds import RelayRound
from ..settings import RelaySettings, Removed
from .deletion import append_deletion, make_deletion, refuse_present
from .finding import describe_unmounted, find_gone, find_places, find_unmounted

logger = structlog.get_logger()

# If more repositories are gone at the same time, an operator decides about all of them: a disk may be the reason.
AT_ONCE = 10
# Seconds until the next attempt to announce what was refused.
RETRY = 600.0

_NOTES = (".vcsreplicator", "removed")


class GoneWatch:
    """Remembers since when repositories are gone; used by one thread."""

    def __init__(
        self, settings: RelaySettings, log: Log, watch: StateWatch, clock: Clock, stop: threading.Event
    ) -> None:
        self._settings, self._log, self._watch, self._clock, self._stop = settings, log, watch, clock, stop
        self._since: dict[str, float] = {}
        # Device and inode of each repository's folder, and of those above it, as the last round saw them.
        self._seen: dict[str, tuple[int, int]] = {}
        # By id: when the deletion of a repository is due, by the monotonic clock, and why the last attempt failed.
        self._due: dict[str, float] = {}
        self._reasons: dict[str, str] = {}
        self._thread = threading.Thread()

    def find(self, found: RelayRound, now: float, *, is_shared: bool) -> list[ServiceTrouble]:
        """Return the troubles of repositories that are gone, and of unmounted folders.

        A repository that may be in such a folder is not gone, nor is one whose departure the aggregator has not seen yet. If
        another relay has the same source (`is_shared`), the repositories may be its own, so no deletion is written.
        """
        settings, states, before = self._settings, self._watch.states(), self._since
        staying = {name: state for name, state in states.items() if not self._watch.has_departed(state)}
        roots, folders, unreadable = settings.roots, found.folders, found.unreadable
        gone = find_gone(staying, roots, folders, before, now, source=settings.source, unreadable=unreadable)
        unmounted = find_unmounted(states, gone, roots, [*folders, *unreadable])
        hidden = tuple(f"{folder.rstrip('/')}/" for folder in unmounted)
        self._since = {
            name: since
            for name, since in gone.items()
            if not any(place.startswith(hidden) for place in find_places(states[name].path, roots))
        }
        if settings.removed is Removed.ANNOUNCE:
            self._note_removed(states, self._since.keys() - before)
            # Also what is being removed just now: half of it may be there, or it has gone since this round began.
            self._seen = _look_at_folders([*folders, *unreadable], self._seen)
            if not is_shared:
                self._announce_due(states)
        texts = [f"{describe_unmounted(*each)} If it is, see docs/push.md" for each in unmounted.items()]
        troubles = [ServiceTrouble(text=text, since=now, is_urgent=True) for text in texts]
        return troubles + [
            ServiceTrouble(text=self._describe(name, states[name].path), since=since)
            for name, since in self._since.items()
        ]

    def close(self) -> None:
        """Wait a little for a deletion that is being written; the caller has set `stop`."""
        if self._thread.ident is not None:
            self._thread.join(2.0)

    def _describe(self, name: str, path: str) -> str:
        text = f"repository {path} is not on the master any more (rm, mv?): put it back, or"
        if name in self._reasons:
            text = f"{text} remove what keeps the relay from announcing its deletion: {self._reasons[name]}; or"
        elif name in self._due:
            text = f"{text} the relay announces its deletion after `removed-after` seconds; to do it now, or"
        return (
            f"{text} announce its deletion: vcsreplicator forget {shlex.quote(path)} --yes; if another master has it, "
            f"give that one's relay a `source` of its own, not {self._settings.source}"
        )

    def _note_removed(self, states: Mapping[str, RepositoryState], new: Set[str]) -> None:
        """Note which of the `new` ones were removed by hand; remove other notes.

        With too many at the same time, none stays noted.
        """
        keep = self._since.keys() if len(self._since) <= AT_ONCE else set[str]()
        noted = set[str]()
        for root, prefix in self._settings.roots.items():
            removed = {
                name
                for name in new & keep
                if is_identifier(name) and any(map(self._was_removed, find_places(states[name].path, {root: prefix})))
            }
            noted |= _update_notes(root, removed, keep)
        due = self._clock.monotonic() + self._settings.removed_after
        self._due = {name: self._due.get(name, due) for name in noted}
        # A copy, because the thread that announces may add a reason meanwhile.
        self._reasons = {name: reason for name, reason in [*self._reasons.items()] if name in noted}

    def _was_removed(self, place: str) -> bool:
        """Return whether a repository was in this folder, and no unmounting hides it."""
        folder, devices = place, set[int]()
        while folder in self._seen:
            devices.add(self._seen[folder][0])
            try:
                found = os.stat(folder)
            except FileNotFoundError:
                folder = os.path.dirname(folder)
            except OSError:
                return False
            else:
                return (found.st_dev, found.st_ino) == self._seen[folder] and devices == {found.st_dev}
        return False

    def _announce_due(self, states: Mapping[str, RepositoryState]) -> None:
        """Have one deletion written that is due, unless another one is being written.

        A thread of its own does it, because it reads the repository's partition of the log.
        """
        now = self._clock.monotonic()
        due = [name for name, at in self._due.items() if at <= now]
        if due and not self._thread.is_alive():
            name = min(due, key=self._due.__getitem__)
            self._due[name] = now + RETRY
            self._thread = threading.Thread(target=self._announce, args=(states[name],), name="relay-gone", daemon=True)
            self._thread.start()

    def _announce(self, state: RepositoryState) -> None:
        """Write the deletion of a repository unless it may be somewhere below the roots."""
        names = {"path": state.path, "repository": state.repository}
        try:
            event = make_deletion(self._log, state, self._clock, self._stop)
            refuse_present(self._settings.roots, state)
            append_deletion(self._log, event, self._settings.source)
        except ReadStopped:
            return
        except (ReplicationError, OSError) as error:
            self._reasons[state.repository] = str(error)
            logger.warning("deletion not announced, will try again", **names, reason=str(error))
        else:
            self._watch.sent(event)
            logger.warning("repository removed by hand: deletion announced", **names, seq=event.seq, event_id=event.id)


def _look_at_folders(folders: Iterable[str], before: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Return device and inode of these folders, and of all folders above them; of those that have gone as they were `before`."""
    found: dict[str, tuple[int, int]] = {}
    for folder in folders:
        try:
            while folder not in found:
                status = os.stat(folder)
                found[folder] = status.st_dev, status.st_ino
                folder = os.path.dirname(folder)
        except OSError:
            while folder in before and folder not in found:
                found[folder] = before[folder]
                folder = os.path.dirname(folder)
    return found


def _update_notes(root: str, new: Set[str], keep: Set[str]) -> Set[str]:
    """Add notes, remove those of no repository to keep, and return which remain."""
    try:
        with _open_notes(root, makes=bool(new)) as notes:
            for name in new:
                os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=notes))
            there = set(os.listdir(notes))
            for name in there - keep:
                os.unlink(name, dir_fd=notes)
            return there & keep
    except FileNotFoundError:
        return set()
    except OSError as error:
        logger.warning("removed repositories not noted, only reported", root=root, reason=str(error))
        return set()


@contextmanager
def _open_notes(root: str, *, makes: bool) -> Iterator[int]:
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with walk(descriptor, _NOTES, makes=makes) as notes:
            yield notes
    finally:
        os.close(descriptor)

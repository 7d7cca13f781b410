# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's watch for changes that a Mercurial without the extension made.

The next change announces them. Until then mirrors lack them: so they are a trouble.
"""

import os
import shlex
from collections.abc import Iterable, Iterator

import structlog

from ..words.records import ServiceTrouble
from .port import MasterPort

logger = structlog.get_logger()

# Most repositories that are opened in one round, of those that were changed and of the others; the rest waits for the next.
AT_ONCE = 100

# Device, inode, size and time of a changelog; None without one.
_Seen = tuple[int, int, int, int] | None


class OutsideWatch:
    """Remembers the changelogs that hold what the outbox says; used by one thread."""

    def __init__(self, port: MasterPort) -> None:
        self._port = port
        self._sound: dict[str, _Seen] = {}
        self._changed: set[str] = set()
        # The round in which each that is not sound was opened last.
        self._opened: dict[str, int] = {}
        self._round = 0

    def find(self, folders: Iterable[str], now: float) -> Iterator[ServiceTrouble]:
        """Yield the troubles of these repositories.

        A repository is opened only if its changelog is another than when it was sound; those opened longest ago come first, so that
        many that stay unsound keep no other from its turn.
        """
        there, left = list(folders), {True: AT_ONCE, False: AT_ONCE}
        self._round += 1
        self._changed.intersection_update(there)
        self._sound = {folder: self._sound[folder] for folder in there if folder in self._sound}
        self._opened = {folder: self._opened[folder] for folder in there if folder in self._opened}
        for folder in sorted(there, key=lambda folder: self._opened.get(folder, 0)):
            seen, was_changed = _observe_changelog(folder), folder in self._changed
            if left[was_changed] and (folder not in self._sound or self._sound[folder] != seen):
                left[was_changed] -= 1
                self._opened[folder] = self._round
                self._compare_repository(folder, seen)
            if folder in self._changed:
                yield ServiceTrouble(text=_describe_change(folder), since=now)

    def _compare_repository(self, folder: str, seen: _Seen) -> None:
        """Compare a repository with its outbox; while a process works there, leave it."""
        try:
            is_changed = self._port.is_changed_outside(folder)
        except Exception as error:
            logger.debug("not compared with its outbox", folder=folder, reason=str(error))
            return
        if is_changed:
            self._changed.add(folder)
        elif is_changed is False:
            self._changed.discard(folder)
            self._sound[folder] = seen
            del self._opened[folder]


def _describe_change(folder: str) -> str:
    return (
        f"{folder}: was changed without the extension, and mirrors lack that until the next push; announce it now: "
        f"hg -R {shlex.quote(folder)} replicatesync"
    )


def _observe_changelog(folder: str) -> _Seen:
    try:
        found = os.stat(os.path.join(folder, ".hg", "store", "00changelog.i"))
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

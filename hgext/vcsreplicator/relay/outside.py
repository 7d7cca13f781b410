# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's watch for changes that a Mercurial without the extension made.

Mirrors lack them until the next change announces them, so they are a trouble. Moves of bookmarks and phases alone are not found.
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

# Device, inode, size and time of a changelog; None if there is none.
_Seen = tuple[int, int, int, int] | None
# The changelog that was compared, and whether it was changed without the extension; None if that is unknown.
_Comparison = tuple[_Seen, bool | None]
_NEVER: _Comparison = None, None


class OutsideWatch:
    """Remembers how each changelog compared with its outbox; used by one thread."""

    def __init__(self, port: MasterPort) -> None:
        self._port = port
        # The changelog that was compared and whether it was changed, those compared longest ago first.
        self._compared: dict[str, _Comparison] = {}

    def find(self, folders: Iterable[str], now: float) -> Iterator[ServiceTrouble]:
        """Yield the troubles of these repositories.

        A repository is opened only if its changelog differs from the last sound one. Those opened longest ago come
        first, so that many unsound ones do not keep the others from their turn.
        """
        there, left = dict.fromkeys(folders, _NEVER), {True: AT_ONCE, False: AT_ONCE}
        known = {folder: last for folder, last in self._compared.items() if folder in there}
        self._compared = {folder: last for folder, last in there.items() if folder not in known} | known
        for folder, (compared, is_changed) in list(self._compared.items()):
            seen, was_changed = _observe_changelog(folder), bool(is_changed)
            if left[was_changed] and (is_changed is not False or seen != compared):
                left[was_changed] -= 1
                is_changed = self._compare_repository(folder, was_changed)
                del self._compared[folder]
                self._compared[folder] = seen, is_changed
            if is_changed:
                what = "was changed without the extension, and mirrors lack that until the next push"
                text = f"{folder}: {what}; announce it now: hg -R {shlex.quote(folder)} replicatesync"
                yield ServiceTrouble(text=text, since=now)

    def _compare_repository(self, folder: str, was_changed: bool) -> bool | None:
        """Return whether a repository was changed, None if that is unknown.

        While a process works there, or it cannot be read, a changed repository counts as changed.
        """
        try:
            is_changed = self._port.is_changed_outside(folder)
        except Exception as error:
            logger.debug("not compared with its outbox", folder=folder, reason=str(error))
            is_changed = None
        return True if is_changed is None and was_changed else is_changed


def _observe_changelog(folder: str) -> _Seen:
    try:
        found = os.stat(f"{folder}/.hg/store/00changelog.i")
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's watch for changes made without the extension, and for damage.

Mirrors lack changesets that a Mercurial without the extension added, until the next change announces them. Pushes are refused if
changesets were lost or the pushlog is older, and fail or do harm if files of the history are damaged. Each of these is a trouble. A
move of bookmarks or phases alone is not noticed, nor is a file of phases that was emptied.
"""

import os
import shlex
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator

import structlog

from ..words.records import ServiceTrouble
from .port import MasterPort

logger = structlog.get_logger()

# Most repositories of a kind that are opened in one round; the rest waits for the next.
AT_ONCE = 100
# Seconds after which a round opens no other: an account may have written histories that take long to read.
LONGEST = 10.0

# Separates a repository's folder from the reason why it would refuse each push.
WOULD_REFUSE = ": pushes are refused: "

# Files of the history that change with the changelog's index or by replacement, unless they are damaged in their place.
RARELY_SEEN = (
    "store/00changelog.d",
    "store/00manifest.i",
    "store/00manifest.d",
    "store/phaseroots",
    "requires",
    "store/requires",
)

# Device, inode, size and time of the files that are compared, of `_observe_files`; None where there is none. Of RARELY_SEEN it is
# a hash alone: a relay keeps it of each repository.
_Seen = tuple[tuple[int, int, int, int] | int | None, ...]
# What was compared, whether the changelog was changed without the extension, None if that is unknown, and why pushes are refused.
_Comparison = tuple[_Seen, bool | None, str | None]
_NEVER: _Comparison = (), None, None


class OutsideWatch:
    """Remembers how each changelog compared with its outbox; used by one thread."""

    def __init__(
        self, port: MasterPort, monotonic: Callable[[], float] = time.monotonic, at_once: int = AT_ONCE
    ) -> None:
        self._port, self._monotonic, self._at_once = port, monotonic, at_once
        # Seconds of the processor that comparisons took.
        self.used = 0.0
        # Those compared longest ago come first.
        self._compared: dict[str, _Comparison] = {}

    def find(
        self, folders: Iterable[str], now: float, *, quiet: Collection[str] = frozenset()
    ) -> Iterator[ServiceTrouble]:
        """Yield the troubles of these repositories.

        In the `quiet` ones no folder has changed meanwhile. A repository is opened only if a file differs from when it was last
        sound. The repositories opened longest ago come first, so that many unsound ones, or many not opened since a start, do not
        keep the others waiting.
        """
        until = self._monotonic() + LONGEST
        there, opened = dict.fromkeys(folders, _NEVER), Counter[tuple[bool, bool]]()
        known = {folder: last for folder, last in self._compared.items() if folder in there}
        self._compared = {folder: last for folder, last in there.items() if folder not in known} | known
        for folder, former in list(self._compared.items()):
            compared, is_changed, refusal = former
            was_sound = is_changed is False and bool(compared)
            seen, kind = (
                _observe_files(folder, compared if folder in quiet and not refusal else ()),
                (bool(is_changed), was_sound),
            )
            if was_sound and seen == compared and not refusal:
                continue
            is_time = not opened or self._monotonic() < until
            if is_time and opened[kind] < self._at_once and (not was_sound or seen != compared):
                opened[kind] += 1
                began = time.thread_time()
                del self._compared[folder]
                self._compared[folder] = _, is_changed, refusal = self._compare_repository(folder, seen, former)
                self.used += time.thread_time() - began
            if is_changed and not refusal:
                what = "was changed without the extension, and mirrors lack the change until the next push"
                text = f"{folder}: {what}; announce it now: hg -R {shlex.quote(folder)} replicatesync"
                yield ServiceTrouble(text=text, since=now)
            if refusal:
                yield ServiceTrouble(text=f"{folder}{WOULD_REFUSE}{refusal}", since=now, is_urgent=True)

    def _compare_repository(self, folder: str, seen: _Seen, former: _Comparison) -> _Comparison:
        """Compare a repository whose files were seen like this.

        While a process works there, or it cannot be read, what was known stands, and it is compared again in the next round.
        """
        _, was_changed, refusal = former
        is_changed = None
        try:
            is_changed = self._port.is_changed_outside(folder)
        except Exception as error:
            logger.debug("not compared with its outbox", folder=folder, reason=str(error))
            seen = ()
        try:
            refusal = self._port.find_refusal(folder)
        except Exception as error:
            logger.debug("not examined for damage", folder=folder, reason=str(error))
            seen = ()
        return seen, True if is_changed is None and was_changed else is_changed, refusal


def _observe_files(folder: str, known: _Seen) -> _Seen:
    """Look at the files of a repository.

    In a quiet one with `known` files, leave out RARELY_SEEN and a missing `pushlog2.db`: damage to these files is seen once the
    repository is no longer quiet, at the latest in its turn.
    """
    store, is_missing = f"{folder}/.hg/store", bool(known) and known[-1] is None
    older = None if is_missing else _observe_file(f"{folder}/.hg/pushlog2.db")
    rest = known[2:-1] or (hash(tuple(_observe_file(f"{folder}/.hg/{name}") for name in RARELY_SEEN)),)
    return _observe_file(f"{store}/00changelog.i"), _observe_file(f"{store}/pushlog.log"), *rest, older


def _observe_file(path: str) -> tuple[int, int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

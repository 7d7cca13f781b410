# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether the root of a mirror is the file system that it was.

A mirror that took an empty mount point for its root would copy all repositories into it, and one whose root changes under it would
count as applied what the disk does not have. Both end; the unit starts them again until the file system is there. A root that was
emptied where it lies heals.
"""

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

from ..log import ACKS, STATE
from ..log.table import Table
from ..words.errors import Unavailable, counted
from ..words.records import Ack, MirrorHeartbeat, RepositoryState
from ..words.shape import try_json
from .namesake import INSTANCE
from .settings import MirrorSettings

# What a new file system has.
_NEW_DISK = "lost+found"


class MountedRoot:
    """The root as it was at the start.

    `file_system` is the number of its file system, None if that has none.
    """

    def __init__(self, settings: MirrorSettings) -> None:
        self._settings = settings
        self._stop = threading.Event()
        self._first = os.stat(settings.root)
        number = os.statvfs(settings.root).f_fsid
        self.file_system = f"{number:x}" if number else None

    def refuse_empty(self, read_acks: Callable[[], Mapping[str, Ack]], table: Table) -> None:
        """Raise Unavailable if the root is perhaps an empty mount point.

        The log says what the mirror had. An empty root is allowed on the file system that the mirror's last heartbeat names: there
        it was emptied, and heals. It is also allowed with an instance: the mirror itself made it at a start that this method
        allowed, or `bootstrap`, because an operator wants this root filled.
        """
        settings = self._settings
        self.check()
        if os.path.lexists(os.path.join(settings.folder, INSTANCE)):
            return
        if _may_have_repositories(os.path.realpath(settings.root), os.path.realpath(settings.folder)):
            return
        names = [repository for repository, ack in read_acks().items() if ack.applied > 0]
        states = (try_json(RepositoryState, table.value(STATE, name)) for name in names)
        had = sum(state is not None and not state.deleted for state in states)
        beat = try_json(MirrorHeartbeat, table.value(ACKS, settings.name))
        if not had or (self.file_system and beat and self.file_system == beat.file_system):
            return
        raise Unavailable(
            f"mirror.{settings.name}.root: {settings.root} is empty, but according to the log this mirror has "
            f"{counted(had, 'repository')}: mount its file system; "
            f"if its disk is lost, run: vcsreplicator bootstrap {settings.name}"
        )

    def watch(self, report: Callable[[Exception], None]) -> None:
        """Report from now on if the mirror must end because another folder is there.

        A thread of its own looks, because a file system that hangs holds it up.
        """
        threading.Thread(target=self._watch, args=(report,), name="root", daemon=True).start()

    def close(self) -> None:
        """End the watch."""
        self._stop.set()

    def _watch(self, report: Callable[[Exception], None]) -> None:
        while not self._stop.wait(self._settings.beat_interval):
            try:
                self.check()
            except Unavailable as error:
                report(error)
                return

    def check(self) -> None:
        """Raise Unavailable if another folder is there now.

        A root that is missing or does not answer is the trouble of the repositories that have work.
        """
        with suppress(OSError):
            if os.path.samestat(self._first, os.stat(self._settings.root)):
                return
            raise Unavailable(
                f"mirror.{self._settings.name}.root: {self._settings.root} is another folder than at the start: was its file "
                "system mounted or unmounted? A restart reads what is there now"
            )


def _may_have_repositories(folder: str, state: str) -> bool:
    """Return whether a folder of the root has folders that others made.

    A repository is one. The mirror itself makes the state folder, and those above it.
    """
    with os.scandir(folder) as entries:
        folders = [each.path for each in entries if each.is_dir() and each.name != _NEW_DISK and each.path != state]
    return any(not state.startswith(f"{each}/") or _may_have_repositories(each, state) for each in folders)

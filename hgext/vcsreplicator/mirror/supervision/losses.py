# SPDX-License-Identifier: GPL-2.0-or-later
"""Repositories that a power cut or a lost disk set back, refused until restored."""

import functools
import os
from collections.abc import Mapping
from contextlib import suppress

import structlog

from ...words.records import Ack
from . import boot
from .boot import BootMark, Lacking
from .life import Following
from .state import State

logger = structlog.get_logger()


class PowerLosses:
    """Compares repositories with acks at a start, and keeps the file of losses (`boot`).

    Rule: a repository that lost something stays in the file until it serves as much again, because its ack reports the lower level
    at once.
    """

    def __init__(self, state: State) -> None:
        self._settings, self._table = state.settings, state.table
        self._root = state.settings.root
        self._lacking: dict[str, Lacking] = {}

    def compare(self, acks: Mapping[str, Ack]) -> None:
        """Write which repositories serve less than their acks from before the start say.

        Call it once repositories and states are known, and before an ack is written or an event applied. Raises OSError.
        """
        former = boot.read(self._root)
        wanted = dict(former.lacking) if former else {}
        if former is None or not former.is_of_this_boot():
            acked = {name: Lacking("", ack.incarnation, ack.serving) for name, ack in acks.items()}
            wanted = {**acked, **wanted}
        lacking = self._leave_out_served(wanted)
        if former is None or (former.boot, former.lacking) != (boot.read_boot(), lacking):  # else the disk may be full
            self._write(lacking)
        self._lacking = lacking
        if self._lacking:
            logger.warning("less served than acknowledged", repositories=len(self._lacking), reason=_say_why(former))

    def look(self) -> None:
        """Let clients see the repositories that serve as much as before again.

        Does nothing while none lacks anything. If the disk is full, the next look tries again.
        """
        if not self._lacking or (left := self._leave_out_served(self._lacking)) == self._lacking:
            return
        try:
            self._write(left)
        except OSError as error:
            logger.warning("file not written", file=boot.FILE, reason=str(error))
        if not self._lacking:
            logger.info("all served again as acknowledged")

    def renew(self) -> None:
        """Show the web servers of other machines that this service has compared."""
        with suppress(OSError):
            boot.renew(self._root)

    def end(self) -> None:
        """Sync the disk and note it, so that the next boot need not compare.

        Call it once no worker is left. After an error the next boot compares.
        """
        try:
            boot.sync(self._root)
            boot.write(self._root, "", self._lacking)
        except OSError as error:
            logger.warning("file not written", file=boot.FILE, reason=str(error))

    def _write(self, lacking: dict[str, Lacking]) -> None:
        boot.write(self._root, boot.read_boot(), lacking)
        self._lacking = lacking

    def _leave_out_served(self, lacking: Mapping[str, Lacking]) -> dict[str, Lacking]:
        return {
            name: each._replace(folder=self._find_folder(following))
            for name, each in lacking.items()
            if (following := self._table.get(name)) is not None and _is_lacking(following, each)
        }

    def _find_folder(self, following: Following) -> str:
        return _find_relative(following.disk.folder or self._settings.local(following.master_path), self._root)


@functools.cache
def _find_relative(folder: str, root: str) -> str:
    """Return a folder's path below the root, links resolved; ask the disk only once.

    Each look needs the paths of all of them.
    """
    return os.path.relpath(os.path.realpath(folder), os.path.realpath(root))


def _say_why(former: BootMark | None) -> str:
    """Say what preceded this start, according to the file that it found."""
    if former is None:
        return "the root is new"
    return "not restored yet" if former.is_of_this_boot() else "power cut"


def _is_lacking(following: Following, wanted: Lacking) -> bool:
    """Return whether a repository serves less than it did, and less than is released.

    The mirror waits neither for what the states say that the log lost, nor for the history of an incarnation that ended. Another
    incarnation on the disk serves nothing of the wanted one.
    """
    log, here = following.log, following.checkpoint
    serving = 0 if here and here.incarnation != wanted.incarnation else following.disk.serving
    return log.incarnation == wanted.incarnation and serving < min(wanted.serving, log.released)

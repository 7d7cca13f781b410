# SPDX-License-Identifier: GPL-2.0-or-later
"""A task's knowledge of one repository: its folder, checkpoint and trouble."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from ...mirror.checkpoint import Checkpoint
from ...mirror.settings import MirrorSettings
from ...mirror.task import FoundRepository
from ...words.records import Reason
from . import place, scan


class Halted(Exception):
    """The repository cannot go on in the stream, for a reason."""

    def __init__(self, reason: Reason, note: str) -> None:
        super().__init__(note)
        self.reason = reason


@dataclass(slots=True)
class LocalRepository:
    """The mirror's copy; `done`, `floor` and `gone` as in `TaskOutcome`."""

    folder: str | None
    done: int = 0
    checkpoint: Checkpoint | None = None
    serving: int = 0
    served_at: float = 0.0
    gone: Checkpoint | None = None
    floor: int = 0

    def find(self, settings: MirrorSettings, repository: str, target: str | None = None) -> None:
        """Find the repository: where it was, without a URL, at `target`, or anywhere.

        Raises Halted if it is in none of the first three and one of them is damaged: the damaged folder may be the repository's.
        """
        expected, damaged = self.folder, None
        for folder in dict.fromkeys(filter(None, (expected, place.waiting_of(settings.folder, repository), target))):
            found = scan.inspect(folder)
            if found is not None and found.is_of(repository):
                self._set_found(found)
                return
            damaged = damaged or (None if found is None else found.problem)
        if damaged is not None:
            raise Halted(Reason.CORRUPT, damaged)
        # A worker may have been killed after it had moved the repository.
        self._set_found(None if expected is None else scan.find(settings, repository))

    def was_moved(self) -> bool:
        """Return whether it is no longer where it was found.

        Then a failure at that place says nothing about this repository.
        """
        if self.folder is None or self.checkpoint is None:
            return False
        found = scan.inspect_anyway(self.folder)
        return found is None or (found.checkpoint is not None and not found.is_of(self.checkpoint.repository))

    @contextlib.contextmanager
    def hold(self) -> Iterator[place.LockedPlace]:
        """Lock the repository within the block; raises Busy or LockHeld."""
        assert self.folder is not None
        assert self.checkpoint is not None
        with place.hold(self.folder) as held:
            found = scan.inspect(self.folder)
            if found is None or not found.is_of(self.checkpoint.repository):
                raise place.Busy(f"{self.folder}: the repository was moved away at the same moment")
            yield held

    def _set_found(self, found: FoundRepository | None) -> None:
        if found is None:
            self.folder, self.checkpoint, self.serving = None, None, 0
        else:
            self.folder, self.checkpoint, self.serving = found.folder, found.checkpoint, found.serving

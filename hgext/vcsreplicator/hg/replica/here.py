# SPDX-License-Identifier: GPL-2.0-or-later
"""What a task on one repository of a mirror knows of it, where it stands, and why it cannot go on."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from ...mirror.checkpoint import Checkpoint
from ...mirror.settings import MirrorSettings
from ...words.levels import Reason
from . import place, scan


class Halted(Exception):
    """The repository cannot go on in the stream: why."""

    def __init__(self, reason: Reason, note: str) -> None:
        super().__init__(note)
        self.reason = reason


@dataclass(slots=True)
class Here:
    """What the mirror has of the repository, as far as this task knows; `floor` and `gone` as in `Outcome`."""

    folder: str | None
    level: Checkpoint | None = None
    serving: int = 0
    served_at: float = 0.0
    gone: Checkpoint | None = None
    floor: int = 0

    def look(self, settings: MirrorSettings, repository: str, target: str | None = None) -> None:
        """Finds the repository: where it was last, without a URL, at `target`, or, if it was somewhere, anywhere.

        Raises Halted if it is in none of the first three and one of them is damaged: that may be it.
        """
        expected, damaged = self.folder, None
        for folder in dict.fromkeys(filter(None, (expected, place.waiting_of(settings.folder, repository), target))):
            found = scan.look(folder)
            if found is not None and found.checkpoint is not None and found.checkpoint.repository == repository:
                self._take(found)
                return
            damaged = damaged or (None if found is None else found.problem)
        if damaged is not None:
            raise Halted(Reason.CORRUPT, damaged)
        # A worker was killed after it had moved the repository.
        self._take(None if expected is None else scan.find(settings.root, settings.folder, repository))

    @contextlib.contextmanager
    def held(self) -> Iterator[place.LockedPlace]:
        """The repository where it was found: it stays there, and nobody else writes into it.

        Raises place.Busy if it is not there any more, error.LockHeld if another process has it.
        """
        assert self.folder is not None
        assert self.level is not None
        with place.hold(self.folder) as held:
            found = scan.look(self.folder)
            if found is None or found.checkpoint is None or found.checkpoint.repository != self.level.repository:
                raise place.Busy(f"{self.folder}: the repository left at the same moment")
            yield held

    def _take(self, found: scan.FoundRepository | None) -> None:
        self.folder, self.level = (found.folder, found.checkpoint) if found else (None, None)
        self.serving = found.serving if found else 0

# SPDX-License-Identifier: GPL-2.0-or-later
"""What a task on one repository of a mirror knows of it, where it stands, and why it cannot go on."""

from dataclasses import dataclass

from ..levels import Reason
from ..mirror.level import Level
from ..mirror.settings import MirrorSettings
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
    level: Level | None = None
    serving: int = 0
    served_at: float = 0.0
    gone: Level | None = None
    floor: int = 0

    def look(self, settings: MirrorSettings, repository: str, target: str | None = None) -> None:
        """Finds the repository: where it was last, without a URL, at `target`, or, if it was somewhere, anywhere.

        Raises Halted if what is there is damaged.
        """
        expected = self.folder
        for folder in dict.fromkeys(filter(None, (expected, place.waiting_of(settings.folder, repository), target))):
            found = scan.look(folder)
            if found is not None and found.problem is not None:
                raise Halted(Reason.CORRUPT, found.problem)
            if found is not None and found.level is not None and found.level.repository == repository:
                self._take(found)
                return
        # A worker was killed after it had moved the repository.
        self._take(None if expected is None else scan.find(settings.root, settings.folder, repository))

    def _take(self, found: scan.Found | None) -> None:
        self.folder, self.level = (found.folder, found.level) if found else (None, None)
        self.serving = found.serving if found else 0

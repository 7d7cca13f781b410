# SPDX-License-Identifier: GPL-2.0-or-later
"""Joining mirrors: where each serves less than was released; one that is caught up everywhere becomes active. Pure."""

from collections.abc import Iterator, Mapping

from ..words.roster import Mirror, MirrorState, Roster
from .repository import Repository


class Joining:
    """What each joining mirror lacks, as repository → sequence that it must serve."""

    def __init__(self) -> None:
        self._behind: dict[str, dict[str, int]] = {}

    def __bool__(self) -> bool:
        """Whether any mirror joins."""
        return bool(self._behind)

    def survey(self, roster: Roster, repositories: Mapping[str, Repository]) -> None:
        """Compare all of them anew: what is released now is what must be served."""
        joining = [mirror for mirror in roster.mirrors if mirror.state is MirrorState.JOINING]
        self._behind = {mirror.name: dict(_find_behind(mirror, repositories)) for mirror in joining}

    def heard(self, mirror: str, repository: Repository) -> None:
        """Take another level of the mirror for this repository."""
        behind = self._behind.get(mirror)
        if behind and repository.id in behind and repository.is_caught_up(mirror, behind[repository.id]):
            del behind[repository.id]

    def find_caught_up(self) -> list[str]:
        """Return the mirrors that lack nothing."""
        return [name for name, behind in self._behind.items() if not behind]


def _find_behind(mirror: Mirror, repositories: Mapping[str, Repository]) -> Iterator[tuple[str, int]]:
    for repository in repositories.values():
        state = repository.state
        if state is None or state.deleted:
            continue
        follows = mirror.carries(state.path) and repository.id not in mirror.deactivated
        if follows and not repository.is_caught_up(mirror.name, state.released):
            yield repository.id, state.released

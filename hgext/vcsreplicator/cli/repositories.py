# SPDX-License-Identifier: GPL-2.0-or-later
"""What the log says now, for verbs that look once, and the repositories that their arguments name."""

from ..log import Log
from ..status import Follower, Picture
from ..words.errors import Refused
from ..words.levels import RepositoryState


def read_picture(log: Log) -> Picture:
    """Read the picture as of now."""
    follower = Follower(log)
    try:
        return follower.update()
    finally:
        follower.close()


def find_repository(picture: Picture, named: str, *, is_living: bool = False) -> RepositoryState:
    """Return the repository with this id or path, the newest of those that have had the path.

    One that is not deleted comes first; with `is_living` no other counts. Raises Refused if there is none.
    """
    found = [
        state
        for state in picture.states.values()
        if named.strip("/") in (state.path, state.repository) and not (is_living and state.deleted)
    ]
    if not found:
        raise Refused(f"repository {named}: neither a path nor an id that the log knows")
    return max(found, key=lambda state: (state.repository == named, not state.deleted, state.generation))

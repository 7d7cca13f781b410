# SPDX-License-Identifier: GPL-2.0-or-later
"""The present picture of the log, and the repositories that arguments name."""

from contextlib import closing

from ..log import Log
from ..status import Picture
from ..status.follower import Follower
from ..words.errors import Refused
from ..words.records import RepositoryState


def read_picture(log: Log) -> Picture:
    """Read the present picture of the log."""
    with closing(Follower(log)) as follower:
        return follower.update()


def find_repository(picture: Picture, named: str, *, is_living: bool = False) -> RepositoryState:
    """Find the repository with this id or path.

    If several have had the path, return the newest that is not deleted, or else the newest. With `is_living`, deleted ones do not
    count. Raises Refused if there is none.
    """
    found = [
        state
        for state in picture.states.values()
        if named.strip("/") in (state.path, state.repository) and not (is_living and state.deleted)
    ]
    if not found:
        raise Refused(f"repository {named}: neither a path nor an id that the log knows")
    return max(found, key=lambda state: (state.repository == named, not state.deleted, state.generation))

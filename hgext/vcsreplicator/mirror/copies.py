# SPDX-License-Identifier: GPL-2.0-or-later
"""Several folders with one repository: which one is the mirror's."""

import os
from collections.abc import Iterable

from .settings import MirrorSettings
from .task import FoundRepository


def choose(found: Iterable[FoundRepository], settings: MirrorSettings) -> FoundRepository:
    """Return the folder that the mirror follows, for any order of one or more.

    An operator may have copied a repository below the root, or restored it under another name. A newer incarnation comes first,
    then the copy in the folder where a mirror would put it, then the higher sequence, then the higher release. All have a
    checkpoint.
    """
    chosen, *others = sorted(found, key=lambda each: each.folder)
    for other in others:
        chosen = other if _comes_before(other, chosen, settings) else chosen
    return chosen


def _comes_before(one: FoundRepository, other: FoundRepository, settings: MirrorSettings) -> bool:
    assert one.checkpoint is not None
    assert other.checkpoint is not None
    if one.checkpoint.incarnation in other.checkpoint.former:
        return False
    if other.checkpoint.incarnation in one.checkpoint.former:
        return True
    first, second = (
        (_is_at_its_place(each, settings), each.checkpoint.seq, each.serving)
        for each in (one, other)
        if each.checkpoint
    )
    return first > second


def _is_at_its_place(found: FoundRepository, settings: MirrorSettings) -> bool:
    """Return whether it is where a mirror puts it, links resolved.

    That is at its path; until its release, at the path that it serves, or in the folder `waiting`.
    """
    assert found.checkpoint is not None
    paths = {found.checkpoint.path, found.served_path or found.checkpoint.path}
    places = {os.path.join(settings.folder, "waiting", found.checkpoint.repository), *map(settings.local, paths)}
    return os.path.realpath(found.folder) in map(os.path.realpath, places)

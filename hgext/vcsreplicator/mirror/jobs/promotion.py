# SPDX-License-Identifier: GPL-2.0-or-later
"""What keeps a mirror from becoming the master. Pure."""

from collections.abc import Callable, Collection, Iterator, Mapping

from ...status import SILENT, Picture
from ...words.records import RELAY_KEY, MasterRecord, RepositoryState
from ..settings import MirrorSettings
from ..task import FoundRepository
from .verify import is_included


def find_former(picture: Picture, known: MasterRecord | None, source: str) -> tuple[str, ...]:
    """Return the sources of the masters that a promotion to `source` replaces."""
    sent = {state.source for state in picture.states.values() if state.source}
    before = {known.source, *known.replaces} if known else set()
    return tuple(sorted((sent | before) - {source}))


def find_running(picture: Picture, former: Collection[str], now: float) -> list[str]:
    """Return the former masters whose relays report, in words that say how to go on."""
    return [
        f"the relay of {source} reported {silence:.0f} s ago: stop it, or its machine, and wait {SILENT:.0f} s"
        for source in former
        if (silence := picture.silence(f"{RELAY_KEY}{source}", now)) <= SILENT
    ]


def find_lacks(
    picture: Picture,
    settings: MirrorSettings,
    found: Mapping[str, FoundRepository],
    find_path: Callable[[str], str | None],
) -> Iterator[str]:
    """Say of each repository of the log what the mirror lacks of it, and how to go on.

    `found` are the mirror's repositories by id, and `find_path` returns the wire path that a folder will have on the master.
    """
    for state in sorted(picture.states.values(), key=lambda state: state.path):
        if state.deleted:
            continue
        if not is_included(picture, settings.name, state):
            yield f"{state.path}: the mirror's rules leave it out; promote a mirror that carries it, or forget it afterwards"
        elif (here := found.get(state.repository)) is None or here.checkpoint is None:
            yield f"{state.path}: it is not here, or is damaged; start the mirror, which heals it, or promote another one"
        elif here.checkpoint.incarnation != state.incarnation or here.checkpoint.seq < state.seq:
            yield (
                f"{state.path}: the mirror is at event {here.checkpoint.seq}, the log at {state.seq}; "
                "start the mirror until it is caught up"
            )
        elif find_path(here.folder) != here.checkpoint.path:
            yield (
                f"{state.path}: its folder {here.folder} is {find_path(here.folder) or 'no path'} on the master; "
                "correct [relay.roots]"
            )


def list_generations(states: Collection[RepositoryState]) -> dict[str, int]:
    """Return the newest generation of each path that the log knows, deleted ones included."""
    places = [(state.path, state.generation) for state in states]
    places += [(stay.path, stay.generation) for state in states for stay in state.stays]
    return dict(sorted(places, key=lambda place: place[1]))

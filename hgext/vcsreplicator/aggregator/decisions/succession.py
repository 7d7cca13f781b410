# SPDX-License-Identifier: GPL-2.0-or-later
"""Successors at a path: repositories that follow another one there. Pure.

All notices of a repository come before the release of its successor at its path. Partitions of `events` have no order
among each other, so the successor may be read first: it waits until all is read that the log had when the successor came.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ...words.event import Event, Type
from ...words.records import RepositoryState
from .held import HeldEvent
from .repository import Repository

# Seconds that a successor waits for the departure of a predecessor that sends no event, while all partitions answer.
DEPARTURE_PATIENCE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A repository that waits for others at its path.

    Its creation there, or its rename to it, is `held` until all notices of `predecessors` are written.
    """

    successor: Repository
    held: HeldEvent
    predecessors: tuple[Repository, ...]


class Succession:
    """The paths of all repositories, and which successors wait.

    Everything is read that the log had at `read_at`. What is not read may have departures, and repositories that the aggregator
    does not know. `now` is the present time, which the caller sets before it passes in events and asks for decisions. Both are by
    the monotonic clock: a successor waits as long if the time of day is set meanwhile.
    """

    def __init__(self, repositories: Mapping[str, Repository]) -> None:
        self.now, self.read_at = 0.0, float("-inf")
        # Whether events wait untaken with their repositories, which may have been at any path.
        self.has_untaken = False
        self._repositories = repositories
        self._paths: dict[str, set[str]] = {}
        # Paths and generations of which the repository is known.
        self._known: set[tuple[str, int]] = set()
        self._unproven: dict[str, HeldEvent] = {}
        self._waits: dict[str, Wait] = {}

    def note(self, state: RepositoryState) -> None:
        """Take the paths that the repository may have to leave.

        It has to leave a path before another repository is released there.
        """
        places = ((state.path, state.generation), *((stay.path, stay.generation) for stay in state.stays))
        for path, generation in places:
            self._paths.setdefault(path, set()).add(state.repository)
            self._known.add((path, generation))
        self._known.update((each.path, each.generation) for each in state.left)

    def must_wait(self, repository: Repository, held: HeldEvent) -> bool:
        """Return whether the event waits for another repository at its path.

        The event is the next to be released.
        """
        self._waits.pop(repository.id, None)
        self._unproven.pop(repository.id, None)
        event = held.event
        if not _is_first_there(repository.state, event):
            return False
        others = (other for other in self._list_there(event.path) if other is not repository)
        found = tuple(other for other in others if _holds_path(other, held, min(self.now, self.read_at)))
        if found:
            self._waits[repository.id] = Wait(successor=repository, held=held, predecessors=found)
            return True
        if event.generation == 1 or (event.path, event.generation - 1) in self._known:
            return False
        if self.read_at > held.taken_at and not self.has_untaken:
            return False
        self._unproven[repository.id] = held
        return True

    def find_replaced(self, path: str) -> list[Repository]:
        """Find the repositories that never left the path, where a later one is shown.

        They were removed without an event that says so.
        """
        there = self._list_there(path)
        if len(there) < 2:
            return []
        newest = max(each.find_generation(path) for each in there)
        return [each for each in there if _lives_below(each.state, path, newest)]

    def _list_there(self, path: str) -> list[Repository]:
        """List the repositories that may be at the path, by id.

        Forgets repositories that have left it: a path may have many, and each event asks.
        """
        names = self._paths.get(path, set())
        names -= {name for name in names if self._repositories[name].has_left(path)}
        return [self._repositories[name] for name in sorted(names)]

    @property
    def paths(self) -> list[str]:
        """The paths that several repositories may have."""
        return [path for path, names in self._paths.items() if len(names) > 1]

    @property
    def is_unproven(self) -> bool:
        """Whether a successor waits only because its predecessor may not be read."""
        return any(self._repositories[name].next_to_release() is held for name, held in self._unproven.items())

    def list_unsure(self) -> dict[str, tuple[HeldEvent, float]]:
        """Return the successors that wait, by id, only because departures may not be read.

        The wait of each ends when everything is read up to the time beside it, by the monotonic clock.
        """
        found = {name: (held, held.taken_at) for name, held in self._unproven.items()}
        for name, each in self._waits.items():
            event, newest = each.held.event, max(other.newest_at for other in each.predecessors)
            if all(other.occupies(event.path, event.generation) is None for other in each.predecessors):
                found[name] = each.held, max(each.held.taken_at, newest) + DEPARTURE_PATIENCE
        return {name: each for name, each in found.items() if self._repositories[name].next_to_release() is each[0]}

    def waits(self) -> list[Wait]:
        """Return the successors that wait by the newest decisions, longest wait first."""
        found = [wait for wait in self._waits.values() if wait.successor.next_to_release() is wait.held]
        return sorted(found, key=lambda wait: (wait.held.since, wait.successor.id))


def _is_first_there(state: RepositoryState | None, event: Event) -> bool:
    """Return whether nothing was announced of the repository at the path before.

    An adopted history begins with a sync. If the log has lost the creation or the rename, the event that follows it is the first.
    """
    if event.type in (Type.CREATED, Type.RENAMED) or event.seq == 1:
        return True
    if state is None or any(stay.until == event.seq and stay.path != event.path for stay in state.stays):
        return True
    return state.noticed == state.released and state.streams is None and state.served_by is None


def _lives_below(state: RepositoryState | None, path: str, generation: int) -> bool:
    return state is not None and state.path == path and state.generation < generation and not state.deleted


def _holds_path(other: Repository, held: HeldEvent, read_at: float) -> bool:
    is_there = other.occupies(held.event.path, held.event.generation)
    return is_there or (is_there is None and read_at - max(held.taken_at, other.newest_at) < DEPARTURE_PATIENCE)

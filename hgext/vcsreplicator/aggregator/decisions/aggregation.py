# SPDX-License-Identifier: GPL-2.0-or-later
"""The decisions of the aggregator as one object, fed with records. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ...keys.pairs import KeyPair
from ...log import STATE
from ...words import wire
from ...words.records import Notice, RepositoryState
from ...words.roster import Roster
from .arrival import is_older, recovered
from .deciding import Decisions
from .held import HeldEvent
from .intake import EventIntake
from .levels import MirrorLevels
from .membership import RosterMembership
from .memory import Memory
from .outgoing import Outgoing
from .outstanding import Outstanding
from .poison import Poison, blaming
from .repository import Repository
from .succession import Succession


class Aggregation:
    """All repositories, levels and the roster of one installation.

    One thread uses it. Feed it records (`events.take`, `levels.take`, `membership.take`), let it `decide`, and write its `batch`
    in one transaction. When the outcome of a transaction is unknown, throw the whole object away and load another from the log.

    `positions` say where the reading of `events` and `roster-requests` goes on, as (topic, partition) → offset; in `acks`, up to
    where unreadable levels are recorded. `loaded` is where its own topics ended when they were read. `repositories` are by id.
    `lost` counts, for each of them, the events that the log has lost. Records and repositories in `poison` are left out. A batch
    holds at most about `limit` notices, or BATCH_BYTES.
    """

    def __init__(
        self,
        roster: Roster,
        positions: Mapping[tuple[str, int], int],
        *,
        limit: int = 1000,
        poison: Poison | None = None,
    ) -> None:
        self._memory = memory = Memory(positions, poison or Poison())
        self.repositories: Mapping[str, Repository] = memory.repositories
        self.positions, self.poison = memory.positions, memory.poison
        self.lost: Mapping[str, int] = memory.lost
        # By topic: the position behind what was loaded; in `notices`, the one from which on notices may be newer than `state`.
        self.loaded: dict[str, int] = {}
        self.succession = Succession(self._memory.repositories)
        self.succession.has_untaken = bool(memory.poison.refused)
        self.membership = RosterMembership(roster, self._memory)
        self.levels = MirrorLevels(self._memory, self.membership)
        self._decisions = Decisions(self._memory, self.membership, self.succession, limit)
        self.events = EventIntake(self._memory, self.membership, self.succession, self._decisions)

    # Loading

    def load_state(self, state: RepositoryState) -> None:
        """Take a stored state; take all of them before anything is decided."""
        repository = self._memory.repository(state.repository)
        repository.state, repository.serials = replace(state, serials=None), dict(state.serials or {})
        self.succession.note(state)

    def sign_with(self, key: KeyPair) -> None:
        """Sign every notice from now on."""
        self._decisions.signer = key

    def load_pending(self, key: str, value: bytes, headers: Mapping[str, str]) -> None:
        """Take a record of `pending`, in any order, to be read later.

        Raises ValueError if the key does not have the form of the aggregator's keys.
        """
        name, _, place = key.partition("/")
        partition, newer, offset = place.rpartition(":")
        if newer:
            self.events.newer.load(name, int(partition), int(offset), value, wire.carried(headers))
            return
        repository = self._memory.repository(name)
        repository.add(HeldEvent.stored(int(place), value, headers))
        self._memory.touched[name] = repository

    def end_loading(self, now: float) -> None:
        """Finish loading; earlier decisions count from here on.

        The caller has passed in everything stored, acks included.
        """
        for repository in self.repositories.values():
            broken = self.poison.faults.get(repository.id)
            if broken is not None:
                text = f"{repository.path} is stalled: {broken.reason}"
                self._memory.output.fail(repository.id, text, broken.traceback, now)
                continue
            stored = repository.state
            with blaming(repository.id):
                repository.end_loading()
                if repository.state is not stored:
                    self.write_again([repository.id])
                if repository.state is not None:
                    self.succession.note(repository.state)
        for path in self.succession.paths:
            self._decisions.end_replaced(path)
        self.events.newer.sort()
        self.levels.is_loaded = True
        self.membership.survey()
        self._memory.outstanding.note_all(self._memory.repositories)
        while self.is_behind:
            self.find_outstanding()

    def recover(self, notice: Notice) -> bool:
        """Take a notice, the oldest first; return whether it restored a state.

        It does if the state of its repository was lost or is older.
        """
        repository = self._memory.repository(notice.event.repository)
        if not is_older(repository.state, notice):
            return False
        repository.state = recovered(repository.state, notice)
        self.succession.note(repository.state)
        self._memory.touched[repository.id] = self._memory.output.dirty[repository.id] = repository
        return True

    def has_announced(self, notice: Notice) -> bool:
        """Return whether the repository's state has this notice."""
        repository = self.repositories.get(notice.event.repository)
        return repository is not None and not is_older(repository.state, notice)

    # Input and decisions

    def expects(self, mirror: str, repository: str) -> bool:
        """Return whether roster and log know this mirror and repository, "" for a heartbeat."""
        known = self.repositories.get(repository)
        is_known = known is not None and (known.state is not None or bool(known.queue))
        return (is_known or not repository) and self.roster.mirror(mirror) is not None

    def decide(self, now: float) -> bool:
        """Release and announce events, and promote mirrors, until a batch is full.

        Returns whether something is left.
        """
        self._decisions.decide(now)
        self.membership.promote(now)
        return self.is_undecided

    # Output

    @property
    def is_undecided(self) -> bool:
        """Whether there is more to decide than went into the last batch."""
        return self._decisions.is_undecided

    @property
    def output(self) -> Outgoing:
        """The content of the next batch."""
        return self._memory.output

    def batch(self, *, may_defer: bool = False) -> Outgoing:
        """Return all that changed since the last batch, to be written in one transaction.

        With `may_defer`, positions that only say which events were taken wait for a later batch: after a crash those events come
        again as repeats.
        """
        return self._memory.batch(may_defer=may_defer)

    def renew(self) -> None:
        """Store every position with the next batch, even without a move."""
        self._memory.output.positions = dict(self.positions)

    def write_again(self, names: Iterable[str]) -> None:
        """Write the states of these repositories with the next batch.

        It leaves out states that their topic refuses.
        """
        refused = self.poison.refused
        taken = [name for name in names if name not in refused or refused[name].topic != STATE]
        self._memory.output.dirty.update((name, self.repositories[name]) for name in taken)

    # Watching

    @property
    def roster(self) -> Roster:
        return self.membership.roster

    @property
    def held(self) -> int:
        """The number of events without a notice."""
        return sum(self.find_outstanding().held.values())

    @property
    def is_behind(self) -> bool:
        """Whether more repositories changed than `find_outstanding` looks at."""
        return self._memory.outstanding.is_behind

    def find_outstanding(self) -> Outstanding:
        """Return what is outstanding.

        Costs what changed since the last call, up to a limit: the figures of other repositories are older while it `is_behind`.
        """
        self._memory.outstanding.update(self.roster)
        return self._memory.outstanding

    def incomplete(self) -> set[str]:
        """Return the ids of the repositories that lack events still to be announced."""
        return {name for name, each in self.repositories.items() if each.is_incomplete and not each.is_refused}

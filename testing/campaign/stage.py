# SPDX-License-Identifier: GPL-2.0-or-later
"""What all actors of a campaign share: the step, the log, the master's outboxes, and what was seen."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from hgext.vcsreplicator.log import NOTICES, ROSTER, NewRecord, PartitionKey
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.event import Type
from hgext.vcsreplicator.words.roster import MirrorState, Roster
from hgext.vcsreplicator.words.shape import from_json
from notifier.publishing.position import IDENTITY
from testing.builders.aggregator.chains import Chain
from testing.campaign.faults import Plan
from testing.campaign.history import Kind, Seen
from testing.campaign.log import SteppedLog
from testing.clock import HandClock

# All paths that repositories may have.
PATHS = ("a", "b", "c", "d")


class Outbox:
    """The events of one repository, and where the log took those that are marked as sent."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.places: list[int] = []
        self._values: list[bytes] = []

    @property
    def is_deleted(self) -> bool:
        return bool(self.chain.events) and self.chain.events[-1].type is Type.DELETED

    @property
    def values(self) -> list[bytes]:
        """The values of the records of its events."""
        self._values += map(wire.encode, self.chain.events[len(self._values) :])
        return self._values


class Stage(ABC):
    """The stage of one campaign, which knows none of the actors."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.step, self.history = plan, 0, list[Seen]()
        self.is_calm, self.is_log_away, self._lives = False, False, 0
        self.clock = HandClock()
        self.log = SteppedLog(self.clock, self._see_record)
        self.outboxes: dict[str, Outbox] = {}

    @abstractmethod
    def run(self, steps: int) -> None:
        """Let the actors that can make a step make so many."""

    def new_life(self) -> int:
        self._lives += 1
        return self._lives

    def see(self, seen: Seen) -> None:
        self.history.append(seen)

    def see_fault(self, what: str, who: str) -> None:
        self.see(Seen(step=self.step, kind=Kind.FAULT, who=who, names=(what,)))

    def see_commit(self, clock: HandClock, life: int) -> Callable[[str, int, Mapping[PartitionKey, int]], None]:
        """Return what is to be called with each commit of a process: of which transactor, and the positions that it stored."""

        def see(identity: str, turn: int, positions: Mapping[PartitionKey, int]) -> None:
            who = identity.removeprefix(IDENTITY)
            self.see(Seen(step=self.step, kind=Kind.WROTE, who=who, life=life, turn=turn, own=clock.monotonic()))
            if who != identity and (NOTICES, 0) in positions:
                self.see(Seen(step=self.step, kind=Kind.STORED, who=who, offset=positions[NOTICES, 0], life=life))

        return see

    def generation_of(self, repository: str, seq: int) -> int:
        return self.outboxes[repository].chain.events[seq - 1].generation

    def _see_record(self, record: NewRecord) -> None:
        if record.topic == ROSTER and record.value is not None:
            for member in from_json(Roster, record.value).mirrors:
                gated = PATHS if member.state is MirrorState.ACTIVE else ()
                paths = tuple(path for path in gated if member.rules.carries(path))
                spared = member.deactivated
                self.see(Seen(step=self.step, kind=Kind.GATING, who=member.name, names=paths, spared=spared))

# SPDX-License-Identifier: GPL-2.0-or-later
"""What all actors of a campaign share: the step, the log, the master's outboxes, and what was seen."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

from hgext.vcsreplicator.log import (
    EVENTS,
    NOTICES,
    ROSTER,
    ROSTER_REQUESTS,
    SERVICES,
    NewRecord,
    PartitionKey,
    partition_of,
)
from hgext.vcsreplicator.outbox.file import Fork, SentMark
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.event import Event, Type
from hgext.vcsreplicator.words.records import MASTER_KEY, MasterRecord
from hgext.vcsreplicator.words.roster import MirrorState, Roster, RosterRequest, Verb
from hgext.vcsreplicator.words.shape import from_json, to_json
from notifier.publishing.position import IDENTITY
from testing.builders.aggregator.chains import Chain
from testing.campaign.faults import Plan
from testing.campaign.history import Kind, Seen
from testing.campaign.log import SteppedLog
from testing.clock import HandClock

PARTITIONS = 2
# All paths that repositories may have.
PATHS = ("a", "b", "c", "d")


class Outbox:
    """The events of one repository, and where the log took those that are marked as sent.

    Of a promoted master the outbox keeps the events behind the first `skipped` ones.
    """

    def __init__(self, chain: Chain, skipped: int = 0) -> None:
        self.chain, self.skipped = chain, skipped
        self.places: list[int] = []
        self._values: list[bytes] = []
        self._fork: Fork | None = None

    @property
    def kept(self) -> list[Event]:
        return self.chain.events[self.skipped :]

    def has_unsent(self) -> bool:
        return self.skipped + len(self.places) < len(self.chain.events)

    def newest(self) -> Event:
        return self.chain.events[-1]

    def sent(self) -> SentMark | None:
        if not self.places:
            return None
        event = self.chain.events[self.skipped + len(self.places) - 1]
        return cast(
            SentMark, SimpleNamespace(partition=partition_of(event.repository, PARTITIONS), offset=self.places[-1])
        )

    def sending(self, *, wait: bool) -> AbstractContextManager[bool]:
        return nullcontext(True)

    def fork(self) -> Fork | None:
        return self._fork

    def set_fork(self, fork: Fork | None) -> None:
        self._fork = fork

    @property
    def is_deleted(self) -> bool:
        return bool(self.chain.events) and self.chain.events[-1].type is Type.DELETED

    @property
    def values(self) -> list[bytes]:
        """The values of the records of the kept events."""
        self._values += map(wire.encode, self.chain.events[self.skipped + len(self._values) :])
        return self._values


class Stage(ABC):
    """The stage of one campaign, which knows none of the actors."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.step, self.history = plan, 0, list[Seen]()
        self.is_calm, self.is_log_away, self._lives = False, False, 0
        self.clock = HandClock()
        self.log = SteppedLog(self.clock, self._see_record)
        # The outboxes of the present master, who is its source; it may be away.
        self.outboxes: dict[str, Outbox] = {}
        self.source, self.is_master_away, self.is_handed_over = "", False, False
        # The events by what relays append, and each repository's generation at each event.
        self.by_value: dict[bytes, Event] = {}
        self.generations: dict[tuple[str, int], int] = {}
        # The requests that a roster in the log ever said were decided.
        self.decided = set[str]()

    @abstractmethod
    def run(self, steps: int) -> None:
        """Let the actors that can make a step make so many."""

    @abstractmethod
    def end_service(self) -> None:
        """An operator stops the old master's relay and servers."""

    @abstractmethod
    def start_master(self, master: Any, mirror: Any) -> None:
        """An operator starts what a promoted master needs, on the mirror's machine."""

    def ask(self, mirror: str, verb: Verb) -> None:
        """Ask the aggregator for a change of the roster."""
        request = RosterRequest(
            id=f"{self.step} {verb} {mirror}",
            verb=verb,
            mirror=mirror,
            who="dana",
            time=self.clock.now(),
            reason="campaign",
        )
        self.log.append([NewRecord(topic=ROSTER_REQUESTS, key=request.id, value=to_json(request))])

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
        return self.generations[repository, seq]

    def events_until(self, repository: str, seq: int, newest: str) -> list[Event]:
        """The events of a repository that the log took, the newest of which has this sequence and id."""
        found = {each.seq: each for each in self.by_value.values() if each.repository == repository and each.seq < seq}
        last = next(each for each in self.by_value.values() if each.id == newest)
        return [*(found[number] for number in range(1, seq)), last]

    def _see_record(self, record: NewRecord) -> None:
        if record.topic == EVENTS and record.value is not None:
            event = self.by_value[record.value]
            self.see(
                Seen(
                    step=self.step, kind=Kind.LOGGED, who=record.headers[wire.SOURCE], repository=event.repository,
                    seq=event.seq, digest=event.digest, path=event.path, generation=event.generation,
                    own=self.clock.monotonic(),
                )
            )  # fmt: skip
        elif record.topic == SERVICES and record.key == MASTER_KEY and record.value is not None:
            self.see(
                Seen(
                    step=self.step,
                    kind=Kind.PROMOTED,
                    who=from_json(MasterRecord, record.value).source,
                    names=("handed over",) * self.is_handed_over,
                )
            )
        elif record.topic == ROSTER and record.value is not None:
            roster = from_json(Roster, record.value)
            self.decided.update(each.request.id for each in roster.recent)
            for member in roster.mirrors:
                gated = PATHS if member.state is MirrorState.ACTIVE else ()
                paths = tuple(path for path in gated if member.rules.carries(path))
                spared = member.deactivated
                self.see(Seen(step=self.step, kind=Kind.GATING, who=member.name, names=paths, spared=spared))

# SPDX-License-Identifier: GPL-2.0-or-later
"""An aggregation that is fed by hand: no log, no clock, no thread."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence

from hgext.vcsreplicator.aggregator.decisions.aggregation import Aggregation
from hgext.vcsreplicator.aggregator.decisions.memory import RecordOutcome
from hgext.vcsreplicator.log import (
    ACKS,
    ERRORS,
    EVENTS,
    NOTICES,
    PENDING,
    ROSTER,
    ROSTER_REQUESTS,
    STATE,
    NewRecord,
    Record,
)
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.clock import Silence
from hgext.vcsreplicator.words.event import Event
from hgext.vcsreplicator.words.records import Ack, ErrorRecord, Notice, RepositoryState
from hgext.vcsreplicator.words.roster import KEY, Mirror, MirrorState, Roster, RosterRequest, Verb
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.aggregator.chains import Chain

START = {(EVENTS, 0): 0, (ROSTER_REQUESTS, 0): 0}


class FedAggregation:
    """Feeds an aggregation by hand, and keeps what it writes as a compacted log would."""

    def __init__(self, *mirrors: str | Mirror, allow_empty: bool = False, limit: int = 1000) -> None:
        self.topics: dict[str, dict[str | None, bytes]] = {topic: {} for topic in (STATE, PENDING, ROSTER)}
        self.notices: list[Notice] = []
        # The headers of each notice, and of each record of `pending`.
        self.notice_headers: list[Mapping[str, str]] = []
        self.pending_headers: dict[str | None, Mapping[str, str]] = {}
        self.errors: list[ErrorRecord] = []
        self.transactions: list[int] = []
        self.buried: list[str | None] = []
        self.positions = dict(START)
        self._now = 1000.0
        self.silence = Silence(self.now)
        known = [Mirror(name=one, state=MirrorState.ACTIVE) if isinstance(one, str) else one for one in mirrors]
        roster = Roster(version=1, mirrors=tuple(known), allow_empty=allow_empty)
        # Up to where the partition counts as read from its beginning: nothing is looked for a second time.
        self.whole = sys.maxsize
        self.aggregation = self.aggregate(roster, limit)
        self.aggregation.end_loading(self.now)
        self._offsets = dict.fromkeys((EVENTS, ACKS, ROSTER_REQUESTS), 0)
        self.events: list[Record] = []

    @property
    def now(self) -> float:
        """The time by both clocks."""
        return self._now

    @now.setter
    def now(self, now: float) -> None:
        self._now = self.aggregation.succession.now = now

    def record(
        self, topic: str, key: str | None, value: bytes | None, headers: Mapping[str, str] | None = None
    ) -> Record:
        offset = self._offsets[topic]
        self._offsets[topic] += 1
        return Record(
            topic=topic, partition=0, offset=offset, key=key, value=value, headers=headers or {}, time=self.now
        )

    def event(self, *events: Event, headers: Mapping[str, str] | None = None) -> list[RecordOutcome]:
        records = [self.record(EVENTS, event.repository, wire.encode(event), headers) for event in events]
        self.events += records
        return [self.take(self.take_event, record) for record in records]

    def take_event(self, record: Record, now: float) -> RecordOutcome:
        return self.aggregation.events.take(record, now, is_whole=record.offset < self.whole)

    def skip(self, *events: Event) -> None:
        """The log takes these, and the position passes them unread, as if it was moved by hand."""
        self.events += [self.record(EVENTS, event.repository, wire.encode(event)) for event in events]
        self.aggregation.positions[EVENTS, 0] = self.positions[EVENTS, 0] = self._offsets[EVENTS]

    def take(self, enter: Callable[[Record, float], RecordOutcome], record: Record) -> RecordOutcome:
        """Has the aggregation take the record, in as many transactions as it asks for."""
        while (outcome := enter(record, self.now)).is_asked_again:
            if outcome is RecordOutcome.READ_AGAIN:
                self.read_again()
            self.write()
        return outcome

    def read_again(self) -> None:
        """All events before the position."""
        self.whole = self._offsets[EVENTS]
        for record in [record for record in self.events if record.offset < self.positions[EVENTS, 0]]:
            self.take(self.aggregation.events.take_again, record)
        self.aggregation.events.settle_forks(0, self.now)

    def ack(self, *acks: Ack) -> None:
        for ack in acks:
            self.aggregation.levels.take(self.record(ACKS, f"{ack.mirror}/{ack.repository}", to_json(ack)), self.now)

    def bury_ack(self, mirror: str, repository: str) -> None:
        self.aggregation.levels.take(self.record(ACKS, f"{mirror}/{repository}", None), self.now)

    def ask(
        self, verb: Verb, mirror: str | None = None, *, identifier: str | None = None, **members: object
    ) -> RecordOutcome:
        identifier = identifier or f"request-{self._offsets[ROSTER_REQUESTS]}"
        request = RosterRequest(id=identifier, verb=verb, mirror=mirror, who="dana", time=1.0, reason="", **members)  # type: ignore[arg-type]
        return self.take(self.aggregation.membership.take, self.record(ROSTER_REQUESTS, identifier, to_json(request)))

    def commit(self) -> list[int]:
        """Decides and writes; the sequences announced by it."""
        before = len(self.notices)
        more = True
        while more:
            more = self.aggregation.decide(self.now)
            self.write()
        return [notice.event.seq for notice in self.notices[before:]]

    def write(self) -> None:
        """One transaction."""
        batch = self.aggregation.batch()
        self.transactions.append(len(batch.messages))
        self.positions.update(batch.positions)
        self._write(batch.messages)

    def restart(self, *, whole: int = sys.maxsize) -> None:
        """Another aggregation from what was written; up to `whole` the partition counts as read from its beginning."""
        self.whole = whole
        roster = from_json(Roster, self.topics[ROSTER][KEY]) if self.topics[ROSTER] else self.aggregation.roster
        acks = [ack for repository in self.aggregation.repositories.values() for ack in repository.acks.values()]
        self.aggregation = self.aggregate(roster, 1000)
        for key, value in self.topics[PENDING].items():
            self.aggregation.load_pending(key or "", value, self.pending_headers[key])
        for value in self.topics[STATE].values():
            self.aggregation.load_state(from_json(RepositoryState, value))
        self.ack(*acks)
        self.aggregation.end_loading(self.now)
        while (outcome := self.aggregation.events.take_kept(self.now, {0} if self.whole else ())).is_asked_again:
            if outcome is RecordOutcome.READ_AGAIN:
                self.read_again()
            self.write()

    def aggregate(self, roster: Roster, limit: int) -> Aggregation:
        aggregation = Aggregation(roster, self.positions, limit=limit)
        aggregation.succession.now = self.now
        aggregation.succession.read_at = math.inf  # what was not fed does not exist
        return aggregation

    def state(self, chain: Chain) -> RepositoryState:
        return from_json(RepositoryState, self.topics[STATE][chain.repository])

    def _write(self, messages: Sequence[NewRecord]) -> None:
        for message in messages:
            if message.topic == PENDING:
                self.pending_headers[message.key] = message.headers
            if message.topic == NOTICES:
                self.notices.append(from_json(Notice, message.value or b""))
                self.notice_headers.append(message.headers)
            elif message.topic == ERRORS:
                self.errors.append(from_json(ErrorRecord, message.value or b""))
            elif message.topic == ACKS:
                self.buried.append(message.key)
            elif message.topic in self.topics and message.value is None:
                del self.topics[message.topic][message.key]
            elif message.topic in self.topics:
                self.topics[message.topic][message.key] = message.value or b""

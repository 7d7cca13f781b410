# SPDX-License-Identifier: GPL-2.0-or-later
"""How far everything is: one picture of roster, repositories, mirrors, services and their lag, made of the log alone. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..log import ACKS, ROSTER, SERVICES, STATE, Record
from ..words import roster as rosters
from ..words.errors import MalformedEvent
from ..words.levels import Ack, AggregatorBeat, Beat, Lag, RepositoryState, ServiceReport, measure_lag
from ..words.shape import from_json

AGGREGATOR = "aggregator"

# What the groups of destinations begin with.
DESTINATION = "notifier-"

# Seconds without progress after which a finding says so.
SILENT = 60.0


@dataclass(slots=True, kw_only=True)
class Picture:
    """The present, as far as the log shows it; times in seconds since the epoch, by the clock that stamps the log's records.

    `newest` is of the newest record, `changed` of the roster's, `heard` of the last sign of life of each mirror and the aggregator,
    with its offset: what they say of their own clocks does not matter. `moved` says when each state was written. `groups` are the
    positions of destinations in `notices`, `lags` how many notices each lacks, and `oldest` of when the first of them is (see
    `look_at_destinations`). `reports` are of relays and destinations, by their key in `services`.
    """

    roster: rosters.Roster | None = None
    states: dict[str, RepositoryState] = field(default_factory=dict)
    acks: dict[tuple[str, str], Ack] = field(default_factory=dict)
    beats: dict[str, Beat] = field(default_factory=dict)
    aggregator: AggregatorBeat | None = None
    newest: float = 0.0
    changed: float = 0.0
    heard: dict[str, tuple[int, float]] = field(default_factory=dict)
    groups: Mapping[str, int] = field(default_factory=dict)
    lags: Mapping[str, int] = field(default_factory=dict)
    oldest: Mapping[str, float] = field(default_factory=dict)
    moved: dict[str, float] = field(default_factory=dict)
    errors: int = 0
    reports: dict[str, ServiceReport] = field(default_factory=dict)
    has_services: bool = True

    def absorb(self, record: Record) -> None:
        """Take one record of a compacted topic into the picture; pass over records of no known form."""
        self.newest = max(self.newest, record.time)
        if record.topic == ROSTER:
            self.changed = record.time
        if record.key is None:
            return
        try:
            self._absorb_record(record.topic, record.key, record.value)
            if record.topic == STATE:
                self.moved[record.key] = record.time
            if record.topic == SERVICES:
                self.heard[record.key] = record.offset, record.time
            elif record.topic == ACKS or (record.topic == STATE and record.key == AGGREGATOR):
                self.heard[record.key.partition("/")[0]] = record.offset, record.time
        except MalformedEvent:
            return

    def _absorb_record(self, topic: str, key: str, value: bytes | None) -> None:
        if topic == ROSTER:
            self.roster = from_json(rosters.Roster, value) if value else None
        elif topic == STATE and key == AGGREGATOR:
            self.aggregator = from_json(AggregatorBeat, value) if value else None
        elif topic == SERVICES:
            _put_record(self.reports, key, ServiceReport, value)
        elif topic == STATE:
            _put_record(self.states, key, RepositoryState, value)
        elif topic == ACKS and "/" in key:
            mirror, _, repository = key.partition("/")
            _put_record(self.acks, (mirror, repository), Ack, value)
        elif topic == ACKS:
            _put_record(self.beats, key, Beat, value)

    def detached(self) -> list[Ack]:
        """Return the levels of detached repositories, sorted by mirror."""
        return sorted((ack for ack in self.acks.values() if ack.detached), key=lambda ack: (ack.mirror, ack.repository))

    def waiting(self) -> list[RepositoryState]:
        """Return the repositories with events that have no notice yet, the longest queue first."""
        late = [state for state in self.states.values() if state.noticed < state.seq]
        return sorted(late, key=lambda state: state.noticed - state.seq)

    def behind(self, mirror: str) -> int:
        """Count the events that this mirror has not applied, over what it has acked and what it must have."""
        return sum(lag.unapplied for _, lag in self.measure_lags(mirror))

    def late(self, mirror: str, now: float) -> list[RepositoryState]:
        """Return by path what this mirror lacks though nothing is new for SILENT seconds, less what is detached."""
        late = (state for state, lag in self.measure_lags(mirror) if lag.is_late and self.rests(state, now))
        found = (state for state in late if not ((ack := self.acks.get((mirror, state.repository))) and ack.detached))
        return sorted(found, key=lambda state: state.path)

    def holding(self, state: RepositoryState) -> list[str]:
        """Name the gating mirrors that have not applied all of the repository, or do not serve what is released."""
        gating = (mirror for mirror in self._mirrors() if mirror.gates(state.repository, state.path))
        return sorted(mirror.name for mirror in gating if self.measure_lag(mirror.name, state).is_late)

    def rests(self, state: RepositoryState, now: float) -> bool:
        """Whether the aggregator wrote nothing of this repository for SILENT seconds."""
        return now - self.moved.get(state.repository, now) > SILENT

    def measure_lag(self, mirror: str, state: RepositoryState) -> Lag:
        """Measure what this mirror lacks of the repository; only a level of the present incarnation counts."""
        ack = self.acks.get((mirror, state.repository))
        counts = ack if ack and ack.incarnation == state.incarnation else None
        return measure_lag(counts, seq=state.seq, released=state.released)

    def measure_lags(self, mirror: str) -> list[tuple[RepositoryState, Lag]]:
        """Measure what the mirror has acked or must have, but for what it is deactivated for."""
        known = self.roster.mirror(mirror) if self.roster else None
        given_up = known.deactivated if known else ()
        return [
            (state, self.measure_lag(mirror, state))
            for name, state in self.states.items()
            if name not in given_up and ((mirror, name) in self.acks or self.must_have(mirror, state))
        ]

    def must_have(self, mirror: str, state: RepositoryState) -> bool:
        """Whether the roster has the mirror carry this repository, which is not deleted."""
        known = self.roster.mirror(mirror) if self.roster else None
        return known is not None and not state.deleted and known.carries(state.path)

    def silent(self, now: float) -> list[str]:
        """Name the mirrors that should be alive, without a sign of life for SILENT seconds."""
        return [name for name in self.expected() if now - max(self.seen(name), self.changed) > SILENT]

    def seen(self, name: str) -> float:
        """Return when a mirror or the aggregator gave its last sign of life; 0 for never."""
        return self.heard[name][1] if name in self.heard else 0.0

    def expected(self) -> list[str]:
        """Name the mirrors that should be alive: joining or active."""
        alive = (rosters.MirrorState.JOINING, rosters.MirrorState.ACTIVE)
        return sorted(mirror.name for mirror in self._mirrors() if mirror.state in alive)

    def _mirrors(self) -> tuple[rosters.Mirror, ...]:
        return self.roster.mirrors if self.roster else ()


def _put_record(table: dict[Any, Any], key: object, kind: type, value: bytes | None) -> None:
    if value:
        table[key] = from_json(kind, value)
    else:
        table.pop(key, None)

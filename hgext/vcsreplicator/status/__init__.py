# SPDX-License-Identifier: GPL-2.0-or-later
"""A picture of how far replication is, made from the log alone. Pure.

It holds the roster, repositories, mirrors, services and their lag.
"""

import difflib
import heapq
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..log import ACKS, ROSTER, SERVICES, STATE, WATCHES, PartitionKey, Record, TopicComparison
from ..words import roster as rosters
from ..words.errors import MalformedEvent, Refused
from ..words.records import (
    ACK_KEY_LIMIT,
    ACK_LIMIT,
    AGGREGATOR,
    HEARTBEAT_LIMIT,
    MASTER_KEY,
    STANDBY_KEYS,
    Ack,
    AggregatorHeartbeat,
    Lag,
    MirrorHeartbeat,
    RepositoryState,
    ServiceReport,
    measure_lag,
    read_state,
)
from ..words.shape import MAX_TEXT, from_json

# The states of mirrors that should be alive.
ALIVE = (rosters.MirrorState.JOINING, rosters.MirrorState.ACTIVE)

# Seconds without progress after which a finding says so.
SILENT = 60.0

# Mirrors of no roster whose lags are measured: who may write `acks` can invent any number.
UNLISTED = 10

# A mirror's lags, with their repositories.
MirrorLags = list[tuple[RepositoryState, Lag]]


@dataclass(slots=True, kw_only=True)
class Picture:
    """The present state of the installation, as far as the log shows it.

    Times are in seconds since the epoch, by the clock that stamps the log's records; after it was set back, an old record may have
    a later time than a new one. `changed` is the time of the roster's newest record. `heard` has the offset and the time of the
    last heartbeat of each mirror, of the aggregator and of each service: the times of their own clocks do not matter.
    `moved` says when each state was written. By name of a destination, `positions` has its position in `notices`, `lacking`
    how many notices it lacks, `oldest` the time of the first of them, and `unread` how many at most expired before it read
    them, and when it found that (`look_at_destinations`). `undecoded` has the time of the first document that waits in each
    partition that no decoder has. `reports` are those of relays and destinations, by their key in
    `services`. `topics` compares all topics with the needed ones, and `held_up` describes those whose readers wait for the end of
    a transaction (`look_at_topics`). `services_since` is when the first record of
    `services` was written, None if it is gone. Once the lags were measured, only `absorb` may change levels, because it notes
    what must be measured anew. `promoted` is the time of the newest promotion, 0 if none is known.
    """

    roster: rosters.Roster = field(default_factory=rosters.Roster)
    states: dict[str, RepositoryState] = field(default_factory=dict)
    acks: dict[tuple[str, str], Ack] = field(default_factory=dict)
    heartbeats: dict[str, MirrorHeartbeat] = field(default_factory=dict)
    aggregator: AggregatorHeartbeat | None = None
    changed: float = 0.0
    heard: dict[str, tuple[int, float]] = field(default_factory=dict)
    positions: Mapping[str, int] = field(default_factory=dict)
    lacking: Mapping[str, int] = field(default_factory=dict)
    oldest: Mapping[str, float] = field(default_factory=dict)
    unread: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    decoders: Mapping[str, Sequence[PartitionKey]] = field(default_factory=dict)
    undecoded: Mapping[PartitionKey, float] = field(default_factory=dict)
    moved: dict[str, float] = field(default_factory=dict)
    errors: int = 0
    reports: dict[str, ServiceReport] = field(default_factory=dict)
    has_services: bool = True
    services_since: float | None = None
    promoted: float = 0.0
    topics: Sequence[TopicComparison] = ()
    held_up: Sequence[str] = ()
    # What each mirror lacks, by repository, once it was measured; the repositories of which a record came since.
    _lags: dict[str, dict[str, tuple[RepositoryState, Lag]]] | None = field(default=None, init=False, repr=False)
    _touched: set[str] = field(default_factory=set, init=False, repr=False)

    def absorb(self, record: Record) -> None:
        """Add one record of a compacted topic to the picture; skip an unknown form."""
        if record.topic == ROSTER:
            self.changed = record.time
        if record.topic == SERVICES and record.offset == 0:
            self.services_since = record.time
        if record.topic == SERVICES and record.key == MASTER_KEY:
            self.promoted = record.time
            return
        if record.key is None or (record.topic == WATCHES and not record.key.startswith(STANDBY_KEYS)):
            return
        if record.topic == ACKS and len(record.key) > ACK_KEY_LIMIT:
            return
        try:
            self._absorb_record(record.topic, record.key, record.value)
            if self._lags is not None:
                self._note_change(record.topic, record.key)
            if record.topic == STATE:
                self.moved[record.key] = record.time
            if (name := _find_sender(record)) is not None:
                self.heard[name] = record.offset, record.time
        except MalformedEvent:
            return

    def _absorb_record(self, topic: str, key: str, value: bytes | None) -> None:
        if topic == ROSTER:
            self.roster = from_json(rosters.Roster, value) if value else rosters.Roster()
        elif topic == STATE and key == AGGREGATOR:
            self.aggregator = from_json(AggregatorHeartbeat, value) if value else None
        elif topic in (SERVICES, WATCHES):
            _put_record(self.reports, key, ServiceReport, value)
        elif topic == STATE:
            if value:
                self.states[key] = read_state(key, value)
            else:
                self.states.pop(key, None)
        elif topic == ACKS and "/" in key:
            mirror, _, repository = key.partition("/")
            place = sys.intern(mirror), sys.intern(repository)
            _put_record(self.acks, place, Ack, value, ACK_LIMIT)
            # Findings name the mirror in commands, where a name with a hyphen before it would be an option.
            if value and (self.acks[place].mirror != mirror or mirror.startswith("-")):
                del self.acks[place]
        elif topic == ACKS:
            _put_record(self.heartbeats, key, MirrorHeartbeat, value, HEARTBEAT_LIMIT)

    def require_roster(self) -> rosters.Roster:
        """Return the roster, to decide by it; raise Refused if the log lost its newest versions.

        The aggregator's heartbeat then names a later one, until the aggregator has written it again.
        """
        newest = 0 if self.aggregator is None else self.aggregator.roster
        if newest > self.roster.version:
            raise Refused(
                f"topic {ROSTER}: expected version {newest}, as the aggregator has it, found {self.roster.version}; run this again "
                "in a minute: a running aggregator writes again what the log lost"
            )
        return self.roster

    def gone(self, now: float) -> set[str]:
        """Return the names of the mirrors that were removed and do not run.

        A heartbeat from before the roster's last change is from before the removal, unless the log's clock was set back since.
        """
        return {name for name in self.removed() if self.seen(name) < self.changed <= now or not self.runs(name, now)}

    def removed(self) -> list[str]:
        """Return the names of the mirrors that were removed from the roster."""
        return [mirror.name for mirror in self.roster.mirrors if mirror.state is rosters.MirrorState.REMOVED]

    def runs(self, mirror: str, now: float) -> bool:
        """Return whether this mirror sent a heartbeat in the last SILENT seconds."""
        return mirror in self.heartbeats and self.silence(mirror, now) <= SILENT

    def _note_change(self, topic: str, key: str) -> None:
        """Note that the lags in a repository, or in all, must be measured anew."""
        if topic == ROSTER:
            self._lags = None
        elif topic == STATE:
            self._touched.add(key)
        elif topic == ACKS and "/" in key:
            self._touched.add(key.partition("/")[2])

    def find_repository(self, named: str, *, is_living: bool = False) -> RepositoryState:
        """Find the repository with this id or path.

        If several have had the path, return the newest that is not deleted, or else the newest. With `is_living`, deleted ones do
        not count. Raises Refused if there is none.
        """
        found = [
            state
            for state in self.states.values()
            if named.strip("/") in (state.path, state.repository) and not (is_living and state.deleted)
        ]
        if not found:
            paths = [state.path for state in self.states.values() if not (is_living and state.deleted)]
            raise Refused(
                f"repository {named}: neither a path nor an id that the log knows{_suggest_path(named, paths)}"
            )
        return max(found, key=lambda state: (state.repository == named, not state.deleted, state.generation))

    def detached(self) -> list[Ack]:
        """Return the levels of detached repositories, sorted by mirror."""
        return sorted((ack for ack in self.acks.values() if ack.detached), key=lambda ack: (ack.mirror, ack.repository))

    def levels(self, repository: str) -> list[Ack]:
        """Return the levels of one repository, sorted by mirror."""
        found = (ack for (_, name), ack in self.acks.items() if name == repository)
        return sorted(found, key=lambda ack: ack.mirror)

    def waiting(self) -> list[RepositoryState]:
        """Return the repositories that lack notices: longest queues first, then by path."""
        late = [state for state in self.states.values() if state.noticed < state.seq]
        return sorted(late, key=lambda state: (state.noticed - state.seq, state.path, state.repository))

    def behind(self, mirror: str) -> int:
        """Count the events that this mirror has not applied.

        It covers repositories that the mirror has acked or must have (see `measure_lags`).
        """
        return count_unapplied(self.measure_lags(mirror))

    def late(self, mirror: str, lags: MirrorLags, now: float) -> list[RepositoryState]:
        """Return the repositories in which a mirror makes no progress, by path.

        `lags` are those of the mirror. It lacks something of such a repository, for more than SILENT seconds (see
        `lacks_since`). A repository that the mirror has detached does not count.
        """
        late = (state for state, _ in lags if abs(now - self.lacks_since(mirror, state, now)) > SILENT)
        found = (state for state in late if not ((ack := self.acks.get((mirror, state.repository))) and ack.detached))
        return sorted(found, key=lambda state: state.path)

    def holding(self, state: RepositoryState) -> list[str]:
        """Return the names of the gating mirrors that this repository waits for.

        They have not applied all of its events, or do not serve its release.
        """
        return [name for name in self.gating(state) if self.measure_lag(name, state).is_late]

    def gating(self, state: RepositoryState) -> list[str]:
        return sorted(mirror.name for mirror in self.roster.mirrors if mirror.gates(state.repository, state.path))

    def lacks_since(self, mirror: str, state: RepositoryState, now: float) -> float:
        """Return since when a mirror makes no progress in a repository that it lags in.

        That is when the aggregator wrote the state last, or when the mirror came into its state in the roster, if that was later. A
        time of the roster that is still to come is of a wrong clock, and does not count.
        """
        known = self.roster.mirror(mirror)
        return max(self.moved.get(state.repository, now), known.since if known and known.since <= now else 0.0)

    def measure_lag(self, mirror: str, state: RepositoryState) -> Lag:
        """Measure this mirror's lag in the present incarnation of the repository."""
        ack = self.acks.get((mirror, state.repository))
        counts = ack if ack and ack.incarnation == state.incarnation else None
        return measure_lag(counts, seq=state.seq, released=state.released)

    def measure_all_lags(self, now: float) -> dict[str, MirrorLags]:
        """Measure the lags of all mirrors, by name.

        They are those of the roster, and UNLISTED others that sent a heartbeat, but not those that are `gone`. Costs what has
        changed since the last time.
        """
        listed = {mirror.name for mirror in self.roster.mirrors}
        others = heapq.nsmallest(UNLISTED, self.heartbeats.keys() - listed)
        names = listed.union(others) - self.gone(now)
        if self._lags is None or self._lags.keys() != names:
            self._lags = {name: dict(self._find_lags(name, self.states)) for name in names}
        elif self._touched:
            for name, found in self._lags.items():
                for repository in self._touched:
                    found.pop(repository, None)
                found.update(self._find_lags(name, self._touched))
        self._touched.clear()
        return {name: list(self._lags[name].values()) for name in sorted(names)}

    def measure_lags(self, mirror: str) -> MirrorLags:
        """Measure the mirror's lag in each repository in which it has any.

        Only repositories count that the mirror has acked or must have, and for which it is not deactivated.
        """
        return [found for _, found in self._find_lags(mirror, self.states)]

    def _find_lags(self, mirror: str, repositories: Iterable[str]) -> Iterator[tuple[str, tuple[RepositoryState, Lag]]]:
        """Yield what the mirror lacks of these repositories, if anything."""
        known = self.roster.mirror(mirror)
        given_up = known.deactivated if known else ()
        for name in repositories:
            state = self.states.get(name)
            if state is None:
                continue
            ack = self.acks.get((mirror, name))
            # A repository at rest, as nearly all are, needs only this comparison.
            is_current = ack is not None and ack.incarnation == state.incarnation
            if ack is not None and is_current and ack.applied >= state.seq and ack.serving >= state.released:
                continue
            lag = self.measure_lag(mirror, state)
            if lag.is_late and name not in given_up and (ack is not None or self.must_have(mirror, state)):
                yield name, (state, lag)

    def must_have(self, mirror: str, state: RepositoryState) -> bool:
        """Return whether the roster has the mirror carry this repository.

        No mirror must have a deleted repository.
        """
        known = self.roster.mirror(mirror)
        return known is not None and not state.deleted and known.carries(state.path)

    def silent(self, now: float) -> list[str]:
        """Return the names of the mirrors that should be alive but are silent.

        A mirror is silent once SILENT seconds have passed since its last heartbeat and since it came into its state. If that time
        is not known, or of a wrong clock, those since the roster's last change count.
        """
        return [
            mirror.name
            for mirror in sorted(self.roster.mirrors, key=lambda mirror: mirror.name)
            if mirror.state in ALIVE
            and self.silence(mirror.name, now) > SILENT
            and abs(now - (mirror.since if 0 < mirror.since <= now else self.changed)) > SILENT
        ]

    def seen(self, name: str) -> float:
        """Return when this name sent its last heartbeat; 0 for never.

        The name is a mirror's, the aggregator's, or a service's key in `services`.
        """
        return self.heard[name][1] if name in self.heard else 0.0

    def silence(self, name: str, now: float) -> float:
        """Return the seconds since this name's last heartbeat.

        A sign in the future is from before the clock was set back: its absolute distance counts.
        """
        return abs(now - self.seen(name))

    def measure_since(self, mirror: str, since: float, now: float) -> float:
        """Return the seconds since a time by the clock of this mirror.

        Clocks of machines are not compared: the result is from the mirror's heartbeat, plus the age of that in the log.
        """
        beat = self.heartbeats.get(mirror)
        return now - since if beat is None else beat.time - since + self.silence(mirror, now)

    def expected(self) -> list[str]:
        """Return the names of the mirrors that should be alive: joining or active."""
        return sorted(mirror.name for mirror in self.roster.mirrors if mirror.state in ALIVE)


def _find_sender(record: Record) -> str | None:
    """Return the name of which the record is a sign of life, None if of none.

    Nobody gives a sign in the place of another kind of service: keys of `services` have a space, and names of mirrors have none.
    """
    key = record.key or ""
    if record.topic == STATE:
        return key if key == AGGREGATOR else None
    if record.topic in (SERVICES, WATCHES):
        return key if " " in key else None
    name = key.partition("/")[0]
    return name if record.topic == ACKS and record.value and name != AGGREGATOR and " " not in name else None


def count_unapplied(lags: MirrorLags) -> int:
    return sum(lag.unapplied for _, lag in lags)


def _put_record(table: dict[Any, Any], key: object, kind: type, value: bytes | None, limit: int = MAX_TEXT) -> None:
    if value:
        table[key] = from_json(kind, value, limit=limit)
    else:
        table.pop(key, None)


def _suggest_path(named: str, paths: Sequence[str]) -> str:
    """Suggest the path that is most like the name; "" if none is.

    The name of a folder ends with the path.
    """
    ends = [path for path in paths if f"/{named.rstrip('/')}".endswith(f"/{path}")]
    near = [max(ends, key=len)] if ends else difflib.get_close_matches(named, paths, n=1, cutoff=0.7)
    return f"; did you mean {near[0]}?" if near else ""

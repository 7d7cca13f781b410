# SPDX-License-Identifier: GPL-2.0-or-later
"""How far everything is, read from the log alone: one picture of roster, repositories, mirrors, services and their lag.

Compacted topics are read whole once and then followed, so a watched picture costs what has changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from . import roster as rosters
from .errors import MalformedEvent
from .levels import Ack, AggregatorBeat, Beat, State
from .log import ACKS, ERRORS, EVENTS, NOTICES, ROSTER, STATE, Log, Record
from .shape import from_json, plain

Key = TypeVar("Key")
Value = TypeVar("Value")

AGGREGATOR = "aggregator"
SILENT = 60.0


@dataclass(slots=True, kw_only=True)
class Picture:
    """The present, as far as the log tells; times in seconds since the epoch."""

    roster: rosters.Roster | None = None
    states: dict[str, State] = field(default_factory=dict)
    acks: dict[tuple[str, str], Ack] = field(default_factory=dict)
    beats: dict[str, Beat] = field(default_factory=dict)
    aggregator: AggregatorBeat | None = None
    last: float = 0.0
    ends: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, int] = field(default_factory=dict)
    errors: int = 0

    def absorb(self, record: Record) -> None:
        """Takes one record of a compacted topic into the picture; records of no known form are passed over."""
        if record.key is None:
            return
        try:
            self._absorb(record.topic, record.key, record.value)
        except MalformedEvent:
            return

    def _absorb(self, topic: str, key: str, value: bytes | None) -> None:
        if topic == ROSTER:
            self.roster = from_json(rosters.Roster, value) if value else None
        elif topic == STATE and key == AGGREGATOR:
            self.aggregator = from_json(AggregatorBeat, value) if value else None
        elif topic == STATE:
            _put(self.states, key, from_json(State, value) if value else None)
        elif topic == ACKS and "/" in key:
            mirror, _, repository = key.partition("/")
            _put(self.acks, (mirror, repository), from_json(Ack, value) if value else None)
        elif topic == ACKS:
            _put(self.beats, key, from_json(Beat, value) if value else None)

    def detached(self) -> list[Ack]:
        """What mirrors follow apart from the stream, sorted by mirror."""
        return sorted((ack for ack in self.acks.values() if ack.detached), key=lambda ack: (ack.mirror, ack.repository))

    def waiting(self) -> list[State]:
        """Repositories with events that have no notice yet, the longest queue first."""
        late = [state for state in self.states.values() if state.noticed < state.seq]
        return sorted(late, key=lambda state: state.noticed - state.seq)

    def behind(self, mirror: str) -> int:
        """Events that this mirror has not applied, over the repositories it has acked."""
        acks = (ack for ack in self.acks.values() if ack.mirror == mirror and ack.repository in self.states)
        return sum(max(0, self.states[ack.repository].seq - ack.applied) for ack in acks)

    def silent(self, now: float) -> list[str]:
        """Gating mirrors without a sign of life for SILENT seconds."""
        return [name for name in self.expected() if now - (self.beats[name].time if name in self.beats else 0) > SILENT]

    def expected(self) -> list[str]:
        """Names of the mirrors that should be alive: joining or active."""
        if self.roster is None:
            return []
        alive = (rosters.MirrorState.JOINING, rosters.MirrorState.ACTIVE)
        return sorted(mirror.name for mirror in self.roster.mirrors if mirror.state in alive)


def _put(table: dict[Key, Value], key: Key, value: Value | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


class Follower:
    """Keeps a picture up to date; used by one thread."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.picture = Picture()
        starts = {(t, p): offset for t in (ROSTER, STATE, ACKS) for p, offset in log.beginnings(t).items()}
        self._reader = log.reader(starts)

    def close(self) -> None:
        """Frees the reader."""
        self._reader.close()

    def update(self) -> Picture:
        """The picture as of now: everything committed before the call is in it."""
        ends = {(t, p): end for t in (ROSTER, STATE, ACKS) for p, end in self._log.ends(t).items()}
        while any(self._reader.positions().get(place, 0) < end for place, end in ends.items()):
            for record in self._reader.poll(1.0, limit=5000):
                self.picture.absorb(record)
        picture = self.picture
        picture.ends = {topic: sum(self._log.ends(topic).values()) for topic in (EVENTS, NOTICES, ERRORS)}
        picture.errors = picture.ends[ERRORS] - sum(self._log.beginnings(ERRORS).values())
        notices = self._log.ends(NOTICES)
        picture.groups = {
            group: sum(notices.values()) - sum(positions.values())
            for group, positions in self._log.groups(NOTICES).items()
        }
        return picture


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something an operator must know: `level` 1 warning, 2 critical; one line that says what to do."""

    level: int
    text: str


def findings(picture: Picture, now: float, *, warn: int = 150, critical: int = 600) -> list[Finding]:
    """What needs a human, the worst first; limits are events a mirror or notices a destination is behind."""
    found = []
    if picture.aggregator is None or now - picture.aggregator.time > 30:
        found.append(Finding(level=2, text="the aggregator has given no sign of life for 30 s: no release, no notice"))
    for name in picture.silent(now):
        held = sum(state.seq - state.noticed for state in picture.waiting())
        text = f"mirror {name} is silent and holds back notices ({held} wait); start it or: vcsreplicator roster deactivate {name}"
        found.append(Finding(level=2, text=text))
    for name in picture.expected():
        found += _lag(f"mirror {name}", "events", picture.behind(name), warn, critical)
    for group, lag in sorted(picture.groups.items()):
        found += _lag(group, "notices", lag, warn, critical)
    for ack in picture.detached():
        state = picture.states.get(ack.repository)
        where = state.path if state else ack.repository
        found.append(
            Finding(level=1, text=f"{where} is detached on {ack.mirror}: {ack.detached} {ack.note or ''}".rstrip())
        )
    return sorted(found, key=lambda finding: -finding.level)


def _lag(who: str, what: str, lag: int, warn: int, critical: int) -> list[Finding]:
    level = 2 if lag >= critical else 1 if lag >= warn else 0
    return [Finding(level=level, text=f"{who} is {lag} {what} behind")] if level else []


def as_data(picture: Picture, now: float) -> dict[str, object]:
    """The picture as JSON data."""
    return {
        "roster": plain(picture.roster) if picture.roster else None,
        "aggregator": plain(picture.aggregator) if picture.aggregator else None,
        "mirrors": [
            {"name": name, "beat": plain(beat), "behind": picture.behind(name)}
            for name, beat in sorted(picture.beats.items())
        ],
        "repositories": [plain(state) for state in sorted(picture.states.values(), key=lambda state: state.path)],
        "detached": [plain(ack) for ack in picture.detached()],
        "waiting": len(picture.waiting()),
        "destinations": dict(picture.groups),
        "errors": picture.errors,
        "findings": [{"level": finding.level, "text": finding.text} for finding in findings(picture, now)],
    }

# SPDX-License-Identifier: GPL-2.0-or-later
"""Was every promise kept? Checks a recorded history for early, lost, doubled and misordered releases and notices.

    report = check(history(log))        # of a log whose topics were created by `remembering_topics`
    assert not report.violations

A history is a list of steps in the order in which they became durable; it may come from a log, or be written down by a test. What
is checked, per repository and incarnation:

- a mirror that applied N says the id and the digest of the accepted event N (I3);
- a release of N comes after every mirror that gates at the release's roster version has applied N (I4);
- a mirror serves N only after N was released (but the deletion of what it does not have: there is nothing to hold back);
- a notice of N comes after every gating mirror serves N, and its proof names exactly those (I4);
- notices name the accepted event of their sequence, come once each, in order, without a hole (I5), and name the notice before
  them in each stream; so do the first deliveries of each destination;
- at one path all notices of a repository come before the first of its successor;
- at the end nothing accepted lacks its notice (unless its history was replaced by an adopted one).

Which mirrors gate is decided here once more, from the words of the roster: the product's own answer would hide its mistakes.

Repeats are counted: of events and deliveries they are allowed, of notices they are violations.
"""

import enum
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hgext.vcsreplicator.log import ACKS, EVENTS, NOTICES, ROSTER, STATE, Log, Record, Topic, topics
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.errors import Rejected
from hgext.vcsreplicator.words.event import Type
from hgext.vcsreplicator.words.records import Ack, Notice, RepositoryState
from hgext.vcsreplicator.words.roster import KEY, Mirror, Roster
from hgext.vcsreplicator.words.shape import from_json


class Kind(enum.IntEnum):
    """What happened; at equal times in this order."""

    ROSTER = 1
    ACCEPTED = 2
    APPLIED = 3
    RELEASED = 4
    SERVED = 5
    NOTICED = 6
    DELIVERED = 7


# Seconds between the times that records of one transaction may have.
TRANSACTION = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that became durable. `who` is the mirror or the destination; `partition` and `offset` belong to accepted events.

    `id` and `digest` are those of an accepted or applied event.
    `version` is the roster's behind a release or notice, `path` the repository's path at that moment (`generation` that of
    an accepted event); `proof` are the mirrors and `previous` the streams of a notice.
    """

    kind: Kind
    time: float
    repository: str = ""
    incarnation: str = ""
    seq: int = 0
    id: str = ""
    digest: str = ""
    path: str = ""
    who: str = ""
    version: int = 0
    partition: int = 0
    offset: int = 0
    deletes: bool = False
    generation: int = 1
    proof: tuple[str, ...] = ()
    previous: Mapping[str, str | None] = field(default_factory=dict)
    roster: Roster | None = None


@dataclass(slots=True, kw_only=True)
class Report:
    """What was found: one line for each violation, how much there was, and how often something allowed came again."""

    violations: list[str] = field(default_factory=list)
    events: int = 0
    notices: int = 0
    repeated_events: int = 0
    repeated_deliveries: int = 0


@dataclass(slots=True)
class _Chain:
    """One incarnation of a repository so far."""

    accepted: dict[int, Step] = field(default_factory=dict)
    # Events that the log lost and took again at an earlier place.
    earlier: dict[int, list[Step]] = field(default_factory=dict)
    applied: dict[str, int] = field(default_factory=dict)
    early: list[Step] = field(default_factory=list)
    served: dict[str, int] = field(default_factory=dict)
    # Mirrors whose last word was that they serve something.
    holders: set[str] = field(default_factory=set)
    released: int = 0
    noticed: int = 0
    delivered: dict[str, int] = field(default_factory=dict)


def check(steps: Iterable[Step], *, complete: bool = True, lossy: Collection[str] = ()) -> Report:
    """Replays the history. Without `complete` the end is not the end: events may still wait for their notice.

    The disks of `lossy` mirrors may have lost any repository; what they delete then is not held back.
    """
    checker = _Checker(lossy)
    for step in steps:
        checker.take(step)
    if complete:
        checker.finish()
    return checker.report


class _Checker:
    def __init__(self, lossy: Collection[str]) -> None:
        self.report, self._lossy = Report(), lossy
        self._rosters: dict[int, Roster] = {0: Roster()}
        self._chains: dict[tuple[str, str], _Chain] = {}
        self._newest: dict[str, str] = {}
        self._streams: dict[str, dict[str, str]] = {}
        self._generations: dict[str, int] = {}

    def take(self, step: Step) -> None:
        if step.kind is Kind.ROSTER:
            assert step.roster is not None
            self._rosters[step.roster.version] = step.roster
            return
        chain = self._chains.setdefault((step.repository, step.incarnation), _Chain())
        match step.kind:
            case Kind.ACCEPTED:
                self._accepted(chain, step)
            case Kind.APPLIED:
                self._applied(chain, step)
            case Kind.SERVED:
                self._served(chain, step)
            case Kind.RELEASED:
                self._released(chain, step)
            case Kind.NOTICED:
                self._noticed(chain, step)
            case Kind.DELIVERED:
                self._delivered(chain, step)

    def finish(self) -> None:
        for (repository, incarnation), chain in self._chains.items():
            lost = [seq for seq in chain.accepted if seq > chain.noticed]
            if lost and self._newest.get(repository) == incarnation:
                last = chain.accepted[lost[0]]
                self._violation(last, f"events {min(lost)} to {max(lost)} were accepted and never announced")

    def _accepted(self, chain: _Chain, step: Step) -> None:
        known = chain.accepted.get(step.seq)
        if known is None:
            chain.accepted[step.seq] = step
            self._newest[step.repository] = step.incarnation
            self.report.events += 1
            for early in [each for each in chain.early if each.seq == step.seq]:
                self._compare(early, step)
                chain.early.remove(early)
        elif known.id == step.id:
            self.report.repeated_events += 1
            if step.offset < known.offset:
                chain.earlier.setdefault(step.seq, []).append(step)

    def _applied(self, chain: _Chain, step: Step) -> None:
        chain.applied[step.who] = max(step.seq, chain.applied.get(step.who, 0))
        if (accepted := chain.accepted.get(step.seq)) is not None:
            self._compare(step, accepted)
        elif step.seq:  # copied from the master, which has it before the log
            chain.early.append(step)

    def _compare(self, step: Step, accepted: Step) -> None:
        if (accepted.id, accepted.digest) != (step.id, step.digest):
            self._violation(step, f"{step.who} is at {step.seq} with another id or digest than the event")

    def _served(self, chain: _Chain, step: Step) -> None:
        accepted = chain.accepted.get(step.seq)
        is_holding = step.who in chain.holders and step.who not in self._lossy
        is_absent = accepted is not None and accepted.deletes and not is_holding
        if step.seq > chain.released and not is_absent:
            self._violation(step, f"{step.who} serves {step.seq}, released is {chain.released}")
        chain.served[step.who] = max(step.seq, chain.served.get(step.who, 0))
        if step.seq:
            chain.holders.add(step.who)
        else:
            chain.holders.discard(step.who)

    def _released(self, chain: _Chain, step: Step) -> None:
        if step.seq < chain.released:
            self._violation(step, f"release went back from {chain.released} to {step.seq}")
        for seq in range(chain.released + 1, step.seq + 1):
            for mirror in set.intersection(*self._list_gating(chain, replace(step, seq=seq))):
                if chain.applied.get(mirror, 0) < seq:
                    self._violation(step, f"{seq} was released before {mirror} applied it")
        chain.released = max(step.seq, chain.released)

    def _noticed(self, chain: _Chain, step: Step) -> None:
        self.report.notices += 1
        accepted = chain.accepted.get(step.seq)
        if accepted is None or accepted.id != step.id:
            self._violation(step, f"notice of {step.seq} ({step.id}) names no accepted event")
            return
        if step.seq <= chain.noticed:
            self._violation(step, f"{step.seq} was announced again or out of order, after {chain.noticed}")
            return
        skipped = [seq for seq in chain.accepted if chain.noticed < seq < step.seq]
        if skipped:
            self._violation(step, f"{step.seq} was announced before {min(skipped)}")
        chain.noticed = step.seq
        self._proven(chain, step)
        self._chained(step)
        newest = self._generations.get(accepted.path, 0)
        if accepted.generation < newest:
            self._violation(step, f"{step.seq} was announced after generation {newest} at {accepted.path}")
        self._generations[accepted.path] = max(newest, accepted.generation)

    def _proven(self, chain: _Chain, step: Step) -> None:
        gating, proof = self._list_gating(chain, step), set(step.proof)
        if proof not in gating:
            self._violation(step, f"the proof of {step.seq} names {sorted(proof)}, gating were {sorted(gating[0])}")
        if not (proof and any(gating)) and not self._rosters.get(step.version, Roster()).allow_empty:
            self._violation(step, f"{step.seq} was announced without any gating mirror")
        for mirror in sorted(proof.union(set.intersection(*gating))):
            if chain.served.get(mirror, 0) < step.seq:
                self._violation(step, f"{step.seq} was announced before {mirror} served it")

    def _chained(self, step: Step) -> None:
        last = self._streams.setdefault(step.repository, {})
        for stream, previous in step.previous.items():
            if previous != last.get(stream):
                self._violation(
                    step, f"{stream}: the notice of {step.seq} follows {previous}, the last was {last.get(stream)}"
                )
            last[stream] = step.id

    def _delivered(self, chain: _Chain, step: Step) -> None:
        last = chain.delivered.get(step.who, 0)
        if step.seq > chain.noticed:
            self._violation(step, f"{step.who} got {step.seq} before its notice")
        if step.seq <= last:
            self.report.repeated_deliveries += 1
            return
        skipped = [seq for seq in chain.accepted if last < seq < step.seq]
        if skipped:
            self._violation(step, f"{step.who} got {step.seq} before {min(skipped)}")
        chain.delivered[step.who] = step.seq

    def _list_gating(self, chain: _Chain, step: Step) -> list[set[str]]:
        """Return the mirrors that an event waits for, by each of its places.

        One that the log lost has several, before and behind the joining point of a mirror: by any of them it may be decided.
        """
        roster = self._rosters.get(step.version)
        if roster is None:
            self._violation(step, f"roster version {step.version} is in no record")
            return [set()]
        places = [chain.accepted.get(step.seq), *chain.earlier.get(step.seq, ())]
        return [{mirror.name for mirror in roster.mirrors if _gates(mirror, step, place)} for place in places]

    def _violation(self, step: Step, text: str) -> None:
        self.report.violations.append(f"{step.time:.3f} {step.path or step.repository}: {text}")


def _gates(mirror: Mirror, step: Step, place: Step | None) -> bool:
    """By the roster's words, not by its methods: active or joining, carries it, no backup, not deactivated, joined before it."""
    if mirror.state.value not in ("active", "joining") or mirror.role.value == "backup":
        return False
    if step.repository in mirror.deactivated or not _carries(mirror.rules.include, mirror.rules.exclude, step.path):
        return False
    if place is None or mirror.joined is None:
        return True
    return place.offset >= mirror.joined.get(str(place.partition), 0)


def _carries(include: Sequence[str], exclude: Sequence[str], path: str) -> bool:
    """The first of these decides: no rules, an exact path, an excluding expression, an including one; else not."""

    def matches(rules: Sequence[str]) -> bool:
        return any(re.match(rule.removeprefix("re:"), path) for rule in rules if rule.startswith("re:"))

    if not include and not exclude:
        return True
    if f"path:{path}" in include:
        return True
    if f"path:{path}" in exclude:
        return False
    return matches(include) and not matches(exclude)


# From a log


def remembering_topics(*, partitions: int = 16) -> tuple[Topic, ...]:
    """The topics of an installation, none compacted: so the log remembers every level that there was."""
    return tuple(replace(topic, compacted=False) for topic in topics(partitions=partitions))


def history(log: Log) -> list[Step]:
    """All that a log with `remembering_topics` holds, in the order in which it became durable (by the records' times)."""
    return steps_of(everything(log, (EVENTS, ACKS, STATE, ROSTER, NOTICES)))


def steps_of(records: Iterable[Record]) -> list[Step]:
    """The steps that these records tell of, by the records' times.

    A notice was decided by the path that the repository had then: the one of the next state, or, where none followed because the
    history was replaced in the same transaction, the one of the history's last event.
    """
    steps: list[Step] = []
    notices: list[tuple[Notice, Record]] = []
    paths: dict[tuple[str, str], list[tuple[int, str]]] = {}
    last: dict[tuple[str, str], Step] = {}
    for record in records:
        if record.topic == NOTICES:
            notices.append((from_json(Notice, record.value or b""), record))
        elif state := _state(record):
            paths.setdefault((state.repository, state.incarnation), []).append((state.noticed, state.path))
        for step in _steps(record):
            steps.append(step)
            place = (step.repository, step.incarnation)
            if step.kind is Kind.ACCEPTED and (place not in last or step.seq > last[place].seq):
                last[place] = step
    for place, step in last.items():
        paths.setdefault(place, []).append((step.seq, step.path))
    steps += [_noticed(notice, record, paths) for notice, record in notices if notice.replay is None]
    # The records of one transaction have times of their own: a release may be earlier than the roster that it names.
    return sorted(steps, key=lambda step: (step.time - TRANSACTION * (step.kind is Kind.ROSTER), step.kind))


def _state(record: Record) -> RepositoryState | None:
    if record.topic != STATE or record.value is None or record.key == "aggregator":
        return None
    return from_json(RepositoryState, record.value)


def _noticed(notice: Notice, record: Record, paths: Mapping[tuple[str, str], Sequence[tuple[int, str]]]) -> Step:
    event = notice.event
    later = (path for seq, path in paths.get((event.repository, event.incarnation), ()) if seq >= event.seq)
    return Step(
        kind=Kind.NOTICED,
        time=record.time,
        repository=event.repository,
        incarnation=event.incarnation,
        seq=event.seq,
        id=event.id,
        path=next(later, event.path),
        version=notice.roster,
        proof=tuple(proof.mirror for proof in notice.acks),
        previous=notice.previous,
    )


def _steps(record: Record) -> Iterator[Step]:
    if record.value is None:
        return
    if record.topic == ROSTER and record.key == KEY:
        yield Step(kind=Kind.ROSTER, time=record.time, roster=from_json(Roster, record.value))
    elif state := _state(record):
        yield Step(
            kind=Kind.RELEASED,
            time=record.time,
            repository=state.repository,
            incarnation=state.incarnation,
            seq=state.released,
            path=state.path,
            version=state.roster,
        )
    elif record.topic == ACKS and "/" in (record.key or ""):
        ack = from_json(Ack, record.value)
        base = Step(
            kind=Kind.APPLIED,
            time=record.time,
            repository=ack.repository,
            incarnation=ack.incarnation,
            seq=ack.applied,
            id=ack.event,
            digest=ack.digest,
            who=ack.mirror,
        )
        yield from (base, replace(base, kind=Kind.SERVED, seq=ack.serving))
    elif record.topic == EVENTS:
        yield from _accepted(record)


def _accepted(record: Record) -> Iterator[Step]:
    try:
        header = wire.decode(record.value or b"").header
    except Rejected:
        return
    if event := header.event:
        yield Step(
            kind=Kind.ACCEPTED,
            time=record.time,
            repository=event.repository,
            incarnation=event.incarnation,
            seq=event.seq,
            id=event.id,
            digest=event.digest,
            path=event.path,
            partition=record.partition,
            offset=record.offset,
            deletes=event.type is Type.DELETED,
            generation=event.generation,
        )


def everything(log: Log, names: Sequence[str]) -> Iterator[Record]:
    ends = {(topic, partition): end for topic in names for partition, end in log.ends(topic).items()}
    reader = log.reader({(topic, partition): at for topic in names for partition, at in log.beginnings(topic).items()})
    try:
        while any(reader.positions()[place] < end for place, end in ends.items()):
            yield from reader.poll(0.2, limit=5000)
    finally:
        reader.close()

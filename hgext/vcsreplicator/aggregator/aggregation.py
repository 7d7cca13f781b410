# SPDX-License-Identifier: GPL-2.0-or-later
"""The decisions of the aggregator: levels in, releases and notices out. Pure: no log, no clock, no thread.

Feed it records (`event`, `ack`, `request`), let it `decide`, and write what `batch` returns in one transaction. What it holds in
memory is the log's present plus what the next batch will make of it; when the outcome of a transaction is unknown, throw the
whole object away and load another from the log.

Rules of this file:

- An event is released once every mirror that gates it acked *applied* at least its sequence; its notice is written once every one
  acked *serving*. Both go strictly in order of sequence. An ack counts if its event is known, by id and digest; one beyond what
  is known counts as soon as that is known.
- What changes URL or visibility is released when everything before it in its repository is announced. A repository's creation at a
  path, or its rename to it, is released when the notices of those that lived there before are written, the one of their
  departure included; of one that leaves without any event, after DEPARTURE_PATIENCE
  (`succession`).
- Which mirrors gate is asked at the moment of the decision, by the path that the repository has now.
- No mirror gates: nothing is released, unless the roster allows it.
- Every record that cannot be used becomes an ErrorRecord in the same transaction that passes it. So does one that causes an
  unexpected exception: it raises Poisoned, and once `poison` names it, it is passed unread. A repository named there is stalled.
- An event of a newer version, and all that follows it in its repository, is kept in `pending` as it came, under a key of another
  form (`REPOSITORY/PARTITION:OFFSET`). A newer aggregator takes these first when it starts; meanwhile nothing of them is judged.
"""

import enum
from collections.abc import Callable, Iterable, Mapping

from ..log import ACKS, EVENTS, NOTICES, PENDING, ROSTER, NewRecord, Record
from ..words import roster as rosters
from ..words import shape, wire
from ..words.errors import MalformedEvent, Rejected, UnknownEvent
from ..words.event import Event, Type, is_identifier
from ..words.levels import Ack, Beat, MirrorProof, Notice, RepositoryState
from ..words.roster import Mirror, Roster, RosterRequest
from ..words.streams import streams
from .arrival import TAKEN, Arrival, adopts, follow, forked, is_older, judge, recovered
from .forks import Forks, describe_fork
from .joining import Joining
from .newer import NewerEvents
from .outgoing import MESSAGE_BYTES, Outgoing, OutputBatch
from .poison import Poison, blaming, place_of
from .repository import HeldEvent, Repository, Standing
from .succession import Succession


class RecordOutcome(enum.StrEnum):
    """The outcome of a record, for metrics and log lines.

    An unfinished record is entered again once the batch is written. So is one that says `read again`, before which events may be
    missing, once its partition is read again: see `rereading`.
    """

    TAKEN = "taken"
    REPEAT = "repeat"
    REJECTED = "rejected"
    UNKNOWN = "unknown"
    HELD = "held"
    READ_AGAIN = "read again"
    NOTHING = "nothing"
    UNFINISHED = "unfinished"


class Aggregation:
    """All repositories, levels and the roster of one installation; used by one thread.

    `positions` are where the reading of `events` and `roster-requests` begins, as (topic, partition) → offset; in `acks`, up to
    where unreadable levels are recorded. `whole` has the partitions of `events` that are read from their beginning, with their end
    at that time: what is missing before this offset is lost. From there on the log may have lost records and filled their places,
    so the partition is read again before anything counts as lost. `lost` counts by repository what was found to be. A batch holds
    at most about `limit` notices, or BATCH_BYTES.
    """

    def __init__(
        self,
        roster: Roster,
        positions: Mapping[tuple[str, int], int],
        *,
        limit: int = 1000,
        poison: Poison | None = None,
        whole: Mapping[int, int] | None = None,
    ) -> None:
        self.roster = roster
        self.poison = poison or Poison()
        self.whole = dict(whole or {})
        self.lost: dict[str, int] = {}
        self.limit = limit
        self.positions = dict(positions)
        self.formats: dict[str, int] = {}
        self.repositories: dict[str, Repository] = {}
        self._touched: dict[str, Repository] = {}
        self._backlog: dict[str, Repository] = {}
        self.succession = Succession(self.repositories)
        self._successors: dict[str, Repository] = {}
        self._newer = NewerEvents()
        self._forks = Forks()
        self._joining = Joining()
        self._is_loaded = False
        self._output = Outgoing(passed=dict(positions))

    # Loading

    def load_state(self, state: RepositoryState) -> None:
        """Take a stored state; all of them before anything is decided."""
        self._repository(state.repository).state = state
        self.succession.note(state)

    def load_pending(self, key: str, value: bytes) -> None:
        """Take a record of `pending`, in any order, to be read later. Raise ValueError if the key is none of ours."""
        repository, _, place = key.partition("/")
        partition, newer, offset = place.rpartition(":")
        if newer:
            self._newer.load(repository, int(partition), int(offset), value)
            return
        found = self._repository(repository)
        found.add(HeldEvent.stored(int(place), value))
        self._touched[repository] = found

    def loaded(self, now: float) -> None:
        """Finish loading: everything stored was taken, acks included, and earlier decisions count from here on."""
        for repository in self.repositories.values():
            broken = self.poison.repositories.get(repository.id)
            if broken is not None:
                text = f"{repository.path} is stalled: {broken.reason}"
                self._output.fail(repository.id, text, broken.traceback, now)
                continue
            with blaming(repository.id):
                repository.loaded()
                if repository.state is not None:
                    self.succession.note(repository.state)
        self._newer.sort()
        self._is_loaded = True
        self._joining.survey(self.roster, self.repositories)

    def recover(self, notice: Notice) -> bool:
        """Take a notice, the oldest first; return whether the state of its repository was lost or is older."""
        repository = self._repository(notice.event.repository)
        if not is_older(repository.state, notice):
            return False
        repository.state, repository.is_recovered = recovered(repository.state, notice), True
        self.succession.note(repository.state)
        self._touched[repository.id] = self._output.dirty[repository.id] = repository
        return True

    def write_again(self, names: Iterable[str]) -> None:
        """Write the states of these repositories with the next batch."""
        self._output.dirty.update((name, self.repositories[name]) for name in names)

    def take_kept(self, now: float) -> RecordOutcome:
        """Take what an older aggregator kept, until a batch is full; all of it before any `event`.

        Unfinished: call it again once the batch is written. Read again: once the partition `kept_in` is read again.
        """
        while (record := self._newer.next) is not None:
            outcome = RecordOutcome.UNFINISHED if self.is_full else self._take_newer(record, now)
            if outcome in (RecordOutcome.UNFINISHED, RecordOutcome.READ_AGAIN):
                return outcome
            self._newer.pass_next()
        return RecordOutcome.TAKEN

    @property
    def kept_in(self) -> int | None:
        """The partition of what `take_kept` takes next; None if nothing is left."""
        return self._newer.next.partition if self._newer.next else None

    def begin_again(self, partition: int, end: int) -> None:
        """Reads the partition, which ends at `end`, from its beginning up to its position by `passed`.

        What is not found there is lost.
        """
        self.whole[partition] = end

    def end_again(self, partition: int, now: float) -> None:
        """Finish reading a partition again: its forks count now."""
        for name, record in self._forks.take(partition):
            self._fork(self.repositories[name], wire.decode(record.value or b"").event, record, now)

    # Input

    def event(self, record: Record, now: float) -> RecordOutcome:
        """Take a record of `events`; its position passes it unless the outcome asks for it again."""
        return self._pass(record, self._guarded(self._event, record, now))

    def _event(self, record: Record, now: float) -> RecordOutcome:
        repository = self.repositories.get(record.key or "")
        if repository is not None and repository.newer:
            self._newer.keep(repository, record, self._output)
            return RecordOutcome.HELD
        try:
            return self._read(record, now)
        except UnknownEvent as error:
            if not is_identifier(record.key or ""):
                return self._refuse(record, error, now)
            self._newer.keep(self._repository(record.key or ""), record, self._output)
            return RecordOutcome.UNKNOWN
        except Rejected as error:
            return self._refuse(record, error, now)

    def passed(self, record: Record, now: float) -> RecordOutcome:
        """Take a record of `events` that lies before the position, in case it was never taken; as with `event`.

        What cannot be read was recorded when it was passed. A fork counts at `end_again`, unless an adoption follows it.
        """
        repository = self.repositories.get(record.key or "")
        if repository is not None and repository.is_behind_newer(record):
            self._newer.keep(repository, record, self._output, is_again=True)
            return RecordOutcome.HELD
        try:
            return self._guarded(self._read_again, record, now)
        except UnknownEvent:
            if is_identifier(record.key or ""):
                self._newer.keep(self._repository(record.key or ""), record, self._output, is_again=True)
            return RecordOutcome.UNKNOWN
        except Rejected:
            return RecordOutcome.REJECTED

    def incomplete(self) -> set[str]:
        """Return the ids of repositories of which events that wait for their notice are missing."""
        return {name for name, repository in self.repositories.items() if repository.is_incomplete}

    def lose(self, name: str, now: float) -> None:
        """Record what the repository lacks and the log has no more; it counts as announced in its turn."""
        repository = self.repositories[name]
        lost = repository.pass_lost()
        if not lost:
            return
        text = f"{repository.path}: {lost} events without notice are gone from pending and from events; they get none"
        self._output.fail(name, text, None, now)
        self._output.dirty[name] = self._touched[name] = repository
        self.lost[name] = self.lost.get(name, 0) + lost

    def path(self, name: str) -> str:
        """Return the path of a repository, its id if none is known."""
        return self.repositories[name].path if name in self.repositories else name

    def doubt(self, mirror: str, name: str, applied: int, now: float) -> None:
        """Set a level aside of which the whole log knows no event."""
        repository = self.repositories[name]
        text = (
            f"{repository.path}: {mirror} says that it has applied event {applied}, which is not in the log; "
            "its level counts for nothing until the log has that event"
        )
        self._output.error(
            f"{mirror}/{name}", text, ACKS, 0, 0, shape.to_json(repository.acks[mirror]), now, repository=name
        )

    def ack(self, record: Record, now: float) -> RecordOutcome:
        """Take a record of `acks`: a level, the end of one, or a sign of life. What cannot be read is recorded once."""
        return self._guarded(self._ack, record, now)

    def _ack(self, record: Record, now: float) -> RecordOutcome:
        mirror, _, repository = (record.key or "").partition("/")
        try:
            if repository:
                found = self._level(mirror, repository, record.value)
                if found is not None:
                    return self._refuse_ack(record, found, None, now)
            elif record.value is not None:
                beat = shape.from_json(Beat, record.value)
                if beat.mirror != mirror:
                    raise MalformedEvent("key and value name different mirrors")
                self.formats[mirror] = beat.format
        except Rejected as error:
            return self._refuse_ack(record, str(error), None, now)
        return RecordOutcome.TAKEN

    def _refuse_ack(self, record: Record, reason: str, traceback: str | None, now: float) -> RecordOutcome:
        if record.offset >= self.positions.get((ACKS, record.partition), 0):
            self._output.reject(record, reason, now, traceback=traceback)
            self._pass(record, RecordOutcome.REJECTED)
        return RecordOutcome.REJECTED

    def request(self, record: Record, now: float) -> RecordOutcome:
        """Take a record of `roster-requests` and decide it; a request decided before is a repeat. As with `event`."""
        return self._pass(record, self._guarded(self._request, record, now))

    def _request(self, record: Record, now: float) -> RecordOutcome:
        self._output.moved = True
        try:
            request = shape.from_json(RosterRequest, record.value or b"")
        except Rejected as error:
            self._output.reject(record, str(error), now)
            return RecordOutcome.REJECTED
        if self.roster.decision(request.id) is not None:
            return RecordOutcome.REPEAT
        points = {partition: at for (topic, partition), at in self.positions.items() if topic == EVENTS}
        decided = rosters.decide(self.roster, request, positions=points, now=now)
        if isinstance(decided, rosters.Refusal):
            self._set_roster(rosters.remember(self.roster, request, now=now, refusal=decided))
            return RecordOutcome.REJECTED
        returns = request.verb is rosters.Verb.ADD and self.roster.mirror(request.mirror) is not None
        if (returns or request.verb is rosters.Verb.REMOVE) and not self._forget(request.mirror or ""):
            return RecordOutcome.UNFINISHED
        self._set_roster(rosters.remember(decided, request, now=now))
        return RecordOutcome.TAKEN

    # Decisions

    def decide(self, now: float) -> bool:
        """Release and announce what can be, until a batch is full; return whether something is left.

        What is new goes first: a long backlog of others delays no release, and no notice by more than a batch.
        """
        touched, self._touched = {**self._successors, **self._touched}, {}
        self._successors = {}
        for name, repository in touched.items():
            if self._output.is_crowded:
                self._touched[name] = repository
            elif self._decide(repository, now):
                self._backlog.pop(name, None)
            else:
                self._backlog[name] = repository
        for name in list(self._backlog):
            repository = self._backlog.pop(name)
            if not self._decide(repository, now):
                self._backlog[name] = repository
                break
        self._promote(now)
        return self.is_undecided

    def _decide(self, repository: Repository, now: float) -> bool:
        if repository.id in self.poison.repositories:
            return True
        with blaming(repository.id):
            return self._advance(repository, now)

    @property
    def is_undecided(self) -> bool:
        """Whether there is more to decide than went into the last batch."""
        return bool(self._touched or self._backlog)

    @property
    def is_urgent(self) -> bool:
        """Whether mirrors or receivers wait for what the next batch holds."""
        return self._output.is_urgent

    @property
    def is_full(self) -> bool:
        """Whether the next batch is as large as a transaction should be."""
        return self._output.is_full

    @property
    def has_output(self) -> bool:
        """Whether there is anything for the next batch at all."""
        return self._output.has_output

    def batch(self) -> OutputBatch:
        """Return all that changed since the last batch, to be written in one transaction."""
        output, self._output = self._output, Outgoing()
        return output.batch()

    # Watching

    @property
    def held(self) -> int:
        """Events without a notice."""
        return sum(len(repository.queue) + len(repository.newer) for repository in self.repositories.values())

    def gating(self, repository: Repository) -> tuple[Mirror, ...]:
        """Return the mirrors that this repository's notices wait for, by the path it has now."""
        return repository.gating(self.roster)

    def renew(self) -> None:
        """Store every position with the next batch, also those that did not move."""
        self._output.passed = dict(self.positions)

    # Inside

    def _guarded(self, take: Callable[[Record, float], RecordOutcome], record: Record, now: float) -> RecordOutcome:
        """Return what `take` makes of the record; a reject if it was poisoned before. Raise Poisoned."""
        place = place_of(record)
        known = self.poison.records.get(place)
        if known is None:
            with blaming(place):
                return take(record, now)
        if record.topic == ACKS:
            return self._refuse_ack(record, known.reason, known.traceback, now)
        self._output.moved = True
        self._output.reject(record, known.reason, now, traceback=known.traceback)
        return RecordOutcome.REJECTED

    def _pass(self, record: Record, outcome: RecordOutcome) -> RecordOutcome:
        if outcome not in (RecordOutcome.UNFINISHED, RecordOutcome.READ_AGAIN):
            place = (record.topic, record.partition)
            self.positions[place] = self._output.passed[place] = record.offset + 1
        return outcome

    def _repository(self, name: str) -> Repository:
        found = self.repositories.get(name)
        if found is None:
            found = self.repositories[name] = Repository(name)
        return found

    def _read_again(self, record: Record, now: float) -> RecordOutcome:
        return self._read(record, now, is_again=True)

    def _read(self, record: Record, now: float, *, is_again: bool = False) -> RecordOutcome:
        frame = wire.decode(record.value or b"")
        if frame.header.event is None:
            return RecordOutcome.NOTHING
        self._output.moved = True
        outcome = self._arrive(frame.event, record, now, is_again=is_again)
        if outcome is RecordOutcome.TAKEN:
            self._output.size += len(record.value or b"") - len(frame.body) + MESSAGE_BYTES
        return outcome

    def _refuse(self, record: Record, error: Rejected, now: float) -> RecordOutcome:
        self._output.moved = True
        self._output.reject(record, str(error), now)
        return RecordOutcome.REJECTED

    def _take_newer(self, record: Record, now: float) -> RecordOutcome:
        """Take what an older aggregator kept; it stays there if it, or one before it, is still not understood."""
        repository = self._repository(record.key or "")
        if repository.newer:
            self._newer.keep(repository, record, self._output, is_again=True)
            return RecordOutcome.HELD
        try:
            outcome = self._guarded(self._read, record, now)
        except UnknownEvent:
            self._newer.keep(repository, record, self._output, is_again=True)
            return RecordOutcome.UNKNOWN
        except Rejected as error:
            outcome = self._refuse(record, error, now)
        if outcome not in (RecordOutcome.UNFINISHED, RecordOutcome.READ_AGAIN):
            self._newer.give_up(record, self._output)
        return outcome

    def _arrive(self, event: Event, record: Record, now: float, *, is_again: bool) -> RecordOutcome:
        if record.key != event.repository:
            raise MalformedEvent(f"key {str(record.key)[:70]!r} of a record about repository {event.repository}")
        repository = self._repository(event.repository)
        is_unsettled = self._forks.is_unsettled(repository.id)
        arrival = judge(repository.state, event, repository.known, is_forked=is_unsettled)
        if is_unsettled and adopts(repository.state, event, arrival):
            self._forks.settle(repository.id)
        if arrival is Arrival.REPEAT:
            return self._fill(repository, event, record, now) if repository.lacks(event) else RecordOutcome.REPEAT
        if self._may_lack(repository, event, arrival) and not self._is_read_whole(record):
            return RecordOutcome.READ_AGAIN
        if arrival not in TAKEN:
            self._forks.refuse(event)
            if is_again:
                self._forks.wait(repository.id, record)
            else:
                self._fork(repository, event, record, now)
            return RecordOutcome.REJECTED
        if arrival is Arrival.GAP:
            text = f"{event.path}: events before {event.seq} are missing in the log, the last was {repository.last}"
            if repository.state is None:
                text += "; nothing else is known of it, so the chains of its streams begin anew"
            self._output.reject(record, text, now, repository=repository.id)
            self.lost[repository.id] = self.lost.get(repository.id, 0) + event.seq - repository.last - 1
        if arrival is Arrival.ADOPTED and not self._retire(repository, event, now):
            return RecordOutcome.UNFINISHED
        repository.state = follow(repository.state, event, arrival, self.roster.version)
        self.succession.note(repository.state)
        repository.add(HeldEvent.arrived(event, record, now))
        repository.newest_at = now
        self._output.dirty[repository.id] = self._output.fresh[repository.id] = repository
        self._touched[repository.id] = repository
        if self._joining and (arrival is Arrival.ADOPTED or event.type in (Type.RENAMED, Type.DELETED)):
            self._joining.survey(self.roster, self.repositories)
        return RecordOutcome.TAKEN

    def _may_lack(self, repository: Repository, event: Event, arrival: Arrival) -> bool:
        """Whether the log may have events before this one that were never taken: those of a gap, or the adoption of its history."""
        if arrival is not Arrival.FORK:
            return arrival is Arrival.GAP
        assert repository.state is not None
        return self._forks.may_lack_adoption(repository.state, event)

    def _is_read_whole(self, record: Record) -> bool:
        """Whether the partition was read from its beginning when it had this record already, or a stored one is taken."""
        end = self.whole.get(record.partition)
        return end is not None and (record.offset < end or self._newer.next is not None)

    def _fork(self, repository: Repository, event: Event, record: Record, now: float) -> None:
        """Mark the repository as forked; a fork that was recorded before is not recorded again."""
        assert repository.state is not None
        if repository.state.fork == event.id:
            return
        repository.state = forked(repository.state, event)
        self._output.dirty[repository.id] = repository
        self._output.reject(record, describe_fork(event, repository.state), now, repository=repository.id)

    def _fill(self, repository: Repository, event: Event, record: Record, now: float) -> RecordOutcome:
        """Take an event again that waits for its notice, but was lost from `pending`."""
        held = HeldEvent.arrived(event, record, now)
        held.written = True
        repository.fill(held)
        self._output.add(NewRecord(topic=PENDING, key=f"{repository.id}/{held.seq}", value=held.store()))
        self._touched[repository.id] = repository
        return RecordOutcome.TAKEN

    def _retire(self, repository: Repository, event: Event, now: float) -> bool:
        """End the old history: announce what can be announced of it, and record the rest as overtaken by the adopted one.

        Return False if the batch was full before the end. The newest is overtaken first: after a kill in the middle, the rest is
        announced without a hole, or overtaken the next time. Raise UnknownEvent, with nothing changed, if a newer aggregator stored
        some of it.
        """
        for held in repository.queue:
            if held.pending is None and held.readable():
                held.opened()
        if not self._advance(repository, now):
            return False
        while repository.queue and not self._output.is_full:
            self._overtake(repository, repository.drop_newest(), event, now)
        return not repository.queue

    def _overtake(self, repository: Repository, held: HeldEvent, event: Event, now: float) -> None:
        if not held.readable():
            self._set_aside(repository, held, now)
            return
        text = f"{event.path}: event {held.seq} of incarnation {held.event.incarnation} was overtaken by an adopted history"
        self._output.bury(repository, held)
        self._output.error(held.event.repository, text, EVENTS, held.partition, held.offset, held.store(), now)

    def _level(self, mirror: str, repository: str, value: bytes | None) -> str | None:
        """Take a level; return why it counts for nothing, if that is certain."""
        ack = None if value is None else shape.from_json(Ack, value)
        if ack is not None and (ack.mirror, ack.repository) != (mirror, repository):
            raise MalformedEvent("key and value name different mirrors or repositories")
        found = self._repository(repository)
        found.heard(mirror, ack)
        if found.queue:
            self._touched[repository] = found
        if self._is_loaded:  # before, what the level is held against is not complete
            self._joining.heard(mirror, found)
        is_foreign = self._is_loaded and found.standing(mirror) is Standing.FOREIGN
        return _foreign(found, ack) if ack is not None and is_foreign else None

    def _advance(self, repository: Repository, now: float) -> bool:
        """Release, then announce, in order; return False when the batch was full before the end."""
        while True:
            try:
                return self._step(repository, now)
            except UnknownEvent:  # stored by a newer aggregator: it waits for that one, and all behind it do
                repository.is_stored_newer = True
                return True
            except MalformedEvent:
                if self._output.is_full:
                    return False
                self._set_aside(repository, repository.drop_broken(), now)

    def _step(self, repository: Repository, now: float) -> bool:
        output, version, allow = self._output, self.roster.version, self.roster.allow_empty
        gating = repository.gating(self.roster)
        while True:
            for held in repository.releasable(gating, allow_empty=allow):
                if self.succession.must_wait(repository, held, now):
                    self._successors[repository.id] = repository
                    break
                repository.release(held, version)
                output.dirty[repository.id] = repository
                output.releases += 1
            before = output.notices
            for held, proof in repository.announceable(gating, allow_empty=allow):
                if output.notices >= self.limit or output.is_full:
                    return False
                self._announce(repository, held, proof, now)
            if output.notices == before:
                return True

    def _announce(self, repository: Repository, held: HeldEvent, proof: tuple[MirrorProof, ...], now: float) -> None:
        event, state = held.event, repository.state
        assert state is not None
        last = dict(state.streams or {})
        previous = {stream.value: last.get(stream.value) for stream in streams(event)}
        notice = Notice(
            event=event,
            time=now,
            roster=self.roster.version,
            acks=proof,
            previous=previous,
            base=state.base or None,
        )
        self._output.add(NewRecord(topic=NOTICES, key=repository.id, value=shape.to_json(notice)))
        self._output.bury(repository, held)
        self._output.dirty[repository.id] = repository
        repository.announced(held, self.roster.version, {**last, **dict.fromkeys(previous, event.id)} or None)
        self._output.notices += 1
        if event.type in (Type.RENAMED, Type.DELETED):
            self._touched.update(self._successors)
            self._successors.clear()

    def _set_aside(self, repository: Repository, broken: HeldEvent, now: float) -> None:
        key, value = f"{repository.id}/{broken.seq}", broken.value or b""
        self._output.bury(repository, broken)
        self._output.error(key, "not a pending record", PENDING, 0, 0, value, now, repository=repository.id)

    # Roster

    def _set_roster(self, roster: Roster) -> None:
        """Write a version of the roster; each is a record of its own, because decisions name it."""
        changed = roster.version != self.roster.version
        self.roster, self._output.roster = roster, True
        self._output.add(NewRecord(topic=ROSTER, key=rosters.KEY, value=shape.to_json(roster)))
        if changed:
            self._touched.update((name, found) for name, found in self.repositories.items() if found.queue)
            self._joining.survey(self.roster, self.repositories)

    def _promote(self, now: float) -> None:
        for name in self._joining.find_caught_up():
            self._set_roster(rosters.promoted(self.roster, name, now=now))

    def _forget(self, mirror: str) -> bool:
        """Forget the levels of a mirror that is removed or comes back, which may then be empty.

        Return False if the batch was full before the end.
        """
        for repository in self.repositories.values():
            if mirror in repository.acks:
                if self._output.is_full:
                    return False
                repository.heard(mirror, None)
                self._output.add(NewRecord(topic=ACKS, key=f"{mirror}/{repository.id}", value=None))
        return True


def _foreign(repository: Repository, ack: Ack) -> str:
    return (
        f"{repository.path}: {ack.mirror} says that it has applied event {ack.applied} ({ack.event[:40]}), which is another "
        "one in the log, or has another digest: this level counts for nothing"
    )

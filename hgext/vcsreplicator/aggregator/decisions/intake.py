# SPDX-License-Identifier: GPL-2.0-or-later
"""The intake of events by the aggregator. Pure.

Each event goes on with its repository's history, waits for a newer aggregator, or is recorded as an error.
"""

from collections import Counter
from collections.abc import Container
from functools import partial

from ...log import EVENTS, PENDING, NewRecord, Record
from ...words import wire
from ...words.errors import MalformedEvent, Rejected, UnknownEvent, counted
from ...words.event import Event, Type, is_identifier
from .arrival import TAKEN, Arrival, adopts, follow, forked, judge
from .deciding import Decisions
from .held import HeldEvent
from .membership import RosterMembership
from .memory import Memory, RecordOutcome
from .newer import NewerEvents
from .outgoing import MESSAGE_BYTES
from .repository import Repository
from .succession import Succession

# Characters of a master's name that a state keeps.
SOURCE_LIMIT = 200


class EventIntake:
    """Takes records of `events`, and records that an older aggregator kept.

    A record is *whole* if its partition was read from its beginning and had the record then: events missing before it are lost.
    Before any other record the log may have more, so the partition is reread first. While rereading, a fork takes effect only at
    the end of the partition, and not if an adoption follows it. So it is with records that the log had at the start: the stored
    position may lie before some that were taken, if it waits for a repository.
    """

    def __init__(
        self, memory: Memory, membership: RosterMembership, succession: Succession, decisions: Decisions
    ) -> None:
        self._memory, self._membership, self._succession = memory, membership, succession
        self._decisions = decisions
        self.newer = NewerEvents()
        self._forks: dict[str, Record] = {}
        # Histories of which no adoption was found, as (repository, incarnation).
        self._foreign: set[tuple[str, str]] = set()
        # Partitions that lost records, and where they ended then: records before that end may have been taken.
        self.cut: dict[int, int] = {}
        # The ends of partitions at the start, until they are reached.
        self.ends: dict[int, int] = {}

    def take(self, record: Record, now: float, *, is_whole: bool) -> RecordOutcome:
        """Take a record; its position passes it unless the outcome asks for it again."""
        cut = self.cut.get(record.partition, 0)
        take = partial(self._take_or_refuse, is_whole=is_whole, is_again=record.offset < cut)
        outcome = self._memory.pass_record(record, self._memory.guarded(take, record, now))
        end = max(cut, self.ends.get(record.partition, 0))
        if end and record.offset + 1 >= end and not outcome.is_asked_again:
            self.cut.pop(record.partition, None)
            self.ends.pop(record.partition, None)
            self.settle_forks(record.partition, now)
        return outcome

    def _take_or_refuse(self, record: Record, now: float, *, is_whole: bool, is_again: bool) -> RecordOutcome:
        if record.key in self._memory.poison.refused:
            return RecordOutcome.WAITING
        repository = self._memory.repositories.get(record.key or "")
        if repository is not None and repository.newer:
            self._keep_newer(repository, record)
            return RecordOutcome.HELD
        try:
            return self._decode_and_judge(record, now, is_whole=is_whole, is_again=is_again)
        except UnknownEvent as error:
            if not is_identifier(record.key or ""):
                return self._memory.refuse(record, str(error), now)
            self._keep_newer(self._memory.repository(record.key or ""), record)
            return RecordOutcome.UNKNOWN
        except Rejected as error:
            return self._memory.refuse(record, str(error), now)

    def _keep_newer(self, repository: Repository, record: Record, *, is_again: bool = False) -> None:
        """Keep a record for a newer aggregator; a mirror's level may count now."""
        self.newer.keep(repository, record, self._memory.output, is_again=is_again)
        self._memory.outstanding.note(repository)
        self._memory.touched[repository.id] = repository

    def take_again(self, record: Record, now: float) -> RecordOutcome:
        """Take a record that lies before the position, in case it was never taken.

        As with `take`, the outcome may ask for the record again. A record that cannot be read is not recorded as an error again:
        that happened when the position passed it. A fork counts at `settle_forks`.
        """
        if record.key in self._memory.poison.refused:
            return RecordOutcome.WAITING
        repository = self._memory.repositories.get(record.key or "")
        if repository is not None and repository.is_behind_newer(record):
            self._keep_newer(repository, record, is_again=True)
            return RecordOutcome.HELD
        try:
            return self._memory.guarded(partial(self._decode_and_judge, is_whole=True, is_again=True), record, now)
        except UnknownEvent:
            if is_identifier(record.key or ""):
                repository = self._memory.repository(record.key or "")
                self._keep_newer(repository, record, is_again=True)
            return RecordOutcome.UNKNOWN
        except Rejected:
            return RecordOutcome.REJECTED

    def settle_forks(self, partition: int, now: float) -> None:
        """Mark the repositories whose forks waited for the end of this partition.

        It does so only once everything is read that the partition had at the start.
        """
        if partition in self.ends:
            return
        self._memory.unsettled.pop((EVENTS, partition), None)
        for name, record in list(self._forks.items()):
            if record.partition == partition:
                del self._forks[name]
                self._mark_forked(self._memory.repositories[name], wire.decode(record.value or b"").event, record, now)

    def take_kept(self, now: float, whole: Container[int]) -> RecordOutcome:
        """Take the records that an older aggregator kept, until a batch is full.

        The caller takes all of it before any other event. If the outcome is UNFINISHED, call this again once the batch is written;
        if it is READ_AGAIN, once the partition of `newer.next` is among the `whole`.
        """
        while (record := self.newer.next) is not None:
            if self._memory.output.is_full:
                return RecordOutcome.UNFINISHED
            outcome = self._take_kept(record, now, is_whole=record.partition in whole)
            if outcome.is_asked_again:
                return outcome
            self.newer.pass_next()
        return RecordOutcome.TAKEN

    def _take_kept(self, record: Record, now: float, *, is_whole: bool) -> RecordOutcome:
        """Take a record that an older aggregator kept.

        It stays in `pending` if this aggregator does not understand it, or one before it in its repository.
        """
        repository, output = self._memory.repository(record.key or ""), self._memory.output
        if repository.newer or repository.is_refused:
            self._keep_newer(repository, record, is_again=True)
            return RecordOutcome.HELD
        try:
            outcome = self._memory.guarded(partial(self._decode_and_judge, is_whole=is_whole), record, now)
        except UnknownEvent:
            self._keep_newer(repository, record, is_again=True)
            return RecordOutcome.UNKNOWN
        except Rejected as error:
            outcome = self._memory.refuse(record, str(error), now)
        if not outcome.is_asked_again:
            self.newer.give_up(record, output)
        return outcome

    def lose(self, name: str, now: float) -> None:
        """Record the events that the repository lacks and the log no longer has.

        They count as announced in their turn.
        """
        repository, output = self._memory.repository(name), self._memory.output
        repository.incomplete_at = self._succession.now
        lost = repository.count_lost()
        if lost:
            text = (
                f"{repository.path}: pending and events lost {counted(lost, 'event')} without notice; "
                "no notice is published of what they lost, unless the relay sends it again"
            )
            output.fail(name, text, None, now)
            output.dirty[name] = self._memory.touched[name] = repository
            self._memory.lost[name] += lost

    def _decode_and_judge(self, record: Record, now: float, *, is_whole: bool, is_again: bool = False) -> RecordOutcome:
        frame = wire.decode(record.value or b"")
        if frame.header.event is None:
            return RecordOutcome.NOTHING
        outcome = self._judge_event(frame.event, record, now, is_whole=is_whole, is_again=is_again)
        if outcome is RecordOutcome.TAKEN:
            output = self._memory.output
            output.size += len(record.value or b"") - len(frame.body) + MESSAGE_BYTES
            output.size += sum(map(len, wire.carried(record.headers).values()))
        return outcome

    def _judge_event(
        self, event: Event, record: Record, now: float, *, is_whole: bool, is_again: bool
    ) -> RecordOutcome:
        if record.key != event.repository:
            raise MalformedEvent(f"key {str(record.key)[:70]!r} of a record about repository {event.repository}")
        repository = self._memory.repository(event.repository)
        is_forked = repository.id in self._forks
        arrival = judge(repository.state, event, repository.find_id, is_forked=is_forked, is_again=is_again)
        if adopts(repository.state, event, arrival):
            self._forks.pop(repository.id, None)
        if arrival is Arrival.REPEAT:
            return self._fill_queue(repository, event, record, now) if repository.lacks(event) else RecordOutcome.REPEAT
        if self._may_lack(repository, event, arrival) and not is_whole:
            return RecordOutcome.READ_AGAIN
        if arrival not in TAKEN:
            self._foreign.add((event.repository, event.incarnation))
            if is_again or record.offset < self.ends.get(record.partition, 0):
                self._defer_fork(repository, record)
            else:
                self._mark_forked(repository, event, record, now)
            return RecordOutcome.REJECTED
        if arrival is Arrival.GAP:
            self._record_gap(repository, event, record, now)
        if arrival is Arrival.ADOPTED and not self._decisions.retire(repository, event, now):
            return RecordOutcome.UNFINISHED
        self._continue_history(repository, event, arrival, record, now)
        return RecordOutcome.TAKEN

    def _continue_history(
        self, repository: Repository, event: Event, arrival: Arrival, record: Record, now: float
    ) -> None:
        source = record.headers.get(wire.SOURCE, "")
        source = source if len(source) <= SOURCE_LIMIT else ""
        # What is missing may come yet: the relay sends what the log lost again, perhaps behind a later event.
        if arrival is Arrival.GAP:
            repository.is_incomplete, repository.incomplete_at = True, self._succession.now
        repository.state = follow(repository.state, event, arrival, self._membership.roster.version, source)
        self._succession.note(repository.state)
        self._decisions.end_replaced(event.path)
        repository.add(HeldEvent.arrived(event, record, now, self._succession.now))
        repository.newest_at = self._succession.now
        output = self._memory.output
        output.dirty[repository.id] = output.fresh[repository.id] = repository
        self._memory.touched[repository.id] = repository
        if arrival is Arrival.ADOPTED or event.type in (Type.RENAMED, Type.DELETED):
            self._membership.compare_joining(repository)

    def _may_lack(self, repository: Repository, event: Event, arrival: Arrival) -> bool:
        """Return whether the log may have events before this one that were never taken.

        These are the events of a gap, or the adoption of its history. Behind a fork a gap is judged a fork too, though the log may
        have the missing events.
        """
        if arrival is not Arrival.FORK:
            return arrival is Arrival.GAP
        state = repository.state
        assert state is not None
        if event.incarnation == state.incarnation:
            return event.seq > state.seq + 1
        return (event.repository, event.incarnation) not in self._foreign

    def _record_gap(self, repository: Repository, event: Event, record: Record, now: float) -> None:
        text = f"{event.path}: events before {event.seq} are missing in the log, the last was {repository.last}"
        if repository.state is None:
            text += "; nothing else is known about it, so the chains of its streams begin again"
        self._memory.output.reject(record, text, now, repository=repository.id)
        self._memory.lost[repository.id] += event.seq - repository.last - 1

    def _defer_fork(self, repository: Repository, record: Record) -> None:
        """Leave a fork to the end of its partition; no stored position passes it before."""
        self._forks[repository.id] = record
        if record.partition in self.ends:
            place = (EVENTS, record.partition)
            self._memory.unsettled[place] = min(self._memory.unsettled.get(place, record.offset), record.offset)

    def _mark_forked(self, repository: Repository, event: Event, record: Record, now: float) -> None:
        """Mark the repository as forked, and record a fork that it is not marked with."""
        state = repository.state
        assert state is not None
        if state.fork == event.id:
            return
        text = (
            f"{event.path}: event {event.seq} ({event.id}) is a fork: the log continued from {state.seq} ({state.event}); "
            "find out which history is true, then adopt it"
        )
        repository.state = forked(state, event, record.time)
        self._memory.outstanding.note(repository)
        self._memory.output.dirty[repository.id] = repository
        self._memory.output.reject(record, text, now, repository=repository.id)

    def _fill_queue(self, repository: Repository, event: Event, record: Record, now: float) -> RecordOutcome:
        """Take an event that waits for its notice, but was lost from `pending`, or from the log before its successor came.

        Newer events of the repository must be in `pending` before.
        """
        if repository.id in self._memory.output.fresh:
            return RecordOutcome.UNFINISHED
        self._memory.lost -= Counter({repository.id: 1})
        held = HeldEvent.arrived(event, record, now, self._succession.now)
        held.written = True
        repository.fill(held)
        self._memory.output.add(
            NewRecord(topic=PENDING, key=f"{repository.id}/{held.seq}", value=held.store(), headers=held.headers)
        )
        self._memory.touched[repository.id] = repository
        return RecordOutcome.TAKEN

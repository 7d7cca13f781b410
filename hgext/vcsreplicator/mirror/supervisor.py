# SPDX-License-Identifier: GPL-2.0-or-later
"""The supervisor of a mirror: what was read goes to workers, what they achieved becomes acks and positions.

One thread decides and owns all that is below; readers, workers and the sender reach it through its inbox. Rules of this file:

1. A position passes an event only after a worker said that its transaction has committed, or after a note about its repository is
   durable (`Backlog` keeps count).
2. A repository has one task at a time. Which worker takes it matters for warmth only: a slow one holds up nobody else.
3. Trouble concerns one repository: it is followed apart (`_detach`), everyone else goes on.
"""

import heapq
import queue
import random
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import structlog

from ..clock import Clock
from ..errors import MalformedEvent, Rejected, Unavailable, UnknownEvent
from ..event import Event, Type
from ..levels import KEY_KEPT, Ack, AggregatorBeat, Beat, ErrorRecord, Reason, State
from ..log import ERRORS, EVENTS, Log, Message, Record, partition_of
from ..path import twin
from ..retry import Backoff
from ..roster import KEY as ROSTER_KEY
from ..roster import Roster
from ..shape import from_json, to_json
from ..version import VERSION
from ..wire import decode
from . import metrics
from .backlog import Backlog
from .following import Following, Phase, repair, resume_offset, wait
from .level import Level, before_first
from .notes import Detached, Gone, Notes
from .pool import Answered, Lane, Pool
from .settings import MirrorSettings
from .sources import Broken, Ends, Lost, Read, Sender, Source
from .task import Check, Checked, Found, Item, Outcome, Sweep, Task, Trouble, Warm

T = TypeVar("T")

TICK = 0.2
CATCHING_UP_LIMIT = 8
# Seconds after which positions that did not move are stored again: Kafka forgets what nobody stores for a week.
RENEW_INTERVAL = 3600.0
SWEEP_INTERVAL = 3600.0
_PASSING = Backoff(first=0.02, longest=1.0)
log = structlog.get_logger()


class Supervisor:
    """Decides; see the module. Its methods are called by one thread."""

    def __init__(
        self,
        settings: MirrorSettings,
        events: Log,
        notes: Notes,
        clock: Clock,
        positions: Mapping[int, int],
    ) -> None:
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.sender = Sender(events, settings.group, self.inbox.put)
        self.pool = Pool(settings, self.inbox.put)
        self.reader: Source | None = None
        self._settings, self._log, self._notes, self._clock = settings, events, notes, clock
        self._partitions = len(positions)
        self._backlog = Backlog(positions)
        self._stored = dict(positions)
        self._renewed = clock.monotonic()
        self._all: dict[str, Following] = {}
        self._places: dict[str, str] = {}
        self._gone = {gone.repository: gone for gone in notes.gone()}
        self._ready: dict[Lane, deque[str]] = {lane: deque() for lane in Lane}
        self._alarms: list[tuple[float, str]] = []
        self._catching_up: dict[str, Source] = {}
        self._line: deque[str] = deque()
        self._retries = Backoff(first=settings.retry_first, longest=settings.retry_longest)
        self._roster = Roster()
        self._beaten = self._ticked = float("-inf")
        self._over: set[str] = set()
        self._elsewhere: dict[str, Record] = {}
        self._aside: dict[str, Level] = {}
        self._unchecked: list[str] = []
        self._cold: dict[str, None] = {}
        self._sweep_at = clock.monotonic() + settings.beat_interval
        self._check_at = clock.monotonic() + settings.check_interval

    # What happens, one method each.

    def turn(self, timeout: float) -> None:
        """Takes what is in the inbox, waiting for it at most `timeout` seconds, and gives work to idle workers."""
        try:
            self.take(self.inbox.get(timeout=timeout))
            while True:
                self.take(self.inbox.get_nowait())
        except queue.Empty:
            pass
        self._tick()
        self._dispatch()

    def take(self, arrived: object) -> None:
        """One thing that arrived."""
        match arrived:
            case Read(follows=None):
                for record in arrived.records:
                    self._record(record)
                self._hold_back()
                arrived.taken()
            case Read():
                self._caught(arrived)
                arrived.taken()
            case Answered():
                self._answered(arrived)
            case Lost():
                self._lost(arrived)
            case Ends():
                self._find_silent_gaps(arrived)
            case Broken():
                raise arrived.error

    def _record(self, record: Record) -> None:
        match record.topic:
            case "state":
                self._state(record)
            case "roster":
                if record.key == ROSTER_KEY:
                    self.take_roster(record.value)
            case _:
                self._event(record)

    def _event(self, record: Record) -> None:
        self._backlog.read(record.partition, record.offset)
        try:
            item = self._item(record)
        except Rejected as error:
            self._reject(record, error)
            return
        if item is None or not self._wanted(item):
            return
        event = item.event
        following = self._following(event.repository, event.path)
        if (twins := self._twin(event.repository, event.path)) is not None:
            if following.follows_stream:
                self._backlog.add(event.repository, item)
                self._detach(following, Reason.REFUSED, f"path {event.path!r} is taken by its twin {twins!r}")
            return
        if not following.follows_stream or self._is_repeat(following, item):
            return
        self._backlog.add(event.repository, item)
        if self._backlog.size(event.repository) > self._settings.repository_buffer_bytes:
            self._detach(following, Reason.SLOW, "events arrive faster than they can be applied")
        else:
            self._queue(following)

    def _item(self, record: Record) -> Item | None:
        """The checked event of a record, None for a heartbeat."""
        if record.value is None:
            raise MalformedEvent("record: a value is missing")
        frame = decode(record.value)
        if frame.header.event is None:
            return None
        event = frame.event
        if record.key != event.repository or record.partition != partition_of(event.repository, self._partitions):
            raise MalformedEvent(f"record: key {str(record.key)[:40]!r} is not the repository {event.repository}")
        return Item(frame=frame, partition=record.partition, offset=record.offset, size=len(record.value))

    def _wanted(self, item: Item) -> bool:
        """Whether this mirror carries the repository, and has not let it go."""
        event = item.event
        gone = self._gone.get(event.repository)
        if gone is not None and gone.incarnation == event.incarnation and event.seq <= gone.seq:
            if event.seq == gone.seq and event.repository not in self._over and event.repository not in self._all:
                self._tell_gone(_deletion(event, self._clock.now()))
            return False
        return self._carries(event.path) or self._carries((event.detail or {}).get("from", event.path))

    def _is_repeat(self, following: Following, item: Item) -> bool:
        level, event = following.level, item.event
        return level is not None and (level.id, level.incarnation) == (event.id, event.incarnation)

    def _reject(self, record: Record, error: Rejected) -> None:
        """Kept in `errors`; a repository that it names as its key is followed apart, because its next event is missing."""
        reason = Reason.UNKNOWN_VERSION if isinstance(error, UnknownEvent) else Reason.GAP
        known = self._all.get(record.key or "")
        log.error("record rejected", partition=record.partition, offset=record.offset, reason=str(error))
        metrics.REJECTED.inc()
        key = None if record.key is None else record.key[:KEY_KEPT]
        told = ErrorRecord(
            time=self._clock.now(),
            service=self._settings.group,
            reason=str(error),
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            key=key,
            value=b64encode((record.value or b"")[: 48 * 1024]).decode(),
            repository=known.id if known else None,
        )
        self.sender.append(Message(topic=ERRORS, key=key, value=to_json(told)))
        if known is not None and known.follows_stream:
            self._detach(known, reason, str(error), offset=record.offset)

    def _state(self, record: Record) -> None:
        if record.key == "aggregator" or record.key is None or record.value is None:
            return self._aggregator_beat(record)
        try:
            state = from_json(State, record.value)
        except MalformedEvent as error:
            log.error("state not understood", reason=str(error), key=record.key)
            return None
        following = self._all.get(state.repository)
        carries = self._carries(state.path)
        self._elsewhere.pop(state.repository, None)
        if not carries and not state.deleted:
            self._elsewhere[state.repository] = record
        if state.deleted and state.noticed >= state.seq:
            self._forget(state)
        if following is None and not state.deleted and carries:
            following = self._following(state.repository, state.path)
        if following is not None:
            following.there = state.path
            following.released, following.incarnation = state.released, state.incarnation
            following.expected = state.seq if carries and not state.deleted else 0
            self._queue(following)
        return None

    def _aggregator_beat(self, record: Record) -> None:
        if record.value is not None and record.key == "aggregator":
            try:
                metrics.AGGREGATOR_BEAT.set(from_json(AggregatorBeat, record.value).time)
            except MalformedEvent as error:
                log.error("beat not understood", reason=str(error))

    def take_roster(self, value: bytes | None) -> None:
        """The roster says what this mirror carries; without one, or not being in it, it carries everything."""
        if value is not None:
            try:
                self._roster = from_json(Roster, value)
            except MalformedEvent as error:
                log.error("roster not understood", reason=str(error))
            for record in [*self._elsewhere.values()]:  # of which some may be carried now
                self._state(record)

    # Work.

    def _queue(self, following: Following) -> None:
        """Puts the repository in line for a worker, if there is work that may begin now."""
        if following.queued or following.running or following.resting:
            return
        lane = self._lane(following)
        if lane is not None:
            following.queued = True
            self._ready[lane].append(following.id)

    def _lane(self, following: Following) -> Lane | None:
        """Where its next task belongs; None if there is none."""
        if following.phase is Phase.HEALING:
            return Lane.HEAVY
        if following.phase is not Phase.WAITING and (items := self._backlog.peek(following.id, events=1, size=0)):
            return Lane.LIGHT if items[0].inline else Lane.HEAVY
        leftover = following.is_leftover and not self._settings.backup
        return Lane.LIGHT if following.may_release or leftover else None

    def _dispatch(self) -> None:
        for lane, line in self._ready.items():
            while line and (worker := self.pool.idle(lane)) is not None:
                following = self._all.get(line.popleft())
                if following is None:
                    continue
                following.queued = False
                if self._lane(following) is not lane:
                    self._queue(following)
                    continue
                following.running, following.since = True, self._clock.monotonic()
                self.pool.give(worker, self._task(following))
        if self._cold:
            self._warm_next()

    def _warm_next(self) -> None:
        """In a moment when all workers are idle, spares the next reader of a repository the making of caches."""
        light = [worker for worker in self.pool.workers if worker.lane is Lane.LIGHT]
        if any(self._ready.values()) or any(worker.busy for worker in light) or not light:
            return
        repository = next(iter(self._cold))
        del self._cold[repository]
        following = self._all.get(repository)
        if following is not None and following.folder is not None and not following.running:
            self.pool.give(light[0], Warm(repository=repository, folder=following.folder))

    def _task(self, following: Following) -> Task:
        events = 1 if following.single else self._settings.batch_events
        items = self._backlog.peek(following.id, events=events, size=self._settings.batch_bytes)
        if items and items[0].inline:
            items = items[: next((n for n, item in enumerate(items) if not item.inline), len(items))]
        else:
            items = items[:1]
        heals = following.phase is Phase.HEALING
        return Task(
            repository=following.id,
            path=(following.there or following.path) if heals else following.path,
            folder=following.folder,
            items=() if heals or following.phase is Phase.WAITING else items,
            incarnation=following.incarnation,
            released=following.released,
            heal=following.note.reason if heals and following.note else None,
            run=following.dropped,
        )

    def _answered(self, answered: Answered) -> None:
        task, answer = answered.worker.busy, answered.answer
        self.pool.freed(answered)
        if isinstance(answer, Checked):
            self._checked(answer)
        if not isinstance(task, Task) or (following := self._all.get(task.repository)) is None:
            return
        following.running = False
        if answer is None:
            self._died(following, task)
        elif isinstance(answer, Outcome):
            self._achieved(following, task, answer)

    def _checked(self, checked: Checked) -> None:
        following = self._all.get(checked.repository)
        if following is not None and following.phase is Phase.STREAM and checked.problem is not None:
            self._detach(following, Reason.CORRUPT, checked.problem)

    def _check_next(self) -> None:
        """Has one repository read through, in turn, if a heavy worker has nothing better to do."""
        if not self._unchecked:
            self._unchecked = [f.id for f in self._all.values() if f.folder is not None]
        worker = self.pool.idle(Lane.HEAVY) if self._unchecked else None
        if worker is not None:
            following = self._all.get(self._unchecked.pop())
            if following is not None and following.folder is not None and following.phase is Phase.STREAM:
                self.pool.give(worker, Check(repository=following.id, folder=following.folder))

    def _died(self, following: Following, task: Task) -> None:
        log.warning("worker died", repository=following.id, path=following.path)
        metrics.DIED.inc()
        self._troubled(following, task, Trouble(reason=Reason.CRASHED, note="its worker died", passing=True), done=0)

    def _achieved(self, following: Following, task: Task, outcome: Outcome) -> None:
        before = following.level
        following.level, following.folder = outcome.level, outcome.folder
        if outcome.level is not None:
            following.path = outcome.level.path
            self._occupy(following)
        if outcome.serving > following.serving:
            self._cold[following.id] = None
        following.serving = outcome.serving
        following.served_at = outcome.served_at or following.served_at
        if task.run == following.dropped:
            self._backlog.finish(following.id, outcome.done)
        gone = outcome.gone or _absent(task, outcome, self._clock.now())
        if gone is not None:
            self._let_go(following, gone)
        metrics.applied(before, outcome.level)
        if outcome.trouble is None:
            following.troubled, following.tries, following.single = None, 0, False
            self._went_well(following)
        else:
            self._troubled(following, task, outcome.trouble, done=outcome.done)
        self._ack(following)
        self._queue(following)

    def _went_well(self, following: Following) -> None:
        note = following.note
        match following.phase:
            case Phase.HEALING:
                log.info("healed", repository=following.id, path=following.path)
                assert note is not None
                if note.reason is Reason.EXPIRED:
                    following.note = replace(note, offset=max(note.offset, following.behind))
                self._catch_up(following)
            case Phase.WAITING if note is not None and note.reason is Reason.SLOW:
                self._catch_up(following)
            case Phase.CATCHING_UP:
                source = self._catching_up.get(following.id)
                if source and self._backlog.size(following.id) < self._settings.repository_buffer_bytes // 4:
                    source.may_read.set()
            case Phase.JOINING if not self._backlog.untracked(following.id):
                self._rejoin(following)

    # Trouble.

    def _troubled(self, following: Following, task: Task, trouble: Trouble, *, done: int) -> None:
        now = self._clock.monotonic()
        if len(task.items) > 1 and not done and not following.single and following.phase is not Phase.WAITING:
            following.single = True
            return self._queue(following)
        following.tries += 1
        following.troubled = following.troubled or now
        limit = 2 if trouble.reason is Reason.CRASHED else None
        patient = now - following.troubled < self._settings.slow_after and (limit is None or following.tries < limit)
        if trouble.passing and following.follows_stream and patient:
            self._rest(following, _PASSING.delay(following.tries, random.random()))
            return None
        self._detach(following, trouble.reason, trouble.note)
        return None

    def _detach(self, following: Following, reason: Reason, note: str, *, offset: int | None = None) -> None:
        """From now on the repository is followed apart; first the note, then the position may pass."""
        former = following.note
        partition = partition_of(following.id, self._partitions)
        queued = self._backlog.peek(following.id, events=1, size=0)
        first = queued[0].offset if queued else self._backlog.next(partition) if offset is None else offset
        written = Detached(
            repository=following.id,
            path=following.path,
            partition=partition,
            offset=former.offset if former else first,
            reason=reason,
            note=note[:500],
            since=former.since if former else self._clock.now(),
            attempts=former.attempts if former else 0,
        )
        try:
            self._notes.detach(written)
        except Unavailable as error:
            log.error("note not written", repository=following.id, reason=str(error))
            self._rest(following, 1.0)
            return
        log.warning("detached", repository=following.id, path=following.path, reason=reason.value, note=note)
        metrics.DETACHED_TOTAL.labels(reason.value).inc()
        self._stop_catching_up(following)
        self._backlog.drop(following.id)
        following.dropped += 1
        following.resting = False
        following.note, following.phase, following.single = written, Phase.WAITING, False
        self._wait(following)
        self._ack(following)

    def _rest(self, following: Following, seconds: float) -> None:
        """Nothing is done for it until the time is over."""
        following.resting = True
        heapq.heappush(self._alarms, (self._clock.monotonic() + seconds, following.id))

    def _wait(self, following: Following) -> None:
        """Sets the time of the next attempt."""
        assert following.note is not None
        following.troubled, following.tries = None, 0
        if following.running and following.note.reason is Reason.SLOW:
            return
        delay = wait(following.note, self._retries, random.random())
        if delay is not None:
            self._rest(following, delay)

    def _attempt(self, following: Following) -> None:
        """One attempt to heal: repair first if reading on is not enough."""
        assert following.note is not None
        note = following.note = _tried(following.note)
        try:
            self._notes.detach(note)
        except Unavailable as error:
            log.error("note not written", repository=following.id, reason=str(error))
        if repair(note) is None:
            self._catch_up(following)
        else:
            following.phase = Phase.HEALING
            # The master is ahead of whatever stands in the log now: what expired or cannot be read there is not needed.
            following.behind = self._backlog.next(note.partition)
        self._queue(following)

    def _catch_up(self, following: Following) -> None:
        """Reads the repository's events apart from the stream; waits if many others do."""
        following.phase = Phase.CATCHING_UP
        following.run += 1
        self._line.append(following.id)
        self._next_in_line()

    def _next_in_line(self) -> None:
        """Starts readers for those that wait for one, as many as there may be at once."""
        while self._line and len(self._catching_up) < CATCHING_UP_LIMIT:
            following = self._all.get(self._line.popleft())
            waits = following is not None and following.phase is Phase.CATCHING_UP and following.note is not None
            if following is None or not waits or following.id in self._catching_up:
                continue
            assert following.note is not None
            start = {(EVENTS, following.note.partition): resume_offset(following, following.note)}
            source = Source(self._log, start, self.inbox.put, follows=following.id, run=following.run)
            self._catching_up[following.id] = source.start()

    def _caught(self, read: Read) -> None:
        """Events for a repository that catches up; level with the stream, it joins it again."""
        following = self._all.get(read.follows or "")
        if following is None or following.run != read.run or following.phase is not Phase.CATCHING_UP:
            return
        for record in read.records:
            try:
                item = self._item(record)
            except Rejected as error:
                if record.offset < following.behind:
                    continue  # what it may have held came from the master; if not, the next event shows a gap
                self._detach(following, Reason.GAP, str(error), offset=record.offset)
                return
            if item is not None and not self._is_repeat(following, item):
                self._backlog.add(following.id, item, tracked=False)
        assert following.note is not None
        partition = following.note.partition
        if read.positions[EVENTS, partition] >= self._backlog.next(partition):
            self._stop_catching_up(following)
            following.phase = Phase.JOINING
            if not self._backlog.untracked(following.id):
                self._rejoin(following)
        elif self._backlog.size(following.id) < self._settings.repository_buffer_bytes:
            self._catching_up[following.id].may_read.set()
        self._queue(following)

    def _rejoin(self, following: Following) -> None:
        try:
            self._notes.rejoin(following.id)
        except Unavailable as error:
            log.error("note not removed", repository=following.id, reason=str(error))
            return
        log.info("rejoined", repository=following.id, path=following.path)
        following.phase, following.note = Phase.STREAM, None
        self._ack(following)

    def _lost(self, lost: Lost) -> None:
        following = self._all.get(lost.follows)
        if following is not None and following.run == lost.run:
            self._detach(following, Reason.EXPIRED, lost.reason)

    def _stop_catching_up(self, following: Following) -> None:
        source = self._catching_up.pop(following.id, None)
        if source is not None:
            source.stop()
            self._next_in_line()

    def _find_silent_gaps(self, ends: Ends) -> None:
        """Repositories of which the aggregator saw more than this mirror, though everything is read: something was lost."""
        for following in self._all.values():
            have = following.level.seq if following.level else 0
            if following.expected <= have or following.phase is not Phase.STREAM or following.running:
                continue
            partition = partition_of(following.id, self._partitions)
            if not self._backlog.has(following.id) and self._backlog.next(partition) >= ends.ends[partition]:
                told = f"the log had events up to {following.expected}, this mirror has {have}"
                self._detach(following, Reason.GAP, told, offset=0)

    # What is told.

    def _ack(self, following: Following) -> None:
        level = following.level
        if level is None and following.sent is None and following.note is None:
            return
        detached = following.note if following.phase is not Phase.STREAM else None
        ack = Ack(
            mirror=self._settings.name,
            repository=following.id,
            incarnation=level.incarnation if level else "",
            applied=level.seq if level else 0,
            serving=following.serving if level else 0,
            event=level.id if level else "",
            digest=level.digest if level else "",
            applied_at=level.time if level else 0.0,
            served_at=following.served_at or (level.time if level else 0.0),
            detached=detached.reason if detached else None,
            note=detached.note if detached else None,
        )
        if ack != following.sent:
            following.sent = ack
            self.sender.ack(f"{self._settings.name}/{following.id}", to_json(ack))

    def _note_gone(self, level: Level) -> None:
        gone = Gone(
            repository=level.repository,
            path=level.path,
            incarnation=level.incarnation,
            seq=level.seq,
            since=self._clock.now(),
        )
        self._gone[level.repository] = gone
        self._write(lambda: self._notes.let_go(gone))  # what is set aside on disk says it too

    def _let_go(self, following: Following, level: Level) -> None:
        self._note_gone(level)
        self._vacate(following)
        following.level, following.serving, following.served_at = level, level.seq, self._clock.now()

    def _tell_gone(self, level: Level) -> None:
        """A deletion from before a kill that came before its ack."""
        following = self._following(level.repository, level.path)
        following.level, following.serving, following.served_at = level, level.seq, self._clock.now()
        self._ack(following)

    def _forget(self, state: State) -> None:
        """A deleted repository of which everything is told: its ack goes."""
        self._over.add(state.repository)
        following = self._all.get(state.repository)
        if following is None or state.repository not in self._gone or following.running:
            return
        self._abandon(following)

    def _abandon(self, following: Following) -> None:
        """Nothing is done for it any more; its ack goes."""
        self._stop_catching_up(following)
        self._backlog.drop(following.id)
        self._write(lambda: self._notes.rejoin(following.id))
        self._vacate(following)
        self.sender.ack(f"{self._settings.name}/{following.id}", None)
        del self._all[following.id]

    # Small things.

    def _following(self, repository: str, path: str) -> Following:
        following = self._all.get(repository)
        if following is None:
            following = self._all[repository] = Following(id=repository, path=path)
        return following

    def _write(self, change: Callable[[], T]) -> T | None:
        """A change of the notes that may fail without harm: what it says is found out again."""
        try:
            return change()
        except Unavailable as error:
            log.error("note not written", reason=str(error))
            return None

    def _carries(self, path: str) -> bool:
        mirror = self._roster.mirror(self._settings.name)
        return mirror is None or mirror.rules.carries(path)

    def _twin(self, repository: str, path: str) -> str | None:
        """The path of another repository that a careless file system would take for this one."""
        other = self._all.get(self._places.get(twin(path), repository))
        return other.path if other is not None and other.id != repository and other.path != path else None

    def _occupy(self, following: Following) -> None:
        self._places[twin(following.path)] = following.id

    def _vacate(self, following: Following) -> None:
        if self._places.get(twin(following.path)) == following.id:
            del self._places[twin(following.path)]

    def _hold_back(self) -> None:
        """The stream is read no further while as much is in memory as may be."""
        if self.reader is None:
            return
        if self._backlog.bytes >= self._settings.buffer_bytes:
            self.reader.may_read.clear()
        elif self._backlog.bytes < self._settings.buffer_bytes // 2:
            self.reader.may_read.set()

    def _tick(self) -> None:
        now = self._clock.monotonic()
        while self._alarms and self._alarms[0][0] <= now:
            self._alarm(heapq.heappop(self._alarms)[1])
        if now - self._ticked < TICK:
            return
        self._ticked = now
        for worker in self.pool.workers:
            if isinstance(worker.busy, Task) and (following := self._all.get(worker.busy.repository)) is not None:
                slow = following.running and now - following.since > self._settings.slow_after
                if slow and following.phase is Phase.STREAM:
                    self._detach(following, Reason.SLOW, f"one task takes more than {self._settings.slow_after:g} s")
        self._hold_back()
        positions = self._backlog.positions()
        renew = now - self._renewed >= RENEW_INTERVAL
        if positions != self._stored or renew:
            self.sender.positions({p: o for p, o in positions.items() if renew or self._stored.get(p) != o})
            self._stored = positions
            self._renewed = now if renew else self._renewed
        if self._settings.check_interval and now >= self._check_at:
            self._check_at = now + self._settings.check_interval
            self._check_next()
        if now >= self._sweep_at and (heavy := self.pool.idle(Lane.HEAVY)) is not None:
            self._sweep_at = now + SWEEP_INTERVAL
            self.pool.give(heavy, Sweep(before=self._clock.now() - 86400 * self._settings.keep_deleted_days))
        if now - self._beaten >= self._settings.beat_interval:
            self._beaten = now
            self._beat()

    def _alarm(self, repository: str) -> None:
        following = self._all.get(repository)
        if following is None:
            return
        following.resting = False
        if following.phase is not Phase.WAITING:
            self._queue(following)
        elif following.running:  # a task from before it was detached
            self._rest(following, 1.0)
        else:
            self._attempt(following)

    def _beat(self) -> None:
        beat = Beat(
            mirror=self._settings.name,
            time=self._clock.now(),
            positions={str(partition): offset for partition, offset in self._stored.items()},
            version=VERSION,
        )
        self.sender.ack(self._settings.name, to_json(beat))
        detached = [following for following in self._all.values() if following.note is not None]
        metrics.DETACHED.set(len(detached))
        metrics.BUFFERED.set(self._backlog.bytes)
        for repository in self._write(self._notes.take_wishes) or ():
            self._grant(repository)
        if any(f.expected > (f.level.seq if f.level else 0) for f in self._all.values()):
            self.sender.ask_ends()

    def _grant(self, repository: str) -> None:
        """An operator's wish: what is followed apart is tried again now, what is not is copied anew from the master."""
        following = self._all.get(repository)
        if following is None:
            return
        if following.running:
            self._write(lambda: self._notes.wish(repository, self._clock.now()))
        elif following.phase is Phase.WAITING:
            self._attempt(following)
        elif following.phase is Phase.STREAM:
            self._detach(following, Reason.DIVERGED, "an operator asked for a new copy")

    # Start and end.

    def adopt(self, found: Found, acked: Ack | None) -> None:
        """A repository found on disk at the start, and what was last said of it."""
        level = found.level
        if level is None:
            log.error("repository damaged", folder=found.folder, reason=found.problem)
            return
        if level.deleted and found.is_aside:
            if level.repository not in self._gone:
                self._note_gone(level)
            self._aside[level.repository] = level
            return
        following = self._following(level.repository, level.path)
        if following.level is not None and following.level.generation >= level.generation:
            return
        following.folder, following.level, following.serving = found.folder, level, found.serving
        following.sent = acked
        if acked is not None:
            following.served_at = acked.served_at
        self._occupy(following)

    def settle(self, acks: Mapping[str, Ack]) -> None:
        """After everything was found: follow apart what notes say, and what has less than it had."""
        for repository, last in self._aside.items():
            told = acks.get(repository)
            if told is not None and told.incarnation == last.incarnation and told.applied < last.seq:
                self._tell_gone(last)
        for note in self._notes.detached():
            if note.repository in self._aside:
                self._notes.rejoin(note.repository)
                continue
            following = self._following(note.repository, note.path)
            following.note, following.phase = note, Phase.WAITING
            if note.reason is Reason.FORK:
                continue
            self._rest(following, 0.0)
        for repository, acked in acks.items():
            if repository in self._gone or acked.applied == 0:
                continue
            following = self._following(repository, "")
            following.sent = acked
            level = following.level
            lost = level is None or (level.incarnation == acked.incarnation and level.seq < acked.applied)
            if following.phase is Phase.STREAM and (lost or acked.detached is not None):
                have = level.seq if level else 0
                self._detach(following, Reason.GAP, f"had events up to {acked.applied}, has {have} now", offset=0)
        for following in self._all.values():
            self._ack(following)
            self._queue(following)

    def close(self, patience: float) -> None:
        """Stops reading, lets the workers end their tasks, and writes the last levels."""
        if self.reader is not None:
            self.reader.stop()
        for source in self._catching_up.values():
            source.stop()
        deadline = self._clock.monotonic() + patience
        while any(worker.busy for worker in self.pool.workers) and self._clock.monotonic() < deadline:
            try:
                arrived = self.inbox.get(timeout=0.1)
            except queue.Empty:
                continue
            if isinstance(arrived, Answered):
                self._answered(arrived)
        self._ticked = float("-inf")
        self._tick()
        self.pool.close(1.0)
        self.sender.close(2.0)


def _deletion(event: Event, now: float) -> Level:
    """The level of a repository that is not here any more, after the event that deleted it."""
    first = before_first(event.repository, event.incarnation, event.path, event.generation)
    return replace(first, seq=event.seq, id=event.id, digest=event.digest, time=now, deleted=True)


def _absent(task: Task, outcome: Outcome, now: float) -> Level | None:
    """The level after the deletion of a repository that never was here: it is deleted here too, and its notice waits for that."""
    last = task.items[outcome.done - 1].event if outcome.done and outcome.level is None else None
    return _deletion(last, now) if last is not None and last.type is Type.DELETED else None


def _tried(note: Detached) -> Detached:
    return replace(note, attempts=note.attempts + 1)

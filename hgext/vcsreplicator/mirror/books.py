# SPDX-License-Identifier: GPL-2.0-or-later
"""What the supervisor knows of all repositories, and what it tells of them: `apart`, `intake` and `supervisor` act on it."""

import heapq
import queue
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import structlog

from ..log import Log, Record, partition_of
from ..words.clock import Clock
from ..words.errors import MalformedEvent, Unavailable
from ..words.event import Event
from ..words.levels import Ack, AggregatorBeat, Reason, RepositoryState
from ..words.path import twin
from ..words.retry import Backoff
from ..words.roster import Mirror, MirrorRole, Roster
from ..words.shape import to_json
from ..words.unexpected import UnexpectedError, fault
from ..words.wire import decode
from .backlog import Backlog
from .checkpoint import Checkpoint, before_first
from .following import Following, Phase
from .notes import DeletedRepository, Notes
from .pool import Lane, WorkerPool
from .settings import MirrorSettings
from .sources import AckWriter, Source
from .task import ReadEvent

T = TypeVar("T")

logger = structlog.get_logger()


class Books:
    """Every repository with its queue, its place and its checkpoint; changed by the supervisor's thread alone."""

    def __init__(
        self,
        settings: MirrorSettings,
        events: Log,
        notes: Notes,
        clock: Clock,
        positions: Mapping[int, int],
    ) -> None:
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.sender = AckWriter(events, settings.group, self.inbox.put)
        self.pool = WorkerPool(settings, self.inbox.put)
        self.reader: Source | None = None
        self.instance = ""
        self._aggregator_beat: AggregatorBeat | None = None
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
        self._acked_gone: set[str] = set()
        self._states: dict[str, RepositoryState] = {}
        self._aside: dict[str, Checkpoint] = {}
        self._unchecked: list[str] = []
        self._undecided: set[str] = set()
        self._cold: dict[str, None] = {}
        self._relocked: set[str] = set()
        self._sweep_at = clock.monotonic() + settings.beat_interval
        self._check_at = clock.monotonic() + settings.check_interval

    def _following(self, repository: str, path: str) -> Following:
        following = self._all.get(repository)
        if following is None:
            following = self._all[repository] = Following(id=repository, path=path)
        return following

    def _item(self, record: Record) -> ReadEvent | None:
        """The checked event of a record, None for a heartbeat. Raises Rejected, also for what nobody foresaw."""
        try:
            return self._read_item(record)
        except Exception as error:
            if (found := fault(error)) is None:
                raise
            raise UnexpectedError(found) from error

    def _read_item(self, record: Record) -> ReadEvent | None:
        if record.value is None:
            raise MalformedEvent("record: a value is missing")
        frame = decode(record.value)
        if frame.header.event is None:
            return None
        event = frame.event
        if record.key != event.repository or record.partition != partition_of(event.repository, self._partitions):
            raise MalformedEvent(f"record: key {str(record.key)[:40]!r} is not the repository {event.repository}")
        return ReadEvent(frame=frame, partition=record.partition, offset=record.offset, size=len(record.value))

    def _is_repeat(self, following: Following, item: ReadEvent) -> bool:
        checkpoint, event = following.checkpoint, item.event
        return checkpoint is not None and (checkpoint.id, checkpoint.incarnation) == (event.id, event.incarnation)

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
            return Lane.REPAIR
        if following.phase is Phase.LEAVING:
            return Lane.LIGHT
        if following.phase is not Phase.WAITING and (items := self._backlog.peek(following.id, events=1, size=0)):
            return Lane.HEAVY if items[0].is_large(self._settings.batch_bytes) else Lane.LIGHT
        return Lane.LIGHT if following.may_release else None

    def _rest(self, following: Following, seconds: float) -> None:
        """Nothing is done for it until the time is over."""
        following.resting, following.until = True, self._clock.monotonic() + seconds
        heapq.heappush(self._alarms, (following.until, following.id))

    @property
    def _member(self) -> Mirror | None:
        """This mirror in the roster."""
        return self._roster.mirror(self._settings.name)

    @property
    def _is_backup(self) -> bool:
        """Whether nothing that is here may go: the roster says so, or the configuration does."""
        return self._settings.backup or (self._member is not None and self._member.role is MirrorRole.BACKUP)

    def _carries(self, path: str) -> bool:
        return self._member is None or self._member.rules.carries(path)

    def _twin(self, following: Following, event: Event) -> str | None:
        """The path of another repository that a careless file system would take for the one of this event; a repeat has none."""
        other = self._all.get(self._places.get(twin(event.path), following.id))
        if other is None or other.id == following.id or other.path == event.path:
            return None
        return None if following.checkpoint is not None and following.checkpoint.is_beyond(event) else other.path

    def _occupy(self, following: Following) -> None:
        self._places[twin(following.path)] = following.id

    def _vacate(self, following: Following) -> None:
        """Gives its path up: whom that kept out is tried again."""
        place = twin(following.path)
        if self._places.get(place) != following.id:
            return
        del self._places[place]
        for other in self._all.values():
            is_refused = other.note is not None and other.note.reason is Reason.REFUSED
            if is_refused and other.phase is Phase.WAITING and twin(other.path) == place:
                self._rest(other, 0.0)

    def _write(self, change: Callable[[], T]) -> T | None:
        """A change of the notes that may fail without harm: what it says is found out again."""
        try:
            return change()
        except Unavailable as error:
            logger.error("note not written", reason=str(error))
            return None

    def _ack(self, following: Following) -> None:
        checkpoint = following.checkpoint
        if checkpoint is None and following.sent is None and following.note is None:
            return
        detached = following.note if following.phase is not Phase.STREAM else None
        ack = Ack(
            mirror=self._settings.name,
            repository=following.id,
            incarnation=checkpoint.incarnation if checkpoint else "",
            applied=checkpoint.seq if checkpoint else 0,
            serving=min(following.serving, checkpoint.seq) if checkpoint else 0,
            floor=following.floor,
            event=checkpoint.id if checkpoint else "",
            digest=checkpoint.digest if checkpoint else "",
            applied_at=checkpoint.time if checkpoint else 0.0,
            served_at=following.served_at or (checkpoint.time if checkpoint else 0.0),
            detached=detached.reason if detached else None,
            note=detached.note if detached else None,
        )
        if ack != following.sent:
            following.sent = ack
            self.sender.ack(f"{self._settings.name}/{following.id}", to_json(ack))

    def _note_gone(self, checkpoint: Checkpoint) -> None:
        gone = DeletedRepository(
            repository=checkpoint.repository,
            path=checkpoint.path,
            incarnation=checkpoint.incarnation,
            seq=checkpoint.seq,
            since=self._clock.now(),
        )
        self._gone[checkpoint.repository] = gone
        self._write(lambda: self._notes.let_go(gone))  # what is set aside on disk says it too

    def _let_go(self, following: Following, checkpoint: Checkpoint) -> None:
        self._note_gone(checkpoint)
        self._vacate(following)
        following.checkpoint, following.serving, following.served_at = checkpoint, checkpoint.seq, self._clock.now()

    def _tell_gone(self, checkpoint: Checkpoint) -> None:
        """A deletion from before a kill that came before its ack."""
        following = self._following(checkpoint.repository, checkpoint.path)
        following.checkpoint, following.serving, following.served_at = checkpoint, checkpoint.seq, self._clock.now()
        self._ack(following)


def deletion(of: Event | RepositoryState, now: float) -> Checkpoint:
    """The checkpoint of a repository that is not here any more, after the event that deleted it."""
    first = before_first(of.repository, of.incarnation, of.path, of.generation)
    last = of.event if isinstance(of, RepositoryState) else of.id
    return replace(first, seq=of.seq, id=last, digest=of.digest, time=now, deleted=True)

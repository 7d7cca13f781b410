# SPDX-License-Identifier: GPL-2.0-or-later
"""The newest events of the log, and when each was released and announced.

They are as many as fit a fixed amount of memory.
"""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import structlog

from ..log import EVENTS, NOTICES, STATE, Log, Reader, Record
from ..status.pushes import SHORTEST, name_nodes
from ..words import wire
from ..words.event import read_disclosure
from ..words.records import AGGREGATOR, Notice, RepositoryState
from ..words.shape import from_json

# Events that are kept, of one repository and in all.
PER_REPOSITORY, IN_ALL = 20, 20_000

# Changesets and bookmarks by which an event is found, and characters of a name that are kept.
FINDABLE, NAME = 4, 100

# Records of each partition of `events`, of `notices`, and of `state`, that are read at the start. Those of `state` say what was
# released before: only then a later one is known to be the release of an event.
EVENTS_BEFORE, NOTICES_BEFORE, STATES_BEFORE = 200, 2000, 2000

# Records of one read: a frame has up to 512 KiB.
BATCH = 50

# Seconds whose counts of pushes are kept: more than a minute, because partitions are read one after the other.
SECONDS = 10_000

# Announcements that are kept for readers of the feed.
ANNOUNCED = 500

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentEvent:
    """The kept members of an event.

    Times are in seconds since the epoch, None if it did not happen while the dashboard followed the log. `released` is None also
    where the records that were read do not show which of them released the event. `number` is its place among the announcements.
    `nodes` and `bookmarks` are the event's first that messages may name. `is_adoption` says that it brought no change, but a
    repository that was there before.
    """

    repository: str
    incarnation: str
    path: str
    seq: int
    id: str
    type: str
    time: float
    logged: float
    partition: int
    offset: int
    push: int | None
    user: str | None
    nodes: tuple[str, ...] = ()
    bookmarks: tuple[str, ...] = ()
    is_adoption: bool = False
    released: float | None = None
    announced: float | None = None
    notice: int | None = None
    number: int = -1

    def has_word(self, word: str) -> bool:
        """Return whether a name contains the word in lower case, or a hash begins with it."""
        names = (self.path, self.user or "", *self.bookmarks)
        return word in "\n".join(names).casefold() or (
            len(word) >= SHORTEST and any(node.startswith(word) for node in self.nodes)
        )


@dataclass(frozen=True, slots=True)
class _Release:
    """The newest record of a repository's state, and what the one before it released.

    `before` is None if no record before it was read: then `at` may be long after the release.
    """

    incarnation: str
    before: int | None
    released: int
    at: float

    def date(self, event: RecentEvent) -> float | None:
        """Return when this record released the event, None if it did not, or may not."""
        if event.incarnation != self.incarnation or self.before is None:
            return None
        return self.at if self.before < event.seq <= self.released else None


class Announcements:
    """The newest announcements, in the order in which they became known.

    That is not the order of the notices, because a notice may be read before its event. An event is announced once, even if the
    log is read again.
    """

    def __init__(self) -> None:
        self.newest: deque[RecentEvent] = deque(maxlen=ANNOUNCED)
        self._known: dict[str, None] = {}
        self._count = 0

    def add(self, event: RecentEvent) -> None:
        """Add an announcement, unless it is known."""
        if event.id in self._known:
            return
        self._known[event.id] = None
        if len(self._known) > 2 * NOTICES_BEFORE:  # more than are read again
            del self._known[next(iter(self._known))]
        self.newest.append(replace(event, number=self._count))
        self._count += 1


class RecentEvents:
    """Follows `events`, `notices` and `state`; used by one thread."""

    def __init__(self, log: Log, announcements: Announcements | None = None) -> None:
        self._announcements = announcements or Announcements()
        self._reader = _open_reader(log)
        self._events: dict[str, RecentEvent] = {}
        self._by_repository: dict[str, deque[str]] = {}
        # Pushes by the second in which they came to the log.
        self._pushes = Counter[int]()
        # Event id → record of a notice that was read before its event: no order is meant between two topics.
        self._early: dict[str, tuple[float, int]] = {}
        self._releases: dict[str, _Release] = {}

    @property
    def announced(self) -> deque[RecentEvent]:
        return self._announcements.newest

    def wake(self) -> None:
        """Make the running or the next `read_on` return at once; any thread may call it."""
        self._reader.wake()

    def close(self) -> None:
        self._reader.close()

    def read_on(self, wait: float) -> bool:
        """Take what is new, and return whether there was anything.

        Raises Unavailable, or Expired, after which the caller opens another instance.
        """
        records = self._reader.poll(wait, limit=BATCH)
        for record in records:
            try:
                self._take_record(record)
            except Exception as error:  # one record must not end the pages; the others tell their own story
                place = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
                logger.warning("record set aside", **place, kind=type(error).__name__, reason=str(error))
        return bool(records)

    def of(self, repository: str) -> list[RecentEvent]:
        """Return the events of a repository, the newest first."""
        names = self._by_repository.get(repository, ())
        return [self._events[name] for name in reversed(names) if name in self._events]

    def newest(self) -> Iterator[RecentEvent]:
        """Yield all events, the newest first."""
        return reversed(self._events.values())

    def count_pushes(self, now: float) -> int:
        """Count the pushes of the last minute, those too whose events are not kept."""
        return sum(count for second, count in self._pushes.items() if abs(int(now) - second) < 60)

    def _take_record(self, record: Record) -> None:
        if record.value is None or record.key in (None, AGGREGATOR):
            return
        if record.topic == EVENTS:
            self._add_event(record)
        elif record.topic == NOTICES:
            notice = from_json(Notice, record.value)
            if notice.replay is None:
                self._add_notice(notice.event.id, record.time, record.offset)
        else:
            self._add_state(from_json(RepositoryState, record.value), record.time)

    def _add_state(self, state: RepositoryState, at: float) -> None:
        last = self._releases.pop(state.repository, None)
        before = last.released if last and last.incarnation == state.incarnation else None
        self._releases[state.repository] = release = _Release(state.incarnation, before, state.released, at)
        if len(self._releases) > IN_ALL:
            del self._releases[next(iter(self._releases))]
        for known in self.of(state.repository):
            if known.released is None and (released := release.date(known)) is not None:
                self._events[known.id] = replace(known, released=released)

    def _add_notice(self, name: str, at: float, offset: int) -> None:
        known = self._events.get(name)
        if known is None:
            self._early[name] = at, offset
            if len(self._early) > NOTICES_BEFORE:
                del self._early[next(iter(self._early))]
        elif known.notice is None:
            self._events[name] = known = replace(known, announced=at, notice=offset)
            self._announcements.add(known)

    def _add_event(self, record: Record) -> None:
        event = wire.decode(record.value or b"").header.event
        if event is None or event.id in self._events:  # a heartbeat, or a repeat
            return
        push, shown = event.changes.push, read_disclosure(event)
        known = RecentEvent(
            repository=event.repository,
            incarnation=event.incarnation,
            path=event.path,
            seq=event.seq,
            id=event.id,
            type=event.type.value,
            time=event.time,
            logged=record.time,
            partition=record.partition,
            offset=record.offset,
            push=push.id if push else None,
            user=push.user[:NAME] if push else None,
            nodes=tuple(name_nodes(shown)[:FINDABLE]),
            bookmarks=tuple(each.name[:NAME] for each in shown.bookmarks[:FINDABLE]),
            is_adoption="adopted" in (event.detail or {}).values(),
        )
        release = self._releases.get(event.repository)
        self._events[event.id] = replace(known, released=release.date(known)) if release else known
        if push:
            self._pushes[int(record.time)] += 1
            if len(self._pushes) > SECONDS:
                del self._pushes[next(iter(self._pushes))]
        names = self._by_repository.setdefault(event.repository, deque())
        names.append(event.id)
        if early := self._early.pop(event.id, None):
            self._add_notice(event.id, *early)
        if len(names) > PER_REPOSITORY:
            self._events.pop(names.popleft(), None)
        if len(self._events) > IN_ALL:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        oldest = self._events.pop(next(iter(self._events)))
        names = self._by_repository[oldest.repository]
        names.remove(oldest.id)
        if not names:
            del self._by_repository[oldest.repository]


def _open_reader(log: Log) -> Reader:
    """Open a reader of the last events and notices, and of all that follows."""
    positions = {}
    for topic, before in ((EVENTS, EVENTS_BEFORE), (NOTICES, NOTICES_BEFORE), (STATE, STATES_BEFORE)):
        beginnings = log.beginnings(topic)
        for partition, end in log.ends(topic).items():
            positions[topic, partition] = max(beginnings[partition], end - before)
    return log.reader(positions)

# SPDX-License-Identifier: GPL-2.0-or-later
"""Events that were read and are not yet finished.

They are in order per repository and counted in bytes, with the position behind them. Pure.
"""

from collections import deque
from collections.abc import Mapping

from ...log import EVENTS, Record, partition_of
from ...words.errors import MalformedEvent, counted
from ...words.unexpected import fault
from ...words.wire import decode
from ..task import ReadEvent


class Backlog:
    """The queues of all repositories.

    A position never passes an event that is still in its queue. Events a catch-up reader brings (`tracked=False`) are queued but
    hold no position: a durable note does.
    """

    def __init__(self, positions: Mapping[int, int]) -> None:
        self.bytes = self.tracked_bytes = 0
        self.partitions = len(positions)
        self._next = dict(positions)
        self._open: dict[int, dict[int, None]] = {partition: {} for partition in positions}
        self._queues: dict[str, deque[tuple[ReadEvent, bool]]] = {}
        self._sizes: dict[str, int] = {}

    def read_to(self, partition: int, position: int) -> None:
        """Go on at this position: the records before it were read, or the log lost them."""
        self._next[partition] = position

    def add(self, repository: str, item: ReadEvent, *, tracked: bool = True) -> None:
        """Queue an event; a tracked one holds its partition's position until it is done."""
        if tracked:
            self.read_to(item.partition, item.offset + 1)
            self._open[item.partition][item.offset] = None
            self.tracked_bytes += item.size
        self._queues.setdefault(repository, deque()).append((item, tracked))
        self._sizes[repository] = self._sizes.get(repository, 0) + item.size
        self.bytes += item.size

    def queued_from(self, partition: int, offset: int) -> list[str]:
        """Return the repositories whose events hold the position at this offset or later."""
        return [
            repository
            for repository, queue in self._queues.items()
            if any(tracked and item.partition == partition and item.offset >= offset for item, tracked in queue)
        ]

    def peek(self, repository: str, *, events: int, size: int) -> tuple[ReadEvent, ...]:
        """Return the oldest queued events of a repository: one, and more if they fit."""
        taken: list[ReadEvent] = []
        total = 0
        for item, _ in self._queues.get(repository, ()):
            total += item.size
            if taken and (len(taken) >= events or total > size):
                break
            taken.append(item)
        return tuple(taken)

    def finish(self, repository: str, count: int) -> None:
        """Remove the `count` oldest events of a repository: they need no more work."""
        queue = self._queues.get(repository)
        for _ in range(count):
            assert queue
            item, tracked = queue.popleft()
            if tracked:
                del self._open[item.partition][item.offset]
                self.tracked_bytes -= item.size
            self._sizes[repository] -= item.size
            self.bytes -= item.size
        if queue is not None and not queue:
            del self._queues[repository], self._sizes[repository]

    def drop(self, repository: str) -> None:
        """Remove all events of a repository; a durable note says where to read again."""
        self.finish(repository, len(self._queues.get(repository, ())))

    def is_worked_off(self, repository: str) -> bool:
        """Return whether no event of a catch-up reader is queued."""
        return all(tracked for _, tracked in self._queues.get(repository, ()))

    def size(self, repository: str) -> int:
        return self._sizes.get(repository, 0)

    def next(self, partition: int) -> int:
        """Return the offset behind the last record read from a partition."""
        return self._next[partition]

    def oldest(self) -> float | None:
        """Return when the log took the oldest queued event; None if none is queued."""
        return min((queue[0][0].time for queue in self._queues.values() if queue), default=None)

    def positions(self) -> dict[int, int]:
        """Return each partition's position: everything before is applied or noted."""
        return {partition: next(iter(self._open[partition]), after) for partition, after in self._next.items()}


def checked_event(record: Record, partitions: int) -> ReadEvent | None:
    """Return the event of a record, None for a heartbeat; raises Rejected."""
    try:
        return _decode_record(record, partitions)
    except Exception as error:
        if (found := fault(error)) is None:
            raise
        raise found from error


def _decode_record(record: Record, partitions: int) -> ReadEvent | None:
    if record.value is None:
        raise MalformedEvent("record: a value is missing")
    frame = decode(record.value)
    if frame.header.event is None:
        return None
    event = frame.event
    if record.key != event.repository:
        raise MalformedEvent(f"record: key {str(record.key)[:40]!r} is not the repository {event.repository}")
    if record.partition != (own := partition_of(event.repository, partitions)):
        raise MalformedEvent(
            f"record: stands in partition {record.partition}, and of {counted(partitions, 'partition')} the repository has {own}; "
            f"if partitions were added to {EVENTS}, restart all services (docs/log.md, Topics)"
        )
    size = len(record.value)
    return ReadEvent(frame=frame, partition=record.partition, offset=record.offset, size=size, time=record.time)

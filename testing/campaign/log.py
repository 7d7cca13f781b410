# SPDX-License-Identifier: GPL-2.0-or-later
"""The log as one process sees it: faults strike at its calls, and no call waits."""

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from hgext.vcsreplicator.log import (
    GroupMember,
    Log,
    NewRecord,
    PartitionKey,
    Positions,
    Reader,
    Record,
    Topic,
    TopicComparison,
)
from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import Rewound, Unavailable
from testing.builders.log.memorylog import MemoryLog, MemoryReader, MemoryTransactor

T = TypeVar("T")


class Killed(BaseException):
    """The process ends here; nothing of the product may catch it."""


class Call(enum.Enum):
    """What a process is about to do: ask the log, write to it, or act elsewhere."""

    READ = 1
    WRITE = 2
    ELSEWHERE = 3


class SteppedLog(MemoryLog):
    """A log in memory whose readers never wait, and which tells of each record that it takes.

    What compaction has removed comes back if newer records of its key are lost: a broker has not compacted what is that new.
    """

    # How many transactors were opened.
    turns = 0

    def __init__(self, clock: Clock, take: Callable[[NewRecord], None]) -> None:
        super().__init__(clock)
        self._take = take
        self._written: dict[PartitionKey, list[Record]] = {}
        # Of each loss: where the partition ended then.
        self.losses: list[tuple[PartitionKey, int]] = []

    def wait(self, reader: MemoryReader, timeout: float) -> None:
        """Return at once: the next step of another actor may bring records."""

    def put(self, message: NewRecord) -> tuple[int, int]:
        partition, offset = super().put(message)
        place = message.topic, partition
        self._written.setdefault(place, []).append(self._records[place][offset])
        self._take(message)
        return partition, offset

    def lose(self, topic: str, partition: int, count: int) -> None:
        super().lose(topic, partition, count)
        place = topic, partition
        end = self._ends[place]
        kept = self._written[place] = [each for each in self._written.get(place, []) if each.offset < end]
        self.losses.append((place, end))
        if self._topics[topic].compacted:
            newest = {each.key: each for each in kept}
            self._records[place] = {each.offset: each for each in kept if newest[each.key] is each}
            self._newest = {key: at for key, at in self._newest.items() if key[:2] != place}
            self._newest.update(((*place, key), each.offset) for key, each in newest.items())


class ProcessLog(Log):
    """The log of one life of a process.

    `gate` is called before each call, and may raise Killed or Unavailable; what it returns is called after a call that wrote.
    """

    def __init__(self, log: SteppedLog, life: int, gate: Callable[[Call], Callable[[], None]]) -> None:
        self.memory, self.life, self._gate = log, life, gate
        # Reading threads of a mirror, which the campaign steps.
        self.sources: list[Any] = []
        self.on_commit: Callable[[str, int, Mapping[PartitionKey, int]], None] = lambda identity, turn, positions: None

    def call(self, act: Callable[[], T], kind: Call = Call.READ) -> T:
        after = self._gate(kind)
        found = act()
        after()
        return found

    def create(self, wanted: Sequence[Topic]) -> list[str]:
        return self.memory.create(wanted)

    def compare(self, wanted: Sequence[Topic]) -> list[TopicComparison]:
        return self.memory.compare(wanted)

    def partitions(self, topic: str) -> int:
        return self.memory.partitions(topic)

    def append(self, messages: Sequence[NewRecord], *, timeout: float = 30.0) -> list[tuple[int, int]]:
        return self.call(lambda: self.memory.append(messages), Call.WRITE)

    def reader(self, positions: Mapping[PartitionKey, int]) -> Reader:
        return ProcessReader(self, self.memory.reader(positions))

    def transactor(self, identity: str, *, group: str | None = None) -> "ProcessTransactor":
        return self.call(lambda: ProcessTransactor(self, identity, self.memory.transactor(identity, group=group)))

    def member(self, group: str, topic: str) -> GroupMember:
        return self.memory.member(group, topic)

    def acknowledge(
        self, group: str, topic: str, positions: Positions, *, metadata: Mapping[int, str] | None = None
    ) -> None:
        self.call(lambda: self.memory.acknowledge(group, topic, positions, metadata=metadata), Call.WRITE)

    def metadata(self, group: str, topic: str) -> dict[int, str]:
        return self.call(lambda: self.memory.metadata(group, topic))

    def stored(self, group: str, topic: str) -> dict[int, int]:
        return self.call(lambda: self.memory.stored(group, topic))

    def groups(self, topic: str) -> dict[str, dict[int, int]]:
        return self.call(lambda: self.memory.groups(topic))

    def beginnings(self, topic: str, partitions: Collection[int] | None = None) -> dict[int, int]:
        return self.call(lambda: self.memory.beginnings(topic, partitions))

    def ends(self, topic: str, partitions: Collection[int] | None = None) -> dict[int, int]:
        return self.call(lambda: self.memory.ends(topic, partitions))

    def close(self) -> None:
        """Nothing is open."""


class ProcessReader:
    """A reader whose polls are calls of its process; it notices a loss of what it read, also if others fill the places."""

    def __init__(self, log: ProcessLog, reader: MemoryReader) -> None:
        self._log, self._reader, self._known = log, reader, len(log.memory.losses)

    def poll(self, timeout: float, *, limit: int = 500) -> list[Record]:
        return self._log.call(lambda: self._read(limit))

    def _read(self, limit: int) -> list[Record]:
        positions = self._reader.positions()
        for place, end in self._log.memory.losses[self._known :]:
            if positions.get(place, 0) > end:
                raise Rewound(f"{place}: the log lost records from {end} on")
        self._known = len(self._log.memory.losses)
        return self._reader.poll(0.0, limit=limit)

    def has_more(self) -> bool:
        """Whether a poll would find anything, or that a position is gone; no call of the log."""
        return self._reader.anything(self._log.memory._ends)

    def positions(self) -> dict[PartitionKey, int]:
        return self._reader.positions()

    def pause(self, partitions: Sequence[PartitionKey]) -> None:
        self._reader.pause(partitions)

    def resume(self, partitions: Sequence[PartitionKey]) -> None:
        self._reader.resume(partitions)

    def wake(self) -> None:
        self._reader.wake()

    def close(self) -> None:
        self._reader.close()


class ProcessTransactor:
    """A transactor that, after Unavailable, must be renewed before it commits again, as the port says."""

    def __init__(self, log: ProcessLog, identity: str, transactor: MemoryTransactor) -> None:
        self._log, self._identity, self._transactor = log, identity, transactor
        self._is_unclear = False
        SteppedLog.turns += 1
        self._turn = SteppedLog.turns
        # It fences, and so proves as much as a commit.
        log.on_commit(identity, self._turn, {})

    def commit(
        self,
        messages: Sequence[NewRecord],
        *,
        group: str | None = None,
        positions: Mapping[PartitionKey, int] | None = None,
        metadata: Mapping[PartitionKey, str] | None = None,
        newest: Mapping[PartitionKey, int] | None = None,
    ) -> list[tuple[int, int]]:
        assert not self._is_unclear, f"{self._identity}: committed again before it was renewed"

        def act() -> list[tuple[int, int]]:
            places = self._transactor.commit(
                messages, group=group, positions=positions, metadata=metadata, newest=newest
            )
            self._log.on_commit(self._identity, self._turn, positions or {})
            return places

        try:
            return self._log.call(act, Call.WRITE)
        except Unavailable:
            self._is_unclear = True
            raise

    def expect(self, topics: Sequence[str]) -> None:
        self._transactor.expect(topics)

    def renew(self) -> None:
        self._log.call(self._transactor.renew)
        self._is_unclear = False

    def close(self) -> None:
        self._transactor.close()

# SPDX-License-Identifier: GPL-2.0-or-later
"""A log that loses its newest record while it is read, as a log that is restored meanwhile."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hgext.vcsreplicator.log import PartitionKey, Reader
from testing.builders.log.memorylog import MemoryLog


@dataclass
class LosingLog:
    """A log in memory that loses the newest record of `topic` once its ends were asked for; `asked` counts those questions."""

    log: MemoryLog
    topic: str
    is_lossy: bool = True
    asked: int = 0

    def beginnings(self, topic: str, partitions: Collection[int] | None = None) -> dict[int, int]:
        return self.log.beginnings(topic, partitions)

    def ends(self, topic: str, partitions: Collection[int] | None = None) -> dict[int, int]:
        ends = self.log.ends(topic, partitions)
        if topic == self.topic:
            self.asked += 1
            if self.is_lossy:
                self.log.lose(topic, 0, 1)
                self.is_lossy = False
        return ends

    def shares(self, beginning: str) -> dict[str, list[PartitionKey]]:
        return {}

    def reader(self, positions: Mapping[PartitionKey, int]) -> Reader:
        return self.log.reader(positions)

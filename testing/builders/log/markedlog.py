# SPDX-License-Identifier: GPL-2.0-or-later
"""A log whose topics have one record and a transaction marker behind it, as Kafka's have, and what its readers wait for."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from hgext.vcsreplicator.log import PartitionKey, Reader, Record


@dataclass
class MarkedLog:
    """The log; `waits` has the seconds of each poll."""

    waits: list[float] = field(default_factory=list)

    def beginnings(self, topic: str, partitions: Collection[int] | None = None) -> dict[int, int]:
        return {0: 0}

    def ends(self, topic: str, partitions: Collection[int] | None = None) -> dict[int, int]:
        return {0: 2}

    def shares(self, beginning: str) -> dict[str, list[PartitionKey]]:
        return {}

    def reader(self, positions: Mapping[PartitionKey, int]) -> Reader:
        [((topic, _), at)] = positions.items()
        return MarkedReader(self, topic, at)


class MarkedReader:
    """Returns the record at once. It passes the marker during a poll that waits, which then lasts as long as it may."""

    def __init__(self, log: MarkedLog, topic: str, at: int) -> None:
        self._log, self._topic, self._at = log, topic, at

    def poll(self, timeout: float, *, limit: int = 500) -> list[Record]:
        self._log.waits.append(timeout)
        if self._at == 0:
            self._at = 1
            return [Record(topic=self._topic, partition=0, offset=0, key="r", value=b"{}", time=1.0, headers={})]
        if timeout:
            self._at = 2
        return []

    def positions(self) -> dict[PartitionKey, int]:
        return {(self._topic, 0): self._at}

    def pause(self, partitions: Sequence[PartitionKey]) -> None: ...

    def resume(self, partitions: Sequence[PartitionKey]) -> None: ...

    def wake(self) -> None: ...

    def close(self) -> None: ...

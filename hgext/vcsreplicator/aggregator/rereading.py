# SPDX-License-Identifier: GPL-2.0-or-later
"""Partitions of `events` that are read again, because an event was never taken.

The event stands before the position, so a partition is read from its beginning up to the position: a slice at a time, between the
other work. Meanwhile other partitions, levels and notices go on, and the service sends heartbeats and stops when asked. Records
behind the position of such a partition wait until the rereading has ended: only then do they follow the known events.

A partition is reread only for records that came after the last rereading, because that one missed nothing that the log still has.
The next one begins at the last record of the one before, unless another record stands there now: a log that lost records lost its
newest. So each record is reread at most once, however many gaps come.
"""

from collections.abc import Callable

import structlog

from ..log import EVENTS, Log, Reader, Record
from ..words.errors import Unavailable
from .decisions.aggregation import Aggregation
from .decisions.memory import RecordOutcome

# Records of one read.
SLICE = 500

# Longest wait for them in seconds: how long the other work may be held up when the log is slow.
WAIT = 0.02

logger = structlog.get_logger()


class Rereading:
    """The partitions that are being read again; used by one thread.

    `commit` writes the aggregation's next batch. `whole` has the partitions that were read from their beginning, with their end at
    that time: events missing before this offset are lost. From there on the log may have lost records and filled their places.
    """

    def __init__(self, log: Log, aggregation: Aggregation, commit: Callable[[], None]) -> None:
        self._log, self._aggregation, self._commit = log, aggregation, commit
        self._readers: dict[int, Reader] = {}
        self._ends: dict[int, int] = {}
        self._last: dict[int, Record] = {}
        positions = aggregation.positions
        read = [partition for topic, partition in positions if topic == EVENTS]
        ends, beginnings = log.ends(EVENTS, read), log.beginnings(EVENTS, read).items()
        self.whole = {partition: ends[partition] for partition, at in beginnings if positions[EVENTS, partition] <= at}

    def __bool__(self) -> bool:
        return bool(self._readers)

    def __contains__(self, partition: int) -> bool:
        return partition in self._readers

    def is_whole(self, record: Record) -> bool:
        """Return whether the partition had this record when read from its beginning."""
        return record.offset < self.whole.get(record.partition, -1)

    def close(self) -> None:
        """Free everything; an unfinished rereading counts as never begun."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def begin(self, partition: int) -> None:
        """Begin to read the partition again.

        Raises Unavailable, also if it did not answer at the start and is not read at all.
        """
        place = (EVENTS, partition)
        if place not in self._aggregation.positions:
            raise Unavailable(f"topic {EVENTS}, partition {partition}: has to be read again, and did not answer")
        end, start = self._aggregation.positions[place], self._log.beginnings(EVENTS, [partition])[partition]
        newest = max(end, self._log.ends(EVENTS, [partition])[partition])
        if partition in self._last:
            start = max(start, self._last[partition].offset)
        logger.warning("events are read again", partition=partition, count=end - start)
        self._readers[partition], self._ends[partition] = self._log.reader({place: start}), end
        self.whole[partition] = newest

    def slice(self, now: float) -> list[int]:
        """Take some records of each partition; return the partitions that are done.

        A partition is done, too, if the log ends earlier than before.
        """
        return [partition for partition in list(self._readers) if self._read_slice(partition, now)]

    def _read_slice(self, partition: int, now: float) -> bool:
        reader, place = self._readers[partition], (EVENTS, partition)
        records = reader.poll(WAIT, limit=SLICE)
        last = self._last.get(partition)
        if records and last is not None and records[0].offset <= last.offset:
            if records[0] != last:
                del self._last[partition]
                reader.close()
                self.begin(partition)
                return False
            records = records[1:]
        for record in records:
            if record.offset < self._ends[partition]:
                self._last[partition] = record
                while self._aggregation.events.take_again(record, now) is RecordOutcome.UNFINISHED:
                    self._commit()
                if self._aggregation.output.is_full:
                    self._commit()
        if not records:
            self._ends[partition] = min(self._ends[partition], self._log.ends(EVENTS, [partition])[partition])
        if reader.positions()[place] < self._ends[partition]:
            return False
        del self._readers[partition]
        reader.close()
        self._aggregation.events.settle_forks(partition, now)
        return True

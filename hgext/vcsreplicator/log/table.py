# SPDX-License-Identifier: GPL-2.0-or-later
"""Topics read to their end: whole tables, and every record.

**End** here means the ends as of the call: every record that readers could see then is read, and perhaps some later ones. On Kafka
they see a commit only milliseconds after it has returned; a caller that needs all commits of a transactor opens one of the same
identity first. Transaction markers of Kafka have offsets, too; a reader passes them without returning a record, so its positions
decide whether the end is reached, never the offset of a record.

- A log that loses records meanwhile has its end earlier: reading stops there instead of waiting for records that are gone.
- Unavailable, Expired and Rewound of the reader reach the caller. The records read until then are incomplete: the caller reads
  again, with a new reader after Expired or Rewound.
- `stop` ends the wait for records by ReadStopped, so that no caller takes the first part of a topic for the whole.

Standard library only, because a push that sends its own events imports it.
"""

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from dataclasses import dataclass

from ..words.errors import Unavailable
from . import Log, PartitionKey, Reader, Record

# Seconds of one wait for records: the first, and the longest, up to which they double. No poll returns the transaction markers at
# the end, so each wait may be for nothing. The longest is how late `stop` is seen.
FIRST_POLL, POLL = 0.005, 0.2

# Records of one read.
BATCH = 5000

# Seconds that the oldest record of a partition may take: a stop waits for it too.
PATIENCE = 2.0


class ReadStopped(Exception):
    """The reading was stopped before the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The newest record of each key, in order, and the `positions` behind them."""

    records: dict[tuple[str, str], Record]
    positions: dict[PartitionKey, int]

    def value(self, topic: str, key: str) -> bytes | None:
        record = self.records.get((topic, key))
        return None if record is None else record.value


def read_table(
    log: Log,
    *topics: str,
    stop: threading.Event | None = None,
    keep: Callable[[Record], bool] = lambda record: True,
) -> Table:
    """Read compacted topics whole; hold only the records that `keep` wants, which are the newest of their keys.

    A key whose newest record is a tombstone is absent, and so are records without a key. Records of different topics or partitions
    have no order.
    """
    newest: dict[tuple[str, str], Record] = {}
    with closing(log.reader(find_beginnings(log, *topics))) as reader:
        for record in read_on(log, reader, stop=stop):
            if record.key is None:
                continue
            newest.pop((record.topic, record.key), None)
            if record.value is not None and keep(record):
                newest[record.topic, record.key] = record
        return Table(records=newest, positions=reader.positions())


def read_records(
    log: Log, positions: dict[PartitionKey, int], *, stop: threading.Event | None = None
) -> Iterator[Record]:
    """Yield every record from these positions up to the end, tombstones included."""
    with closing(log.reader(positions)) as reader:
        yield from read_on(log, reader, stop=stop)


def read_on(
    log: Log, reader: Reader, *, stop: threading.Event | None = None, batch: int | None = None
) -> Iterator[Record]:
    """Yield the records that a reader has not returned yet, up to the end.

    A poll asks for at most `batch` records, otherwise for BATCH. The reader stays open, and a later call may go on with it. It is
    polled at least once, so that it notices a log that lost records. Its positions run ahead of the yielded records: they are right
    once the iterator is exhausted.
    """
    ends = _find_ends(log, reader)
    wait = 0.0
    while True:
        records = reader.poll(wait, limit=batch or BATCH)
        if stop is not None and stop.is_set():
            raise ReadStopped
        yield from records
        positions = reader.positions()
        if all(positions[place] >= end for place, end in ends.items()):
            return
        if not records and wait == POLL:
            now = _find_ends(log, reader)
            ends = {place: min(end, now[place]) for place, end in ends.items()}
        wait = min(max(2 * wait, FIRST_POLL), POLL)


def find_beginnings(log: Log, *topics: str) -> dict[PartitionKey, int]:
    return {(topic, partition): at for topic in topics for partition, at in log.beginnings(topic).items()}


def find_answered_ends(log: Log, topic: str, partitions: Collection[int]) -> dict[int, int]:
    """Return the ends of the partitions that answer now, of the given ones."""
    if not partitions:
        return {}
    try:
        return log.ends(topic, partitions)
    except Unavailable:
        if len(partitions) == 1:
            return {}
    return {each: end for one in partitions for each, end in find_answered_ends(log, topic, [one]).items()}


def find_oldest_time(log: Log, topic: str) -> float | None:
    """Return when the oldest record of a topic was written; None if it has none.

    Raises Unavailable, also if a record that should be there does not come within `PATIENCE`, and Expired if it expires meanwhile.
    """
    times, ends = [], log.ends(topic)
    for partition, beginning in log.beginnings(topic).items():
        if beginning == ends[partition]:
            continue
        with closing(log.reader({(topic, partition): beginning})) as reader:
            records = reader.poll(PATIENCE, limit=1)
            if not records and reader.positions()[topic, partition] < ends[partition]:
                raise Unavailable(f"topic {topic}, partition {partition}: no record came within {PATIENCE:g} s")
            times += [record.time for record in records]
    return min(times, default=None)


def _find_ends(log: Log, reader: Reader) -> dict[PartitionKey, int]:
    places = reader.positions().keys()
    ends = {topic: log.ends(topic) for topic in {topic for topic, _ in places}}
    return {(topic, partition): ends[topic][partition] for topic, partition in places}

# SPDX-License-Identifier: GPL-2.0-or-later
"""Unpacking of brokers' answers, such that no record stops a reader.

Brokers return what any client wrote, and check little of it.

The library fails at a record that it cannot unpack, again at each attempt: a header whose name is not UTF-8 is enough, and where a
topic lets clients compress, so is a batch in a form that it does not know. Here the whole batch becomes one record, at the last
offset of the batch, whose value says so: every consumer of this project rejects it. A batch with a wrong checksum is still an
error: its cause is a disk or a network, not a client.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from kafka.consumer import fetcher
from kafka.consumer.fetcher import ConsumerRecord, Fetcher
from kafka.record.default_records import DefaultRecord, DefaultRecordBatch

from ...words.errors import counted
from .. import LATEST, Record

# Of most records that services keep by the million.
_NO_HEADERS: Mapping[str, str] = {}


class RecordBatch(DefaultRecordBatch):  # type: ignore[misc]  # the client comes without types
    """The records of a batch, or a record of why there are none."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        try:
            self._maybe_uncompress()
            return iter([self._read_msg() for _ in range(self.records_count)])
        except Exception as error:
            said = f"unreadable: {counted(self.records_count, 'record')} of one client: {error!r}"[:500].encode(
                "utf-8", "replace"
            )
            kind, size = self.timestamp_type, self.size_in_bytes
            return iter([DefaultRecord(size, self.last_offset, self.max_timestamp, kind, None, said, [])])


class Batches:
    """The batches of one partition in an answer."""

    def __init__(self, records: Any) -> None:
        self._records = records

    def next_batch(self) -> Any:
        batch = self._records.next_batch()
        if isinstance(batch, DefaultRecordBatch):
            batch.__class__ = RecordBatch
        return batch


class Unpacked(Fetcher.PartitionRecords):  # type: ignore[misc]
    """The records that `Fetcher` makes of an answer, with this module's batches."""

    def _unpack_records(self, partition: Any, records: Any, *rest: Any) -> Any:
        return super()._unpack_records(partition, Batches(records), *rest)


class _FetchedPartition(fetcher._FetchPartition):  # type: ignore[misc]
    """A partition of a fetch request; the next request is compared with it.

    The library makes one for each partition and request, and compares all their fields: half of the work for a request. Here equal
    ones are mostly the same.
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other or bool(super().__eq__(other))


def remember_partitions() -> None:
    """Let readers of this process use partitions of earlier fetch requests again."""
    if not hasattr(fetcher._FetchPartition, "cache_info"):
        fetcher._FetchPartition = lru_cache(maxsize=1024)(_FetchedPartition)


def record_of(topic: str, partition: int, record: ConsumerRecord) -> Record:
    """Convert a Kafka record.

    A time that no clock can show becomes the nearest possible one.
    """
    return Record(
        topic=topic,
        partition=partition,
        offset=record.offset,
        key=None if record.key is None else _decode_text(record.key),
        value=record.value,
        headers={name: _decode_text(data or b"") for name, data in record.headers} if record.headers else _NO_HEADERS,
        time=min(max(record.timestamp / 1000, 0.0), LATEST),
    )


def _decode_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")

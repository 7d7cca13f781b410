# SPDX-License-Identifier: GPL-2.0-or-later
"""The checked event of a record. Pure."""

from ...log import Record, partition_of
from ...words.errors import MalformedEvent
from ...words.unexpected import UnexpectedError, fault
from ...words.wire import decode
from ..task import ReadEvent


def checked_event(record: Record, partitions: int) -> ReadEvent | None:
    """Return the event of a record, None for a heartbeat; raises Rejected."""
    try:
        return _decode_record(record, partitions)
    except Exception as error:
        if (found := fault(error)) is None:
            raise
        raise UnexpectedError(found) from error


def _decode_record(record: Record, partitions: int) -> ReadEvent | None:
    if record.value is None:
        raise MalformedEvent("record: a value is missing")
    frame = decode(record.value)
    if frame.header.event is None:
        return None
    event = frame.event
    if record.key != event.repository or record.partition != partition_of(event.repository, partitions):
        raise MalformedEvent(f"record: key {str(record.key)[:40]!r} is not the repository {event.repository}")
    size = len(record.value)
    return ReadEvent(frame=frame, partition=record.partition, offset=record.offset, size=size, time=record.time)

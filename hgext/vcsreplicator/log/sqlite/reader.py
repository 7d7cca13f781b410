# SPDX-License-Identifier: GPL-2.0-or-later
"""A reader of the embedded log, woken by a bell.

A slow poll finds what came when a ring was lost.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...words.errors import Expired, Rewound, Unavailable
from .. import LATEST, PartitionKey, Record
from . import statements as sql
from .connection import READING, Connection
from .doorbell import Bell

# Seconds until a reader looks again though no bell rang.
FALLBACK_POLL = 1.0

# Seconds after a look for which a reader that waits relies on its bell.
JUST_LOOKED = 0.1

# Most bytes of one poll, for any number of records.
POLL_BYTES = 32 * 1024 * 1024


# Offset, time and key of a record, as the database has them.
ReadMark = tuple[Any, ...]


class SqliteReader:
    """Reads by a connection of its own, in snapshots that end before `poll` returns.

    `find_streams` returns the row ids of partitions, which differ in a re-created file; `marks` are the records right before the
    positions.
    """

    def __init__(
        self,
        positions: Mapping[PartitionKey, int],
        *,
        connect: Callable[[], Connection],
        find_streams: Callable[[Iterable[PartitionKey]], dict[PartitionKey, int]],
        marks: Mapping[PartitionKey, ReadMark],
        bells: Path,
        topics: set[int],
    ) -> None:
        self._connect = connect
        self._find_streams = find_streams
        self._streams = find_streams(positions)
        self._positions = dict(positions)
        self._paused: set[PartitionKey] = set()
        self._connection: Connection | None = None
        self._marks = dict(marks)
        self._rewound: Rewound | None = None
        self._turn = 0
        # Whether the last batch left nothing to read.
        self._is_drained = False
        self._looked = float("-inf")
        try:
            self._bell = Bell(bells, topics)
        except OSError as error:
            raise Unavailable(f"{bells}: cannot listen there: {error}; check the folder's owner and mode") from error

    def poll(self, timeout: float, *, limit: int = 500) -> list[Record]:
        deadline = time.monotonic() + timeout
        woken = self._bell.wait(0)
        is_quiet = self._is_drained and not (woken or self._bell.has_rung)
        if is_quiet and timeout > 0 and time.monotonic() - self._looked < JUST_LOOKED:
            woken = self._bell.wait(min(timeout, FALLBACK_POLL))
        while True:
            records = self._read_batch(limit) if woken or self._may_have_records() else []
            self._looked = time.monotonic()
            left = deadline - time.monotonic()
            if records or woken or left <= 0:
                return records
            woken = self._bell.wait(min(left, FALLBACK_POLL))

    def positions(self) -> dict[PartitionKey, int]:
        return dict(self._positions)

    def pause(self, partitions: Sequence[PartitionKey]) -> None:
        self._paused.update(partitions)

    def resume(self, partitions: Sequence[PartitionKey]) -> None:
        self._paused.difference_update(partitions)
        self._is_drained = False

    def wake(self) -> None:
        self._bell.wake()

    def close(self) -> None:
        self._bell.close()
        self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _may_have_records(self) -> bool:
        """Return whether a batch may find what the last one did not.

        That costs a fraction of a batch.
        """
        try:
            connection = self._connection
            return not self._is_drained or connection is None or not connection.current() or connection.has_changed()
        except Unavailable:
            self._disconnect()
            raise

    def _read_batch(self, limit: int) -> list[Record]:
        """Return the records that are there now; positions move only if all were read."""
        self._is_drained = False
        if self._rewound is not None:
            raise self._rewound
        active = [key for key in self._streams if key not in self._paused]
        self._turn = (self._turn + 1) % max(1, len(active))
        try:
            with self._open_connection().transaction(READING) as connection:
                ends = self._check_ends(connection)
                records, moved, marks = self._collect(
                    connection, active[self._turn :] + active[: self._turn], ends, limit
                )
        except Unavailable:
            self._disconnect()
            raise
        except Rewound as error:
            self._rewound = error
            raise
        self._positions.update(moved)
        self._marks.update(marks)
        self._is_drained = all(self._positions[key] == ends[key] for key in active)
        return records

    def _open_connection(self) -> Connection:
        if self._connection is not None and not self._connection.current():
            self._disconnect()
        if self._connection is None:
            self._streams = self._find_streams(self._streams)
            self._connection = self._connect()
        return self._connection

    def _check_ends(self, connection: Connection) -> dict[PartitionKey, int]:
        """Return the end of each partition; raise as `_check_end` does."""
        ids = sorted(self._streams.values())
        rows = connection.rows(sql.STREAMS_BETWEEN, ids[0], ids[-1]) if ids else []
        bounds = {stream: (beginning, end) for stream, beginning, end in rows}
        return {key: self._check_end(connection, key, *bounds[stream]) for key, stream in self._streams.items()}

    def _check_end(self, connection: Connection, key: PartitionKey, beginning: int, end: int) -> int:
        """Return the end of a partition.

        Raises Rewound if this is not the log that was read so far, or if it lost records. Raises Expired if the position is before
        the beginning, unless the partition is paused.
        """
        position = self._positions[key]
        where = f"topic {key[0]}, partition {key[1]}"
        if position > end:
            raise Rewound(f"{where}: position {position} is gone, the log lost records: it has {beginning} to {end}")
        if key in self._marks:
            offset, *mark = self._marks[key]
            if any([*row] != mark for row in connection.rows(sql.MARK, self._streams[key], offset)):
                raise Rewound(
                    f"{where}: another record than before is at {offset}: the log lost records and has new ones"
                )
        if position < beginning and key not in self._paused:
            raise Expired(f"{where}: position {position} is gone, the log has {beginning} to {end}")
        return end

    def _collect(
        self, connection: Connection, active: Sequence[PartitionKey], ends: Mapping[PartitionKey, int], limit: int
    ) -> tuple[list[Record], dict[PartitionKey, int], dict[PartitionKey, ReadMark]]:
        records: list[Record] = []
        marks: dict[PartitionKey, ReadMark] = {}
        moved: dict[PartitionKey, int] = {}
        room = POLL_BYTES
        for key in active:
            position, end = self._positions[key], ends[key]
            if position == end or len(records) >= limit or room <= 0:
                continue
            moved[key] = end  # unless there is more than we may return
            for row in connection.run(sql.RECORDS, self._streams[key], position, limit - len(records) + 1):
                if len(records) >= limit or room <= 0:
                    moved[key] = row[0]
                    break
                records.append(record_of(key, row))
                marks[key] = row[:3]
                room -= len(records[-1].value or b"")
        return records, moved, marks


def record_of(key: PartitionKey, row: tuple[Any, ...]) -> Record:
    """Convert a row of the database to a record.

    A caller gets a record that it can reject, even if another program wrote into the database.
    """
    offset, taken, record_key, headers, value = row
    return Record(
        topic=key[0],
        partition=key[1],
        offset=offset,
        key=None if record_key is None else _read_bytes(record_key).decode("utf-8", "surrogateescape"),
        value=None if value is None else _read_bytes(value),
        headers=_read_headers(headers),
        time=min(max(taken, 0.0), LATEST) if isinstance(taken, int | float) else 0.0,
    )


def _read_bytes(value: Any) -> bytes:
    """Return the value as bytes: SQLite keeps any type in any column."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")


def _read_headers(text: Any) -> dict[str, str]:
    if text == "{}":
        return {}
    try:
        headers = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return {}
    return {name: str(value) for name, value in headers.items()} if isinstance(headers, dict) else {}

# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads the embedded log: woken by a bell, with a slow poll in case a ring was lost."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import Expired, Unavailable
from . import Record
from . import sqlite_statements as sql
from .doorbell import Bell
from .sqlite_connection import Connection

if TYPE_CHECKING:
    from .sqlite import SqliteLog

FALLBACK_POLL = 0.5  # seconds until a reader looks again though no bell rang
POLL_BYTES = 32 * 1024 * 1024  # what one poll returns at most, however many records were asked for

TopicPartition = tuple[str, int]


class SqliteReader:
    """Reads by a connection of its own, in snapshots that end before `poll` returns."""

    def __init__(
        self,
        log: "SqliteLog",
        streams: Mapping[TopicPartition, int],
        positions: Mapping[TopicPartition, int],
        topics: set[int],
    ) -> None:
        self._log = log
        self._streams = dict(streams)
        self._positions = dict(positions)
        self._paused: set[TopicPartition] = set()
        self._connection: Connection | None = None
        self._turn = 0
        try:
            self._bell = Bell(log.bells, topics)
        except OSError as error:
            raise Unavailable(
                f"{log.bells}: cannot listen there: {error}; check the folder's owner and mode"
            ) from error

    def poll(self, timeout: float, *, limit: int = 500) -> list[Record]:
        deadline = time.monotonic() + timeout
        woken = self._bell.wait(0)
        while True:
            records = self._read(limit)
            left = deadline - time.monotonic()
            if records or woken or left <= 0:
                return records
            woken = self._bell.wait(min(left, FALLBACK_POLL))

    def positions(self) -> dict[TopicPartition, int]:
        return dict(self._positions)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        self._paused.update(partitions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        self._paused.difference_update(partitions)

    def wake(self) -> None:
        self._bell.wake()

    def close(self) -> None:
        self._bell.close()
        self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _read(self, limit: int) -> list[Record]:
        """What is there now; positions move only if all of it was read."""
        active = [key for key in self._streams if key not in self._paused]
        if not active:
            return []
        self._turn = (self._turn + 1) % len(active)
        try:
            if self._connection is not None and not self._connection.current():
                self._disconnect()
            self._connection = self._connection or self._log.connect()
            with self._connection.transaction("DEFERRED") as connection:
                records, moved = self._collect(connection, active[self._turn :] + active[: self._turn], limit)
        except Unavailable:
            self._disconnect()
            raise
        self._positions.update(moved)
        return records

    def _collect(
        self, connection: Connection, active: Sequence[TopicPartition], limit: int
    ) -> tuple[list[Record], dict[TopicPartition, int]]:
        records: list[Record] = []
        moved: dict[TopicPartition, int] = {}
        room = POLL_BYTES
        for key in active:
            position = self._positions[key]
            [(beginning, end)] = connection.rows(sql.STREAM, self._streams[key])
            if not beginning <= position <= end:
                raise Expired(
                    f"topic {key[0]}, partition {key[1]}: position {position} is gone, the log has {beginning} to {end}"
                )
            if position == end or len(records) >= limit or room <= 0:
                continue
            moved[key] = end  # unless there is more than we may return
            for row in connection.each(sql.RECORDS, self._streams[key], position, limit - len(records) + 1):
                if len(records) >= limit or room <= 0:
                    moved[key] = row[0]
                    break
                records.append(_record(key, row))
                room -= len(row[4] or b"")
        return records, moved


def _record(key: TopicPartition, row: tuple[Any, ...]) -> Record:
    offset, taken, record_key, headers, value = row
    return Record(
        topic=key[0],
        partition=key[1],
        offset=offset,
        key=None if record_key is None else record_key.decode("utf-8", "surrogateescape"),
        value=value,
        headers=json.loads(headers),
        time=taken,
    )

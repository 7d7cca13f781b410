# SPDX-License-Identifier: GPL-2.0-or-later
"""The embedded log: one SQLite database shared by all services of a machine.

It needs no broker, and keeps the same contract as Kafka.

Every append is one transaction, on disk when `append` returns (WAL, `synchronous=FULL`). Writers of all processes take turns;
readers never block them, and `doorbell` wakes readers. Each append compacts the compacted topics that it writes to; each writer
removes in small steps what retention lets go.

Rules of this package:

- `SqliteLog` has one connection and one lock around it; readers have a connection each, used by their thread alone.
- Every sqlite3 error becomes Unavailable and costs the connection: the next call opens another, but never creates a database
  that was there before, and never continues to write to a file that was moved away.
- A log must not be used after a fork: the child opens another.
"""

import json
import os
import random
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...words.clock import DAY, Clock, SystemClock
from ...words.errors import BadConfig, Rejected, TopicMissing, Unavailable, counted
from .. import (
    GroupMember,
    Log,
    NewRecord,
    PartitionKey,
    Positions,
    Reader,
    Topic,
    TopicComparison,
    Transactor,
    check_message,
    check_places,
    partition_of,
)
from . import statements as sql
from .comparison import compare_topic
from .connection import READING, WRITING, Connection, prepare_database
from .doorbell import ring
from .filesystem import refuse_network
from .member import SqliteMember
from .reader import SqliteReader
from .removal import before, compact, note_time, remove_expired, remove_tombstones
from .transactor import SqliteTransactor

# Seconds to wait for other writers.
BUSY_PATIENCE = 30.0

# Seconds, long enough for a reader that was away to learn of removed keys.
TOMBSTONES_KEPT = 1 * DAY

# Most records that one append removes, besides as many as it adds.
STEP = 64

# Largest step from one transactor's epoch to the next.
EPOCH_STEP = 1 << 32


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredTopic:
    """A topic in the database; `streams` are the row ids of its partitions, in order."""

    id: int
    streams: tuple[int, ...]
    compacted: bool


class SqliteLog(Log):
    """The log at `path`; with `creates`, it is created if missing.

    Raises BadConfig or Unavailable.
    """

    def __init__(
        self, path: Path, *, clock: Clock | None = None, patience: float = BUSY_PATIENCE, creates: bool = False
    ) -> None:
        self.path = path
        self.bells = path.with_name(path.name + "-wake")
        self._clock = clock or SystemClock()
        self._patience = patience
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._topics: dict[str, _StoredTopic] = {}
        self._sweep = os.getpid()  # short-lived processes start at different streams
        refuse_network(path)
        prepare_database(path, self.bells, patience, creates=creates)

    # Topics

    def create(self, wanted: Sequence[Topic]) -> list[str]:
        created = []
        with self._begin_transaction(WRITING) as connection:
            for topic in wanted:
                existing = self._load_topic(connection, topic.name)
                if existing is None:
                    values = (topic.name, topic.partitions, topic.compacted, topic.retention)
                    [(id_,)] = connection.rows(sql.ADD_TOPIC, *values)
                    for partition in range(topic.partitions):
                        connection.run(sql.ADD_STREAM, id_, partition)
                    created.append(topic.name)
                elif not topic.is_made_with(len(existing.streams)):
                    raise BadConfig(
                        f"topic {topic.name}: has {counted(len(existing.streams), 'partition')}, expected {topic.partitions}; "
                        "the number is fixed for life"
                    )
        return created

    def compare(self, wanted: Sequence[Topic]) -> list[TopicComparison]:
        with self._begin_transaction(READING) as connection:
            rows = [connection.rows(sql.TOPIC, topic.name) for topic in wanted]
        return [compare_topic(self.path, topic, found) for topic, found in zip(wanted, rows, strict=True)]

    def partitions(self, topic: str) -> int:
        with self._begin_transaction(READING) as connection:
            return len(self._find_topic(connection, topic).streams)

    def beginnings(self, topic: str, partitions: Collection[int] | None = None) -> dict[int, int]:
        return {partition: beginning for partition, (beginning, _) in self._find_bounds(topic, partitions).items()}

    def ends(self, topic: str, partitions: Collection[int] | None = None) -> dict[int, int]:
        return {partition: end for partition, (_, end) in self._find_bounds(topic, partitions).items()}

    # Records

    def append(self, messages: Sequence[NewRecord], *, timeout: float = 30.0) -> list[tuple[int, int]]:
        return self.commit(messages, None, {}, lambda connection: None, timeout=timeout) if messages else []

    def reader(self, positions: Mapping[PartitionKey, int]) -> Reader:
        with self._begin_transaction(READING) as connection:
            topics = {self._find_topic(connection, topic).id for topic, _ in positions}
            streams = {place: self._find_stream(self._find_topic(connection, place[0]), place) for place in positions}
            marks = {place: connection.rows(sql.BEFORE, streams[place], at) for place, at in positions.items()}
        return SqliteReader(
            positions,
            connect=self.connect,
            find_streams=self.streams,
            marks={place: mark for place, rows in marks.items() for mark in rows},
            bells=self.bells,
            topics=topics,
        )

    def streams(self, places: Iterable[PartitionKey]) -> dict[PartitionKey, int]:
        """Return the row ids of these partitions in the present file; others may differ."""
        with self._begin_transaction(READING) as connection:
            return {place: self._find_stream(self._find_topic(connection, place[0]), place) for place in places}

    def transactor(self, identity: str, *, group: str | None = None) -> Transactor:
        with self._begin_transaction(WRITING) as connection:
            [(epoch,)] = connection.rows(sql.NEXT_EPOCH, identity, random.randint(1, EPOCH_STEP))
        return SqliteTransactor(self.commit, identity, epoch)

    def member(self, group: str, topic: str) -> GroupMember:
        return SqliteMember(self.path.with_name(f"{self.path.name}-{group}.lock"), self.partitions(topic))

    def commit(
        self,
        messages: Sequence[NewRecord],
        group: str | None,
        positions: Mapping[PartitionKey, int],
        fence: Callable[[Connection], None],
        *,
        timeout: float | None = None,
        newest: Mapping[PartitionKey, int] | None = None,
    ) -> list[tuple[int, int]]:
        """Append and acknowledge in one transaction, in which `fence` runs first."""
        for message in messages:
            check_message(message)
        with self._begin_transaction(WRITING, timeout) as connection:
            fence(connection)
            written = self._append(connection, messages) if messages else []
            check_places(messages, written, newest or {})
            if group is not None:
                self._acknowledge(connection, group, positions)
        if messages:
            ring(self.bells, {topic.id for message in messages if (topic := self._topics.get(message.topic))})
        return written

    # Positions

    def acknowledge(
        self, group: str, topic: str, positions: Positions, *, metadata: Mapping[int, str] | None = None
    ) -> None:
        with self._begin_transaction(WRITING) as connection:
            self._acknowledge(connection, group, {(topic, partition): at for partition, at in positions.items()})

    def metadata(self, group: str, topic: str) -> dict[int, str]:
        return {}

    def stored(self, group: str, topic: str) -> dict[int, int]:
        with self._begin_transaction(READING) as connection:
            return dict(connection.rows(sql.POSITIONS_OF_GROUP, self._find_topic(connection, topic).id, group))

    def groups(self, topic: str) -> dict[str, dict[int, int]]:
        found: dict[str, dict[int, int]] = {}
        with self._begin_transaction(READING) as connection:
            for group, partition, position in connection.rows(
                sql.POSITIONS_OF_TOPIC, self._find_topic(connection, topic).id
            ):
                found.setdefault(group, {})[partition] = position
        return found

    def close(self) -> None:
        with self._lock:
            self._topics.clear()
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    # Inside

    def connect(self) -> Connection:
        """Open another connection for the caller to close; the database must exist."""
        return Connection(self.path, self._patience)

    @contextmanager
    def _begin_transaction(self, kind: str, timeout: float | None = None) -> Iterator[Connection]:
        """Run the block in a transaction; close the connection after Unavailable."""
        if not self._lock.acquire(timeout=self._patience if timeout is None else timeout):
            raise Unavailable(f"sqlite://{self.path}: other threads of this process keep it busy")
        try:
            with self._open_connection().transaction(kind, timeout) as connection:
                yield connection
        except Unavailable:
            self.close()
            raise
        finally:
            self._lock.release()

    def _open_connection(self) -> Connection:
        if self._connection is not None and not self._connection.current():
            self.close()
        if self._connection is None:
            self._connection = self.connect()
        return self._connection

    def _load_topic(self, connection: Connection, name: str) -> _StoredTopic | None:
        """Return a topic, from memory if it was used before; None if there is none.

        A topic never changes. `_load_topic` itself remembers none, as a topic that is being created is not committed yet.
        """
        if name in self._topics:
            return self._topics[name]
        for id_, _, compacted, _ in connection.rows(sql.TOPIC, name):
            streams = tuple(stream for _, stream, _, _ in connection.rows(sql.STREAMS_OF_TOPIC, id_))
            return _StoredTopic(id=id_, streams=streams, compacted=bool(compacted))
        return None

    def _find_topic(self, connection: Connection, name: str) -> _StoredTopic:
        topic = self._load_topic(connection, name)
        if topic is None:
            raise TopicMissing(f"topic {name}: not in sqlite://{self.path}; run `vcsreplicator topics create`")
        self._topics[name] = topic
        return topic

    def _find_bounds(self, topic: str, partitions: Collection[int] | None) -> dict[int, tuple[int, int]]:
        """Return the beginning and the end of these partitions; of all, if None."""
        with self._begin_transaction(READING) as connection:
            found = self._find_topic(connection, topic)
            rows = connection.rows(sql.STREAMS_OF_TOPIC, found.id)
            bounds = {partition: (beginning, end) for partition, _, beginning, end in rows}
            if partitions is None:
                return bounds
            for partition in partitions:
                self._find_stream(found, (topic, partition))
            return {partition: bounds[partition] for partition in sorted(partitions)}

    def _find_stream(self, topic: _StoredTopic, key: PartitionKey) -> int:
        name, partition = key
        if not 0 <= partition < len(topic.streams):
            raise BadConfig(f"topic {name}: no partition {partition}, expected 0 to {len(topic.streams) - 1}")
        return topic.streams[partition]

    def _append(self, connection: Connection, messages: Sequence[NewRecord]) -> list[tuple[int, int]]:
        now = self._clock.now()
        note_time(connection, now)
        next_offsets: dict[int, int] = {}
        written = []
        for message in messages:
            topic = self._find_topic(connection, message.topic)
            partition = message.partition
            if partition is None:
                partition = partition_of(message.key or "", len(topic.streams))
            stream = self._find_stream(topic, (message.topic, partition))
            if topic.compacted and message.key is None:
                raise Rejected(f"topic {message.topic}: expected a key, because it is compacted")
            if stream not in next_offsets:
                [(_, next_offsets[stream])] = connection.rows(sql.STREAM, stream)
            offset = next_offsets[stream]
            next_offsets[stream] = offset + 1
            key = None if message.key is None else message.key.encode("utf-8", "surrogateescape")
            headers = json.dumps(dict(message.headers), separators=(",", ":")) if message.headers else "{}"
            connection.run(sql.ADD_RECORD, stream, offset, now, key, headers, message.value)
            if topic.compacted:
                compact(connection, stream, key, offset)
            written.append((partition, offset))
        for stream, offset in next_offsets.items():
            connection.run(sql.SET_NEXT, offset, stream)
        self._remove_old(connection, now, STEP + len(messages))
        return written

    def _acknowledge(self, connection: Connection, group: str, positions: Mapping[PartitionKey, int]) -> None:
        now = self._clock.now()
        for (name, partition), position in positions.items():
            topic = self._find_topic(connection, name)
            self._find_stream(topic, (name, partition))
            connection.run(sql.SET_POSITION, topic.id, group, partition, position, now)

    def _remove_old(self, connection: Connection, now: float, limit: int) -> None:
        """Remove old records of one stream, the next stream at each call."""
        streams = connection.rows(sql.ALL_STREAMS)
        self._sweep = (self._sweep + 1) % len(streams)
        stream, compacted, retention = streams[self._sweep]
        if compacted:
            remove_tombstones(connection, stream, before(connection, now, TOMBSTONES_KEPT), limit)
        elif retention is not None:
            remove_expired(connection, stream, before(connection, now, retention), limit, now=now)

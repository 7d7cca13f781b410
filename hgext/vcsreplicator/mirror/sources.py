# SPDX-License-Identifier: GPL-2.0-or-later
"""The threads between the log and the supervisor: they read and write, it decides.

Each reader puts records into the inbox of the supervisor and pauses where the supervisor says so; `AckWriter` writes
the newest levels and positions, as many as have come together at a time. All of them outlast an outage of the log.
"""

import contextlib
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from ..log import ACKS, EVENTS, Log, NewRecord, Positions, Reader, Record
from ..words.errors import Expired, Rewound, Unavailable
from ..words.retry import RECONNECT

POLL = 0.2
AHEAD = 2
logger = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Records a reader brought, and where it goes on; `follows` names the repository of a catch-up reader, and its run.

    Whoever takes it calls `taken` afterwards: a reader is never more than `AHEAD` of these ahead.
    """

    records: Sequence[Record]
    positions: Mapping[tuple[str, int], int]
    follows: str | None = None
    run: int = 0
    taken: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The log no longer holds where a catch-up reader shall go on."""

    follows: str
    run: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """The log no longer holds where the stream's reader was; it goes on at these positions."""

    positions: Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Where `events` ended a moment ago."""

    ends: Positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A thread met what it cannot outlast."""

    error: Exception


class Source:
    """One reading thread; `may_read` holds it back, `stop` ends it."""

    def __init__(
        self,
        source: Log,
        positions: Mapping[tuple[str, int], int],
        arrived: Callable[[object], None],
        *,
        follows: str | None = None,
        run: int = 0,
    ) -> None:
        self.may_read = threading.Event()
        self.may_read.set()
        self._log, self._positions, self._arrived = source, dict(positions), arrived
        self._follows, self._run = follows, run
        self._stop = threading.Event()
        self._room = threading.Semaphore(AHEAD)
        self._reader: Reader | None = None
        self._thread = threading.Thread(target=self._read, name=follows or "reader", daemon=True)

    def start(self) -> "Source":
        """Begins to read."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ends the thread, without waiting for it."""
        self._stop.set()
        self.may_read.set()
        self._room.release()
        if self._reader is not None:
            self._reader.wake()

    def join(self, timeout: float) -> None:
        """Waits for the end."""
        self._thread.join(timeout)

    def _read(self) -> None:
        attempt, expired = 0, None
        while not self._stop.is_set():
            try:
                if expired is not None:
                    self._skip_expired(expired)
                    expired = None
                self._reader = self._log.reader(self._positions)
                while not self._stop.is_set():
                    self._once(self._reader)
                    attempt = 0
            except Expired as error:
                if self._follows is not None:
                    self._arrived(Lost(follows=self._follows, run=self._run, reason=str(error)))
                    return
                expired = error
            except Unavailable as error:
                attempt += 1
                logger.warning("log unavailable", reason=str(error), attempt=attempt)
                self._stop.wait(RECONNECT.delay(attempt, random.random()))
            except Exception as error:
                self._arrived(Broken(error=error))
                return
            finally:
                if self._reader is not None:
                    with contextlib.suppress(Unavailable):
                        self._reader.close()

    def _once(self, reader: Reader) -> None:
        self.may_read.wait()
        self._room.acquire()
        try:
            read = self._poll(reader)
        except BaseException:
            self._room.release()
            raise
        if read is None:
            self._room.release()
        else:
            self._arrived(read)

    def _poll(self, reader: Reader) -> Read | None:
        records = reader.poll(POLL)
        self._positions = reader.positions()
        if self._follows is not None:
            records = [record for record in records if record.key == self._follows]
            self.may_read.clear()
        elif not records:
            return None
        return Read(
            records=records, positions=self._positions, follows=self._follows, run=self._run, taken=self._room.release
        )

    def _skip_expired(self, error: Expired) -> None:
        """What expired is missing in its repositories, where it shows as a gap. A log that lost records is read whole again."""
        logger.error("positions expired", reason=str(error))
        is_rewound = isinstance(error, Rewound)
        skipped: dict[tuple[str, int], int] = {}
        for topic in {topic for topic, _ in self._positions}:
            beginnings, ends = self._log.beginnings(topic), self._log.ends(topic)
            for (name, partition), position in self._positions.items():
                if name == topic and (is_rewound or not beginnings[partition] <= position <= ends[partition]):
                    self._positions[topic, partition] = skipped[topic, partition] = beginnings[partition]
        self._arrived(Skipped(positions={place: at for place, at in skipped.items() if place[0] == EVENTS}))


@dataclass(slots=True)
class _Outgoing:
    messages: dict[str, NewRecord] = field(default_factory=dict)
    others: list[NewRecord] = field(default_factory=list)
    positions: dict[int, int] = field(default_factory=dict)


class AckWriter:
    """Writes acks (only the newest of each key), other messages and positions; a failure is tried again for ever."""

    def __init__(self, sink: Log, group: str, arrived: Callable[[object], None]) -> None:
        self._log, self._group, self._arrived = sink, group, arrived
        self._condition = threading.Condition()
        self._out = _Outgoing()
        self._wants_ends = False
        self._stopping = False
        self._thread = threading.Thread(target=self._send, name="sender", daemon=True)

    def start(self) -> "AckWriter":
        """Begins to write."""
        self._thread.start()
        return self

    def ack(self, key: str, value: bytes | None) -> None:
        """The newest value of a key of `acks`."""
        with self._condition:
            self._out.messages[key] = NewRecord(topic=ACKS, key=key, value=value)
            self._condition.notify()

    def append(self, message: NewRecord) -> None:
        """Any other message."""
        with self._condition:
            self._out.others.append(message)
            self._condition.notify()

    def positions(self, positions: Mapping[int, int]) -> None:
        """The positions to acknowledge, after what was given before is written."""
        with self._condition:
            self._out.positions.update(positions)
            self._condition.notify()

    def ask_ends(self) -> None:
        """Look where `events` ends, and tell the inbox."""
        with self._condition:
            self._wants_ends = True
            self._condition.notify()

    def close(self, patience: float) -> None:
        """Writes what is left, for at most `patience` seconds."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread.ident is not None:  # else nothing was given, because the mirror never began
            self._thread.join(patience)

    def _send(self) -> None:
        attempt = 0
        while True:
            with self._condition:
                while not (self._some() or self._stopping):
                    self._condition.wait()
                if not self._some():
                    return
                out, self._out = self._out, _Outgoing()
                wants_ends, self._wants_ends = self._wants_ends, False
            try:
                self._write(out, wants_ends=wants_ends)
                attempt = 0
            except Unavailable as error:
                attempt += 1
                logger.warning("levels not written", reason=str(error), attempt=attempt)
                self._put_back(out)
                threading.Event().wait(RECONNECT.delay(attempt, random.random()))
            except Exception as error:
                self._arrived(Broken(error=error))
                return

    def _some(self) -> bool:
        out = self._out
        return bool(out.messages or out.others or out.positions or self._wants_ends)

    def _write(self, out: _Outgoing, *, wants_ends: bool) -> None:
        messages = [*out.others, *out.messages.values()]
        if messages:
            self._log.append(messages)
        if out.positions:
            self._log.acknowledge(self._group, EVENTS, out.positions)
        if wants_ends:
            self._arrived(Ends(ends=self._log.ends(EVENTS)))

    def _put_back(self, out: _Outgoing) -> None:
        with self._condition:
            self._out.messages = {**out.messages, **self._out.messages}
            self._out.others = [*out.others, *self._out.others]
            self._out.positions = {**out.positions, **self._out.positions}


def read_whole(source: Log, topic: str, stop: threading.Event) -> tuple[dict[str, bytes], int]:
    """The newest value of each key of a compacted topic now, values that are tombstones left out; and where to read on."""
    ends = source.ends(topic)
    positions = {(topic, partition): offset for partition, offset in source.beginnings(topic).items()}
    newest: dict[str, bytes] = {}
    reader = source.reader(positions)
    try:
        while not stop.is_set() and any(
            reader.positions().get((topic, partition), 0) < end for partition, end in ends.items()
        ):
            records = reader.poll(POLL, limit=5000)
            if not records:  # a log that lost records ends earlier now, and may never come so far
                ends = {partition: min(end, ends[partition]) for partition, end in source.ends(topic).items()}
            for record in records:
                if record.key is None:
                    continue
                newest.pop(record.key, None)
                if record.value is not None:
                    newest[record.key] = record.value
        return newest, reader.positions().get((topic, 0), 0)
    finally:
        reader.close()

# SPDX-License-Identifier: GPL-2.0-or-later
"""The threads that read the log for the supervisor; they outlast its outages."""

import contextlib
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from ..log import EVENTS, Log, Reader, Record
from ..log.table import ReadStopped, read_table
from ..words.errors import Expired, Rewound, Unavailable
from ..words.retry import FAILOVER

# Seconds that one poll waits for records; `stop` ends it.
POLL = 10.0
# The same for one repository that catches up: if the log has no more for it, it joins the stream then.
CATCH_UP_POLL = 0.3
# How many batches of records a reader may be ahead of the supervisor.
AHEAD = 2
logger = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRecords:
    """Records that a reader brought, and the positions where it goes on.

    `follows` names the repository of a catch-up reader, `run` its catching up. The supervisor calls `make_room` after it took the
    records: a reader is never more than AHEAD batches ahead.
    """

    records: Sequence[Record]
    positions: Mapping[tuple[str, int], int]
    follows: str | None = None
    run: int = 0
    make_room: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredPosition:
    """The log no longer holds the position where a catch-up reader must go on."""

    follows: str
    run: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRecords:
    """The log lost the position of a stream's reader, which goes on at `positions`."""

    positions: Mapping[tuple[str, int], int]


# What a reading thread reports; the exception ended it.
SourceReport = ReadRecords | ExpiredPosition | SkippedRecords | Exception


class Source:
    """One reading thread.

    It reads the stream, or with `follows` one repository that catches up. `may_read` holds it back, `stop` ends it. A catch-up
    reader holds itself back after each batch. It reports ReadRecords, ExpiredPosition or SkippedRecords, or the
    exception that ended it.
    """

    def __init__(
        self,
        log: Log,
        positions: Mapping[tuple[str, int], int],
        report: Callable[[SourceReport], None],
        *,
        follows: str | None = None,
        run: int = 0,
    ) -> None:
        self.may_read = threading.Event()
        self.may_read.set()
        self._log, self._positions, self._report = log, dict(positions), report
        self._follows, self._run = follows, run
        self._stop = threading.Event()
        self._room = threading.Semaphore(AHEAD)
        self._reader: Reader | None = None
        self._thread = threading.Thread(target=self._read_stream, name=follows or "reader", daemon=True)

    def start(self) -> "Source":
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the thread, without waiting for it."""
        self._stop.set()
        self.may_read.set()
        self._room.release()
        if self._reader is not None:
            self._reader.wake()

    def join(self, timeout: float) -> None:
        """Wait until the thread has ended, for at most `timeout` seconds."""
        self._thread.join(timeout)

    def _read_stream(self) -> None:
        attempt, expired = 0, None
        while not self._stop.is_set():
            try:
                if expired is not None:
                    self._skip_expired(expired)
                    expired = None
                self._reader = self._log.reader(self._positions)
                while not self._stop.is_set():
                    self._read_batch(self._reader)
                    attempt = 0
            except Expired as error:
                if self._follows is not None:
                    self._report(ExpiredPosition(follows=self._follows, run=self._run, reason=str(error)))
                    return
                expired = error
            except Unavailable as error:
                attempt += 1
                logger.warning("log unavailable", reason=str(error), attempt=attempt)
                self._stop.wait(FAILOVER.delay(attempt, random.random()))
            except ReadStopped:
                return
            except Exception as error:
                self._report(error)
                return
            finally:
                if self._reader is not None:
                    with contextlib.suppress(Unavailable):
                        self._reader.close()

    def _read_batch(self, reader: Reader) -> None:
        self.may_read.wait()
        self._room.acquire()
        read = None
        try:
            read = self._poll(reader)
        finally:
            if read is None:
                self._room.release()
        if read is not None:
            self._report(read)

    def _poll(self, reader: Reader) -> ReadRecords | None:
        records = reader.poll(POLL if self._follows is None else CATCH_UP_POLL)
        self._positions = reader.positions()
        if self._follows is not None:
            records = [record for record in records if record.key == self._follows]
            self.may_read.clear()
        elif not records:
            return None
        return ReadRecords(
            records=records,
            positions=self._positions,
            follows=self._follows,
            run=self._run,
            make_room=self._room.release,
        )

    def _skip_expired(self, error: Expired) -> None:
        """Go on at the beginning where the position expired.

        A log that lost records is read again from its beginning. Expired events are missing in their repositories, where the next
        event shows a gap. Of a compacted topic only the newest records are read: an older roster must not make repositories leave
        this mirror.
        """
        logger.error("positions expired", reason=str(error))
        topics = {topic for topic, _ in self._positions}
        if EVENTS not in topics:
            table = read_table(self._log, *topics, stop=self._stop)
            self._positions = table.positions
            self._report(SkippedRecords(positions={}))
            self._report(ReadRecords(records=[*table.records.values()], positions=table.positions))
            return
        is_rewound = isinstance(error, Rewound)
        skipped: dict[tuple[str, int], int] = {}
        for topic in topics:
            positions = {partition: at for (name, partition), at in self._positions.items() if name == topic}
            beginnings, ends = self._log.beginnings(topic, positions), self._log.ends(topic, positions)
            for partition, position in positions.items():
                if is_rewound or not beginnings[partition] <= position <= ends[partition]:
                    self._positions[topic, partition] = skipped[topic, partition] = beginnings[partition]
        self._report(SkippedRecords(positions={place: at for place, at in skipped.items() if place[0] == EVENTS}))

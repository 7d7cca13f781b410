# SPDX-License-Identifier: GPL-2.0-or-later
"""The thread that writes acks, positions and rejects, as many at once as wait.

Acks are sealed when they are written, so that of several attempts each has a newer seal.
"""

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import structlog

from ..log import ACKS, EVENTS, Log, NewRecord, Positions, TooLarge, partition_of
from ..log.table import find_answered_ends
from ..words.errors import Unavailable
from ..words.records import Ack, ErrorRecord
from ..words.retry import FAILOVER
from ..words.roster import Roster
from ..words.shape import from_json, to_json
from .seals import OwnSeals
from .sources import SkippedRecords

logger = structlog.get_logger()

# Seconds after a write that failed, in which the network may deliver it yet, behind newer acks.
LATE = 120.0

# The incarnation and the sequence of an event.
ExpectedEvent = tuple[str | None, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The ends of partitions of `events`, and the event expected of each repository.

    The events were expected before the mirror asked for the ends: later ones may follow.
    """

    ends: Positions
    expected: Mapping[str, ExpectedEvent]


@dataclass(slots=True)
class _OutgoingRecords:
    acks: dict[str, NewRecord] = field(default_factory=dict)
    others: list[NewRecord] = field(default_factory=list)
    positions: dict[int, int] = field(default_factory=dict)
    expected: Mapping[str, ExpectedEvent] = field(default_factory=dict)

    def has_work(self) -> bool:
        return bool(self.acks or self.others or self.positions or self.expected)


class AckWriter:
    """Writes acks (only the newest of each key), other records and positions.

    A failed write is retried indefinitely. Its acks are written once more after LATE seconds, or a late one would stay the newest
    of its key. A record that its topic refuses for its size delays no other one. The writer reports a
    log that lost acks, by an offset that the log gives a second time.
    """

    def __init__(
        self,
        log: Log,
        group: str,
        report: Callable[[Ends | SkippedRecords | Exception], None],
        seals: OwnSeals | None = None,
    ) -> None:
        self._log, self._group, self._report, self._seals = log, group, report, seals
        # The offset of the newest record in `acks`.
        self._newest = -1
        self._condition = threading.Condition()
        self._waiting = _OutgoingRecords()
        # The newest acks of the keys in a write that failed, and when they are written once more.
        self._doubted: dict[str, NewRecord] = {}
        self._doubted_until = 0.0
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)

    def start(self) -> "AckWriter":
        """Begin to write."""
        self._thread.start()
        return self

    def take_roster(self, roster: Roster) -> bool:
        """Follow the keys of a roster; return whether all acks must be written again."""
        return self._seals is not None and self._seals.take_roster(roster)

    @property
    def is_sealing(self) -> bool:
        """Whether acks are sealed, by the newest roster."""
        return self._seals is not None and self._seals.is_active

    def sign(self, ack: Ack) -> Ack:
        """Return an ack that may enter a notice, signed if the site signs notices."""
        return ack if self._seals is None else self._seals.sign(ack)

    def ack(self, key: str, value: bytes | None) -> None:
        """Write the newest value of a key of `acks`."""
        with self._condition:
            record = self._waiting.acks[key] = NewRecord(topic=ACKS, key=key, value=value)
            if key in self._doubted:
                self._doubted[key] = record
            self._condition.notify()

    def append(self, record: NewRecord) -> None:
        """Write a record of another topic."""
        with self._condition:
            self._waiting.others.append(record)
            self._condition.notify()

    def positions(self, positions: Mapping[int, int]) -> None:
        """Store positions, after everything given before is written."""
        with self._condition:
            self._waiting.positions.update(positions)
            self._condition.notify()

    def ask_ends(self, expected: Mapping[str, ExpectedEvent]) -> None:
        """Ask the log where these repositories' partitions end, and report the answer.

        The report includes the events expected now, by repository, except those of partitions that do not answer.
        """
        with self._condition:
            self._waiting.expected = expected
            self._condition.notify()

    def close(self, patience: float) -> None:
        """Write what is left, for at most `patience` seconds."""
        with self._condition:
            self._is_stopping = True
            self._condition.notify()
        if self._thread.ident is not None:  # otherwise the mirror never began, and gave nothing
            self._thread.join(patience)

    def _run(self) -> None:
        attempt = 0
        while (out := self._wait_for_work()) is not None:
            try:
                self._write(out)
                attempt = 0
            except (Unavailable, TooLarge) as error:
                attempt += 1
                logger.warning("acks not written", reason=str(error), attempt=attempt)
                self._put_back(out)
                time.sleep(FAILOVER.delay(attempt, random.random()))
            except Exception as error:
                self._report(error)
                return

    def _wait_for_work(self) -> _OutgoingRecords | None:
        """Take everything that waits; None once the writer is stopped and all is done."""
        with self._condition:
            while not (self._has_work() or self._is_stopping):
                self._condition.wait(max(0.0, self._doubted_until - time.monotonic()) if self._doubted else None)
            if not self._waiting.has_work():
                return None
            out, self._waiting = self._waiting, _OutgoingRecords()
            return out

    def _has_work(self) -> bool:
        """Return whether anything is to be written; the caller holds the condition."""
        if self._doubted and time.monotonic() >= self._doubted_until:
            self._waiting.acks, self._doubted = {**self._doubted, **self._waiting.acks}, {}
        return self._waiting.has_work()

    def _write(self, out: _OutgoingRecords) -> None:
        """Write and forget step by step, so that only what is not written is put back."""
        refused: TooLarge | None = None
        records = [*out.others, *map(self._seal_record, out.acks.values())]
        if records:
            try:
                self._append(records)
                out.others, out.acks = [], {}
            except TooLarge:
                refused = self._write_singly(out)
        if out.positions and refused is None:
            self._log.acknowledge(self._group, EVENTS, out.positions)
            out.positions = {}
        if out.expected:
            self._report_ends(out.expected)
        if refused is not None:
            raise refused

    def _write_singly(self, out: _OutgoingRecords) -> TooLarge | None:
        """Write record by record; return why a topic refuses some acks, if it does.

        No position is stored before an operator has corrected the topic. A reject is written without its value.
        """
        while out.others:
            try:
                self._log.append(out.others[:1])
            except TooLarge:
                reject = from_json(ErrorRecord, out.others[0].value or b"")
                self._log.append([replace(out.others[0], value=to_json(reject.without_value()))])
            del out.others[0]
        refused: TooLarge | None = None
        for key, record in list(out.acks.items()):
            try:
                self._append([self._seal_record(record)])
                del out.acks[key]
            except TooLarge as error:
                refused = error
        return refused

    def _append(self, records: Sequence[NewRecord]) -> None:
        places = zip(records, self._log.append(records), strict=True)
        offsets = [offset for record, (_, offset) in places if record.topic == ACKS]
        if offsets and min(offsets) <= self._newest:
            logger.error("topic acks lost records: all acks are written again")
            self._report(SkippedRecords(positions={}))
        self._newest = max(offsets, default=self._newest)

    def _seal_record(self, record: NewRecord) -> NewRecord:
        return record if self._seals is None else self._seals.seal(record)

    def _report_ends(self, expected: Mapping[str, ExpectedEvent]) -> None:
        """Report the ends of the partitions that answer.

        The mirror asks again with its next heartbeat.
        """
        count = self._log.partitions(EVENTS)
        partitions = {repository: partition_of(repository, count) for repository in expected}
        ends = find_answered_ends(self._log, EVENTS, set(partitions.values()))
        answered = {repository: each for repository, each in expected.items() if partitions[repository] in ends}
        self._report(Ends(ends=ends, expected=answered))

    def _put_back(self, out: _OutgoingRecords) -> None:
        """Keep the unwritten records; newer values of a key win."""
        with self._condition:
            self._doubted |= {key: self._waiting.acks.get(key, each) for key, each in out.acks.items() if "/" in key}
            self._doubted_until = time.monotonic() + LATE
            self._waiting.acks = {**out.acks, **self._waiting.acks}
            self._waiting.others = [*out.others, *self._waiting.others]
            self._waiting.positions = {**out.positions, **self._waiting.positions}

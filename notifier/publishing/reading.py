# SPDX-License-Identifier: GPL-2.0-or-later
"""The notices that one destination reads, and the position that it stores.

Rules of this file: the position is stored only after everything before it is settled; a loss in the log is kept as a reject
before the reader passes over it. A destination that owes what it has confirmed puts that into the log before the position is
stored.
"""

import hashlib
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Self

import structlog
from prometheus_client import Gauge

from hgext.vcsreplicator.log import NOTICES, NOTIFIER, RENEW_EVERY, Log, Record
from hgext.vcsreplicator.log.ownership import write_making
from hgext.vcsreplicator.log.table import read_on, read_table
from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import Expired, MalformedEvent, ReplicationError, Rewound, Unavailable
from hgext.vcsreplicator.words.records import UNREAD
from hgext.vcsreplicator.words.retry import FAILOVER
from hgext.vcsreplicator.words.shape import extensible, from_json, to_json

from ..clients.database import is_there
from ..delivery.destination import DATABASE_KEY, KeepingDestination, KeepingSettings
from ..delivery.rejects import Rejects
from ..delivery.window import Window
from ..destinations.state import StateDatabase
from .position import StoredPosition, group

# Shortest time between two stored positions, in seconds: each costs a transaction of the log.
STORE_EVERY = 0.5

# Records of one read: few, so that the destination does not lack work meanwhile.
BATCH = 100

# Settled notices that are remembered, one of each stored position, to find later where a log that lost notices differs.
REMEMBERED = 4096

POSITION = Gauge(
    "vcsreplicator_notifier_position_offset", "First offset of notices that is not settled", ["destination"]
)

logger = structlog.get_logger()


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeMark:
    """The newest settled notice, stored with the position.

    If another notice stands at its offset later, the log lost notices.
    """

    offset: int
    sha256: str

    @classmethod
    def of(cls, record: Record) -> Self:
        return cls(offset=record.offset, sha256=hashlib.sha256(record.value or b"").hexdigest())


# A notice that was read, and when the log took it: a notice that was lost and written again has another time.
_ReadNotice = tuple[NoticeMark, float]


def _remember(record: Record) -> _ReadNotice:
    return NoticeMark.of(record), record.time


def describe_missing(name: str, settings: object, log: Log, state: str) -> str | None:
    """Return what to do if the destination had a database, and it is missing now.

    A new database in its place would have no subscription, and the position would pass notices without a delivery. The destination
    had a database if the log has its position, or the notifier's `state` a report of it. Only the notifier may make it again from
    the log. Raises BadConfig or Unavailable.
    """
    if not isinstance(settings, KeepingSettings) or is_there(settings.kept_in):
        return None
    if has_records(name, log):
        return f"database: {settings.kept_in} is missing; start the notifier, which fills it from the log"
    if log.stored(group(name), NOTICES).get(0) is None and not _has_reported(name, state):
        return None
    return (
        f"database: {settings.kept_in} is missing, with the subscriptions and deliveries in it: mount or restore it; "
        f"to begin without them: {write_making(settings.kept_in)}"
    )


def has_records(name: str, log: Log) -> bool:
    """Return whether the log has what the destination's database had."""
    return read_table(log, NOTIFIER).value(NOTIFIER, f"{DATABASE_KEY}{name}") is not None


def _has_reported(name: str, state: str) -> bool:
    """Return whether a position of the destination was ever reported."""
    if not is_there(state):
        return False
    with closing(StateDatabase(state)) as known:
        return known.conditions().get(name, {}).get("position") is not None


class NoticeReader:
    """The reader of a destination's notices, as far as its `window` lets it read."""

    def __init__(
        self,
        name: str,
        log: Log,
        clock: Clock,
        chance: Callable[[], float],
        *,
        position: StoredPosition,
        start: tuple[int, str | None],
        window: Window,
        rejects: Rejects,
        state: StateDatabase,
        keeper: KeepingDestination | None = None,
    ) -> None:
        self._name, self._log, self._clock, self._chance = name, log, clock, chance
        self._window, self._rejects, self._state = window, rejects, state
        self._position, self._keeper = position, keeper
        self._read_to, mark = start
        self._taken: deque[_ReadNotice] = deque()
        self._past: deque[_ReadNotice] = deque(maxlen=REMEMBERED)
        self._settled = self._unproven = self._read_mark(self._read_to, mark)
        begin = self._read_to if self._unproven is None else self._unproven.offset
        self._first_end = log.ends(NOTICES)[0]
        self._reader = log.reader({(NOTICES, 0): begin})
        self._untaken: deque[Record] = deque()
        self._stored_at = self._visited_at = float("-inf")
        self._failures, self._rests_until = 0, 0.0
        self.stored, self.stored_mark = self._read_to, mark
        self.skipped = state.skipped(name, self._read_to)

    def records(self, wait: float) -> Iterator[Record]:
        """Yield the next records while the window has room, waiting up to `wait` seconds for the first.

        If the caller raised while it worked on a record, that record comes again first. Raises Unavailable.
        """
        try:
            if not self._untaken:
                found = self._reader.poll(wait, limit=min(BATCH, self._window.room))
                if found and self._unproven is not None:
                    found = self._prove(found, self._unproven)
                self._untaken.extend(found)
        except Expired:
            self._pass_gap()
        while self._untaken and self._window.room:
            yield self._untaken[0]
            taken = self._untaken.popleft()
            self._read_to = taken.offset + 1
            self._taken.append(_remember(taken))

    def has_read_backlog(self) -> bool:
        """Return whether the window has got every notice that the log had at the start."""
        return not self._untaken and min(self._reader.positions().values()) >= self._first_end

    def check_turn(self) -> None:
        """Raise Fenced if another notifier took over.

        What is in the window may be sent while the log does not answer.
        """
        if self.is_resting:
            return
        try:
            self._position.check()
        except Unavailable as error:
            self.rest(error)

    def store_position(self, *, at_once: bool = False) -> None:
        """Store the position up to which everything is settled.

        Stores a position that moved at most once in `STORE_EVERY` seconds, and a position that did not move every `RENEW_EVERY`
        seconds. While the log is left alone, it stores nothing. With `at_once` it waits for none of these.
        """
        if self.is_resting and not at_once:
            return
        position = max(self._window.position, self.stored)
        now = self._clock.monotonic()
        is_due = at_once or now - self._stored_at >= RENEW_EVERY
        if not is_due and now - self._visited_at < self._pause_before(position):
            return
        self._visited_at = now
        if is_due:
            position = self._pass_markers(position)
        try:
            if self._keeper is not None:
                position = max(self.stored, self._keeper.secure(position))
        except Unavailable as error:
            self.rest(error)
            return
        if position == self.stored and not is_due:
            return
        newest = None
        while self._taken and self._taken[0][0].offset < position:
            newest = self._taken.popleft()
        if newest is not None:
            self._past.append(newest)
            self._settled = newest[0]
        mark = None if self._settled is None else to_json(self._settled).decode("ascii")
        try:
            self._position.store(position, mark)
        except Unavailable as error:
            self.rest(error)
            return
        self.stored, self.stored_mark, self._stored_at = position, mark, now
        POSITION.labels(self._name).set(position)

    def _pass_markers(self, position: int) -> int:
        """Return the position beyond markers, if every notice is settled.

        On Kafka the end of a transaction takes an offset. If it expired before the position passed it, it would look like a lost
        notice.
        """
        if self._untaken or position < self._read_to:
            return position
        return max(position, self._reader.positions()[NOTICES, 0])

    @property
    def is_resting(self) -> bool:
        """Whether the log was unavailable and is left alone for a while."""
        return self._clock.monotonic() < self._rests_until

    def rest(self, error: ReplicationError) -> None:
        """Leave the log alone for a while."""
        self._failures += 1
        delay = FAILOVER.delay(self._failures, self._chance())
        self._rests_until = self._clock.monotonic() + delay
        logger.warning("log unavailable", reason=str(error), retry_in=round(delay, 2))

    def record_answer(self) -> bool:
        """Note that the log answers; return whether it did not before."""
        was_away, self._failures = self._failures > 0, 0
        return was_away

    def wake(self) -> None:
        """End the running or the next wait for records; any thread may call it."""
        self._reader.wake()

    def close(self) -> None:
        self._reader.close()

    def _pause_before(self, position: int) -> float:
        """Return the seconds from the last attempt to store a position to the next."""
        if position == self.stored and self._keeper is None:  # what a keeper owes changes without a new position
            return RENEW_EVERY
        return STORE_EVERY

    def _read_mark(self, position: int, stored: str | None) -> NoticeMark | None:
        """Return the newest settled notice, as stored; None if unknown or expired."""
        try:
            mark = None if stored is None else from_json(NoticeMark, stored.encode())
        except MalformedEvent:
            return None
        if mark is None or mark.offset >= position or mark.offset < self._log.beginnings(NOTICES)[0]:
            return None
        return mark

    def _prove(self, records: list[Record], mark: NoticeMark) -> list[Record]:
        """Check that the marked notice is still there; return the unread records.

        The reader began at the mark's offset. Raises Rewound if the first record is not the marked one: the log lost notices. On
        Kafka the end of a transaction takes an offset, too, and may stand there now.
        """
        if NoticeMark.of(records[0]) != mark:
            raise Rewound("the log lost notices and has new ones in their place")
        self._unproven = None
        (self._past if mark.offset < self.stored else self._taken).append(_remember(records[0]))
        return [record for record in records if record.offset >= self._read_to]

    def _pass_gap(self) -> None:
        """Continue where the log lost the next notices: with the oldest, or where it differs from what was read.

        Nothing can bring them back. If only the mark expired, the reader continues where it had read to.
        """
        start = beginning = self._log.beginnings(NOTICES)[0]
        mark = None
        if self._read_to < beginning:
            self._skip_expired(beginning)
        elif self._unproven is not None and self._unproven.offset < beginning:
            start = self._read_to  # the mark expired, and nothing else
        else:
            end = self._log.ends(NOTICES)[0]
            mark = self._find_newest_kept(beginning, end)
            start = beginning if mark is None else mark.offset + 1
            self._go_back(start, end, mark)
        old, self._reader = self._reader, self._log.reader({(NOTICES, 0): start if mark is None else mark.offset})
        old.close()
        self._read_to, self._unproven = start, mark

    def _skip_expired(self, beginning: int) -> None:
        """Pass over notices that expired before they were sent."""
        reason = f"notices {self._read_to} to {beginning - 1} {UNREAD} {self._name}"
        self._rejects.keep(reason, b"", self._read_to, None)
        logger.error("notices lost", reason=reason)
        self._window.take_record(beginning - 1, [])

    def _find_newest_kept(self, beginning: int, end: int) -> NoticeMark | None:
        """Return the newest remembered notice that the log still has at its place; None if there is none.

        The log has what it had up to some place, and new records behind it. Raises Unavailable.
        """
        known = [each for each in (*self._past, *self._taken) if beginning <= each[0].offset < end]
        count = bisect_left(known, True, key=lambda notice: not self._has(notice))
        return known[count - 1][0] if count else None

    def _has(self, notice: _ReadNotice) -> bool:
        """Return whether the log still has a notice; raise Unavailable if it does not say.

        On Kafka the end of a transaction may stand at its offset now.
        """
        try:
            with closing(self._log.reader({(NOTICES, 0): notice[0].offset})) as reader:
                first = next(read_on(self._log, reader, batch=1), None)
        except Expired as error:
            raise Unavailable(f"the log lost more notices while it was read: {error}") from error
        return first is not None and _remember(first) == notice

    def _go_back(self, start: int, end: int, mark: NoticeMark | None) -> None:
        """Send notices from `start` on again after the log lost its newest records.

        The log gives the offsets of the lost records to others. `mark` is the notice before `start`.
        """
        skipped = self._state.skipped(self._name, start)
        reason = (
            f"the log lost notices: it ends at {end}, {self._name} had read to {self._read_to}; "
            f"everything from {start} on is sent again"
        )
        self._rejects.keep(reason, b"", self._read_to, None, is_counted=False)
        logger.error("log lost records", reason=reason)
        position, settled = (start, mark) if start < self.stored else (self.stored, self._settled)
        text = None if settled is None else to_json(settled).decode("ascii")
        self._position.store(position, text)
        self._window.go_back(start)
        for known in (self._past, self._taken):
            # The notice before `start` is remembered again once the reader has proven it.
            while known and known[-1][0].offset >= start - 1:
                known.pop()
        self._settled, self._first_end = settled, min(self._first_end, end)
        self.stored, self.stored_mark, self.skipped = position, text, skipped

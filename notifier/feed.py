# SPDX-License-Identifier: GPL-2.0-or-later
"""The notices that one destination reads, and the position that it stores.

Rules of this file: the position is stored only after what is before it is settled; a loss in the log is a reject before it is
passed over.
"""

from collections import deque
from collections.abc import Callable, Iterator

import structlog
from prometheus_client import Gauge

from hgext.vcsreplicator.log import NOTICES, Log, Reader, Record
from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import Expired, ReplicationError, Unavailable
from hgext.vcsreplicator.words.retry import RECONNECT

from .rejects import Rejects
from .state import StateDatabase
from .window import Window

# Seconds between two stored positions while messages are not settled.
STORE_EVERY = 0.5

# Seconds after which a position that did not move is stored again: Kafka forgets one that is not stored for a week.
RENEW_EVERY = 3600.0

# Records of one read.
BATCH = 500

POSITION = Gauge(
    "vcsreplicator_notifier_position_offset", "First offset of notices that is not settled", ["destination"]
)

logger = structlog.get_logger()


def group(name: str) -> str:
    """Return the group whose stored position is the destination's."""
    return f"notifier-{name}"


class NoticeFeed:
    """The reader of one destination; `window` says how much it may read, and what is settled."""

    def __init__(
        self,
        name: str,
        log: Log,
        clock: Clock,
        chance: Callable[[], float],
        *,
        reader: Reader,
        window: Window,
        rejects: Rejects,
        state: StateDatabase,
    ) -> None:
        self._name, self._log, self._clock, self._chance = name, log, clock, chance
        self._reader, self._window, self._rejects, self._state = reader, window, rejects, state
        [self._read_to] = reader.positions().values()
        self._untaken: deque[Record] = deque()
        self._stored_at = float("-inf")
        self._failures, self._rests_until = 0, 0.0
        self.stored = self._read_to
        self.skipped = state.skipped(name, self._read_to)

    def records(self, wait: float) -> Iterator[Record]:
        """Yield the next records, waiting up to `wait` seconds; one whose reader raised comes again first. Raise Unavailable."""
        try:
            if not self._untaken:
                self._untaken.extend(self._reader.poll(wait, limit=min(BATCH, self._window.room)))
        except Expired:
            self._pass_gap()
        while self._untaken:
            yield self._untaken[0]
            self._read_to = self._untaken.popleft().offset + 1

    def store_position(self, *, at_once: bool = False) -> None:
        """Acknowledge what is settled: at once when nothing is left to do, else a few times a second."""
        position = max(self._window.position, self.stored)
        now = self._clock.monotonic()
        if not at_once and now - self._stored_at < self._pause_before(position):
            return
        try:
            self._log.acknowledge(group(self._name), NOTICES, {0: position})
        except Unavailable as error:
            self.rest(error)
            return
        self.stored, self._stored_at = position, now
        POSITION.labels(self._name).set(position)

    @property
    def is_resting(self) -> bool:
        """Whether the log is left alone for a while, because it was unavailable."""
        return self._clock.monotonic() < self._rests_until

    def rest(self, error: ReplicationError) -> None:
        """Leave the log alone for a while."""
        self._failures += 1
        delay = RECONNECT.delay(self._failures, self._chance())
        self._rests_until = self._clock.monotonic() + delay
        logger.warning("log unavailable", reason=str(error), retry_in=round(delay, 2))

    def note_answer(self) -> None:
        """Note that the log answers."""
        self._failures = 0

    def close(self) -> None:
        """Free the reader."""
        self._reader.close()

    def _pause_before(self, position: int) -> float:
        """Return the seconds that must have passed since the last stored position."""
        if position == self.stored:
            return RENEW_EVERY
        return STORE_EVERY if self._window.oldest is not None else 0.0

    def _pass_gap(self) -> None:
        """Continue with the oldest notice, where the log lost the next ones: nothing can bring them back."""
        beginning = self._log.beginnings(NOTICES)[0]
        if self._read_to < beginning:
            self._skip_expired(beginning)
        else:
            self._go_back(beginning, self._log.ends(NOTICES)[0])
        old, self._reader = self._reader, self._log.reader({(NOTICES, 0): beginning})
        old.close()
        self._read_to = beginning

    def _skip_expired(self, beginning: int) -> None:
        """Pass over notices that expired before they were sent."""
        reason = f"notices {self._read_to} to {beginning - 1} left the log before they were delivered to {self._name}"
        self._rejects.keep(reason, b"", self._read_to, None)
        logger.error("notices lost", reason=reason)
        self._window.take(beginning - 1, [])

    def _go_back(self, beginning: int, end: int) -> None:
        """Send all notices again after the log lost its newest records, whose offsets it gives to others."""
        skipped = self._state.skipped(self._name, beginning)
        reason = (
            f"the log lost notices: it ends at {end}, {self._name} had read to {self._read_to}; "
            "all that it has are sent again"
        )
        self._rejects.keep(reason, b"", self._read_to, None)
        logger.error("log lost records", reason=reason)
        self._log.acknowledge(group(self._name), NOTICES, {0: beginning})
        self._window.go_back(beginning)
        self.stored, self.skipped = beginning, skipped

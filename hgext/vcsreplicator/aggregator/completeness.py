# SPDX-License-Identifier: GPL-2.0-or-later
"""The time up to which everything in `events` is read.

A successor at a path waits for it (`succession`): events of its predecessor may be in a partition that does not answer, or that is
read later than others. What the relay could not send to such a partition comes some seconds after it answers again. So a time
counts only if all partitions answered for DEPARTURE_PATIENCE before it, since the start, or their last failure or late answer.

A session that began without some partitions never finds such a time. It ends as soon as one of them answers.
"""

import time
from concurrent.futures import Future, wait

import structlog

from ..log import EVENTS, Log
from ..log.aside import ask_aside
from ..log.table import find_answered_ends
from ..words.clock import Clock
from ..words.errors import Unavailable
from .decisions.aggregation import Aggregation
from .decisions.succession import DEPARTURE_PATIENCE

# Seconds between two questions while a successor waits for the answer.
AGAIN = 1.0

# Seconds that the loop waits for an answer: a healthy log takes some milliseconds, and one broker that hangs takes longer.
PAUSE = 0.5

# Seconds after which an answer is late: who sent events to such a partition may have given up, and sends them again later.
LATE = 5.0

# Seconds after which a wait that ends by itself is long; how many of them are told.
SLOW = DEPARTURE_PATIENCE / 2
SHOWN = 10

# What waits, and what an operator can do, if partitions do not answer, and if the log answers late.
START_BROKERS = "notices of their repositories wait; start the brokers that have these partitions"
MAKE_FASTER = "a repository at a path that another one had before waits; find out why the log is slow"

# The ends of partitions, and the seconds that the log took to answer.
_TimedEnds = tuple[dict[int, int], float]

logger = structlog.get_logger()


class Completeness:
    """Finds that time; used by one thread.

    It asks for the ends of all partitions every `interval` seconds. Once these are read, it knows that everything is read that the
    log had when it asked. It `found_unread` once a partition answers that did not at the start; until then it asks for those alone.
    """

    def __init__(self, aggregation: Aggregation, log: Log, clock: Clock, interval: float) -> None:
        self._aggregation, self._log, self._clock, self._interval = aggregation, log, clock, interval
        self._answers_since = clock.monotonic()
        self._asked = self._answers_since - interval
        # The question that is not answered yet; a thread of its own asks, so that a broker that hangs holds up no other work.
        self._question: Future[_TimedEnds] | None = None
        self._ends: dict[int, int] = {}
        # The time that counts once the ends are read; None if they answer only since a short time.
        self._next: float | None = None
        # Why the newest question failed or was answered late, and when the first one since an answer in time was asked.
        self._failure, self._fails_since = "", 0.0
        self._unread = {each for each in range(log.partitions(EVENTS)) if (EVENTS, each) not in aggregation.positions}
        self.found_unread = False
        if self._unread:
            logger.warning("partitions do not answer", topic=EVENTS, partitions=sorted(self._unread))

    def check(self) -> bool:
        """Ask if it is due; return whether it found a time that a successor waits for."""
        succession, now = self._aggregation.succession, self._clock.monotonic()
        due = self._asked + (min(AGAIN, self._interval) if succession.is_unproven else self._interval)
        if self._question is None and now >= due:
            self._asked = now
            self._question = ask_aside("ends", self._find_ends)
            wait([self._question], PAUSE)
        if self._question is not None and self._question.done():
            self._take_answer(self._question)
            self._question = None
        positions = self._aggregation.positions
        if self._next is None or any(positions.get((EVENTS, part), -1) < end for part, end in self._ends.items()):
            return False
        succession.read_at, self._next = self._next, None
        return succession.is_unproven

    def find_failure(self, patience: float) -> str:
        """Return why none was answered in time for `patience` seconds, or nothing.

        The text says what waits, and what an operator can do.
        """
        then = self._clock.monotonic() - patience
        if self._question is not None and self._asked <= then:
            return f"topic {EVENTS}: the log does not say how many events it has; {START_BROKERS}"
        return self._failure if self._fails_since <= then else ""

    def describe_waits(self) -> tuple[str, ...]:
        """Return the successors that have waited for SLOW seconds for what may not be read, and when the wait ends."""
        now, day, waits = self._clock.monotonic(), self._clock.now(), []
        for name, (held, until) in self._aggregation.succession.list_unsure().items():
            ends = _tell_time(day - now + max(until, self._answers_since + DEPARTURE_PATIENCE))
            when = f"at {ends} if" if not (self._failure or self._unread) else f"{DEPARTURE_PATIENCE:.0f} s after"
            if day - held.since >= SLOW:
                waits.append(
                    f"{held.event.path} ({name}) waits since {_tell_time(held.since)} until all that another repository at its "
                    f"path may have sent is read; that ends by itself {when} all partitions of {EVENTS} answer"
                )
        return tuple(sorted(waits)[:SHOWN])

    def _find_ends(self) -> _TimedEnds:
        """Return the ends of all partitions, or of the unread partitions that answer."""
        ends = find_answered_ends(self._log, EVENTS, self._unread) or self._log.ends(EVENTS, self._unread or None)
        # Here, not where the answer is taken: the loop may do something long meanwhile.
        return ends, self._clock.monotonic() - self._asked

    def _take_answer(self, question: Future[_TimedEnds]) -> None:
        """Take the ends; those of an earlier question remain that are not read yet.

        But the log may have lost records meanwhile.
        """
        try:
            ends, seconds = question.result()
        except Unavailable as error:
            self._note_failure(f"{error}; {START_BROKERS}")
            return
        if seconds > LATE and not self._unread:
            took = f"the log takes {seconds:.0f} s to say how many events it has, which is more than {LATE:g} s"
            self._note_failure(f"topic {EVENTS}: {took}; {MAKE_FASTER}")
            return
        self._failure = ""
        if self._unread:
            logger.info("partitions answer again", topic=EVENTS, partitions=sorted(ends))
            self.found_unread = True
        elif self._next is not None:
            self._ends = {partition: min(end, self._ends[partition]) for partition, end in ends.items()}
        elif self._asked - self._answers_since >= DEPARTURE_PATIENCE:
            self._ends, self._next = ends, self._asked

    def _note_failure(self, reason: str) -> None:
        self._fails_since = self._fails_since if self._failure else self._asked
        self._failure = reason
        self._answers_since, self._next = self._clock.monotonic(), None


def _tell_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))

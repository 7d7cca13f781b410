# SPDX-License-Identifier: GPL-2.0-or-later
"""The reading of the log that makes the picture.

Compacted topics are read whole once and then followed, so a watched picture costs what has changed.
"""

import time
from collections.abc import Callable
from contextlib import closing

from ..log import ACKS, ERRORS, NOTICES, ROSTER, SERVICES, STATE, Log, Record
from ..log.table import find_beginnings
from ..words.clock import Clock, SystemClock
from ..words.errors import BadConfig, Expired
from . import DESTINATION, SILENT, Picture

# Seconds for which a record counts as just written, and for which a new one is waited for: more than two beats.
FRESH, WATCH = 10.0, 12.0

# Records of `notices` and of `errors`, which are larger, that are read to count them.
COUNTED, COUNTED_ERRORS = 1000, 100


class Follower:
    """Keeps a picture up to date; used by one thread."""

    def __init__(self, log: Log, clock: Clock = SystemClock()) -> None:  # noqa: B008
        self._log, self._clock = log, clock
        self._begin()

    def _begin(self) -> None:
        # The time of the newest record, and when it came.
        self._newest, self._came = 0.0, self._clock.monotonic()
        self.picture = Picture()
        try:
            self._log.partitions(SERVICES)
        except BadConfig:  # an older release did not create it
            self.picture.has_services = False
        self._topics = (ROSTER, STATE, ACKS, SERVICES) if self.picture.has_services else (ROSTER, STATE, ACKS)
        self._reader = self._log.reader(find_beginnings(self._log, *self._topics))

    def close(self) -> None:
        """Free the reader."""
        self._reader.close()

    def update(self) -> Picture:
        """Return the picture with everything committed before the call.

        It has nothing that the log has lost: after a loss this method makes the picture anew. Raise Unavailable.
        """
        try:
            return self._read_on()
        except Expired:
            former = self._reader
            self._begin()
            former.close()
            return self._read_on()

    def _read_on(self) -> Picture:
        patience, came = 0.0, dict[tuple[str, int], float]()
        ends = {(t, p): end for t in self._topics for p, end in self._log.ends(t).items()}
        # At least once: of a log that lost records the ends may be passed already.
        while patience == 0 or any(self._reader.positions().get(place, 0) < end for place, end in ends.items()):
            for record in self._reader.poll(patience, limit=5000):
                self.picture.absorb(record)
                came[record.topic, record.partition] = record.time
            patience = 1.0
        if came:
            # Not the latest time that any record has: the clock may have been set back since.
            self._newest, self._came = max(came.values()), self._clock.monotonic()
        groups = self._log.groups(NOTICES).items()
        self.picture.groups = {name: at.get(0, 0) for name, at in groups if name.startswith(DESTINATION)}
        return self.picture

    def now(self) -> float:
        """Return the time by the log's clock.

        It follows from the log's newest record and this follower's monotonic clock.
        """
        return self._newest + self._clock.monotonic() - self._came

    def present(self, pause: Callable[[float], object] = time.sleep) -> float:
        """Update the picture and return the time by the log's clock.

        A command that reads the log once uses this method. The newest record may be old, and the clocks of this machine and of
        the log may differ. Unless the clocks agree that the record is fresh, this method watches for up to WATCH seconds. If no
        record comes in that time, it returns a time by which every service is silent.
        """
        self.update()
        newest, came = self._newest, self._came
        if newest == 0 or 0 <= self._clock.now() - newest <= FRESH:
            return max(newest, self._clock.now())
        while self._clock.monotonic() - came < WATCH:
            pause(0.2)
            self.update()
            if self._came > came:
                return self.now()
        return max(self._clock.now(), newest + SILENT + WATCH)


def look_at_destinations(log: Log, picture: Picture) -> None:
    """Count the notices that each destination lacks, and the records of `errors`.

    Find the time of the first notice that each lacks, too. On Kafka each transaction takes an offset as well, so this function
    reads some records to count them; if there are more, the difference of the offsets is good enough.
    """
    beginning, end = log.beginnings(NOTICES)[0], log.ends(NOTICES)[0]
    lags, oldest = {}, {}
    read: dict[int, list[Record]] = {end: []}
    for group, position in picture.groups.items():
        start = min(max(position, beginning), end)
        if start not in read:
            read[start] = _read_some(log, NOTICES, start, end, limit=COUNTED)
        found = read[start]
        lags[group] = len(found) if len(found) < COUNTED else end - start
        if found:
            oldest[group] = found[0].time
    picture.lags, picture.oldest = lags, oldest
    beginning, end = log.beginnings(ERRORS)[0], log.ends(ERRORS)[0]
    errors = len(_read_some(log, ERRORS, beginning, end, limit=COUNTED_ERRORS))
    picture.errors = errors if errors < COUNTED_ERRORS else end - beginning


def _read_some(log: Log, topic: str, start: int, end: int, *, limit: int) -> list[Record]:
    """Read at most `limit` records of a topic with one partition."""
    if start >= end:
        return []
    found = list[Record]()
    with closing(log.reader({(topic, 0): start})) as reader:
        while len(found) < limit and reader.positions()[topic, 0] < end:
            found += reader.poll(1.0, limit=limit - len(found))
    return found

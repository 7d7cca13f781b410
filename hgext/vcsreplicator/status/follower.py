# SPDX-License-Identifier: GPL-2.0-or-later
"""The reading of the log that makes the picture.

Compacted topics are read whole once and then followed, so a watched picture costs what has changed.
"""

import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from itertools import islice

from ..log import ACKS, ERRORS, NOTICES, ROSTER, SERVICES, STATE, WATCHES, Log, PartitionKey, Record, topics
from ..log.table import find_beginnings, read_on
from ..words.clock import Clock, SystemClock
from ..words.errors import BadConfig, Expired, HeldUp, NotAuthorized
from ..words.records import DECODE_GROUP, DESTINATION_GROUP, SUBMITTED_KEY, UNREAD, ErrorRecord
from ..words.shape import try_json
from . import SILENT, Picture

# Seconds for which a record counts as just written, and by which the time may be wrong.
FRESH = 10.0
# Seconds for which a service's report counts as its newest: more than between two.
REPORTED = 25.0
# Seconds to wait for a new record: more than two heartbeats.
WATCH = 12.0

# Most records of `notices`, and of the larger `errors`, that are read to count them.
COUNTED, COUNTED_ERRORS = 1000, 100

# The offsets of notices that a destination lost.
_UNREAD = re.compile(rf"notices (\d{{1,18}}) to (\d{{1,18}}) {UNREAD} ")


class Follower:
    """Keeps a picture up to date; used by one thread.

    `newest_heartbeat` is the log's time of the newest heartbeat, 0 if there is none. It is the newest record of `acks` and `state`,
    where mirrors and the aggregator write all the time: it was not written before the log's clock was last set. `recent_report` is
    the log's time of the newest recent report of a service, 0 if there is none. A report is recent if this machine's own clock
    found it so at the last update that read one.
    """

    def __init__(self, log: Log, clock: Clock = SystemClock()) -> None:  # noqa: B008
        self._log, self._clock = log, clock
        self._open_reader()

    def _open_reader(self) -> None:
        """Open a reader, then begin again; nothing changes if it cannot be opened."""
        optional = [topic for topic in (SERVICES, WATCHES) if self._has_topic(topic)]
        self._reader = self._log.reader(find_beginnings(self._log, ROSTER, STATE, ACKS, *optional))
        self._missing = {SERVICES, WATCHES} - set(optional)
        self.picture = Picture(has_services=SERVICES in optional)
        # The time of the newest record, when it came, and when the update before began.
        self._newest, self._came, self._updated = 0.0, self._clock.monotonic(), -math.inf
        self.newest_heartbeat = self.recent_report = 0.0
        # Bounds of the log's time minus this machine's monotonic time; the third is the same difference for this machine's own
        # clock at the last update.
        self._lower_bound, self._upper_bound, self._own_difference = -math.inf, math.inf, 0.0

    def close(self) -> None:
        self._reader.close()

    def update(self) -> Picture:
        """Return the picture with everything committed before the call.

        It has nothing that the log has lost: after a loss this method rebuilds the picture. Raises Unavailable.
        """
        if any(map(self._has_topic, self._missing)):
            self._begin_anew()
        try:
            return self._read_on()
        except Expired:
            self._begin_anew()
            return self._read_on()

    def _begin_anew(self) -> None:
        former = self._reader
        self._open_reader()
        former.close()

    def _has_topic(self, topic: str) -> bool:
        """Return whether this user can read the topic; an older release did not create it."""
        try:
            self._log.partitions(topic)
        except (BadConfig, NotAuthorized):
            return False
        return True

    def _read_on(self) -> Picture:
        came, began = dict[tuple[str, int], float](), self._clock.monotonic()
        own = self._clock.now() - began
        if abs(own - self._own_difference) > FRESH:
            # This machine slept, or its clock was set: earlier knowledge of the time is invalid.
            self._lower_bound, self._upper_bound, self._updated = -math.inf, math.inf, -math.inf
        self._own_difference = own
        for record in read_on(self._log, self._reader):
            self.picture.absorb(record)
            came[record.topic, record.partition] = record.time
        if came:
            # Not the latest time that any record has: the clock may have been set back since.
            self._newest, self._came = max(came.values()), self._clock.monotonic()
        times = [time for (topic, _), time in came.items() if topic in (ACKS, STATE)]
        self.newest_heartbeat = max(times, default=self.newest_heartbeat)
        reports = [time for (topic, _), time in came.items() if topic == SERVICES]
        if reports:
            recent = (time for time in reports if -FRESH <= self._clock.now() - time <= REPORTED)
            self.recent_report = max(recent, default=0.0)
        if came or not self._newest:
            self._compare_clocks()
        self._updated = began
        self.picture.positions = {
            group.removeprefix(DESTINATION_GROUP): at.get(0, 0)
            for group, at in self._log.groups(NOTICES).items()
            if group.startswith(DESTINATION_GROUP)
        }
        return self.picture

    def _compare_clocks(self) -> None:
        """Estimate the log's clock from the record that was read last.

        The record was written before now, and after the former update. If it is fresh by this machine's clock, the clocks agree.
        """
        now, own = self._clock.monotonic(), self._clock.now()
        least, most = self._newest - now, self._newest - self._updated
        if self._newest == 0 or 0 <= own - self._newest <= FRESH:
            least = most = own - now
        elif max(least, self._lower_bound) <= min(most, self._upper_bound):  # else the log's clock was set
            least, most = max(least, self._lower_bound), min(most, self._upper_bound)
        self._lower_bound, self._upper_bound = least, most

    def now(self) -> float | None:
        """Return the time by the log's clock, as of the last update.

        Returns None while it is not known: the newest record may be old, and the clocks of this machine and of the log may differ.
        The time is known if the clocks agree that a record is fresh, or once one came between two updates. If none came for WATCH
        seconds, this is a time by which every service is silent.
        """
        now = self._clock.monotonic()
        # False if this machine's clock was set since, or it slept, or the time is known from records that came late.
        is_same = abs(self._clock.now() - now - self._own_difference) <= FRESH
        if is_same and self._upper_bound - self._lower_bound <= FRESH:
            return self._lower_bound + now
        if now - self._came >= WATCH:
            return max(self._clock.now(), self._newest + SILENT + WATCH)
        return None

    def present(self, pause: Callable[[float], object] = time.sleep) -> float:
        """Update the picture and return the time by the log's clock.

        While the time is not known (see `now`), this method goes on reading, for at most about WATCH seconds.
        """
        self.update()
        end = self._clock.monotonic() + WATCH
        while (now := self.now()) is None and self._clock.monotonic() < end:
            pause(0.2)
            self.update()
        return self._lower_bound + self._clock.monotonic() if now is None else now


def read_picture(log: Log) -> Picture:
    with closing(Follower(log)) as follower:
        return follower.update()


def look_at_topics(log: Log, picture: Picture) -> None:
    """Compare the topics of the log with the needed ones, and find those whose readers are held up."""
    picture.topics = log.compare(topics())
    picture.held_up = [said for each in picture.topics if each.found and (said := _find_held_up(log, each.name))]


def _find_held_up(log: Log, topic: str) -> str | None:
    """Say that readers of a topic wait for a transaction that does not end."""
    try:
        log.wait_for_transactions(topic)
    except HeldUp as error:
        return str(error)
    return None


def look_at_destinations(log: Log, picture: Picture, raw: str | None = None) -> None:
    """Count the notices that each destination lacks, and the records of `errors`; find the decoders.

    Also find the time of the first notice that each lacks, and what waits without a decoder in the topic `raw`. On Kafka each
    transaction takes an offset as well, so this function reads some records to count them; for more, the difference of the
    offsets is good enough.
    """
    beginning, end = log.beginnings(NOTICES)[0], log.ends(NOTICES)[0]
    lacking, oldest = {}, {}
    read: dict[int, list[Record]] = {end: []}
    for name, position in picture.positions.items():
        start = min(max(position, beginning), end)
        if start not in read:
            read[start] = _read_some(log, (NOTICES, 0), start, end, limit=COUNTED)
        found = read[start]
        lacking[name] = len(found) if len(found) < COUNTED else end - start
        if found:
            oldest[name] = found[0].time
    picture.lacking, picture.oldest, picture.decoders = lacking, oldest, log.shares(f"{DECODE_GROUP}-")
    picture.undecoded = _find_undecoded(log, raw, picture.decoders) if raw else {}
    beginning, end = log.beginnings(ERRORS)[0], log.ends(ERRORS)[0]
    errors = _read_some(log, (ERRORS, 0), beginning, end, limit=COUNTED_ERRORS)
    picture.unread = _find_unread(errors)
    rejects = sum(record.key != SUBMITTED_KEY for record in errors)
    picture.errors = rejects if len(errors) < COUNTED_ERRORS else end - beginning


def _find_undecoded(log: Log, topic: str, decoders: Mapping[str, Sequence[PartitionKey]]) -> dict[PartitionKey, float]:
    """Find the time of the first document that waits in each partition that no decoder has.

    Nothing waits in a topic that is not there yet, or that this user may not read.
    """
    try:
        ends, beginnings = log.ends(topic), log.beginnings(topic)
    except (BadConfig, NotAuthorized):
        return {}
    stored, found = log.stored(DECODE_GROUP, topic), {}
    had = {key for share in decoders.values() for key in share}
    for key in ((topic, partition) for partition in ends if (topic, partition) not in had):
        start = max(stored.get(key[1], 0), beginnings[key[1]])
        if first := _read_some(log, key, start, ends[key[1]], limit=1):
            found[key] = first[0].time
    return found


def _find_unread(errors: Iterable[Record]) -> dict[str, tuple[int, float]]:
    """Find how many notices each destination lost because they expired, and when."""
    found = dict[str, tuple[int, float]]()
    for record in errors:
        error = try_json(ErrorRecord, record.value) if record.key is None else None
        match = _UNREAD.match(error.reason) if error else None
        if error is not None and error.destination is not None and match:
            count = int(match[2]) - int(match[1]) + 1 + found.get(error.destination, (0, 0.0))[0]
            found[error.destination] = count, record.time
    return found


def _read_some(log: Log, key: PartitionKey, start: int, end: int, *, limit: int) -> list[Record]:
    """Read at most `limit` records of a partition."""
    if start >= end:
        return []
    with closing(log.reader({key: start})) as reader:
        return list(islice(read_on(log, reader, batch=limit), limit))

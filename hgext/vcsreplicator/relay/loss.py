# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's watch for losses: whether the log still has the sent events.

`outbox.losses` describes losses. A log that loses records loses its newest: while the newest known record of a partition is at its
offset, all earlier ones are too. So one check of each partition, periodically and after each failure, is enough for all
repositories.

Rules of this file: an *era* of a partition ends when a loss is found in it. A repository is confirmed in the era in which its
newest event was seen in the log or sent to it; in the first era, it is enough that the aggregator saw it. A repository that is not
confirmed is checked before more of it is sent. Events sent before a loss was noticed may stand behind lost records: so the relay
also looks for the event that was sent before them.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping

import prometheus_client
import structlog

from ..log import EVENTS, Log, partition_of
from ..outbox.entry import NewestEvent
from ..outbox.file import Outbox, SentMark
from ..outbox.losses import EventPlace, find_standing, has_lost, has_seen, send_again
from ..words.clock import Clock, SystemClock
from ..words.errors import ReplicationError, Unavailable
from ..words.event import event_names
from ..words.records import RepositoryState
from ..words.value import Value

logger = structlog.get_logger()

LOSSES = prometheus_client.Counter(
    "vcsreplicator_relay_log_losses_total",
    "Times that a partition of the log was found to have lost records",
)
# Seconds for which the relay relies on the ends that it saw. A loss since then is found when the event is appended.
FRESH = 0.25

NEXT_STEP = "run `hg replicatesync` in it: mirrors then copy what they lack; these events are not announced"


class Confirmation(Value):
    """The era of its partition in which the log had a repository's newest sent event."""

    repository: str
    partition: int
    era: int


class KnownPlace(EventPlace):
    """The newest known record of a partition, and the era in which it was seen."""

    era: int


class LossWatch:
    """The records that the log is known to have; any thread may use it.

    `state` returns the aggregator's state of a repository.
    """

    def __init__(self, log: Log, state: Callable[[str], RepositoryState | None], clock: Clock | None = None) -> None:
        self._log, self._state, self._clock = log, state, clock or SystemClock()
        self._lock, self._checking = threading.Lock(), threading.Lock()
        self._eras = Counter[int]()
        self._newest: dict[int, KnownPlace] = {}
        self._confirmed: dict[str, Confirmation] = {}
        # The marker of each repository before its newest event was sent.
        self._previous: dict[str, SentMark] = {}
        self._doubts = self._answered = 0
        # The ends of the partitions, and when they were asked for.
        self._ends: tuple[float, Mapping[int, int]] = (float("-inf"), {})

    def is_confirmed(self, folder: str) -> bool:
        """Return whether the log is known to have this repository's newest sent event."""
        known = self._confirmed.get(folder)
        return known is not None and known.era == self._eras[known.partition]

    def doubt(self) -> None:
        """Have the partitions checked before anything else is sent.

        The caller had no answer from the log.
        """
        self._doubts += 1

    @property
    def is_doubted(self) -> bool:
        """Whether nothing may be sent before the partitions are checked.

        It stays true until that check has ended.
        """
        return self._doubts != self._answered

    def check_partitions(self) -> None:
        """Check that the newest known record of each partition still stands there.

        Raises Unavailable, BadConfig.
        """
        with self._checking:
            known, doubts = self.newest_places(), self._doubts
            try:
                lost = known.keys() - find_standing(self._log, known)
            except ReplicationError:
                self.doubt()
                raise
            for partition in lost:
                self._end_era(partition, known[partition])
            self._answered = doubts

    def check(self, folder: str, box: Outbox) -> Confirmation | None:
        """Move the marker back if the log lost events.

        Returns the era in which this was checked; None if nothing was sent yet. The caller holds the sending lock. Raises
        Unavailable.
        """
        sent, newest = box.sent(), box.newest()
        if sent is None or newest is None:
            return None
        partition = sent.partition
        if partition is None:
            partition = partition_of(newest.repository, self._log.partitions(EVENTS))
        if self.is_doubted:
            self.check_partitions()
        known = self._newest.get(partition)
        if known is not None and not self._reaches_beyond(known, partition):
            self._end_era(partition, known)
        current = Confirmation(repository=newest.repository, partition=partition, era=self._eras[partition])
        if self._confirmed.get(folder) == current:
            return current
        state = self._state(newest.repository)
        if self._has_lost_previous(folder) or (
            not (current.era == 0 and has_seen(state, box, sent)) and has_lost(self._log, box, state)
        ):
            self._send_again(folder, box, newest, partition)
            self._previous.pop(folder, None)
            return current
        self._remember(sent, current.era)
        self._confirmed[folder] = current
        return current

    def newest_places(self) -> Mapping[int, KnownPlace]:
        """Return the newest known record of each partition, as of now."""
        with self._lock:
            return dict(self._newest)

    def eras(self) -> Counter[int]:
        """Return the era of each partition, as of now."""
        with self._lock:
            return Counter(self._eras)

    def check_appended(self, partition: int, offset: int, before: Mapping[int, KnownPlace]) -> None:
        """Check the first new record against the partition's places `before`.

        Raises Unavailable after a loss.
        """
        known = before.get(partition)
        if known is not None and (offset <= known.offset or self._eras[partition] != known.era):
            self._end_era(partition, known)
            raise Unavailable("the log lost records while this was sent: it is sent again")

    def confirm(
        self, folder: str, repository: str, sent: SentMark, before: Mapping[int, int], previous: SentMark | None = None
    ) -> None:
        """Remember that the log took the marked event, and the `previous` marker.

        The log took the event in the eras `before` or later.
        """
        if sent.partition is None:
            return
        era = before[sent.partition]
        self._remember(sent, era)
        self._confirmed[folder] = Confirmation(repository=repository, partition=sent.partition, era=era)
        if previous is not None:
            self._previous[folder] = previous

    def _reaches_beyond(self, known: KnownPlace, partition: int) -> bool:
        """Return whether the log has the known record, or had it a moment ago.

        The answer was cached when the pusher connected, shortly before the commit, so the event needs no other question. Raises
        Unavailable.
        """
        (asked, ends), now = self._ends, self._clock.monotonic()
        if now - asked >= FRESH or ends.get(partition, 0) <= known.offset:
            ends = self._log.ends(EVENTS)
            self._ends = now, ends
        return ends.get(partition, 0) > known.offset

    def _has_lost_previous(self, folder: str) -> bool:
        """Return whether the log lost the event of a repository's previous marker.

        That marker is from before the newest event was sent. Raises Unavailable.
        """
        previous = self._previous.get(folder)
        if previous is None or previous.partition is None or previous.offset is None:
            return False
        return not find_standing(self._log, {previous.partition: EventPlace(id=previous.id, offset=previous.offset)})

    def _send_again(self, folder: str, box: Outbox, newest: NewestEvent, partition: int) -> None:
        """Have all kept events sent again.

        If the newest known record of the partition is lost too, end the partition's era.
        """
        known = self._newest.get(partition)
        if known is not None and not find_standing(self._log, {partition: known}):
            self._end_era(partition, known)
        names = event_names(newest)
        logger.warning("the log lost events: they are sent again", folder=folder, **names)
        missing = send_again(box, self._state(newest.repository))
        if missing is not None:
            logger.error(
                "the log lost events that the outbox keeps no more",
                folder=folder,
                **names,
                missing=f"{missing[0]} to {missing[1]}",
                next_step=NEXT_STEP,
            )

    def _end_era(self, partition: int, known: KnownPlace) -> None:
        with self._lock:
            # Otherwise another thread saw it first.
            if self._eras[partition] != known.era:
                return
            del self._newest[partition]
            self._eras[partition] += 1
        LOSSES.inc()
        logger.warning("the log lost its newest records", partition=partition, known=known.offset, event_id=known.id)

    def _remember(self, sent: SentMark, era: int) -> None:
        """Remember the place, unless its era is over."""
        if sent.partition is None or sent.offset is None:
            return
        with self._lock:
            known = self._newest.get(sent.partition)
            if self._eras[sent.partition] == era and (known is None or known.offset < sent.offset):
                self._newest[sent.partition] = KnownPlace(id=sent.id, offset=sent.offset, era=era)

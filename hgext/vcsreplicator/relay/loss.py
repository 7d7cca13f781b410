# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's watch for losses: whether the log still has the sent events.

`outbox.losses` describes losses. A log that loses records loses its newest: while the newest known record of a partition is at its
offset, all earlier ones are too. So one check of each partition, periodically and after each failure, is enough for all
repositories. The same check sees where each partition begins, and so which events expired. The aggregator's `state` would not do:
it trails, by hours while the aggregator is stopped. Nor would an identity of the log: a restored copy has the same.

Rules of this file: an *era* of a partition ends when a loss is found in it. A repository is confirmed in the era in which its
newest event was seen in the log or sent to it; in the first era, it is enough that the aggregator saw it. A repository that is not
confirmed is checked before more of it is sent. Events sent before a loss was noticed may stand behind lost records: so the relay
also looks for the event that was sent before them. What is asked about a partition is asked of no other (`partitions`).
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import prometheus_client
import structlog

from ..log import EVENTS, Log
from ..outbox.entry import NewestEvent
from ..outbox.file import Outbox, SentMark, outbox_of
from ..outbox.losses import EventPlace, find_events, find_standing, has_lost, has_seen, send_again
from ..words.clock import Clock, SystemClock
from ..words.errors import ReplicationError, Unavailable
from ..words.event import event_names
from ..words.records import RepositoryState
from ..words.value import Value
from .partitions import EventPartitions

logger = structlog.get_logger()

LOSSES = prometheus_client.Counter(
    "vcsreplicator_relay_log_losses_total",
    "Times that a partition of the log was found to have lost records",
)
# Seconds after which a check of all partitions, some of which did not answer, leaves the rest to the next one.
CHECK = 5.0

NEXT_STEP = "run `hg replicatesync` in it: mirrors then copy what they lack; these events are not announced"


class Confirmation(Value):
    """The era of its partition in which the log had a repository's newest sent event.

    `event` is the id of that event, and `offset` its place in the partition, if that is known.
    """

    repository: str
    event: str
    partition: int
    era: int
    offset: int | None


class KnownPlace(EventPlace):
    """The newest known record of a partition, and the era in which it was seen."""

    era: int


class LossWatch:
    """The records that the log is known to have; any thread may use it.

    `find_state` returns the aggregator's state of a repository, and `partitions` knows which partitions must be checked.
    """

    def __init__(
        self, log: Log, find_state: Callable[[str], RepositoryState | None], clock: Clock | None = None
    ) -> None:
        self._log, self._find_state, self._clock = log, find_state, clock or SystemClock()
        self.partitions, self._lock = EventPartitions(log, self._clock), threading.Lock()
        self._eras = Counter[int]()
        self._newest: dict[int, KnownPlace] = {}
        self._confirmed: dict[str, Confirmation] = {}
        # Where each partition began when it was checked.
        self._beginnings: dict[int, int] = {}
        # The sent mark of each repository before its newest event was sent.
        self._previous: dict[str, SentMark] = {}
        # The partition of each repository that was checked.
        self._homes: dict[str, int] = {}
        # The partition that failed last when each was checked.
        self._failed = -1

    def is_confirmed(self, folder: str, event: str) -> bool:
        """Return whether the log is known to have this repository's newest sent event.

        `event` is the id that its sent mark has; after a restore that is another one than was confirmed. An event that retention
        removed before the aggregator read it is not confirmed any more.
        """
        known = self._confirmed.get(folder)
        if known is None or known.event != event or known.era != self._eras[known.partition]:
            return False
        return not self._has_expired_unread(known)

    def doubt(self, folder: str) -> None:
        """Have a repository's partition checked before anything else is sent to it.

        The caller had no answer from the log. If the partition is not known, all are checked of which a record is known.
        """
        home = self._homes.get(folder)
        self.partitions.doubt(*(self.newest_places() if home is None else [home]))

    def check_partitions(self) -> None:
        """Check that the newest known record of each partition still stands there.

        If some do not answer, the others are checked one by one, and those left after CHECK seconds stay doubted; the next check
        begins with them. Then raises Unavailable, or BadConfig.
        """
        known, deadline = self.newest_places(), self._clock.monotonic() + CHECK
        doubted = sorted(
            filter(self.partitions.is_doubted, known), key=lambda partition: (partition <= self._failed, partition)
        )
        waiting = [[partition for partition in known if partition not in doubted], *([each] for each in doubted)]
        failure: ReplicationError | None = None
        while waiting and (failure is None or self._clock.monotonic() < deadline):
            partitions = waiting.pop(0)
            try:
                self._check_places(partitions, known)
            except ReplicationError as error:
                failure = error
                if len(partitions) > 1:
                    waiting = [*([each] for each in partitions), *waiting]
                elif partitions:
                    self._failed = partitions[0]
        if failure is not None:
            raise failure

    def confirm_all(self, folders: Iterable[str], stop: threading.Event, start: Callable[[str], None]) -> None:
        """Confirm repositories of which the aggregator has no state, by one reading of each partition.

        `start` gets each folder for its jobs: at once if there is a state or the repository cannot be read, otherwise once its
        partition is read, or cannot be.
        """
        eras, wanted = self.eras(), defaultdict[int, dict[int, tuple[str, str, SentMark]]](dict)
        for folder in folders:
            if stop.is_set():
                return
            place = None
            with suppress(Exception):  # accounts may write there; its job reports it
                place = self._find_unknown(folder)
            if place is None or place[1].partition is None or place[1].offset is None:
                start(folder)
            elif place[1].offset in wanted[place[1].partition]:
                start(folder)  # a copy, which has the same mark
            else:
                wanted[place[1].partition][place[1].offset] = folder, *place
        for partition, places in wanted.items():
            ids = {offset: sent.id for offset, (_, _, sent) in places.items()}
            found = set[str]()
            with suppress(ReplicationError):  # `check` finds it too
                found = find_events(self._log, partition, ids, stop)
            for folder, repository, sent in places.values():
                if sent.id in found:
                    self.confirm(folder, repository, sent, eras)
                start(folder)

    def _find_unknown(self, folder: str) -> tuple[str, SentMark] | None:
        """Return a repository's id and sent mark if the aggregator has no state of it."""
        box = outbox_of(folder)
        sent, newest = box.sent(), box.newest()
        if (
            sent is None
            or newest is None
            or folder in self._previous
            or self._find_state(newest.repository) is not None
        ):
            return None
        return newest.repository, sent

    def check(self, folder: str, box: Outbox) -> Confirmation | None:
        """Move the sent mark back if the log lost events.

        Returns the era in which this was checked; None if nothing was sent yet. The caller holds the sending lock. Raises
        Unavailable, also if the partition of a new repository does not answer.
        """
        sent, newest = box.sent(), box.newest()
        if newest is None:
            return None
        self._homes[folder] = partition = self.partitions.find(newest, sent)
        with self.partitions.turn(partition), self.partitions.doubting(partition):
            self._check_partition(partition)
        if sent is None:
            return None
        current = Confirmation(
            repository=newest.repository,
            event=sent.id,
            partition=partition,
            era=self._eras[partition],
            offset=sent.offset,
        )
        if self._confirmed.get(folder) == current and not self._has_expired_unread(current):
            return current
        with self.partitions.doubting(partition):
            if self._has_lost_events(folder, box, sent, current):
                self._send_again(folder, box, newest, partition)
                self._previous.pop(folder, None)
                return current
        self._remember(sent, current.era)
        self._confirmed[folder] = current
        return current

    def check_answer(self, box: Outbox) -> None:
        """Raise Unavailable if the log does not answer for a repository.

        Without an event it may get any partition: then all must answer.
        """
        newest = box.newest()
        if newest is None:
            self._log.ends(EVENTS)
            return
        partition = self.partitions.find(newest, box.sent())
        with self.partitions.turn(partition):
            self.partitions.ask_end(partition)

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
        """Remember that the log took the marked event, and the `previous` sent mark.

        The log took the event in the eras `before` or later.
        """
        if sent.partition is None:
            return
        era = before[sent.partition]
        self._remember(sent, era)
        self._confirmed[folder] = Confirmation(
            repository=repository, event=sent.id, partition=sent.partition, era=era, offset=sent.offset
        )
        if previous is not None:
            self._previous[folder] = previous

    def _check_partition(self, partition: int) -> None:
        """Check a partition, thoroughly if it is doubted.

        Otherwise the log answers for it, or did a moment ago, and has the known record. Raises Unavailable.
        """
        if self.partitions.is_doubted(partition):
            self._check_places([partition], self.newest_places())
        known = self._newest.get(partition)
        end = self.partitions.find_end(partition, -1 if known is None else known.offset)
        if known is not None and end <= known.offset:
            self._end_era(partition, known)

    def _check_places(self, partitions: Sequence[int], places: Mapping[int, KnownPlace]) -> None:
        """Check that the known places of these partitions stand; raise Unavailable."""
        known = {partition: places[partition] for partition in partitions if partition in places}
        with self.partitions.checking(*partitions):
            beginnings = self._log.beginnings(EVENTS, known) if known else {}
            for partition in known.keys() - find_standing(self._log, known, beginnings=beginnings):
                self._end_era(partition, known[partition])
            self._beginnings.update(beginnings)

    def _has_expired_unread(self, known: Confirmation) -> bool:
        """Return whether retention removed an event before the aggregator read it.

        The partition's beginning is that of the newest check. Without a state the aggregator may have lost that.
        """
        if known.offset is None or known.offset >= self._beginnings.get(known.partition, 0):
            return False
        state = self._find_state(known.repository)
        return state is not None and state.event != known.event

    def _has_lost_events(self, folder: str, box: Outbox, sent: SentMark, current: Confirmation) -> bool:
        """Return whether the log lost sent events of a repository; raise Unavailable."""
        if self._has_lost_previous(folder):
            return True
        state = self._find_state(current.repository)
        return not (current.era == 0 and has_seen(state, box, sent)) and has_lost(self._log, box, state)

    def _has_lost_previous(self, folder: str) -> bool:
        """Return whether the log lost the event of a repository's previous sent mark.

        That sent mark is from before the newest event was sent. Raises Unavailable.
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
        missing = send_again(box, self._find_state(newest.repository))
        if missing is not None:
            logger.error(
                "the log lost events that the outbox no longer keeps",
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

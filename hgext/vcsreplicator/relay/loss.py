# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's look at losses (`losses`): whether the log still has what was sent to it.

A log that loses records loses its newest: while the newest record that is known of a partition stands where it stood, so does
everything before it. So one look a partition, every now and then and after each trouble, answers for all repositories.

Rules of this file: an *era* of a partition ends when a loss is found in it. A repository is sure in the era in which its newest
event was seen in the log or sent to it; in the first, the aggregator's word is enough. One that is not sure is looked at before
anything else of it is sent.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping

import prometheus_client
import structlog

from ..log import EVENTS, Log, partition_of
from ..outbox import Outbox, SentMark
from ..outbox.losses import has_lost, has_seen, send_again, standing
from ..words.errors import ReplicationError, Unavailable
from ..words.levels import RepositoryState
from ..words.value import Value

logger = structlog.get_logger()

LOSSES = prometheus_client.Counter(
    "vcsreplicator_relay_log_losses_total",
    "Times that a partition of the log was found without records that it had had",
)
NEXT_STEP = "run `hg replicatesync` in it: mirrors then copy what they lack; these events are not announced"


class Sure(Value):
    """A repository whose newest sent event the log had, in this era of its partition."""

    repository: str
    partition: int
    era: int


class Known(Value):
    """A record that the log has."""

    id: str
    offset: int


class LossWatch:
    """What the log is known to have. May be used from any thread; `state` gives what the aggregator says of a repository."""

    def __init__(self, log: Log, state: Callable[[str], RepositoryState | None]) -> None:
        self._log, self._state = log, state
        self._lock, self._looking = threading.Lock(), threading.Lock()
        self._eras = Counter[int]()
        self._newest: dict[int, Known] = {}
        self._sure: dict[str, Sure] = {}
        self._doubted = False

    def is_sure(self, folder: str) -> bool:
        """Whether there is nothing to look at in the repository in `folder`."""
        sure = self._sure.get(folder)
        return sure is not None and sure.era == self._eras[sure.partition]

    def doubt(self) -> None:
        """The log was away: what it had must be looked at before anything is sent to it."""
        self._doubted = True

    def look(self) -> None:
        """Asks the log for the newest known record of each partition. Raises Unavailable, BadConfig."""
        with self._looking:
            known, self._doubted = self.newest(), False
            try:
                lost = known.keys() - standing(self._log, known)
            except ReplicationError:
                self._doubted = True
                raise
        for partition in lost:
            self._lost(partition, known[partition])

    def check(self, folder: str, box: Outbox) -> None:
        """Sees to it that what the log lost of this outbox is sent again; the caller holds the sending lock. Raises Unavailable."""
        sent, level = box.sent(), box.level()
        if sent is None or level is None:
            return
        partition = sent.partition
        if partition is None:
            partition = partition_of(level.repository, self._log.partitions(EVENTS))
        if self._doubted:
            self.look()
        self._look_at_end(partition)
        sure = Sure(repository=level.repository, partition=partition, era=self._eras[partition])
        if self._sure.get(folder) == sure:
            return
        state = self._state(level.repository)
        if not (sure.era == 0 and has_seen(state, box, sent)) and has_lost(self._log, box, state):
            self._has_lost(folder, box, partition)
            return
        self._remember(sent)
        self._sure[folder] = sure

    def newest(self) -> Mapping[int, Known]:
        """The newest known record of each partition, of this moment."""
        with self._lock:
            return dict(self._newest)

    def appended(self, partition: int, offset: int, before: Mapping[int, Known]) -> None:
        """The log took a record there, having had those `before`. Raises Unavailable if it lost records in between."""
        known = before.get(partition)
        if known is not None and offset <= known.offset:
            self._lost(partition, known)
            raise Unavailable("the log lost records while this was sent: it is sent again")

    def sent(self, folder: str, repository: str, sent: SentMark) -> None:
        """The log took the event of this marker from us."""
        self._remember(sent)
        if sent.partition is not None:
            self._sure[folder] = Sure(repository=repository, partition=sent.partition, era=self._eras[sent.partition])

    def _look_at_end(self, partition: int) -> None:
        known = self._newest.get(partition)
        if known is not None and self._log.ends(EVENTS).get(partition, 0) <= known.offset:
            self._lost(partition, known)

    def _has_lost(self, folder: str, box: Outbox, partition: int) -> None:
        """Has everything of this outbox sent again; if the newest known record is gone too, the partition's others are not sure."""
        known = self._newest.get(partition)
        if known is not None and partition not in standing(self._log, {partition: known}):
            self._lost(partition, known)
        level = box.level()
        assert level is not None
        logger.warning("the log lost events: they are sent again", folder=folder, path=level.path)
        missing = send_again(box, self._state(level.repository))
        if missing is not None:
            logger.error(
                "the log lost events that the outbox keeps no more",
                folder=folder,
                path=level.path,
                repository=level.repository,
                missing=f"{missing[0]} to {missing[1]}",
                next_step=NEXT_STEP,
            )

    def _lost(self, partition: int, known: Known | None) -> None:
        with self._lock:
            if self._newest.get(partition) != known:
                return  # another thread saw it first
            self._newest.pop(partition, None)
            self._eras[partition] += 1
        LOSSES.inc()
        logger.warning("the log lost its newest records", partition=partition, known=known and known.offset)

    def _remember(self, sent: SentMark) -> None:
        if sent.partition is None or sent.offset is None:
            return
        with self._lock:
            known = self._newest.get(sent.partition)
            if known is None or known.offset < sent.offset:
                self._newest[sent.partition] = Known(id=sent.id, offset=sent.offset)

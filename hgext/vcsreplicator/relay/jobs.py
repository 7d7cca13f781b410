# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's jobs in one repository: recover, announce, send, check.

To recover is to roll back an abandoned transaction, to check is to ask whether the log has all events and answers.
"""

import enum
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace

import prometheus_client
import structlog

from ..log.blob_retries import BlobRetries
from ..outbox.entry import Entry
from ..outbox.file import Fork, Outbox, SentMark, outbox_of
from ..outbox.forks import fork_at_path, fork_behind, is_void
from ..words.errors import BlobsUnavailable, Unavailable
from ..words.event import event_names
from .fork import StateWatch
from .loss import KnownPlace, LossWatch
from .port import MasterPort
from .sending import EventSender

logger = structlog.get_logger()

SENT = prometheus_client.Counter("vcsreplicator_relay_sent_events_total", "Events that the log acknowledged")
FORKS = prometheus_client.Counter(
    "vcsreplicator_relay_forks_total", "Repositories stopped because the log has another history"
)
SECONDS = prometheus_client.Histogram(
    "vcsreplicator_relay_send_seconds",
    "Time to send what a repository had to send",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
)


class Job(enum.StrEnum):
    """A job in one repository; they run in this order."""

    RECOVER = "recover"
    ANNOUNCE = "announce"
    SEND = "send"
    CHECK = "check"


class RepositoryBusy(Exception):
    """Another process holds a lock that a job needs.

    Nothing is wrong, and no worker waits for the lock.
    """


class RepositoryJobs:
    """The jobs, each given the folder of a repository.

    They call `on_sent` with the folder and the sequence of each sent event, `on_available` with the folder of a repository and
    True when the log answers and has all of its events, or False when it is forked, and `on_fork_changed` with the folder of a
    repository whose fork began or ended. `blobs` says when a bundle is worth making; None without a blob store.
    """

    def __init__(
        self,
        sender: EventSender,
        port: MasterPort,
        watch: StateWatch,
        losses: LossWatch,
        blobs: BlobRetries | None = None,
    ) -> None:
        self.on_sent: Callable[[str, int], None] = lambda folder, seq: None
        self.on_available: Callable[[str, bool], None] = lambda folder, is_available: None
        self.on_fork_changed: Callable[[str], None] = lambda folder: None
        self._sender, self._port, self._watch, self._losses = sender, port, watch, losses
        self._blobs = blobs

    def table(self) -> Mapping[Job, Callable[[str], None]]:
        """Return the function that does each job.

        The functions raise RepositoryBusy, Refused, Unavailable, or any unexpected exception.
        """
        return {Job.RECOVER: self._recover, Job.ANNOUNCE: self._announce, Job.SEND: self._send, Job.CHECK: self._check}

    def _recover(self, folder: str) -> None:
        journal = os.path.join(folder, ".hg", "store", "journal")
        if not os.path.exists(journal):
            return
        if self._port.recover(folder):
            logger.warning("abandoned transaction rolled back", folder=folder, **outbox_of(folder).names())
        elif os.path.exists(journal):
            raise RepositoryBusy(
                "its lock is held, by a running transaction or by a killed process whose parent has not noticed"
            )

    def _announce(self, folder: str) -> None:
        box = outbox_of(folder)
        with box.sending(wait=False) as alone:
            if not alone:
                raise RepositoryBusy("another process sends its events")
            if self._is_forked(folder, box):
                return
        if not self._port.announce(folder):
            raise RepositoryBusy("another process holds its lock")
        logger.info("repository announced", folder=folder, **outbox_of(folder).names())
        self._send(folder)

    def _send(self, folder: str) -> None:
        box = outbox_of(folder)
        with box.sending(wait=False) as alone, SECONDS.time():
            if not alone:
                raise RepositoryBusy("another process sends its events, or is about to strip changesets")
            if self._is_forked(folder, box):
                return
            count = self._send_events(folder, box)
            sent = box.sent()
        SENT.inc(count)
        if sent is not None:
            self.on_sent(folder, sent.seq)

    def _check(self, folder: str) -> None:
        box = outbox_of(folder)
        if box.fork() is not None:
            self.on_available(folder, False)
            return
        if box.has_unsent():
            raise RepositoryBusy("its events are not sent yet")
        self._losses.check_answer(box)
        self.on_available(folder, True)

    def _is_forked(self, folder: str, box: Outbox) -> bool:
        """Return whether nothing of this outbox may be sent.

        Marks a new fork, so that the repository refuses pushes. Removes the mark of a promotion that was taken back, and of a fork
        that is void: nothing was sent or pushed since, so the outbox continues as if it had always been whole.
        """
        fork = self._watch.fork(box) or self._watch.successor(self._sender.source)
        fork = fork or fork_behind(box) or self._find_other(folder, box)
        marked = box.fork()
        if marked is not None:
            may_end = self._watch.has_ended(marked, self._sender.source) or is_void(marked, box)
            if marked == fork or not may_end:
                return True
        if fork is None:
            if marked is not None:
                box.set_fork(None)
                self.on_fork_changed(folder)
                logger.warning("fork ended: pushes are accepted", folder=folder, **box.names(), reason=marked.reason)
            return False
        FORKS.inc()
        newest = box.newest()
        names = event_names(newest) if newest else {}
        logger.error("fork: nothing is sent, pushes are refused", folder=folder, **names, reason=fork.reason)
        box.set_fork(fork)
        self.on_fork_changed(folder)
        return True

    def _find_other(self, folder: str, box: Outbox) -> Fork | None:
        """Return a fork if the log has another repository where this one begins."""
        if box.sent() is not None or (place := self._port.place(folder)) is None:
            return None
        (path, generation), newest = place, box.newest()
        if newest is None:
            return fork_at_path(self._watch.states_at(path), path, generation, None)
        if newest.path != path:
            return None
        return fork_at_path(self._watch.states_at(path), path, newest.generation, newest.repository)

    def _send_events(self, folder: str, box: Outbox) -> int:
        """Send unsent and lost events under the caller's lock; return their number."""
        before, eras = self._check_losses(folder, box)
        previous = box.sent()

        def on_appended(partition: int, offset: int) -> None:
            self._losses.check_appended(partition, offset, before)
            # A relay that hung between its look and this append: the new master's history has not what it wrote.
            self._watch.check_master(self._sender.source)

        def on_marked(sent: SentMark, entries: list[Entry]) -> None:
            nonlocal before, previous
            self._losses.confirm(folder, entries[-1].event.repository, sent, eras, previous)
            # Keep the eras: if one ended meanwhile, events sent in it are not confirmed, and are checked again.
            before, previous = self._losses.newest_places(), sent
            for entry in entries:
                self._watch.sent(entry.event)
                self.on_sent(folder, entry.event.seq)

        sender = replace(self._sender, on_appended=on_appended, on_marked=on_marked)
        try:
            with nullcontext() if self._blobs is None else self._blobs.trying(folder):
                return sender.send(folder, box)
        except BlobsUnavailable:
            raise
        except Unavailable:
            self._losses.doubt(folder)
            raise

    def _check_losses(self, folder: str, box: Outbox) -> tuple[Mapping[int, KnownPlace], Mapping[int, int]]:
        """Check the outbox for losses; return the newest known places and the eras.

        They are those in which it was checked: if another thread finds a loss meanwhile, the outbox is checked again.
        """
        while True:
            checked = self._losses.check(folder, box)
            places, eras = self._losses.newest_places(), self._losses.eras()
            if checked is None or eras[checked.partition] == checked.era:
                return places, eras

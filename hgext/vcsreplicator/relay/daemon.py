# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay daemon: moves the events of a master's repositories from their outboxes to the log, oldest first.

A push pokes it over a Unix socket and waits for its answer (`client`); at start, and every now and then, it makes a round over all
repositories, so that a lost poke costs time and nothing else. Many repositories are sent at once, one batch at a time each. It also
rolls back transactions whose process died, announces repositories that have no event, and compares the outboxes with what the
aggregator saw (`fork`).
"""

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from ..log import Log
from ..log.blobs import BlobStore, open_blobs
from ..log.reports import INTERVAL, ServiceReporter
from ..words.clock import DAY, Clock, SystemClock
from ..words.errors import BadConfig, ReplicationError, Unavailable
from ..words.levels import ServiceTrouble
from ..words.path import check_prefix
from ..words.shape import within
from .admission import RelaySocket
from .fork import StateWatch
from .jobs import RepositoryJobs
from .lacking import find_gone
from .loss import LossWatch
from .port import MasterPort
from .rounds import find_work
from .sending import EventSender
from .server import Server
from .work import Work

logger = structlog.get_logger()

# Seconds that running jobs get at the end.
DRAIN = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """`socket` is a path; `source` this master's URI, such as hg://master.example; `roots` maps folders to wire prefixes.

    `blobs` is the URL of the store for bundles that a record cannot hold (file:///folder or s3://bucket/prefix; without it mirrors
    pull those from the master), `blob_age` how many days they stay there. `workers` repositories are sent at once; `scan` is
    how many seconds pass between two rounds over all repositories.
    """

    socket: str
    source: str
    roots: Mapping[str, str]
    blobs: str | None = None
    blob_age: float = 45.0
    workers: int = 8
    scan: float = 30.0

    def __post_init__(self) -> None:
        if not self.roots:
            raise ValueError("roots: expected at least one folder")
        for folder, prefix in self.roots.items():
            if not os.path.isabs(folder):
                raise ValueError(f"roots: expected an absolute folder, got {folder!r}")
            check_prefix(prefix, "roots")
        if not os.path.isabs(self.socket):
            raise ValueError(f"socket: expected an absolute path, got {self.socket!r}")
        if not self.source:
            raise ValueError("source: expected a name of this master such as hg://master.example, got nothing")
        within(self, workers=(1, 1000), scan=(0.01, DAY), blob_age=(0.01, 36_500))


def run(
    settings: RelaySettings,
    log: Log,
    port: MasterPort,
    *,
    stop: threading.Event,
    ready: Callable[[], None],
    clock: Clock | None = None,
) -> None:
    """Relay until `stop`; raises BadConfig if the socket cannot be had or another relay has it."""
    clock = clock or SystemClock()
    blobs = _open_blobs(settings)
    sender = EventSender(
        log=log,
        source=settings.source,
        make_bundle=port.make_bundle,
        store_blob=None if blobs is None else blobs.put,
    )
    watch = StateWatch(log, stop)
    losses = LossWatch(log, watch.state)
    jobs = RepositoryJobs(sender, port, watch, losses)
    work = Work(jobs.table(), workers=settings.workers, stop=stop, clock=clock)
    relay_socket = RelaySocket(settings.socket, group_of=next(iter(settings.roots)))
    server = Server(relay_socket, work=work, roots=tuple(settings.roots))
    jobs.on_sent = server.sent
    reporter = ServiceReporter(log, f"relay {settings.source}")
    try:
        server.start()
        watch.start()
        rounds = _Rounds(settings, port, work, losses, watch, clock)
        found = rounds.make()
        reporter.report(found, now=clock.now())
        ready()
        due = time.monotonic() + settings.scan
        while not stop.wait(min(INTERVAL, max(0.0, due - time.monotonic()))):
            if time.monotonic() < due:
                reporter.report(found, now=clock.now())
                continue
            _check_log(losses)
            found = rounds.make()
            reporter.report(found, now=clock.now())
            due = time.monotonic() + settings.scan
            if blobs is not None:
                _remove_old_blobs(blobs, clock.now() - settings.blob_age * 86400)
    finally:
        stop.set()
        server.close()
        work.drain(DRAIN)
        watch.close()


class _Rounds:
    """Rounds over all repositories, which remember since when one is gone."""

    def __init__(
        self, settings: RelaySettings, port: MasterPort, work: Work, losses: LossWatch, watch: StateWatch, clock: Clock
    ) -> None:
        self._settings, self._port, self._work = settings, port, work
        self._losses, self._watch, self._clock = losses, watch, clock
        self._gone: dict[str, float] = {}

    def make(self) -> list[ServiceTrouble]:
        """Make one, and return what is wrong with the repositories."""
        now, states = self._clock.now(), self._watch.states()
        folders, found = find_work(self._settings.roots, self._port, self._work, self._losses, now)
        settings = self._settings
        self._gone = find_gone(states, settings.roots, folders, self._gone, now, source=settings.source)
        for name, since in self._gone.items():
            path = states[name].path
            text = (
                f"repository {path} is not on the master any more (rm, mv?): put it back, or announce its deletion: "
                f"vcsreplicator forget {path} --yes"
            )
            found.append(ServiceTrouble(text=text, since=since))
        return found


def _check_log(losses: LossWatch) -> None:
    """Check that the log has what it had; if it does not answer, it is checked again before the next event is sent."""
    try:
        losses.check_partitions()
    except ReplicationError as error:
        logger.warning("log not readable", reason=str(error))


def _remove_old_blobs(blobs: BlobStore, before: float) -> None:
    """Remove old blobs; those that the store does not remove now are left to a later round."""
    try:
        blobs.remove_older(before)
    except Unavailable as error:
        logger.warning("old blobs not removed", reason=str(error))


def _open_blobs(settings: RelaySettings) -> BlobStore | None:
    if settings.blobs is None:
        return None
    try:
        return open_blobs(settings.blobs)
    except ValueError as error:
        raise BadConfig(f"blobs: {error}") from error

# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay daemon: moves the events of a master's repositories from their outboxes to the log, oldest first, for ever.

A push pokes it over a Unix socket and waits for its word (`client`); at start, and every now and then, it looks through all
repositories itself, so that a lost poke costs time and nothing else. Repositories are sent side by side, one at a time each. It
also rolls back what a pusher left behind who died in a transaction, announces repositories that nobody announced, and holds
what it sends against what the aggregator saw (`fork`).
"""

import importlib
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from ..log import Log
from ..log.blobs import BlobStore, open_blobs
from ..outbox import Outbox, Store
from ..words.clock import DAY, Clock, SystemClock
from ..words.errors import BadConfig, ReplicationError, Unavailable
from ..words.path import check_prefix
from ..words.shape import within
from .fork import StateWatch
from .loss import LossWatch
from .scan import find_repositories
from .sending import Bundles, EventSender
from .server import Server
from .work import Work

logger = structlog.get_logger()

DRAIN = 8.0  # seconds that running work gets at the end
ANNOUNCE_AFTER = 10.0  # seconds that `hg init` gets to announce its repository itself


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """`socket` is a path; `source` this master's URI, such as hg://master.example; `roots` maps folders to wire prefixes.

    `blobs` is the URL of the store for bundles that a record cannot hold (file:///folder or s3://bucket/prefix; without it mirrors
    pull those from the master), `blob_age` how many days they stay there. `workers` repositories are sent at once; `scan` is
    how many seconds pass between two looks at all repositories.
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


class RelayedRepositories(Bundles, Protocol):
    """What the relay needs of Mercurial; implemented at the border (`hg.master.relaying`)."""

    def recover(self, folder: str) -> bool:
        """Rolls back an abandoned transaction, if there is one and nobody holds the lock; whether it did."""

    def announce(self, folder: str) -> bool:
        """Writes the first event of a repository that has none; False if somebody holds the lock."""

    def finish(self, root: str) -> list[str]:
        """Finishes deletions, renames and the like that a kill interrupted; what could not be finished, in words."""


def run(
    settings: RelaySettings,
    log: Log,
    *,
    stop: threading.Event,
    ready: Callable[[], None],
    clock: Clock | None = None,
) -> None:
    """Relays until `stop`; raises BadConfig if the socket cannot be had or another relay has it."""
    clock = clock or SystemClock()
    repositories = _repositories(settings)
    blobs = _blobs(settings)
    sender = EventSender(log=log, source=settings.source, bundles=repositories, blobs=blobs)
    watch = StateWatch(log, stop)
    losses = LossWatch(log, watch.state)
    work = Work(sender, repositories, watch, losses, workers=settings.workers, stop=stop, clock=clock)
    server = Server(settings.socket, group_of=next(iter(settings.roots)), work=work, roots=tuple(settings.roots))
    work.on_sent = server.sent
    try:
        server.start()
        watch.start()
        look_through(settings, repositories, work, losses, clock.now())
        ready()
        while not stop.wait(settings.scan):
            look_at_log(losses)
            look_through(settings, repositories, work, losses, clock.now())
            if blobs is not None:
                remove_old(blobs, clock.now() - settings.blob_age * 86400)
    finally:
        stop.set()
        server.close()
        work.drain(DRAIN)
        watch.close()


def look_at_log(losses: LossWatch) -> None:
    """Asks the log whether it has what it had; if it does not answer, that is asked before the next event is sent."""
    try:
        losses.look()
    except ReplicationError as error:
        logger.warning("log not readable", reason=str(error))


def look_through(
    settings: RelaySettings, repositories: RelayedRepositories, work: Work, losses: LossWatch, now: float
) -> int:
    """Finds everything there is to do, in every repository below the roots; the number of repositories."""
    count = 0
    for root in settings.roots:
        for problem in repositories.finish(root):
            logger.error("interrupted act not finished", reason=problem)
        for folder in find_repositories(root):
            count += 1
            look_at(folder, work, losses, now)
        for folder in _deleted(os.path.join(root, ".vcsreplicator", "deleted")):
            look_at_deleted(folder, work)
    return count


def remove_old(blobs: BlobStore, before: float) -> None:
    """Removes blobs that are old; what the store does not let go now is left to a later look, and sending goes on."""
    try:
        blobs.remove_older(before)
    except Unavailable as error:
        logger.warning("old blobs not removed", reason=str(error))


def look_at_deleted(folder: str, work: Work) -> None:
    """Removes a repository that was deleted once the log knows all of it, and the rest of one whose removal was interrupted."""
    store = os.path.join(folder, ".hg", "store")
    try:
        if os.path.isdir(store) and Outbox(Store(store)).has_unsent():
            work.poke(folder)
            return
    except FileNotFoundError:  # somebody else removes it
        return
    except OSError as error:
        logger.warning("repository not readable", folder=folder, reason=str(error))
        return
    shutil.rmtree(folder, ignore_errors=True)


def _deleted(folder: str) -> list[str]:
    """The repositories in a folder of deleted ones, whole or not."""
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder) if not name.startswith(".")]
    except FileNotFoundError:
        return []
    except OSError as error:
        logger.warning("repository not readable", folder=folder, reason=str(error))
        return []


def look_at(folder: str, work: Work, losses: LossWatch, now: float) -> None:
    """Has done in one repository what there is to do; a new one is left to the process that makes it for a while."""
    store = os.path.join(folder, ".hg", "store")
    try:
        names = set(os.listdir(store))
        if "journal" in names:
            work.recover(folder)
        if not any(name.startswith("outbox.") and name.endswith(".log") for name in names):
            if os.stat(os.path.join(folder, ".hg", "requires")).st_mtime < now - ANNOUNCE_AFTER:
                work.announce(folder)
        elif not losses.is_sure(folder) or "outbox.sent" not in names or Outbox(Store(store)).has_unsent():
            work.poke(folder)
    except OSError as error:
        logger.warning("repository not readable", folder=folder, reason=str(error))


def _repositories(settings: RelaySettings) -> RelayedRepositories:
    """The border, loaded by name: a stage imports no Mercurial."""
    border: Any = importlib.import_module("hgext.vcsreplicator.hg.master.relaying")
    made: RelayedRepositories = border.MasterRepositories(settings.roots, settings.source)
    return made


def _blobs(settings: RelaySettings) -> BlobStore | None:
    if settings.blobs is None:
        return None
    try:
        return open_blobs(settings.blobs)
    except ValueError as error:
        raise BadConfig(f"blobs: {error}") from error

# SPDX-License-Identifier: GPL-2.0-or-later
"""What a failing blob store costs the relay, and how soon it is retried; the clock is moved by hand."""

import gc
import threading
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import EVENTS, topics
from hgext.vcsreplicator.log.blob_retries import LONGEST, BlobRetries
from hgext.vcsreplicator.outbox.bundles import Bundle
from hgext.vcsreplicator.outbox.entry import Entry, MirrorNeeds, before_first_event
from hgext.vcsreplicator.outbox.file import Outbox
from hgext.vcsreplicator.relay.fork import StateWatch
from hgext.vcsreplicator.relay.jobs import Job, RepositoryJobs
from hgext.vcsreplicator.relay.loss import LossWatch
from hgext.vcsreplicator.relay.sending import EventSender
from hgext.vcsreplicator.words.errors import BlobsUnavailable, NoRoom, NoRoomForBlobs
from hgext.vcsreplicator.words.wire import INLINE_LIMIT, Attachment, BundlePlace
from testing.builders.log.memorylog import MemoryLog
from testing.builders.master.outboxes import Folder, PlainPort, Transaction, following
from testing.clock import HandClock

pytestmark = pytest.mark.processes

# Seconds between two attempts of the relay at least.
ATTEMPT = 0.1


class Store:
    """A blob store that reads a bundle to its end, and takes it if it `takes` that many bytes."""

    def __init__(self) -> None:
        self.takes = 0
        self.error: type[BlobsUnavailable] = BlobsUnavailable

    def put(self, chunks: Iterable[bytes]) -> Attachment:
        size = sum(map(len, chunks))
        if size > self.takes:
            raise self.error("blobs: /blobs: away")
        return Attachment(where=BundlePlace.BLOB, size=size, sha256="0" * 64, name="0" * 64 + ".hg")


class Bench(PlainPort):
    """The relay's job that sends, over repositories whose events each need a bundle that no record holds."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.root, self.clock, self.store = folder, HandClock(), Store()
        self.bundles: list[float] = []
        self.in_memory = weakref.WeakSet[Bundle]()
        self.log = MemoryLog(self.clock)
        self.log.create(topics(partitions=1))
        self.stop = threading.Event()
        self.watch = watch = StateWatch(self.log, self.stop)
        watch.start()
        watch.wait()
        self.losses = LossWatch(self.log, watch.state, self.clock)
        sender = EventSender(
            log=self.log, source="hg://master", make_bundle=self.make_bundle, store_blob=self.store.put
        )
        retries = BlobRetries(self.clock)
        jobs = RepositoryJobs(sender, self, watch, self.losses, retries)
        self.send = jobs.table()[Job.SEND]

    def make_bundle(self, folder: str, entry: Entry) -> Bundle:
        self.bundles.append(self.clock.monotonic())
        made = Bundle([b"x" * (INLINE_LIMIT + 1)])
        self.in_memory.add(made)
        return made

    def push(self, name: str, needs: MirrorNeeds = MirrorNeeds.BUNDLE) -> Outbox:
        store = self.root / name / ".hg" / "store"
        store.mkdir(parents=True)
        box = Outbox(Folder(str(store)))
        box.append(Transaction(), [replace(each, needs=needs) for each in following(before_first_event(name, 1), 1)])
        return box

    def attempt(self, name: str, seconds: float, pause: float = ATTEMPT) -> Iterator[BlobsUnavailable]:
        """The failures of the attempts to send in a repository within so many seconds; the first success ends them."""
        until = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until:
            try:
                self.send(str(self.root / name))
                return
            except BlobsUnavailable as error:
                yield error
            self.clock.advance(pause)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.stop.set()
    bench.watch.close()


def test_while_the_blob_store_fails_no_other_repository_is_doubted(bench: Bench) -> None:
    bench.push("a")
    box = bench.push("b", MirrorNeeds.NOTHING)
    failures = list(bench.attempt("a", 30.0))
    assert len(failures) >= 290
    assert {str(error) for error in failures} == {"blobs: /blobs: away"}
    assert 5 <= len(bench.bundles) <= 7  # the pauses have a random part
    assert not bench.losses.partitions.is_doubted(0)
    bench.send(str(bench.root / "b"))
    assert not box.has_unsent()


def test_a_store_that_is_back_gets_the_bundle_soon(bench: Bench) -> None:
    box = bench.push("a")
    list(bench.attempt("a", 600.0, 5.0))
    bench.store.takes = INLINE_LIMIT * 2
    list(bench.attempt("a", 1.3 * LONGEST))
    assert not box.has_unsent()
    assert bench.log.ends(EVENTS) == {0: 1}


def test_a_pusher_reads_at_each_attempt_that_the_blobs_disk_is_full(bench: Bench) -> None:
    bench.store.error = NoRoomForBlobs
    bench.push("a")
    assert all(isinstance(error, NoRoom) for error in bench.attempt("a", 30.0))


def test_a_push_that_was_taken_ends_the_pauses_of_the_one_before(bench: Bench) -> None:
    box = bench.push("a")
    list(bench.attempt("a", 600.0, 5.0))
    bench.store.takes = INLINE_LIMIT * 2
    list(bench.attempt("a", 120.0, 5.0))
    assert not box.has_unsent()
    bench.store.takes, before = 0, len(bench.bundles)
    entries = following(box.newest(), 1)
    box.append(Transaction(), [replace(each, needs=MirrorNeeds.BUNDLE) for each in entries])
    list(bench.attempt("a", 4.0))
    assert len(bench.bundles) - before == 3


def test_nothing_of_a_bundle_stays_in_memory_while_the_blob_store_fails(bench: Bench) -> None:
    for name in "abc":
        bench.push(name)
        for _ in bench.attempt(name, 2.0):
            pass
    gc.collect()
    assert len(bench.bundles) == 6
    assert len(bench.in_memory) == 0

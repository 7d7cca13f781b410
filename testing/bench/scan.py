# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's look at 10,000 repositories when it starts, and its later rounds.

With nothing sent yet, with one event behind the marker in each, and with nothing to do. The folders are warm in the page cache.
Sending is not part of it: what is found is only counted. The relay takes at least `scan` seconds for a later round.
"""

import os
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

from hgext.vcsreplicator.hg.relaying import MasterRepositories
from hgext.vcsreplicator.outbox.entry import Entry, before_first_event
from hgext.vcsreplicator.outbox.file import Outbox, SentMark
from hgext.vcsreplicator.outbox.folder import Store
from hgext.vcsreplicator.relay.jobs import Job
from hgext.vcsreplicator.relay.rounds import QuietRepositories, find_work
from hgext.vcsreplicator.relay.scan import SETTLED
from hgext.vcsreplicator.relay.settings import RelaySettings
from hgext.vcsreplicator.relay.work import Failure
from testing.bench.measure import Row
from testing.builders.master.outboxes import Folder, Transaction, following

COUNT = int(os.environ.get("BENCH_SCAN_REPOSITORIES", "10000"))
ROUNDS = 5


class Counting:
    """In the place of the relay's work."""

    def __init__(self) -> None:
        self.sends = 0
        self.failed, self.unrecovered = dict[str, Failure](), dict[str, Failure]()

    def add(self, folder: str, *jobs: Job, now: bool = False) -> None:
        assert jobs == (Job.SEND,), folder
        self.sends += 1

    def forget_failures(self, folders: Collection[str]) -> None:
        pass


class Sure:
    """A relay that has seen all of them in the log."""

    def is_confirmed(self, folder: str, event: str) -> bool:
        return True


def rows() -> list[Row]:
    """Seconds of one look, after checking that it found them all."""
    with tempfile.TemporaryDirectory(prefix="bench-scan-") as name:
        root = Path(name) / "repos"
        [entry] = following(before_first_event("repository", 1), 1)
        stores = [_repository(root / f"{number // 100}" / f"{number}", entry) for number in range(COUNT)]
        [whole] = [file.stat().st_size for file in stores[0].glob("outbox.*")]
        found = [Row(name=f"{COUNT} repositories, nothing sent yet", unit="s", samples=_looks(root, COUNT))]
        for what, end, expected in (("the newest event unsent", 0, COUNT), ("all sent", whole, 0)):
            for store in stores:
                Outbox(Store(str(store))).mark_sent(SentMark(seq=1, id=entry.event.id, segment=1, end=end))
            found.append(Row(name=f"{COUNT} repositories, {what}", unit="s", samples=_looks(root, expected)))
        found.append(Row(name=f"{COUNT} repositories, a quiet round, processor", unit="s", samples=_quiet_rounds(root)))
        return found


def _repository(folder: Path, entry: Entry) -> Path:
    """What a look sees of a repository with one event; its store."""
    store = folder / ".hg" / "store"
    store.mkdir(parents=True)
    (folder / ".hg" / "requires").write_text("share-safe\n")
    (store / "requires").write_text("revlogv1\nstore\n")
    Outbox(Folder(str(store))).append(Transaction(), [entry])
    return store


def _looks(root: Path, expected: int) -> list[float]:
    settings = RelaySettings(socket="/nowhere", source="hg://bench", roots={str(root): ""})
    repositories = MasterRepositories(settings.roots, settings.source)
    samples = []
    for _ in range(ROUNDS):
        work = Counting()
        started = time.perf_counter()
        find_work(settings.roots, repositories, work, Sure(), time.time(), QuietRepositories())  # type: ignore[arg-type]
        samples.append(time.perf_counter() - started)
        assert work.sends == expected
    return samples


def _quiet_rounds(root: Path) -> list[float]:
    """Seconds of processor time of rounds in which nothing has changed since the one before."""
    time.sleep(SETTLED + 0.1)  # what has just changed may change again unseen
    settings = RelaySettings(socket="/nowhere", source="hg://bench", roots={str(root): ""})
    repositories, quiet = MasterRepositories(settings.roots, settings.source), QuietRepositories()
    samples = []
    for _ in range(1 + ROUNDS):
        work = Counting()
        started = time.process_time()
        found = find_work(settings.roots, repositories, work, Sure(), time.time(), quiet)  # type: ignore[arg-type]
        samples.append(time.process_time() - started)
    assert not work.sends
    assert len(found.quiet) > 0.9 * COUNT - 1, found.troubles[:1]  # each is looked into in some round
    return samples[1:]

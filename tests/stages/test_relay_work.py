# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's work on repositories, with outboxes of no Mercurial."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hgext.vcsreplicator import outbox, wire
from hgext.vcsreplicator.clock import SystemClock
from hgext.vcsreplicator.event import Changes, Settings, Tip, Type
from hgext.vcsreplicator.log import EVENTS, topics
from hgext.vcsreplicator.outbox import Entry, Level, Needs, Outbox, Store
from hgext.vcsreplicator.relay_fork import StateWatch
from hgext.vcsreplicator.relay_sending import Sender
from hgext.vcsreplicator.relay_work import Work
from testing.memorylog import MemoryLog
from testing.waiting import eventually


class Folder(Store):
    """A store that can be written to, as Mercurial's vfs."""

    def __call__(self, name: bytes, mode: bytes) -> Any:
        return open(self.join(name), mode.decode())


class Transaction:
    """One that commits whatever happens."""

    def add(self, name: bytes, offset: int) -> None:
        pass


def following(level: Level, count: int) -> list[Entry]:
    """`count` entries behind `level`, with new identifiers."""
    made = []
    for _ in range(count):
        event = outbox.next_event(
            level,
            Type.CHANGED,
            time=1.0,
            source="serve",
            changes=Changes(added=None),
            after=Tip(length=0, node="0" * 40),
            settings=Settings(),
        )
        made.append(Entry(event=event, needs=Needs.NOTHING))
        level = outbox.level_of(event)
    return made


@dataclass
class Master:
    """Repositories below a folder, and the relay's work on them."""

    root: Path
    log: MemoryLog
    work: Work

    def write(self, name: str, entries: Sequence[Entry]) -> Outbox:
        """Appends to the outbox of a repository."""
        store = self.root / name / ".hg" / "store"
        store.mkdir(parents=True, exist_ok=True)
        box = Outbox(Folder(str(store)))
        box.append(Transaction(), entries)
        return box

    def poke(self, name: str) -> None:
        self.work.poke(str(self.root / name), now=True)

    def sent(self) -> list[str]:
        """The identifiers of the events in the log."""
        reader = self.log.reader({(EVENTS, partition): 0 for partition in range(self.log.partitions(EVENTS))})
        return [wire.decode(record.value).event.id for record in reader.poll(0.0) if record.value is not None]


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Master]:
    log, stop = MemoryLog(), threading.Event()
    log.create(topics())
    watch = StateWatch(log, stop)
    sender = Sender(log=log, source="hg://master", bundles=None, blobs=None)  # type: ignore[arg-type]
    work = Work(sender, None, watch, workers=2, stop=stop, clock=SystemClock())  # type: ignore[arg-type]
    watch.start()
    yield Master(tmp_path, log, work)
    stop.set()
    work.drain(60.0)
    watch.close()


@pytest.mark.parametrize("pushed_since", [0, 1, 2])
def test_a_store_restored_while_the_relay_runs_is_a_fork(master: Master, pushed_since: int) -> None:
    first = following(outbox.first_level("a", 1), 1)
    newest = following(outbox.level_of(first[0].event), 1)
    box = master.write("a", first + newest)
    master.poke("a")
    eventually(lambda: not box.has_unsent())
    for file in (master.root / "a" / ".hg" / "store").iterdir():
        file.unlink()
    box = master.write("a", first + following(outbox.level_of(first[0].event), pushed_since))
    master.poke("a")
    eventually(lambda: box.fork() is not None or not box.has_unsent())
    assert "restored from a backup" in (box.fork() or "")
    assert master.sent() == [entry.event.id for entry in first + newest]

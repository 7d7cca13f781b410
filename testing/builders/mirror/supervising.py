# SPDX-License-Identifier: GPL-2.0-or-later
"""A mirror's supervisor over real notes, whose workers and writer are played by hand."""

import queue
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from hgext.vcsreplicator.log import EVENTS, STATE, Log, NewRecord, Record
from hgext.vcsreplicator.mirror.checkpoint import Checkpoint, before_first
from hgext.vcsreplicator.mirror.namesake import Namesakes
from hgext.vcsreplicator.mirror.notes import Notes
from hgext.vcsreplicator.mirror.pool import Answered, Lane, WorkerPool
from hgext.vcsreplicator.mirror.settings import MirrorSettings
from hgext.vcsreplicator.mirror.sources import ReadRecords
from hgext.vcsreplicator.mirror.supervision.supervisor import Supervisor
from hgext.vcsreplicator.mirror.task import FoundRepository, Task, TaskOutcome, Trouble
from hgext.vcsreplicator.mirror.writer import AckWriter
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.event import Event, Type
from hgext.vcsreplicator.words.records import Ack, MirrorHeartbeat, Reason, RepositoryState
from hgext.vcsreplicator.words.roster import Roster
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.aggregator.chains import Chain
from testing.builders.aggregator.states import state_of
from testing.clock import HandClock


class Pool:
    """Workers that do nothing until the test answers for them."""

    def __init__(self) -> None:
        self.workers: list[Any] = []
        self.given: list[Any] = []
        self.killed: list[Any] = []
        self.limits: dict[object, int] = {Lane.CHECK: 0}
        self.used: dict[int, float] = {}

    def idle(self, lane: object) -> Any:
        idle = [worker for worker in self.workers if worker.lane is lane and not worker.is_slow]
        if len(idle) >= self.limits.get(lane, 1000):
            return None
        return SimpleNamespace(
            lane=lane, busy=None, since=None, is_ready=True, is_slow=False, is_killed=False, progress=0.0, moved=0.0
        )

    def progress(self, worker: Any) -> float:
        return float(self.used.get(id(worker), 0.0))

    def give(self, worker: Any, task: object, now: float) -> None:
        worker.busy, worker.since = task, now
        self.workers.append(worker)
        if isinstance(task, Task):
            self.given.append(worker)

    def freed(self, answered: Answered) -> None:
        self.workers.remove(answered.worker)

    def end_idle(self) -> None:
        """None costs anything."""

    def kill(self, worker: Any) -> None:
        worker.is_killed = True
        self.killed.append(worker)

    def close(self, patience: float) -> None:
        """Nothing runs."""


class Writer:
    """Keeps what would be written."""

    def __init__(self) -> None:
        self.acks: dict[str, Ack] = {}
        self.heartbeats: list[MirrorHeartbeat] = []
        self.others: list[NewRecord] = []
        self.stored: list[dict[int, int]] = []
        self.asked: list[dict[str, tuple[str | None, int]]] = []
        self.withdrawn: list[str] = []
        # Whether the roster has a key of the mirror, and other keys than before.
        self.is_sealing = self.has_other_keys = False

    def take_roster(self, roster: Roster) -> bool:
        return self.has_other_keys

    def sign(self, ack: Ack) -> Ack:
        return ack

    def ack(self, key: str, value: bytes | None) -> None:
        _mirror, _, repository = key.partition("/")
        if repository and value is not None:
            self.acks[repository] = from_json(Ack, value)
        elif repository:
            self.withdrawn.append(repository)
        elif value is not None:
            self.heartbeats.append(from_json(MirrorHeartbeat, value))

    def append(self, message: NewRecord) -> None:
        self.others.append(message)

    def positions(self, positions: dict[int, int]) -> None:
        self.stored.append(positions)

    def ask_ends(self, expected: dict[str, tuple[str | None, int]]) -> None:
        self.asked.append(expected)

    def close(self, patience: float) -> None:
        """Nothing waits."""


class Reader:
    """A reading thread that only keeps what it was made with."""

    running: list["Reader"]

    def __init__(self, log: Any, start: Any, report: Any, *, follows: str, run: int) -> None:
        self.start_at, self.follows, self.run = start, follows, run
        self.may_read = threading.Event()

    def start(self) -> "Reader":
        Reader.running.append(self)
        return self

    def stop(self) -> None:
        Reader.running.remove(self)

    def join(self, timeout: float) -> None:
        """There is no thread."""


class Bench:
    """One supervisor after the other, over the same notes."""

    def __init__(self, folder: Path, log: Log) -> None:
        self.log, self.clock = log, HandClock()
        self.settings = MirrorSettings(name="alpha", root=str(folder / "root"), check_interval=0)
        self._file = folder / "mirror.db"
        self.notes = Notes(self._file)
        self.offset = self.chains = 0
        self.start({0: 0})

    def start(self, positions: dict[int, int]) -> None:
        self.pool, self.writer = Pool(), Writer()
        self.mirror = Supervisor(
            self.settings, self.log, self.notes, self.clock, positions, inbox=queue.SimpleQueue(),
            pool=cast(WorkerPool, self.pool), writer=cast(AckWriter, self.writer),
            namesakes=Namesakes(self.settings, "ffff@here"),
        )  # fmt: skip

    def close(self) -> None:
        """End what reads the log, which would open it again after it is closed, and close the notes."""
        self.mirror.readers.close()
        for each in self.mirror.readers._running.values():
            assert each.source is not None
            each.source.join(10)
        self.notes.close()

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """Let no note that a repository is detached be written or removed within the block."""
        with closing(sqlite3.connect(self._file)) as notes:
            refusal = "SELECT RAISE(ABORT, 'database or disk is full')"
            for act in ("INSERT", "DELETE"):
                notes.execute(f"CREATE TRIGGER refuse_{act} BEFORE {act} ON detached BEGIN {refusal}; END")
            yield
            for act in ("INSERT", "DELETE"):
                notes.execute(f"DROP TRIGGER refuse_{act}")

    def read(self, *events: Event) -> None:
        self.records(*(self.record(EVENTS, event.repository, wire.encode(event)) for event in events))

    def record(self, topic: str, key: str, value: bytes) -> Record:
        self.offset += 1
        return Record(topic=topic, partition=0, offset=self.offset - 1, key=key, value=value, headers={}, time=1.0)

    def records(self, *records: Record) -> None:
        self.mirror.receive(ReadRecords(records=records, positions={(EVENTS, 0): self.offset}))
        self.mirror.turn(0)

    def answer(self, worker: Any, **outcome: Any) -> None:
        self.mirror.receive(Answered(worker=worker, answer=TaskOutcome(repository=worker.busy.repository, **outcome)))

    def applied(self, event: Event) -> None:
        self.answer(self.pool.given[-1], done=1, checkpoint=checkpoint(event), folder="/x", serving=event.seq)

    def push_large(self) -> str:
        """A push of 60 MB to a repository of its own; which."""
        self.chains += 1
        chain = Chain(f"large{self.chains}")
        created, pushed = chain.next(), chain.next()
        self.read(created)
        self.applied(created)
        where = wire.Attachment(where=wire.BundlePlace.BLOB, name="0" * 64 + ".hg", size=60_000_000, sha256="0" * 64)
        self.records(self.record(EVENTS, chain.repository, wire.encode(pushed, where)))
        return chain.repository

    def large(self) -> list[Any]:
        """The workers that have such a push."""
        return [worker for worker in self.pool.workers if worker.lane is Lane.HEAVY]

    def detach(self, repository: str, reason: Reason, note: str) -> None:
        following = self.mirror.state.table.get(repository)
        assert following is not None
        self.mirror.detachments.detach(following, reason, note)

    def break_down(self) -> None:
        """A repository that must be repaired."""
        self.chains += 1
        [event] = Chain(f"broken{self.chains}").take(1)
        self.read(event)
        trouble = Trouble(reason=Reason.DIVERGED, note="differs")
        self.answer(self.pool.given[-1], done=0, checkpoint=None, folder=None, serving=0, trouble=trouble)

    def beat(self) -> MirrorHeartbeat:
        self.mirror._write_beat()
        return self.writer.heartbeats[-1]

    def passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.advance(1.0)
            self.mirror.turn(0)


def checkpoint(event: Event, **members: Any) -> Checkpoint:
    first = before_first(event.repository, event.incarnation, event.path, event.generation)
    return replace(first, seq=event.seq, id=event.id, digest=event.digest, **members)


def until_given(bench: Bench, repository: str) -> None:
    """Until a worker has a task on the repository that it did not have before."""
    before = len(bench.pool.given)
    for _ in range(300):
        bench.passes(1)
        if len(bench.pool.given) > before:
            assert bench.pool.given[-1].busy.repository == repository
            return
    raise AssertionError("no task")


def catching_up(bench: Bench, event: Event) -> Any:
    """The event's repository, which was detached and reads what it missed."""
    following = bench.mirror.state.table.get(event.repository)
    assert following is not None
    bench.mirror.detachments.detach(following, Reason.GAP, "lost", offset=0)
    bench.mirror.state.carry_out(following, following.heal(end=0))
    return following


class Deletion:
    """A repository that was deleted here, and the start of the mirror after it."""

    def __init__(self, bench: Bench) -> None:
        chain = Chain("r")
        self.bench, self.repository = bench, chain.repository
        self.events = created, deleted = chain.next(), chain.next(Type.DELETED)
        bench.read(created)
        bench.applied(created)
        bench.read(deleted)
        self.last = checkpoint(deleted, deleted=True)
        bench.answer(bench.pool.given[-1], done=1, checkpoint=None, folder=None, serving=0, gone=self.last)
        self.acks = dict(bench.writer.acks)
        self.state = replace(state_of(deleted), deleted=True, released=2, noticed=2)

    def restart(self, acks: dict[str, Ack], state: RepositoryState, *, aside: bool = False) -> None:
        found = FoundRepository(folder="/aside", checkpoint=self.last, serving=2, is_aside=True)
        self.bench.start({0: 2})
        self.bench.mirror.startup.adopt_all([found] if aside else [], acks)
        self.bench.mirror.control.load(STATE, self.repository, to_json(state))
        self.bench.mirror.startup.prune_deletions(acks)

    def noted(self) -> list[str]:
        return [deleted.repository for deleted in self.bench.notes.deleted()]

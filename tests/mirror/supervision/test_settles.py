# SPDX-License-Identifier: GPL-2.0-or-later
"""A mirror settles once nothing more happens, after any events in any order: everything applied, nothing detached.

The supervisor and the decisions about events are real; disks, workers, readers, notes and the clock are played by a world that a
seed steers. It kills, delays, deletes, restores, loses notes and detaches at every point; then it lets everything finish.
"""

import contextlib
import queue
import random
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog

from hgext.vcsreplicator.log import EVENTS, STATE, Log, Record
from hgext.vcsreplicator.log.requests import COLUMNS, RequestTable
from hgext.vcsreplicator.mirror.checkpoint import Checkpoint, before_first
from hgext.vcsreplicator.mirror.namesake import Namesakes
from hgext.vcsreplicator.mirror.notes import HEAL, DeletedRepository, Detached, Notes
from hgext.vcsreplicator.mirror.plan import Act, plan
from hgext.vcsreplicator.mirror.pool import Answered, Lane, WorkerPool
from hgext.vcsreplicator.mirror.settings import MirrorSettings
from hgext.vcsreplicator.mirror.sources import ReadRecords
from hgext.vcsreplicator.mirror.supervision import catchup
from hgext.vcsreplicator.mirror.supervision.life import Following
from hgext.vcsreplicator.mirror.supervision.supervisor import Supervisor
from hgext.vcsreplicator.mirror.supervision.values import Phase
from hgext.vcsreplicator.mirror.task import FoundRepository, Task, TaskOutcome, Trouble
from hgext.vcsreplicator.mirror.writer import AckWriter
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.event import Event, Type
from hgext.vcsreplicator.words.records import Ack, Reason
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.aggregator.chains import Chain
from testing.builders.aggregator.states import state_of
from testing.clock import HandClock
from testing.seeds import seeds

STEPS = 400
TROUBLES = [
    Trouble(reason=Reason.LOCKED, note="locked", passing=True),
    Trouble(reason=Reason.DISK, note="full", passing=True),
    Trouble(reason=Reason.BLOB_MISSING, note="master away", passing=True),
    Trouble(reason=Reason.BLOB_MISSING, note="too large"),
    Trouble(reason=Reason.CORRUPT, note="torn"),
    Trouble(reason=Reason.DIVERGED, note="differs"),
]


class MemoryNotes:
    """The mirror's notes, which may be out of order at times."""

    def __init__(self, chance: random.Random) -> None:
        self.failing = 0.0
        self._chance = chance
        self.kept: dict[str, Detached] = {}
        self.left: dict[str, DeletedRepository] = {}
        database = sqlite3.connect(":memory:", isolation_level=None)
        database.execute(f"CREATE TABLE requests (id INTEGER PRIMARY KEY, repository TEXT, {COLUMNS})")

        def rows(statement: str, values: Sequence[Any]) -> list[Any]:
            self._may_fail()
            return database.execute(statement, values).fetchall()

        self.requests = RequestTable(rows, "repository")

    def _may_fail(self) -> None:
        if self._chance.random() < self.failing:
            raise Unavailable("the disk is full")

    def detached(self) -> list[Detached]:
        return list(self.kept.values())

    def deleted(self) -> list[DeletedRepository]:
        return list(self.left.values())

    def detach(self, note: Detached) -> None:
        self._may_fail()
        self.kept[note.repository] = note

    def rejoin(self, repository: str) -> None:
        self._may_fail()
        self.kept.pop(repository, None)

    def record_deletion(self, deleted: DeletedRepository) -> None:
        self._may_fail()
        self.left[deleted.repository] = deleted


class Reader:
    """A reading thread that reads when the world says so."""

    def __init__(self, log: Any, start: Any, arrived: Any, *, follows: str, run: int) -> None:
        self.position = start[EVENTS, 0]
        self.follows, self.run = follows, run
        self.may_read = threading.Event()
        self.may_read.set()
        self.stopped = False
        self._world, self._arrived = cast(World, log), arrived

    def start(self) -> "Reader":
        self._world.readers.append(self)
        return self

    def stop(self) -> None:
        self.stopped = True
        self._world.readers.remove(self)

    def read(self, count: int) -> None:
        if not self.may_read.is_set():
            return
        self.may_read.clear()
        records = self._world.log[self.position : self.position + count]
        self.position += len(records)
        own = [record for record in records if record.key == self.follows]
        self._arrived(
            ReadRecords(records=own, positions={(EVENTS, 0): self.position}, follows=self.follows, run=self.run)
        )


class Pool:
    """Workers that answer when the world says so."""

    LIMITS = {Lane.LIGHT: 2, Lane.HEAVY: 1, Lane.REPAIR: 1, Lane.CHECK: 0}  # noqa: RUF012

    def __init__(self) -> None:
        self.workers: list[Any] = []

    def idle(self, lane: Lane) -> Any:
        ours = [worker for worker in self.workers if worker.lane is lane and not worker.is_slow]
        for worker in ours:
            if worker.busy is None:
                return worker
        if len(ours) == self.LIMITS[lane]:
            return None
        worker = SimpleNamespace(
            lane=lane, busy=None, since=None, is_ready=True, is_slow=False, is_killed=False, progress=0.0, moved=0.0
        )
        self.workers.append(worker)
        return worker

    def give(self, worker: Any, task: object, now: float) -> None:
        assert worker.busy is None
        worker.busy, worker.since, worker.has_answered = task, now, False

    def freed(self, answered: Answered) -> None:
        worker: Any = answered.worker
        worker.busy = None
        if worker.is_slow or answered.answer is None:
            self.workers.remove(worker)

    def end_idle(self) -> None:
        """None costs anything."""

    def kill(self, worker: Any) -> None:
        worker.is_killed = True

    def progress(self, worker: Any) -> float:
        return 0.0


class Writer:
    """Keeps the newest ack of each repository."""

    def __init__(self) -> None:
        self.acks: dict[str, Ack] = {}
        self.stored: dict[int, int] = {}

    def sign(self, ack: Ack) -> Ack:
        return ack

    def ack(self, key: str, value: bytes | None) -> None:
        _mirror, _, repository = key.partition("/")
        if value is None:
            self.acks.pop(repository, None)
        elif repository:
            self.acks[repository] = from_json(Ack, value)

    def positions(self, positions: dict[int, int]) -> None:
        self.stored.update(positions)

    def append(self, message: object) -> None:
        pass

    def ask_ends(self, expected: dict[str, tuple[str | None, int]]) -> None:
        pass


class World:
    """One mirror and all that it meets."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.clock = HandClock()
        self.log: list[Record] = []
        self.readers: list[Reader] = []
        self.disk: dict[str, tuple[Checkpoint, int]] = {}
        self.chains = [Chain(f"r{number}") for number in range(3)]
        self.notes = MemoryNotes(self.chance)
        self.read = 0
        self.calm = False
        self.settings = MirrorSettings(
            name="alpha", root=str(folder), check_interval=0, slow_after=self.chance.choice([0.05, 0.5, 5.0]),
            retry_first=0.05, retry_longest=2.0, batch_events=self.chance.choice([1, 3]), beat_interval=0.5,
            hung_after=self.chance.choice([2.0, 300.0]), repository_buffer_bytes=self.chance.choice([5000, 1 << 24]),
        )  # fmt: skip
        self.writer = Writer()
        self.aside: dict[str, Checkpoint] = {}
        self.told: dict[str, bytes] = {}
        self.start()

    def start(self) -> None:
        """The mirror's process is killed, if there was one, and begins again; what its workers did before is done."""
        self.readers.clear()
        self.notes.failing = 0.0
        self.read = self.writer.stored.get(0, 0)
        self.pool, self.inbox = Pool(), queue.SimpleQueue[Any]()
        self.mirror = Supervisor(
            self.settings, cast(Log, self), cast(Notes, self.notes), self.clock, {0: self.read}, inbox=self.inbox,
            pool=cast(WorkerPool, self.pool), writer=cast(AckWriter, self.writer),
            namesakes=Namesakes(self.settings, ""),
        )  # fmt: skip
        for checkpoint in self.aside.values():
            self.mirror.startup.adopt(
                FoundRepository(folder="/aside", checkpoint=checkpoint, serving=0, is_aside=True), None
            )
        for repository, (checkpoint, serving) in self.disk.items():
            self.mirror.startup.adopt(
                FoundRepository(folder="/x", checkpoint=checkpoint, serving=serving), self.writer.acks.get(repository)
            )
        self.mirror.startup.settle(dict(self.writer.acks))
        for repository, state in self.told.items():
            self.mirror.control.load(STATE, repository, state)

    def step(self) -> None:
        """Something happens."""
        act = self.chance.choice([self.push, self.stream, self.stream, self.catch_up, self.catch_up, self.answer,
                                  self.answer, self.answer, self.pass_time, self.state, self.trouble])  # fmt: skip
        act()
        if self.chance.random() < 0.7:
            self.mirror.turn(0)
            self.check()

    def push(self) -> None:
        chain = self.chance.choice(self.chains)
        if chain.events and chain.events[-1].type is Type.DELETED:
            return
        delete = len(chain.events) > 3 and self.chance.random() < 0.03
        event = chain.next(Type.DELETED if delete else None)
        self.append(event.repository, wire.encode(event))

    def append(self, key: str, value: bytes) -> None:
        self.log.append(
            Record(topic=EVENTS, partition=0, offset=len(self.log), key=key, value=value, headers={}, time=1.0)
        )

    def stream(self) -> None:
        records = self.log[self.read : self.read + self.chance.randint(1, 4)]
        self.read += len(records)
        if records:
            self.inbox.put(ReadRecords(records=records, positions={(EVENTS, 0): self.read}))

    def catch_up(self) -> None:
        if self.readers:
            self.chance.choice(self.readers).read(self.chance.choice([1, 3, 500]))

    def pass_time(self) -> None:
        self.clock.advance(self.chance.choice([0.01, 0.1, 0.3, 1.0]))

    def state(self, chain: Chain | None = None) -> None:
        chain = chain or self.chance.choice(self.chains)
        if chain.events:
            last = chain.events[-1]
            state = state_of(last, released=last.seq, deleted=last.type is Type.DELETED)  # fmt: skip
            value = self.told[last.repository] = to_json(state)
            self.inbox.put(
                ReadRecords(
                    records=[
                        Record(
                            topic=STATE, partition=0, offset=0, key=last.repository, value=value, headers={}, time=1.0
                        )
                    ],
                    positions={},
                )
            )

    def trouble(self) -> None:
        match self.chance.randrange(5):
            case 0:
                self.notes.failing = self.chance.choice([0.0, 0.0, 0.5])
            case 1:
                with contextlib.suppress(Unavailable):
                    self.notes.requests.ask(self.chance.choice(self.chains).repository, HEAL, {}, who="dana", now=1.0)
            case 2:
                self.append(self.chance.choice(self.chains).repository, b"junk")
            case 3:
                if self.chance.random() < 0.3:
                    self.start()
            case 4 if self.disk:  # a backup is restored
                repository = self.chance.choice(sorted(self.disk))
                checkpoint, _ = self.disk[repository]
                earlier = next(c for c in self.chains if c.repository == repository).events[: checkpoint.seq]
                if earlier:
                    event = self.chance.choice(earlier)
                    self.disk[repository] = (reached(event, offset=-1), 0)

    def answer(self) -> None:
        busy = [worker for worker in self.pool.workers if worker.busy is not None and not worker.has_answered]
        if not busy:
            return
        worker = self.chance.choice(busy)
        worker.has_answered = True
        outcome = self.perform(worker.busy) if isinstance(worker.busy, Task) else worker.busy
        died = worker.is_killed or (not self.calm and self.chance.random() < 0.1)
        self.inbox.put(Answered(worker=worker, answer=None if died else outcome))
        if self.chance.random() < 0.8:
            self.mirror.turn(0)  # a worker that has answered is asked again soon

    def perform(self, task: Task) -> TaskOutcome:
        """What a worker would do, on a disk that is only levels."""
        done, trouble, gone = 0, None, None
        fails = None if self.calm or self.chance.random() < 0.7 else self.chance.choice(TROUBLES)
        chain = next(c for c in self.chains if c.repository == task.repository)
        if task.leave:
            self.disk.pop(task.repository, None)
        elif task.heal is not None:
            if fails is not None or chain.events[-1].type is Type.DELETED:
                trouble = fails or Trouble(reason=Reason.BLOB_MISSING, note="not there", passing=True)
            else:
                serving = self.disk[task.repository][1] if task.repository in self.disk else 0
                self.disk[task.repository] = (reached(chain.events[-1], offset=-1), serving)
        else:
            for item in task.items:
                if fails is not None and self.chance.random() < 0.5:
                    trouble = fails
                    break
                checkpoint = self.disk[task.repository][0] if task.repository in self.disk else None
                step = plan(item.event, checkpoint)
                if step.act is Act.TROUBLE:
                    trouble = Trouble(reason=step.reason or Reason.CORRUPT, note=step.why)
                    break
                done += 1
                if step.act in (Act.APPLY, Act.CREATE):
                    checkpoint = reached(item.event, offset=item.offset)
                    if item.event.type is Type.DELETED:
                        gone = self.aside[task.repository] = replace(checkpoint, deleted=True)
                        del self.disk[task.repository]
                    else:
                        serving = self.disk[task.repository][1] if task.repository in self.disk else 0
                        self.disk[task.repository] = (checkpoint, serving)
        checkpoint, serving = self.disk.get(task.repository, (None, 0))
        if checkpoint is not None and trouble is None:
            serving = max(serving, min(task.released, checkpoint.seq))
            self.disk[task.repository] = (checkpoint, serving)
        return TaskOutcome(
            repository=task.repository, done=done, checkpoint=checkpoint, folder="/x" if checkpoint else None, serving=serving,
            trouble=trouble, gone=gone,
        )  # fmt: skip

    def check(self) -> None:
        """No repository is forgotten: one with something to do waits for a worker, a reader or a time."""
        alarmed = {repository for _, repository in self.mirror.state.agenda._alarms}
        tasks = [worker.busy.repository for worker in self.pool.workers if isinstance(worker.busy, Task)]
        assert len(tasks) == len(set(tasks)), "two workers have one repository"
        for following in self.mirror.state.table:
            assert following.work.is_running == (following.id in tasks)
            assert not following.work.is_resting or following.id in alarmed, f"rests forever: {following}"
            assert following.work.is_running or following.work.is_resting or self.goes_on(following), (
                f"forgotten: {following}"
            )

    def goes_on(self, following: Following) -> bool:
        waits = self.mirror.state.agenda.is_queued(following) or following.id in self.mirror.readers._waiting
        if following.phase is Phase.STREAM:
            return waits or self.mirror.state.agenda.choose_lane(following) is None
        if following.phase is Phase.CATCHING_UP:
            reader = self.mirror.readers._running.get(following.id)
            return waits or (reader is not None and reader.source in self.readers)
        return waits

    def settle(self) -> None:
        """Let nothing new happen from now on, and everything finish."""
        self.calm, self.notes.failing = True, 0.0
        for chain in self.chains:
            if not chain.events or chain.events[-1].type is not Type.DELETED:
                event = chain.next()  # which shows what is missing
                self.append(event.repository, wire.encode(event))
        for _ in range(3):
            for _ in range(150):
                self.stream()
                self.catch_up()
                self.answer()
                self.answer()
                self.clock.advance(0.04)
                self.mirror.turn(0)
                self.check()
            for chain in self.chains:
                self.state(chain)


def reached(event: Event, *, offset: int) -> Checkpoint:
    first = before_first(event.repository, event.incarnation, event.path, event.generation)
    return replace(first, seq=event.seq, id=event.id, digest=event.digest, partition=0, offset=offset)


@pytest.mark.parametrize("seed", seeds(40))
def test_a_mirror_that_was_disturbed_settles(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catchup, "Source", Reader)
    monkeypatch.setattr(random, "random", lambda: 0.5)
    with structlog.testing.capture_logs():
        world = World(seed, tmp_path)
        for _ in range(STEPS):
            world.step()
        world.settle()
    for chain in world.chains:
        ack, last = world.writer.acks[chain.repository], chain.events[-1]
        assert (ack.applied, ack.digest, ack.detached) == (last.seq, last.digest, None), [*world.mirror.state.table]
    assert (world.notes.detached(), world.notes.requests.list_open()) == ([], [])
    assert world.writer.stored == {0: len(world.log)}

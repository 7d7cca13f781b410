# SPDX-License-Identifier: GPL-2.0-or-later
"""A mirror of the campaign: the real supervisor, notes, reading and writing; disk and workers are a model.

A repository on the disk is a checkpoint and the sequence that it serves. A repair copies what the master has. Folders are not
modelled: two repositories never claim one.
"""

from __future__ import annotations

import queue
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from hgext.vcsreplicator.keys.pairs import make_key, read_keys
from hgext.vcsreplicator.log import ACKS, EVENTS, ROSTER, STATE
from hgext.vcsreplicator.log.table import read_table
from hgext.vcsreplicator.mirror import service
from hgext.vcsreplicator.mirror.checkpoint import Checkpoint, before_first
from hgext.vcsreplicator.mirror.namesake import Namesakes
from hgext.vcsreplicator.mirror.notes import Notes
from hgext.vcsreplicator.mirror.plan import Act, plan
from hgext.vcsreplicator.mirror.pool import Answered, Lane, WorkerPool
from hgext.vcsreplicator.mirror.seals import KEY_FILE, OwnSeals
from hgext.vcsreplicator.mirror.settings import MirrorSettings
from hgext.vcsreplicator.mirror.sources import ExpiredPosition, Source
from hgext.vcsreplicator.mirror.supervision.supervisor import Supervisor
from hgext.vcsreplicator.mirror.task import FoundRepository, Task, TaskOutcome, Trouble
from hgext.vcsreplicator.mirror.writer import AckWriter
from hgext.vcsreplicator.words.errors import Expired, Unavailable
from hgext.vcsreplicator.words.event import Event, Type
from hgext.vcsreplicator.words.records import Reason
from hgext.vcsreplicator.words.roster import KEY as ROSTER_KEY
from hgext.vcsreplicator.words.roster import Roster
from hgext.vcsreplicator.words.shape import try_json
from testing.campaign.history import Kind, Seen
from testing.campaign.log import Call, ProcessReader
from testing.campaign.process import Process
from testing.campaign.stage import Stage


class SteppedSource(Source):
    """A reading thread that reads when the campaign says so."""

    def start(self) -> SteppedSource:
        self._expired: Expired | None = None
        self._is_new = True
        cast(Any, self._log).sources.append(self)
        return self

    def stop(self) -> None:
        cast(Any, self._log).sources.remove(self)

    @property
    def can_step(self) -> bool:
        return self.may_read.is_set() and self._room._value > 0 and self._has_work()

    def _has_work(self) -> bool:
        """Whether a step would do more than find the end of the topics again, which costs as much as to read something."""
        is_reading = self._follows is None and not self._is_new and self._expired is None
        return not is_reading or cast(ProcessReader, self._reader).has_more()

    def step(self) -> None:
        """Read one batch, as `_read_stream` does."""
        try:
            if self._expired is not None:
                self._skip_expired(self._expired)
                self._expired, self._is_new = None, True
            if self._is_new:
                self._reader = self._log.reader(self._positions)
                self._is_new = False
            assert self._reader is not None
            self._read_batch(self._reader)
        except Expired as error:
            if self._follows is not None:
                self._report(ExpiredPosition(follows=self._follows, run=self._run, reason=str(error)))
                self.may_read.clear()
            else:
                self._expired = error
        except Unavailable:
            self._is_new = True


class Pool:
    """Workers that do their task when the campaign says so."""

    LIMITS = {Lane.LIGHT: 2, Lane.HEAVY: 1, Lane.REPAIR: 1, Lane.CHECK: 0}  # noqa: RUF012

    def __init__(self) -> None:
        self.workers: list[Any] = []

    def idle(self, lane: Lane) -> Any:
        ours = [worker for worker in self.workers if worker.lane is lane and not worker.is_slow]
        if len(ours) == self.LIMITS[lane]:
            return None
        return SimpleNamespace(
            lane=lane, busy=None, since=None, is_ready=True, is_slow=False, is_killed=False, progress=0.0, moved=0.0
        )

    def give(self, worker: Any, task: object, now: float) -> None:
        worker.busy, worker.since, worker.has_answered = task, now, False
        self.workers.append(worker)

    def freed(self, answered: Answered) -> None:
        self.workers.remove(answered.worker)

    def end_idle(self) -> None:
        """None costs anything."""

    def kill(self, worker: Any) -> None:
        worker.is_killed = True

    def progress(self, worker: Any) -> float:
        return 0.0


class Mirror(Process):
    """One mirror; `disk` and `aside` outlive a kill, as the notes in its folder do."""

    pace = 6

    def __init__(self, stage: Stage, name: str, folder: Path) -> None:
        super().__init__(stage, name, folder)
        self.mirror = name.removeprefix("mirror-")
        self.settings = MirrorSettings(
            name=self.mirror, root=str(folder), check_interval=0, slow_after=30.0, retry_first=0.2, retry_longest=2.0,
            batch_events=3, beat_interval=1.0,
        )  # fmt: skip
        Path(self.settings.folder).mkdir(parents=True)
        self.disk: dict[str, tuple[Checkpoint, int]] = {}
        self.aside: dict[str, Checkpoint] = {}
        self._notes: Notes | None = None
        self._supervisor: Supervisor | None = None

    def begin(self) -> None:
        self.free()
        self._supervisor = None
        self._notes = Notes(Path(self.settings.folder) / "mirror.db")

    def step(self) -> None:
        if self._supervisor is None:
            self._open()
            return
        sources = [source for source in self.log.sources if source.can_step]
        busy = [worker for worker in self._pool.workers if not worker.has_answered]
        acts: list[Any] = [self._turn, *([self._write] if self._writer._waiting.has_work() else [])]
        acts += [source.step for source in sources] + [lambda: self._answer(self.chance.choice(busy))] * bool(busy)
        self.chance.choice(acts)()

    def _open(self) -> None:
        """Begin as `mirror.service` does."""
        assert self._notes is not None
        positions = service._find_positions(self.log, self.settings.group)
        table = read_table(
            self.log,
            ACKS,
            ROSTER,
            STATE,
            keep=lambda record: record.topic != ACKS or (record.key or "").partition("/")[0] == self.mirror,
        )
        seals = OwnSeals(self.mirror, Path(self.settings.folder))
        seals.take_roster(try_json(Roster, table.value(ROSTER, ROSTER_KEY)) or Roster())
        records, unsealed = seals.choose(table, service._find_own_records(self.settings, table))
        acks = service._read_acks(self.settings, records.items())
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._pool, self._writer = Pool(), AckWriter(self.log, self.settings.group, self._inbox.put, seals)
        supervisor = Supervisor(
            self.settings, self.log, self._notes, self.clock, positions, inbox=self._inbox,
            pool=cast(WorkerPool, self._pool), writer=self._writer, namesakes=Namesakes(self.settings, ""),
        )  # fmt: skip
        supervisor.control.load(ROSTER, ROSTER_KEY, table.value(ROSTER, ROSTER_KEY))
        supervisor.startup.adopt_all(self._scan(), acks)
        for (topic, key), record in table.records.items():
            if topic == STATE:
                supervisor.control.load(STATE, key, record.value)
        supervisor.startup.prune_deletions(acks)
        supervisor.control.write_again({key.partition("/")[2] for key in unsealed})
        control = {place: table.positions[place] for place in [(ROSTER, 0), (STATE, 0)]}
        SteppedSource(self.log, control, self._inbox.put).start()
        start = {(EVENTS, partition): offset for partition, offset in positions.items()}
        supervisor.reader = SteppedSource(self.log, start, self._inbox.put).start()
        self._supervisor = supervisor

    def free(self) -> None:
        if self._notes is not None:
            self._notes.close()
            self._notes = None

    def lose_folder(self) -> None:
        self.disk.clear()
        self.aside.clear()
        for file in Path(self.settings.folder).glob("mirror.db*"):
            file.unlink()

    def find_key(self) -> str:
        """Return its public key, made if it has none; it outlives the machine."""
        file = Path(self.settings.folder) / KEY_FILE
        return (read_keys(file) or (make_key(file),))[0].public

    def serves(self, name: str) -> int:
        """Return the sequence of a repository that clients see, or 0."""
        return self.disk[name][1] if name in self.disk else 0

    def list_copies(self) -> list[FoundRepository]:
        """The repositories in its root, each in the folder that its path has."""
        return [
            FoundRepository(folder=f"{self.settings.root}/{each.path}", checkpoint=each, serving=serving)
            for each, serving in self.disk.values()
        ]

    def _scan(self) -> list[FoundRepository]:
        found = [FoundRepository(folder="/x", checkpoint=each, serving=serving) for each, serving in self.disk.values()]
        return found + [
            FoundRepository(folder="/aside", checkpoint=each, serving=0, is_aside=True) for each in self.aside.values()
        ]

    def _turn(self) -> None:
        assert self._supervisor is not None
        self._supervisor.turn(0)

    def _write(self) -> None:
        out = self._writer._wait_for_work()
        assert out is not None
        try:
            self._writer._write(out)
        except Unavailable:
            self._writer._put_back(out)
            self.rest(0.2)

    def _answer(self, worker: Any) -> None:
        """A worker does its task, and answers; a kill may come between the two."""
        worker.has_answered = True
        answer = self.perform(worker.busy) if isinstance(worker.busy, Task) else worker.busy
        self.log.call(lambda: None, Call.ELSEWHERE)
        self._inbox.put(Answered(worker=worker, answer=None if worker.is_killed else answer))

    def perform(self, task: Task) -> TaskOutcome:
        """Carry out a task on the model of the disk."""
        name, done, trouble, gone = task.repository, 0, None, None
        if task.leave:
            self.disk.pop(name, None)
        elif task.heal is not None:
            trouble = self._heal(name)
        for item in () if task.leave or task.heal else task.items:
            checkpoint, serving = self.disk.get(name, (None, 0))
            step = plan(item.event, checkpoint)
            if step.act is Act.TROUBLE:
                trouble = Trouble(reason=step.reason or Reason.CORRUPT, note=step.why)
                break
            done += 1
            if step.act is not Act.SKIP:
                self.disk[name] = reached(item.event, partition=item.partition, offset=item.offset), serving
        if trouble is None:
            gone = self._release(task)
        checkpoint, serving = self.disk.get(name, (None, 0))
        return TaskOutcome(
            repository=name, done=done, checkpoint=checkpoint, folder="/x" if checkpoint else None, serving=serving,
            trouble=trouble, gone=gone,
        )  # fmt: skip

    def _heal(self, name: str) -> Trouble | None:
        """Copy what the master has, whether or not it was sent."""
        outbox = self.stage.outboxes.get(name)
        if outbox is None or outbox.is_deleted or self.stage.is_master_away:
            return Trouble(reason=Reason.BLOB_MISSING, note="not there", passing=True)
        serving = self.serves(name)
        self.disk[name] = reached(outbox.chain.events[-1], partition=-1, offset=-1), serving
        return None

    def _release(self, task: Task) -> Checkpoint | None:
        """Serve what is released; return the checkpoint of a deletion that took effect."""
        if task.repository not in self.disk:
            return None
        here, serving = self.disk[task.repository]
        if here.incarnation != task.incarnation or here.contradicts(task.newest_known):
            return None
        shown = min(task.released, here.seq)
        if shown <= serving:
            return None
        self.stage.see(
            Seen(step=self.stage.step, kind=Kind.SERVED, who=self.mirror, repository=here.repository, seq=shown)
        )
        if here.deleted and shown == here.seq and not task.keep:
            self.aside[task.repository] = here
            del self.disk[task.repository]
            return here
        self.disk[task.repository] = here, shown
        return None


def reached(event: Event, *, partition: int, offset: int) -> Checkpoint:
    """Return the checkpoint behind an event."""
    first = before_first(event.repository, event.incarnation, event.path, event.generation)
    return replace(
        first, seq=event.seq, id=event.id, digest=event.digest, partition=partition, offset=offset,
        deleted=event.type is Type.DELETED,
    )  # fmt: skip

# SPDX-License-Identifier: GPL-2.0-or-later
"""The supervisor of a mirror: what was read goes to workers, what they achieved becomes acks and positions.

One thread decides and owns all that is in the four modules of it: `books` is what it knows, `apart` what it does about trouble,
`intake` what records mean, and here is what happens when. Readers, workers and the sender reach it through its inbox. Rules:

1. A position passes an event only after a worker said that its transaction has committed, or after a note about its repository is
   durable (`Backlog` keeps count).
2. A repository has one task at a time. Which worker takes it matters for warmth only: a slow one holds up nobody else.
3. Trouble concerns one repository: it is followed apart (`_detach`), everyone else goes on. That holds for mistakes of this program
   too: what nobody foresaw is a reject of the record, or the trouble of the repository (`_sparing`), that it came of.
"""

import contextlib
import heapq
import queue
from collections.abc import Iterator, Mapping
from dataclasses import replace

import structlog

from ..words.event import Type
from ..words.levels import MIRROR_FORMAT, Ack, Beat, Reason
from ..words.shape import to_json
from ..words.unexpected import fault
from ..words.version import VERSION
from . import metrics
from .books import deletion
from .checkpoint import Checkpoint
from .following import Following, Phase
from .intake import Intake
from .pool import Answered, Lane, Worker
from .sources import Broken, Ends, Lost, Read, Skipped
from .task import READY, Check, Checked, FoundRepository, Sweep, Task, TaskOutcome, Trouble, Warm

TICK = 0.2
APART_LIMITS = {Lane.LIGHT: 8, Lane.HEAVY: 6, Lane.REPAIR: 0, Lane.CHECK: 0}
"""How many workers that take too long may there be for one of this lane to get a replacement.

A disk that is slow for all needs no more of them. Large pushes leave some for small work. Repairs and checks take long by nature,
and are replaced only if they hang.
"""
# Seconds after which another worker is started beside one that is not ready yet, and after which that one is killed.
START_SLOW, START_LIMIT = 5.0, 60.0
# Seconds after which positions that did not move are stored again: Kafka forgets what nobody stores for a week.
RENEW_INTERVAL = 3600.0
SWEEP_INTERVAL = 3600.0
logger = structlog.get_logger()


class Supervisor(Intake):
    """Decides; see the module. Its methods are called by one thread."""

    def turn(self, timeout: float) -> None:
        """Takes what is in the inbox, waiting for it at most `timeout` seconds, and gives work to idle workers."""
        try:
            self.take(self.inbox.get(timeout=timeout))
            while True:
                self.take(self.inbox.get_nowait())
        except queue.Empty:
            pass
        self._tick()
        self._dispatch()

    def take(self, arrived: object) -> None:
        """One thing that arrived."""
        match arrived:
            case Read(follows=None):
                for record in arrived.records:
                    self._record(record)
                self._hold_back()
                arrived.taken()
            case Read():
                with self._sparing(arrived.follows):
                    self._caught(arrived)
                arrived.taken()
            case Answered():
                with self._sparing(getattr(arrived.worker.busy, "repository", None)):
                    self._answered(arrived)
            case Lost():
                self._lost(arrived)
            case Ends():
                self._find_silent_gaps(arrived)
            case Skipped():
                self._read_elsewhere(arrived.positions)
            case Broken():
                raise arrived.error

    def _read_elsewhere(self, positions: Mapping[tuple[str, int], int]) -> None:
        """Goes on at these positions. What waits and will be read again is dropped, and every ack is written again.

        A log that goes back to former positions lost records: perhaps the newest acks, too.
        """
        for (_, partition), offset in positions.items():
            for repository in self._backlog.queued_from(partition, offset):
                self._backlog.drop(repository)
                if (following := self._all.get(repository)) is not None:
                    following.dropped += 1
            self._backlog.skip(partition, offset)
        for following in self._all.values():
            following.sent = None
            self._ack(following)

    @contextlib.contextmanager
    def _sparing(self, repository: str | None) -> Iterator[None]:
        """An exception that nobody foresaw, where one repository is concerned, is that repository's trouble alone."""
        try:
            yield
        except Exception as error:
            found, following = fault(error), self._all.get(repository or "")
            if found is None or following is None:
                raise
            logger.exception("unexpected", repository=following.id, path=following.path)
            self._detach(following, Reason.CRASHED, found.reason)

    def _dispatch(self) -> None:
        for lane, line in self._ready.items():
            while line and (worker := self.pool.idle(lane)) is not None:
                following = self._all.get(line.popleft())
                if following is None or not following.queued:  # of the same name, but not the one that stood in line
                    continue
                following.queued = False
                with self._sparing(following.id):
                    if self._lane(following) is not lane:
                        self._queue(following)
                        continue
                    task = self._task(following)
                    following.running = True
                    self._give(worker, task)
        if self._cold:
            self._warm_next()

    def _give(self, worker: Worker, task: object) -> None:
        worker.since = self._clock.monotonic()
        self.pool.give(worker, task)

    def _watch(self, now: float) -> None:
        """What takes long holds up nobody: its repository is followed apart, its worker replaced, and killed if it hangs."""
        for worker in self.pool.workers:
            if worker.since is None:
                worker.since = now  # it begins to start
            if worker.is_ready and not worker.busy:
                continue
            task = worker.busy
            following = self._all.get(task.repository) if isinstance(task, Task) else None
            is_slow = now - worker.since > (self._settings.slow_after if worker.is_ready else START_SLOW)
            if is_slow and following is not None and following.running and following.phase is Phase.STREAM:
                self._detach(following, Reason.SLOW, f"one task takes more than {self._settings.slow_after:g} s")
            if is_slow and not worker.is_apart:
                worker.is_apart = sum(each.is_apart for each in self.pool.workers) < APART_LIMITS[worker.lane]
            if not worker.is_killed and self._hangs(worker, now):
                seconds, repository = round(now - worker.since), following.id if following else None
                logger.error("worker hung", lane=worker.lane.value, seconds=seconds, repository=repository)
                metrics.HUNG.inc()
                worker.is_apart = True
                self.pool.kill(worker)
        metrics.APART.set(sum(each.is_apart for each in self.pool.workers))

    def _hangs(self, worker: Worker, now: float) -> bool:
        """Small work has a limit; everything else may take as long as it likes, if only it gets on."""
        assert worker.since is not None
        if not worker.is_ready:
            return now - worker.since > START_LIMIT
        if worker.lane is not Lane.LIGHT and (progress := self.pool.progress(worker)) != worker.progress:
            worker.progress, worker.moved = progress, now
        return now - max(worker.since, worker.moved) > self._settings.hung_after

    def _warm_next(self) -> None:
        """In a moment when all workers are idle, spares the next reader of a repository the making of caches."""
        light = [worker for worker in self.pool.workers if worker.lane is Lane.LIGHT and not worker.is_apart]
        if any(self._ready.values()) or any(worker.busy for worker in light):
            return
        worker = self.pool.idle(Lane.LIGHT)
        if worker is None:
            return
        repository = next(iter(self._cold))
        del self._cold[repository]
        following = self._all.get(repository)
        if following is not None and following.folder is not None and not following.running:
            relock = repository in self._relocked
            self._relocked.discard(repository)
            self._give(worker, Warm(repository=repository, folder=following.folder, relock=relock))

    def _task(self, following: Following) -> Task:
        events = 1 if following.single else self._settings.batch_events
        items = self._backlog.peek(following.id, events=events, size=self._settings.batch_bytes)
        if items and items[0].inline:
            items = items[: next((n for n, item in enumerate(items) if not item.inline), len(items))]
        else:
            items = items[:1]
        heals = following.phase is Phase.HEALING
        return Task(
            repository=following.id,
            path=(following.there or following.path) if heals or following.phase is Phase.LEAVING else following.path,
            folder=following.folder,
            items=() if heals or following.phase in (Phase.WAITING, Phase.LEAVING) else items,
            incarnation=following.incarnation,
            released=following.released,
            told=following.told,
            heal=following.note.reason if heals and following.note else None,
            leave=following.phase is Phase.LEAVING,
            keep=self._is_backup,
            run=following.dropped,
        )

    def _answered(self, answered: Answered) -> None:
        task, answer = answered.worker.busy, answered.answer
        self.pool.freed(answered)
        if answer == READY:
            return
        if isinstance(answer, Checked):
            self._checked(answer)
        if not isinstance(task, Task) or (following := self._all.get(task.repository)) is None:
            return
        following.running = False
        if answer is None:
            self._died(following, task, "its worker hung" if answered.worker.is_killed else "its worker died")
        elif isinstance(answer, TaskOutcome):
            self._achieved(following, task, answer)

    def _checked(self, checked: Checked) -> None:
        if checked.is_undecided and checked.problem is not None:
            logger.error("not read through", repository=checked.repository, reason=checked.problem)
            return
        if checked.is_undecided and checked.repository not in self._undecided:
            self._undecided.add(checked.repository)
            self._unchecked.insert(0, checked.repository)  # once more when all others had their turn
        following = self._all.get(checked.repository)
        if following is None or following.phase is not Phase.STREAM:
            return
        if checked.problem is not None:
            self._detach(following, Reason.CORRUPT, checked.problem)
        elif _is_lower(checked.lower, following) and not following.running:
            assert following.checkpoint is not None
            assert checked.lower is not None
            had, following.checkpoint = following.checkpoint.seq, checked.lower
            self._detach(following, Reason.GAP, f"had events up to {had}, has {checked.lower.seq} now", offset=0)

    def _check_next(self, now: float) -> None:
        """Has one repository read through, in turn, once the last one was."""
        worker = self.pool.idle(Lane.CHECK)
        if worker is None:
            return
        self._check_at = now + self._settings.check_interval
        if not self._unchecked:
            self._undecided.clear()
            self._unchecked = [f.id for f in self._all.values() if f.folder is not None]
        following = self._all.get(self._unchecked.pop()) if self._unchecked else None
        if following is not None and following.folder is not None and following.phase is Phase.STREAM:
            seq = following.checkpoint.seq if following.checkpoint else 0
            self._give(worker, Check(repository=following.id, folder=following.folder, seq=seq))

    def _died(self, following: Following, task: Task, note: str) -> None:
        logger.warning("worker died", repository=following.id, path=following.path)
        metrics.DIED.inc()
        self._troubled(following, task, Trouble(reason=Reason.CRASHED, note=note, passing=True), done=0)

    def _achieved(self, following: Following, task: Task, outcome: TaskOutcome) -> None:
        before = following.checkpoint
        following.checkpoint, following.folder = outcome.checkpoint, outcome.folder
        if outcome.checkpoint is not None:
            if outcome.checkpoint.path != following.path:
                self._vacate(following)
            if before is not None and outcome.checkpoint.path != before.path:
                following.there = outcome.checkpoint.path
            following.path = outcome.checkpoint.path
            self._occupy(following)
            if outcome.checkpoint.deleted and following.id in self._over:  # it was released long ago
                following.released, following.incarnation = outcome.checkpoint.seq, outcome.checkpoint.incarnation
        if outcome.serving > following.serving:
            self._cold[following.id] = None
        following.serving = outcome.serving
        following.served_at = outcome.served_at or following.served_at
        following.floor = outcome.floor
        if task.run == following.dropped:
            self._backlog.finish(following.id, outcome.done)
        gone = outcome.gone or _absent(task, outcome, self._clock.now())
        if gone is not None:
            self._let_go(following, gone)
        metrics.applied(before, outcome.checkpoint)
        if outcome.trouble is None:
            following.troubled, following.tries, following.single = None, 0, False
            following.is_stuck = False
            self._went_well(following)
        else:
            self._troubled(following, task, outcome.trouble, done=outcome.done)
        if following.id not in self._all:
            return
        if not (task.leave and outcome.trouble):  # which rests first
            self._leave_if_due(following)
        self._ack(following)
        self._queue(following)
        if following.phase is Phase.STREAM:
            self._abandon_if_over(following)

    def _went_well(self, following: Following) -> None:
        note = following.note
        match following.phase:
            case Phase.HEALING:
                logger.info("healed", repository=following.id, path=following.path)
                assert note is not None
                if note.reason is Reason.EXPIRED:
                    following.note = replace(note, offset=following.behind)
                self._catch_up(following)
            case Phase.WAITING if note is not None and note.reason is Reason.SLOW:
                self._catch_up(following)
            case Phase.CATCHING_UP:
                source = self._catching_up.get(following.id)
                if source and self._backlog.size(following.id) < self._settings.repository_buffer_bytes // 4:
                    source.may_read.set()
            case Phase.JOINING if not self._backlog.untracked(following.id):
                self._rejoin(following)
            case Phase.LEAVING:
                self._left(following)

    def _hold_back(self) -> None:
        """The stream is read no further while as much of it is in memory as may be; what catches up has bounds of its own."""
        if self.reader is None:
            return
        if self._backlog.tracked_bytes >= self._settings.buffer_bytes:
            self.reader.may_read.clear()
        elif self._backlog.tracked_bytes < self._settings.buffer_bytes // 2:
            self.reader.may_read.set()

    def _tick(self) -> None:
        now = self._clock.monotonic()
        while self._alarms and self._alarms[0][0] <= now:
            _, repository = heapq.heappop(self._alarms)
            with self._sparing(repository):
                self._alarm(repository)
        if now - self._ticked < TICK:
            return
        self._ticked = now
        self._watch(now)
        self._hold_back()
        positions = self._backlog.positions()
        renew = now - self._renewed >= RENEW_INTERVAL
        if positions != self._stored or renew:
            self.sender.positions({p: o for p, o in positions.items() if renew or self._stored.get(p) != o})
            self._stored = positions
            self._renewed = now if renew else self._renewed
        if self._settings.check_interval and now >= self._check_at:
            self._check_next(now)
        if now >= self._sweep_at and (worker := self.pool.idle(Lane.CHECK)) is not None:
            self._sweep_at = now + SWEEP_INTERVAL
            self._give(worker, Sweep(before=self._clock.now() - 86400 * self._settings.keep_deleted_days))
        if now - self._beaten >= self._settings.beat_interval:
            self._beaten = now
            self._beat()

    def _beat(self) -> None:
        beat = Beat(
            mirror=self._settings.name,
            time=self._clock.now(),
            positions={str(partition): offset for partition, offset in self._stored.items()},
            version=VERSION,
            instance=self.instance,
            format=MIRROR_FORMAT,
        )
        self.sender.ack(self._settings.name, to_json(beat))
        detached = [following for following in self._all.values() if following.note is not None]
        metrics.DETACHED.set(len(detached))
        metrics.BUFFERED.set(self._backlog.bytes)
        for repository in self._write(self._notes.wishes) or ():
            self._grant(repository)
        if any(f.expected > (f.checkpoint.seq if f.checkpoint else 0) for f in self._all.values()):
            self.sender.ask_ends()

    def adopt(self, found: FoundRepository, acked: Ack | None) -> None:
        """A repository found on disk at the start, and what was last said of it."""
        checkpoint = found.checkpoint
        if checkpoint is None:
            logger.error("repository damaged", folder=found.folder, reason=found.problem)
            return
        if checkpoint.deleted and found.is_aside:
            if checkpoint.repository not in self._gone:
                self._note_gone(checkpoint)
            self._aside[checkpoint.repository] = checkpoint
            return
        following = self._following(checkpoint.repository, checkpoint.path)
        if following.checkpoint is not None and following.checkpoint.generation >= checkpoint.generation:
            return
        following.folder, following.checkpoint, following.serving = found.folder, checkpoint, found.serving
        if found.is_locked not in (None, self._settings.lock):
            self._cold[following.id] = None
            self._relocked.add(following.id)
        following.sent = acked
        if acked is not None:
            following.served_at = acked.served_at
        self._occupy(following)

    def settle(self, acks: Mapping[str, Ack]) -> None:
        """After everything was found: follow apart what notes say, and what has less than it had."""
        for repository, last in self._aside.items():
            told = acks.get(repository)
            of_it = told is not None and told.incarnation in ("", last.incarnation)
            if told is not None and of_it and (min(told.applied, told.serving) < last.seq or told.detached is not None):
                self._tell_gone(last)
        for note in self._notes.detached():
            if note.repository in self._aside:
                self._notes.rejoin(note.repository)
                continue
            following = self._following(note.repository, note.path)
            following.note, following.phase = note, Phase.WAITING
            if note.reason is Reason.FORK:
                continue
            self._rest(following, 0.0)
        for repository, acked in acks.items():
            if repository in self._gone:
                self._acked_gone.add(repository)
                continue
            if acked.applied == 0:
                continue
            following = self._following(repository, "")
            following.sent = acked
            checkpoint = following.checkpoint
            lost = checkpoint is None or (
                checkpoint.incarnation == acked.incarnation and checkpoint.seq < acked.applied
            )
            if following.phase is Phase.STREAM and (lost or acked.detached is not None):
                have = checkpoint.seq if checkpoint else 0
                self._detach(following, Reason.GAP, f"had events up to {acked.applied}, has {have} now", offset=0)
        for following in self._all.values():
            self._ack(following)
            self._queue(following)

    def close(self, patience: float) -> None:
        """Stops reading, lets the workers end their tasks, and writes the last levels."""
        if self.reader is not None:
            self.reader.stop()
        for source in self._catching_up.values():
            source.stop()
        deadline = self._clock.monotonic() + patience
        while any(worker.busy for worker in self.pool.workers) and self._clock.monotonic() < deadline:
            try:
                arrived = self.inbox.get(timeout=0.1)
            except queue.Empty:
                continue
            if isinstance(arrived, Answered):
                self._answered(arrived)
        self._ticked = float("-inf")
        self._tick()
        self.pool.close(1.0)
        self.sender.close(2.0)


def _is_lower(found: Checkpoint | None, following: Following) -> bool:
    """Whether a checkpoint that was read in the store is lower than what is known; what was applied meanwhile says otherwise."""
    known = following.checkpoint
    return found is not None and known is not None and found.repository == following.id and found.seq < known.seq


def _absent(task: Task, outcome: TaskOutcome, now: float) -> Checkpoint | None:
    """Return the checkpoint after the deletion of a repository that never was here; its notice waits for the ack of it."""
    last = task.items[outcome.done - 1].event if outcome.done and outcome.checkpoint is None else None
    return deletion(last, now) if last is not None and last.type is Type.DELETED else None

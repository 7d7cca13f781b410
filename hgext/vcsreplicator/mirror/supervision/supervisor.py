# SPDX-License-Identifier: GPL-2.0-or-later
"""The supervisor of a mirror.

Events go to workers, and their outcomes become acks and positions. One thread owns the parts that are wired here. Readers, workers
and the writer reach it through its inbox. Rules:

1. A position passes an event only after a worker reported that its transaction has committed, or after a note about its repository
   is durable (`Backlog` keeps count).
2. A repository has one task at a time (`TaskDispatch`).
3. Trouble concerns one repository: it is detached, and everything else goes on (`Detachments`). That holds for mistakes of this
   program too: an unexpected exception becomes a reject of its record, or the trouble of its repository.
"""

import queue
from collections.abc import Mapping

from ...log import RENEW_EVERY, Log
from ...words.clock import Clock
from ...words.records import MIRROR_FORMAT, MirrorHeartbeat
from ...words.shape import to_json
from ...words.version import VERSION
from .. import metrics
from ..namesake import Namesakes
from ..notes import Notes
from ..pool import Answered, WorkerPool
from ..settings import MirrorSettings
from ..sources import ExpiredPosition, ReadRecords, SkippedRecords, Source, SourceReport
from ..task import Check, Checked, Sweep
from ..writer import AckWriter, Ends
from .catchup import CatchUpReaders
from .control import Control
from .departures import Departures
from .detached import Detachments
from .dispatch import TaskDispatch
from .intake import Intake
from .life import Deed
from .losses import PowerLosses
from .maintenance import Maintenance
from .startup import Startup
from .state import State
from .watch import WorkerWatch

# Seconds between two checks of the workers and the positions.
TICK = 0.2
# Seconds that a turn waits while work is under way.
BUSY_TURN = 0.1
# Longest wait of a turn, in seconds.
IDLE_TURN = 2.0


# What comes to the inbox; True, once the service stops, ends the wait of a turn.
SupervisorMessage = SourceReport | Answered | Ends | bool


class Supervisor:
    """Wires the parts and calls them in turn; its methods are called by one thread."""

    def __init__(
        self,
        settings: MirrorSettings,
        log: Log,
        notes: Notes,
        clock: Clock,
        positions: Mapping[int, int],
        *,
        inbox: "queue.SimpleQueue[SupervisorMessage]",
        pool: WorkerPool,
        writer: AckWriter,
        namesakes: Namesakes,
        file_system: str | None = None,
    ) -> None:
        self._settings, self._clock, self._namesakes = settings, clock, namesakes
        self._file_system = file_system
        self._inbox, self._pool, self._writer = inbox, pool, writer
        # Of the stream; held back when too much is in memory, and stopped at the end.
        self.reader: Source | None = None
        self._stored = dict(positions)
        self._is_moving = False
        self._renewed = clock.monotonic()
        self._beat_at = self._ticked = float("-inf")
        self.state = state = State(settings, notes, writer, clock, positions)
        self.readers = readers = CatchUpReaders(log, inbox.put, clock)
        state.deeds |= {
            Deed.START_READER: readers.start,
            Deed.STOP_READER: readers.stop,
            Deed.READ_ON: readers.read_on,
        }
        self.departures = departures = Departures(state, readers)
        self.detachments = detachments = Detachments(state, readers, departures)
        self.maintenance = Maintenance(state, pool)
        self.control = Control(state, departures, namesakes)
        self.intake = Intake(state, self.control, departures, detachments)
        self.dispatch = TaskDispatch(state, pool, departures, detachments, self.maintenance)
        self.startup = Startup(state, departures, self.maintenance)
        self.losses = PowerLosses(state)
        self._watch = WorkerWatch(state, pool)

    def turn(self, timeout: float) -> None:
        """Take messages, waiting at most `timeout` seconds, and give work to the idle."""
        try:
            self.receive(self._inbox.get(timeout=timeout))
            while True:
                self.receive(self._inbox.get_nowait())
        except queue.Empty:
            pass
        self._do_due_work()
        self.dispatch.give_tasks()
        self.maintenance.warm_next()

    def turn_time(self) -> float:
        """Return how many seconds the next turn may wait.

        That is until something is due, and shortly while anything is under way.
        """
        if (
            any(worker.busy or not worker.is_ready for worker in self._pool.workers)
            or self.state.agenda.has_waiting()
            or self.maintenance.has_cold()
            or self.state.backlog.positions() != self._stored
        ):
            return BUSY_TURN
        alarm, beat = self.state.agenda.next_due, self._beat_at + self._settings.beat_interval
        due = beat if alarm is None else min(alarm, beat)
        return max(0.0, min(due - self._clock.monotonic(), IDLE_TURN))

    def receive(self, arrived: SupervisorMessage) -> None:
        """Take one message of the inbox."""
        match arrived:
            case ReadRecords(follows=None):
                for record in arrived.records:
                    self.intake.take_record(record)
                self._hold_back()
                arrived.make_room()
            case ReadRecords():
                with self.detachments.isolate(arrived.follows):
                    self.detachments.take_events(arrived)
                arrived.make_room()
            case Answered():
                with self.detachments.isolate(getattr(arrived.worker.busy, "repository", None)):
                    self._take_answer(arrived)
            case ExpiredPosition():
                self.detachments.take_loss(arrived)
            case Ends():
                self.detachments.find_silent_gaps(arrived)
            case SkippedRecords():
                self._namesakes.forget()
                self.intake.skip(arrived.positions)
            case Exception():
                raise arrived

    def close(self, patience: float) -> None:
        """Stop reading, let the workers end their tasks, and write the last acks."""
        if self.reader is not None:
            self.reader.stop()
        self.readers.close()
        deadline = self._clock.monotonic() + patience
        while any(worker.busy for worker in self._pool.workers) and self._clock.monotonic() < deadline:
            try:
                arrived = self._inbox.get(timeout=0.1)
            except queue.Empty:
                continue
            if isinstance(arrived, Answered):
                self._take_answer(arrived)
        self._ticked = float("-inf")
        self._do_due_work()
        self._store_positions(self._clock.monotonic(), at_once=True)
        self._pool.close(1.0)
        self._writer.close(2.0)

    def _take_answer(self, answered: Answered) -> None:
        busy, since = answered.worker.busy, answered.worker.since
        self._pool.freed(answered)
        if isinstance(busy, Check) and since is not None:
            self.maintenance.rest_after_check(self._clock.monotonic() - since)
        if isinstance(answered.answer, Checked):
            self.maintenance.take_checked(answered.answer)
        elif isinstance(answered.answer, Sweep):
            self.maintenance.take_swept(answered.answer)
        else:
            self.dispatch.take_answer(busy, answered)

    def _hold_back(self) -> None:
        """Read the stream no further while too much of it is in memory.

        Catch-up readers have their own bounds.
        """
        if self.reader is None:
            return
        if self.state.backlog.tracked_bytes >= self._settings.buffer_bytes:
            self.reader.may_read.clear()
        elif self.state.backlog.tracked_bytes < self._settings.buffer_bytes // 2:
            self.reader.may_read.set()

    def _do_due_work(self) -> None:
        for repository in self.state.agenda.take_due():
            with self.detachments.isolate(repository):
                self.detachments.wake(repository)
        now = self._clock.monotonic()
        if now - self._ticked < TICK:
            return
        self._ticked = now
        self._watch.check(now)
        self.readers.pass_over_stuck()
        self.control.end_doubt()
        self.losses.look()
        self._hold_back()
        self._store_positions(now)
        self.maintenance.give_due(now)
        if now - self._beat_at >= self._settings.beat_interval:
            self._beat_at = now
            self._write_beat()

    def _store_positions(self, now: float, *, at_once: bool = False) -> None:
        """Store positions that moved before the last check, or with `at_once` all.

        The acks of an event go first, because the aggregator waits for them. A restart before the position is stored reads the
        event again, and finds it applied.
        """
        positions = self.state.backlog.positions()
        is_renewal = now - self._renewed >= RENEW_EVERY
        was_moving, self._is_moving = self._is_moving, positions != self._stored
        if not (is_renewal or (self._is_moving and (was_moving or at_once))):
            return
        self._is_moving = False
        self._writer.positions(
            {partition: at for partition, at in positions.items() if is_renewal or self._stored.get(partition) != at}
        )
        self._stored = positions
        if is_renewal:
            self._renewed = now

    def _write_beat(self) -> None:
        """Send a heartbeat, and do the other work of the same interval."""
        trouble, trouble_since = self.detachments.find_trouble()
        beat = MirrorHeartbeat(
            mirror=self._settings.name,
            time=self._clock.now(),
            positions={str(partition): offset for partition, offset in self._stored.items()},
            version=VERSION,
            instance=self._namesakes.instance,
            format=MIRROR_FORMAT,
            trouble=trouble,
            trouble_since=trouble_since,
            oldest=self.state.backlog.oldest(),
            file_system=self._file_system,
        )
        self._writer.ack(self._settings.name, to_json(beat))
        self.losses.renew()
        metrics.DETACHED.set(sum(following.note is not None for following in self.state.table))
        metrics.BUFFERED.set(self.state.backlog.bytes)
        self.detachments.take_up_requests()
        table = self.state.table
        lacking = {
            each.id: (each.log.incarnation, each.log.expected) for each in table if each.lacks(each.log.expected)
        }
        if lacking:
            self._writer.ask_ends(lacking)

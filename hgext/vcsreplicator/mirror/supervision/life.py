# SPDX-License-Identifier: GPL-2.0-or-later
"""The life of a repository on this mirror: all that changes its state. Pure.

Rules of this file:

1. `Following.change` alone replaces the four values of a repository.
2. Each method for a message returns a `Transition`, the new values and what to do then, and changes nothing.
3. A message that arrives too late is refused here, by an empty transition: no caller asks for the phase first.
4. A phase follows another only as `NEXT` says. Anything else is a mistake of this program, and an AssertionError.
5. A note is durable before its repository leaves the stream: `plan_note` only asks for it, and `noted` follows the write.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...words.event import Event, event_names
from ...words.records import Ack, Reason, RepositoryState
from ...words.retry import Backoff
from ..checkpoint import Checkpoint
from ..notes import Detached
from ..task import Checked, FoundRepository, Task, TaskOutcome, Trouble
from .values import AtWork, InLog, InTrouble, Moment, OnDisk, Phase

NEXT: Mapping[Phase, frozenset[Phase]] = {
    Phase.STREAM: frozenset({Phase.WAITING, Phase.LEAVING}),
    Phase.WAITING: frozenset({Phase.WAITING, Phase.HEALING, Phase.CATCHING_UP, Phase.STREAM, Phase.LEAVING}),
    Phase.HEALING: frozenset({Phase.WAITING, Phase.CATCHING_UP, Phase.LEAVING}),
    Phase.CATCHING_UP: frozenset({Phase.WAITING, Phase.JOINING, Phase.LEAVING}),
    Phase.JOINING: frozenset({Phase.WAITING, Phase.STREAM, Phase.LEAVING}),
    Phase.LEAVING: frozenset({Phase.WAITING}),
}


class Deed(enum.Enum):
    """What the supervisor does for a repository after a transition."""

    WRITE_NOTE = enum.auto()
    ATTEMPT = enum.auto()
    START_READER = enum.auto()
    STOP_READER = enum.auto()
    READ_ON = enum.auto()
    DROP_EVENTS = enum.auto()
    REJOIN = enum.auto()
    RECORD_DELETION = enum.auto()
    FORGET = enum.auto()
    SET_ALARM = enum.auto()
    REMIND = enum.auto()
    QUEUE = enum.auto()
    ACK = enum.auto()


# Reasons for which reading the log again is not enough: the mirror must ask the master.
NEEDS_REPAIR = frozenset(
    {Reason.GAP, Reason.BLOB_MISSING, Reason.CORRUPT, Reason.DIVERGED, Reason.FORK, Reason.EXPIRED, Reason.BOOTSTRAP}
)
# Reasons that wait for a heal request of an operator. After a restart all but a fork are tried once: a newer program may know more.
NEEDS_OPERATOR = frozenset({Reason.FORK, Reason.REFUSED, Reason.UNKNOWN_VERSION})
# Seconds after which a note that could not be written, or not be removed, is retried.
NOTE_AGAIN = 1.0
# Seconds between two looks at a detached repository while its last task is still under way.
TASK_AGAIN = 1.0
# Characters of a note that are kept.
NOTE_KEPT = 500
# How often a repository may crash its worker before it is detached.
CRASHES_ALLOWED = 2
# A reader of a catch-up reads on after a task only below this queued share.
READ_ON_BELOW = 0.25
_PASSING = Backoff(first=0.02, longest=1.0)
# The values of a new repository. Most keep the last two, so all share them.
_UNKNOWN, _UNTROUBLED, _IDLE = InLog(), InTrouble(), AtWork()


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """The values that change, and what to do then, in this order."""

    disk: OnDisk | None = None
    log: InLog | None = None
    trouble: InTrouble | None = None
    work: AtWork | None = None
    todo: tuple[Deed, ...] = ()


@dataclass(slots=True, eq=False, kw_only=True)
class Following:
    """One repository that this mirror follows; one thread changes it."""

    id: str
    disk: OnDisk
    log: InLog = _UNKNOWN
    trouble: InTrouble = _UNTROUBLED
    work: AtWork = _IDLE

    def change(self, transition: Transition) -> tuple[Deed, ...]:
        """Replace the values that the transition changes, and return what to do."""
        self.disk, self.log = transition.disk or self.disk, transition.log or self.log
        self.trouble, self.work = transition.trouble or self.trouble, transition.work or self.work
        return transition.todo

    # Questions.

    @property
    def path(self) -> str:
        return self.disk.path

    @property
    def master_path(self) -> str:
        """The path on the master, as far as it is known."""
        return self.log.master_path or self.disk.path

    @property
    def checkpoint(self) -> Checkpoint | None:
        return self.disk.checkpoint

    @property
    def note(self) -> Detached | None:
        return self.trouble.note

    @property
    def phase(self) -> Phase:
        return self.work.phase

    @property
    def level(self) -> int:
        """The sequence that this mirror has reached in the repository; 0 at first."""
        return 0 if self.checkpoint is None else self.checkpoint.seq

    @property
    def names(self) -> dict[str, str | int]:
        """The names of the repository and of its last applied event, for a log line."""
        last = {} if self.checkpoint is None else event_names(self.checkpoint)
        return {**last, "repository": self.id, "path": self.path}

    @property
    def may_release(self) -> bool:
        """Whether more is released and applied than served, and can be shown."""
        return (
            self.checkpoint is not None
            and self.log.incarnation == self.checkpoint.incarnation
            and not self.checkpoint.contradicts(self.log.newest_known)
            and not self.trouble.is_release_stuck
            and min(self.log.released, self.checkpoint.seq) >= max(self.disk.floor, self.disk.serving + 1)
        )

    def listens(self, run: int | None = None) -> bool:
        """Return whether it takes records of the stream, or of this run's reader.

        A reader's records are refused while a note is not written yet: they are read again.
        """
        if run is None:
            return self.phase in (Phase.STREAM, Phase.JOINING)
        return self.phase is Phase.CATCHING_UP and self.work.run == run and self.trouble.unwritten_note is None

    def lacks(self, expected: int) -> bool:
        """Return whether the mirror has not reached this sequence.

        The sequence is that of the aggregator's history, which may be older than the mirror's own.
        """
        if self.checkpoint is None or self.checkpoint.incarnation == self.log.incarnation:
            return expected > self.level
        return expected > 0 and self.checkpoint.incarnation in self.log.retired

    def find_resume_offset(self, note: Detached) -> int:
        """Return the offset behind a checkpoint from the log, else the note's."""
        checkpoint = self.checkpoint
        if checkpoint is None or checkpoint.partition != note.partition or checkpoint.offset < 0:
            return note.offset
        return checkpoint.offset + 1

    def is_at(self, event: Event) -> bool:
        """Return whether the event is the last applied event."""
        checkpoint = self.checkpoint
        return checkpoint is not None and (checkpoint.id, checkpoint.incarnation) == (event.id, event.incarnation)

    def can_take_up(self, request: int) -> bool:
        """Return whether a heal request may begin, and has not begun."""
        is_busy = self.phase is Phase.WAITING and self.work.is_running
        return not (is_busy or request in self.trouble.heal_requests or self.trouble.unwritten_note)

    # The start.

    def find(self, found: FoundRepository, acked: Ack | None, *, now: float) -> Transition:
        """Begin with a repository that is on the disk at the start."""
        last = found.checkpoint
        is_acked = acked and last and (acked.incarnation, acked.serving) == (last.incarnation, found.serving)
        served_at = acked.served_at if acked and is_acked else now
        disk = replace(self.disk, folder=found.folder, checkpoint=last, serving=found.serving, served_at=served_at)
        return Transition(disk=disk, log=replace(self.log, sent_ack=acked))

    def find_note(self, moment: Moment, note: Detached) -> Transition:
        """Begin with a note from before the start: healing is tried once, but not a fork."""
        transition = Transition(trouble=replace(self.trouble, note=note), work=_enter(self.work, Phase.WAITING))
        return transition if note.reason is Reason.FORK else self.rest(until=moment.now, after=transition)

    def find_ack(self, moment: Moment, acked: Ack) -> Transition:
        """Begin with the last ack: detach if less is here, or the note is lost."""
        log = self.log if self.log.sent_ack is acked else replace(self.log, sent_ack=acked)
        last = self.checkpoint
        is_less = last is None or (last.incarnation == acked.incarnation and last.seq < acked.applied)
        if self.phase is not Phase.STREAM or not (is_less or acked.detached is not None):
            return Transition(log=log)
        text = f"had events up to {acked.applied}, has {self.level} now"
        return replace(self.plan_note(moment, Reason.GAP, text, offset=0), log=log)

    # The log.

    def learn(self, state: RepositoryState, *, is_carried: bool, deletion: Checkpoint | None) -> Transition:
        """Take over a state that the aggregator wrote."""
        checkpoint = self.checkpoint
        is_newer = checkpoint is None or checkpoint.incarnation != state.incarnation or state.seq >= checkpoint.seq
        log = replace(
            self.log,
            master_path=state.path if checkpoint is None or is_newer else checkpoint.path,
            released=state.released,
            incarnation=state.incarnation,
            retired=state.retired,
            noticed=state.noticed,
            newest_known=(state.seq, state.event, state.digest),
            expected=state.seq if is_carried else 0,
            deletion=deletion,
        )
        trouble = replace(self.trouble, is_release_stuck=False) if self.trouble.is_release_stuck else None
        return Transition(log=log, trouble=trouble)

    def acknowledge(self, ack: Ack | None) -> Transition:
        """Remember an ack that is written; None: the log may have lost the last one."""
        return Transition(log=replace(self.log, sent_ack=ack))

    def drop_events(self) -> Transition:
        """Give up all events in the queue: they are read again."""
        return Transition(work=replace(self.work, drops=self.work.drops + 1), todo=(Deed.DROP_EVENTS,))

    # Work.

    def run(self, *, is_running: bool) -> Transition:
        return Transition(work=replace(self.work, is_running=is_running))

    def rest(self, *, until: float, after: Transition | None = None) -> Transition:
        """Give the repository no work before this time, after another transition."""
        transition = after or Transition()
        work = replace(transition.work or self.work, is_resting=True, rests_until=until)
        return replace(transition, work=work, todo=(*transition.todo, Deed.SET_ALARM))

    def wake(self, moment: Moment) -> Transition:
        """Take the step for which the repository rested, or retry a stuck release."""
        work, trouble = self.work, self.trouble
        if not work.is_resting and trouble.is_release_stuck:
            return Transition(trouble=replace(trouble, is_release_stuck=False), todo=(Deed.QUEUE,))
        if not work.is_resting or moment.now < work.rests_until:
            return Transition()
        todo: tuple[Deed, ...] = ()
        if trouble.unwritten_note is not None:
            todo = (Deed.WRITE_NOTE,)
        elif self.phase is Phase.WAITING:
            if work.is_running:
                return self.rest(until=moment.now + TASK_AGAIN)
            todo = (Deed.ATTEMPT,)
        elif self.phase is Phase.JOINING and moment.is_worked_off:
            todo = (Deed.REJOIN,)
        return Transition(work=replace(work, is_resting=False), todo=(*todo, Deed.QUEUE))

    # The disk.

    def adopt(self, outcome: TaskOutcome, *, now: float, has_ended: bool) -> Transition:
        """Take over the disk after a task.

        With `has_ended` everything there was released long ago.
        """
        before, after, log = self.checkpoint, outcome.checkpoint, self.log
        if after is not None and before is not None and after.path != before.path:
            log = replace(log, master_path=after.path)
        if after is not None and has_ended:
            log = replace(log, released=after.seq, incarnation=after.incarnation)
        is_same_level = outcome.serving == self.disk.serving and not (
            before and after and before.incarnation != after.incarnation
        )
        disk = OnDisk(
            path=self.path if after is None else after.path,
            folder=outcome.folder,
            checkpoint=after,
            serving=outcome.serving,
            # A repair may change the served sequence and says no time: it was just now. A time stays with its sequence.
            served_at=outcome.served_at or (self.disk.served_at if is_same_level else now),
            floor=outcome.floor,
        )
        return Transition(disk=disk, log=log)

    def end_at(self, deletion: Checkpoint, *, now: float) -> Transition:
        """Advance to a deletion that was carried out."""
        return Transition(disk=replace(self.disk, checkpoint=deletion, serving=deletion.seq, served_at=now))

    def believe(self, moment: Moment, checked: Checked) -> Transition:
        """Believe a check in the stream: damage, a lower checkpoint, less shown.

        Less than before is believed only if no task runs, and if the repository did not advance meanwhile. That the repository is
        nowhere is believed only if no task moved or deleted it.
        """
        known, lower, shown = self.checkpoint, checked.lower, checked.shown
        is_moved = checked.sought is not None and (self.work.is_running or self.disk.folder != checked.sought)
        if self.phase is not Phase.STREAM or is_moved:
            return Transition()
        if checked.problem is not None:
            return self.plan_note(moment, Reason.CORRUPT, checked.problem)
        if self.work.is_running:
            return Transition()
        if known is not None and lower is not None and lower.repository == self.id and lower.seq < known.seq:
            text = f"had events up to {known.seq}, has {lower.seq} now"
            planned = self.plan_note(moment, Reason.GAP, text, offset=0)
            return replace(planned, disk=replace(self.disk, checkpoint=lower))
        if shown is None or shown[0] != self.disk.serving:
            return Transition()
        return Transition(disk=replace(self.disk, serving=shown[1]), todo=(Deed.QUEUE,))

    # The outcome of a task.

    def succeed(self, moment: Moment, *, is_carried: bool) -> Transition:
        """Go on after a task without trouble; its reader waits while much is queued."""
        trouble = replace(self.trouble, troubled_since=None, tries=0, is_release_stuck=False)
        work, note = replace(self.work, takes_single_events=False), self.note
        todo: tuple[Deed, ...] = ()
        match self.phase:
            case Phase.HEALING:
                if note is not None and note.reason is Reason.EXPIRED:
                    trouble = replace(trouble, note=replace(note, offset=work.repaired_to))
                work, todo = _begin_reading(work), (Deed.START_READER,)
            case Phase.WAITING if note is not None and note.reason is Reason.SLOW:
                work, todo = _begin_reading(work), (Deed.START_READER,)
            case Phase.CATCHING_UP if moment.filled < READ_ON_BELOW:
                todo = (Deed.READ_ON,)
            case Phase.JOINING if moment.is_worked_off:
                todo = (Deed.REJOIN,)
            case Phase.LEAVING:
                return self._set_aside(moment, trouble, work, is_carried=is_carried)
        return Transition(trouble=trouble, work=work, todo=todo)

    def suffer(self, moment: Moment, task: Task, found: Trouble, *, done: int, patience: float) -> Transition:
        """Decide about a task with trouble: retry, single events, or a note.

        A repository that was detached while the task ran keeps its reason, its next attempt and the requests that this attempt
        answers. If it was detached because the task is slow, it waits for the outcome.
        """
        trouble, is_waiting = self.trouble, self.phase is Phase.WAITING
        if is_waiting and not task.items:
            trouble = replace(trouble, is_release_stuck=True)
            if trouble.note is not None and trouble.note.reason in NEEDS_OPERATOR:
                return Transition(trouble=trouble, todo=(Deed.REMIND,) if found.passing else ())
        if is_waiting and task.drops != self.work.drops:
            assert trouble.note is not None
            if trouble.note.reason is not Reason.SLOW:
                return Transition(trouble=trouble)
        # Several events that failed together may succeed one by one.
        if len(task.items) > 1 and not (done or self.work.takes_single_events or is_waiting):
            return Transition(trouble=trouble, work=replace(self.work, takes_single_events=True), todo=(Deed.QUEUE,))
        since = trouble.troubled_since or moment.now
        trouble = replace(trouble, tries=trouble.tries + 1, troubled_since=since)
        is_patient = moment.now - since < patience
        if found.reason is Reason.CRASHED and trouble.tries >= CRASHES_ALLOWED:
            is_patient = False
        if found.passing and self.listens() and is_patient:
            until = moment.now + _PASSING.delay(trouble.tries, moment.chance)
            return self.rest(until=until, after=Transition(trouble=trouble))
        is_unrepaired = self.phase is Phase.HEALING and found.passing
        reason = trouble.note.reason if is_unrepaired and trouble.note else found.reason
        return self.plan_note(moment, reason, found.note, trouble=trouble)

    # Trouble.

    def plan_note(
        self,
        moment: Moment,
        reason: Reason,
        text: str,
        *,
        offset: int | None = None,
        attempts: int = 0,
        trouble: InTrouble | None = None,
    ) -> Transition:
        """Ask for a note: why it is detached, and where it resumes without a loss.

        `offset` is the resume point if nothing is queued (None: behind the last record read), and `attempts` says how often healing
        was tried, unless a note says so already.
        """
        trouble = trouble or self.trouble
        former, unqueued = trouble.note, moment.end if offset is None else offset
        resume = unqueued if moment.queued is None else moment.queued
        written = Detached(
            repository=self.id,
            path=self.path,
            partition=moment.partition,
            offset=former.offset if former else resume,
            reason=reason,
            note=text.encode("utf-8", "replace").decode()[:NOTE_KEPT],  # it may name a file of any bytes
            since=former.since if former else moment.time,
            attempts=former.attempts if former else attempts,
        )
        return Transition(trouble=replace(trouble, unwritten_note=written), todo=(Deed.WRITE_NOTE,))

    def be_slow(self, moment: Moment, seconds: float) -> Transition:
        """Leave the stream while a task takes more than so many seconds."""
        if self.phase is not Phase.STREAM or not self.work.is_running:
            return Transition()
        return self.plan_note(moment, Reason.SLOW, f"one task takes more than {seconds:g} s")

    def miss(self, moment: Moment, incarnation: str | None, expected: int, ends: Mapping[int, int]) -> Transition:
        """Detach if the log, read to these ends, lacked events up to `expected`.

        If rereading the log did not bring them, the repository is copied from the master.
        """
        is_behind = moment.queued is not None or moment.end < ends[moment.partition]
        if is_behind or self.phase is not Phase.STREAM or self.work.is_running or incarnation != self.log.incarnation:
            return Transition()
        if not self.lacks(min(self.log.expected, expected)):
            return Transition()
        if self.checkpoint is not None and self.checkpoint.incarnation != incarnation:
            text = f"the master continued as incarnation {incarnation}, this mirror has {self.checkpoint.incarnation}"
            return self.plan_note(moment, Reason.DIVERGED, text)
        place = incarnation, self.level
        count = self.trouble.silent_gaps + 1 if place == self.trouble.silent_gap else 1
        trouble = replace(self.trouble, silent_gap=place, silent_gaps=count)
        text = f"the log had events up to {expected}, this mirror has {self.level}"
        return self.plan_note(moment, Reason.GAP, text, offset=0, attempts=count - 1, trouble=trouble)

    def keep_unwritten(self, moment: Moment, problem: str) -> Transition:
        """Keep a note that could not be written: nothing else changes before it is."""
        since = self.trouble.note_problem_since if self.trouble.note_problem else moment.time
        trouble = replace(self.trouble, note_problem=problem[:NOTE_KEPT], note_problem_since=since)
        return self.rest(until=moment.now + NOTE_AGAIN, after=Transition(trouble=trouble))

    def noted(self, moment: Moment, retries: Backoff) -> Transition:
        """Wait for the next attempt, because the note is durable.

        A slow repository waits for the end of its task instead, and some reasons for an operator.
        """
        note = self.trouble.unwritten_note
        assert note is not None
        trouble = replace(self.trouble, note=note, unwritten_note=None, note_problem="", troubled_since=None, tries=0)
        work = replace(
            _enter(self.work, Phase.WAITING), drops=self.work.drops + 1, is_resting=False, takes_single_events=False
        )
        transition = Transition(trouble=trouble, work=work, todo=(Deed.STOP_READER,))
        if note.reason not in NEEDS_OPERATOR and not (work.is_running and note.reason is Reason.SLOW):
            transition = self.rest(until=moment.now + retries.delay(note.attempts + 1, moment.chance), after=transition)
        return replace(transition, todo=(*transition.todo, Deed.ACK))

    # The way back to the stream.

    def request(self, moment: Moment) -> Transition:
        """Begin an attempt because an operator asks; in the stream, ask for a new copy."""
        if self.phase is Phase.STREAM:
            return self.plan_note(moment, Reason.DIVERGED, "an operator asked for a new copy")
        return Transition(todo=(Deed.ATTEMPT,) if self.phase is Phase.WAITING else ())

    def hold_requests(self, requests: tuple[int, ...]) -> Transition:
        """Keep the requests that the present attempt answers."""
        return Transition(trouble=replace(self.trouble, heal_requests=requests))

    def retry(self, moment: Moment) -> Transition:
        """Retry a refused repository: another repository no longer takes its path."""
        is_refused = self.note is not None and self.note.reason is Reason.REFUSED
        return self.rest(until=moment.now) if is_refused and self.phase is Phase.WAITING else Transition()

    def count_attempt(self) -> Transition:
        """Begin an attempt to heal, or to leave."""
        assert self.note is not None
        note = replace(self.note, attempts=self.note.attempts + 1)
        trouble = replace(self.trouble, note=note, is_release_stuck=False)
        return Transition(trouble=trouble, work=replace(self.work, is_resting=False))

    def heal(self, *, end: int) -> Transition:
        """Begin a repair, or read if that may be enough.

        `end` is the offset behind the last record read. The master is ahead of everything before it: expired or unreadable records
        there are not needed.
        """
        assert self.note is not None
        if not needs_repair(self.note):
            return Transition(work=_begin_reading(self.work), todo=(Deed.START_READER, Deed.QUEUE))
        return Transition(work=replace(_enter(self.work, Phase.HEALING), repaired_to=end), todo=(Deed.QUEUE,))

    def read_later(self) -> Transition:
        """Refuse all further records of the present reader."""
        return Transition(work=replace(self.work, run=self.work.run + 1))

    def advance(self, moment: Moment, *, has_read_all: bool) -> Transition:
        """Read on after a reader's records, or join the stream if they were the last."""
        if self.phase is not Phase.CATCHING_UP:
            return Transition()
        if not has_read_all:
            return Transition(todo=(Deed.READ_ON, Deed.QUEUE) if moment.filled < 1 else (Deed.QUEUE,))
        todo = (Deed.STOP_READER, Deed.REJOIN) if moment.is_worked_off else (Deed.STOP_READER,)
        return Transition(work=_enter(self.work, Phase.JOINING), todo=(*todo, Deed.QUEUE))

    def rejoin(self) -> Transition:
        """Follow the stream, because the note is removed."""
        work = _enter(self.work, Phase.STREAM)
        return Transition(work=work, trouble=replace(self.trouble, note=None), todo=(Deed.ACK,))

    # The way out.

    def leave(self, *, is_carried: bool, is_backup: bool) -> Transition:
        """Leave, once no task runs, if this mirror does not carry the repository.

        Or if it waits for a repair while the master has deleted it: in the stream the deletion itself comes. After a kill it is
        found on the disk, and leaves again.
        """
        is_lost = self.phase is Phase.WAITING and self.log.deletion is not None
        if is_backup or self.work.is_running or self.phase is Phase.LEAVING or (is_carried and not is_lost):
            return Transition()
        work = replace(_enter(self.work, Phase.LEAVING), is_resting=False, drops=self.work.drops + 1)
        return Transition(work=work, todo=(Deed.STOP_READER, Deed.DROP_EVENTS, Deed.QUEUE))

    def _set_aside(self, moment: Moment, trouble: InTrouble, work: AtWork, *, is_carried: bool) -> Transition:
        """End leaving: the disk no longer has it. Those were no attempts to heal."""
        note = None if self.note is None else replace(self.note, attempts=0)
        trouble, work = replace(trouble, note=note), _enter(work, Phase.WAITING)
        work = work if note else _enter(work, Phase.STREAM)
        if is_carried and self.log.deletion is None:
            text = "it was set aside when it was not carried"
            planned = self.plan_note(moment, Reason.GAP, text, offset=0, trouble=trouble)
            return replace(planned, work=work)
        if not is_carried:
            return Transition(trouble=trouble, work=work, todo=(Deed.FORGET,))
        todo = (Deed.RECORD_DELETION, Deed.REJOIN) if note else (Deed.RECORD_DELETION,)
        return Transition(trouble=trouble, work=work, todo=todo)


def follow(repository: str, path: str) -> Following:
    return Following(id=repository, disk=OnDisk(path=path))


def needs_repair(note: Detached) -> bool:
    """Return whether the master must repair it; False if reading may be enough."""
    return note.reason in NEEDS_REPAIR and not (note.reason is Reason.GAP and note.attempts <= 1)


def _enter(work: AtWork, phase: Phase) -> AtWork:
    assert phase in NEXT[work.phase], f"{phase} does not follow {work.phase}"
    return replace(work, phase=phase)


def _begin_reading(work: AtWork) -> AtWork:
    return replace(_enter(work, Phase.CATCHING_UP), run=work.run + 1)

# SPDX-License-Identifier: GPL-2.0-or-later
"""The life of a repository on this mirror: its state, and what changes it. Pure.

Rules of this file:

1. The state is four frozen values, and `Following.take` alone replaces them.
2. Each other method returns a `Transition`, the new values and what to do then, and changes nothing.
3. A phase changes only as `MOVES` says. What arrives too late is REFUSED: its transition is empty; no caller sends anything else.
4. A note is durable before its repository leaves the stream: `plan_note` only asks for it, and `noted` follows the write.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ...words.event import Event, event_names
from ...words.records import Ack, Reason, RepositoryState
from ...words.retry import Backoff
from ..checkpoint import Checkpoint
from ..notes import Detached
from ..task import FoundRepository, Task, TaskOutcome, Trouble


class Phase(enum.StrEnum):
    """How the supervisor follows a repository.

    STREAM ─trouble─▶ WAITING ─due─▶ HEALING ─healed─▶ CATCHING_UP ─caught up with the stream─▶ JOINING ─worked off─▶ STREAM;
    a reason that needs no repair leads from WAITING to CATCHING_UP. Trouble leads back to WAITING from each phase. A repository
    that must leave this mirror becomes LEAVING from each phase: once set aside it is deleted (STREAM) or forgotten.
    """

    STREAM = "stream"
    WAITING = "waiting"
    HEALING = "healing"
    CATCHING_UP = "catching-up"
    JOINING = "joining"
    LEAVING = "leaving"


class Move(enum.StrEnum):
    """What leads from one phase to another."""

    NOTED = "its note is durable"
    REPAIRS = "the master repairs it"
    READS = "it reads what it missed"
    CAUGHT_UP = "it has read all"
    REJOINED = "its note is removed"
    LEAVES = "it must leave"
    SET_ASIDE = "it was set aside"


MOVES: Mapping[Move, Mapping[Phase, Phase]] = {
    Move.NOTED: dict.fromkeys(Phase, Phase.WAITING),
    Move.REPAIRS: {Phase.WAITING: Phase.HEALING},
    Move.READS: {Phase.WAITING: Phase.CATCHING_UP, Phase.HEALING: Phase.CATCHING_UP},
    Move.CAUGHT_UP: {Phase.CATCHING_UP: Phase.JOINING},
    Move.REJOINED: {Phase.JOINING: Phase.STREAM, Phase.WAITING: Phase.STREAM},
    Move.LEAVES: {phase: Phase.LEAVING for phase in Phase if phase is not Phase.LEAVING},
    Move.SET_ASIDE: {Phase.LEAVING: Phase.WAITING},
}
REFUSED = {(phase, Move.CAUGHT_UP) for phase in Phase if phase is not Phase.CATCHING_UP} | {
    (Phase.LEAVING, Move.LEAVES)
}


class Deed(enum.Enum):
    """What the supervisor does for a repository after a transition."""

    WRITE_NOTE = enum.auto()
    START_READER = enum.auto()
    STOP_READER = enum.auto()
    READ_ON = enum.auto()
    DROP_EVENTS = enum.auto()
    REJOIN = enum.auto()
    FINISH_LEAVING = enum.auto()
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
# Characters of a note that are kept.
NOTE_KEPT = 500
# How often a repository may crash its worker before it is detached.
CRASHES_ALLOWED = 2
_PASSING = Backoff(first=0.02, longest=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDisk:
    """What the mirror has of the repository, and serves since `served_at`.

    For `floor` see `TaskOutcome`.
    """

    path: str
    folder: str | None = None
    checkpoint: Checkpoint | None = None
    serving: int = 0
    served_at: float = 0.0
    floor: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InLog:
    """What the aggregator says of the repository, and this mirror's last ack.

    The aggregator says the path on the master, up to where events are released and have their notice, the newest event that it saw
    (sequence, id, digest), its sequence if this mirror carries the repository, the incarnations before that event's, and the
    checkpoint after that event if it is the deletion.
    """

    master_path: str = ""
    released: int = 0
    noticed: int = 0
    incarnation: str | None = None
    retired: tuple[str, ...] = ()
    newest_known: tuple[int, str, str] | None = None
    expected: int = 0
    deletion: Checkpoint | None = None
    sent_ack: Ack | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InTrouble:
    """Why the repository is detached, or will be.

    `unwritten_note` is still to be written; `note_problem` says why that failed, since when. `heal_requests` are those that the
    attempt to heal answers. Passing trouble has not passed since `troubled_since`, in so many `tries`. A release is stuck if only
    an operator, or another process that ends, can remove its trouble. Events were found to be missing without a trace at the
    incarnation and sequence of `silent_gap`, `silent_gaps` times.
    """

    note: Detached | None = None
    unwritten_note: Detached | None = None
    note_problem: str = ""
    note_problem_since: float = 0.0
    heal_requests: tuple[int, ...] = ()
    troubled_since: float | None = None
    tries: int = 0
    is_release_stuck: bool = False
    silent_gap: tuple[str | None, int] = (None, 0)
    silent_gaps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AtWork:
    """The phase, and what is under way.

    A repository that rests gets no work until a time of the supervisor's clock. `drops` counts how often its queue was dropped: a
    task from an older queue finishes nothing of the present one. `run` is the number of this catch-up; before the offset
    `repaired_to` unreadable records do not matter, because the master was asked later.
    """

    phase: Phase = Phase.STREAM
    is_running: bool = False
    takes_single_events: bool = False
    is_resting: bool = False
    rests_until: float = 0.0
    drops: int = 0
    run: int = 0
    repaired_to: int = 0

    def move(self, move: Move) -> "AtWork":
        return replace(self, phase=MOVES[move][self.phase])

    def read(self) -> "AtWork":
        return replace(self.move(Move.READS), run=self.run + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The present by the monotonic clock and since the epoch, and a random number."""

    now: float
    time: float
    chance: float


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
    log: InLog = field(default_factory=InLog)
    trouble: InTrouble = field(default_factory=InTrouble)
    work: AtWork = field(default_factory=AtWork)

    def take(self, transition: Transition) -> tuple[Deed, ...]:
        """Take the values of a transition, and return what to do."""
        self.disk, self.log = transition.disk or self.disk, transition.log or self.log
        self.trouble, self.work = transition.trouble or self.trouble, transition.work or self.work
        return transition.todo

    # What the state says.

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
    def follows_stream(self) -> bool:
        return self.phase in (Phase.STREAM, Phase.JOINING)

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

    def lacks(self, expected: int) -> bool:
        """Return whether the mirror has not reached this sequence.

        The sequence is that of the aggregator's history, which may be older than the mirror's own.
        """
        if self.checkpoint is None or self.checkpoint.incarnation == self.log.incarnation:
            return expected > self.level
        return expected > 0 and self.checkpoint.incarnation in self.log.retired

    def find_resume_offset(self, note: Detached) -> int:
        """Return where to resume.

        That is behind the checkpoint if it came from the log, else where the note says.
        """
        checkpoint = self.checkpoint
        is_read = checkpoint is not None and checkpoint.partition == note.partition and checkpoint.offset >= 0
        return checkpoint.offset + 1 if checkpoint is not None and is_read else note.offset

    def is_at(self, event: Event) -> bool:
        """Return whether the event is the last one that was applied."""
        checkpoint = self.checkpoint
        return checkpoint is not None and (checkpoint.id, checkpoint.incarnation) == (event.id, event.incarnation)

    # The start.

    def find(self, found: FoundRepository, acked: Ack | None, *, now: float) -> Transition:
        """Take what is on the disk at the start."""
        last = found.checkpoint
        is_acked = acked and last and (acked.incarnation, acked.serving) == (last.incarnation, found.serving)
        served_at = acked.served_at if acked and is_acked else now
        disk = replace(self.disk, folder=found.folder, checkpoint=last, serving=found.serving, served_at=served_at)
        return Transition(disk=disk, log=replace(self.log, sent_ack=acked))

    def find_note(self, note: Detached, *, now: float) -> Transition:
        """Take a note that is there at the start: it is tried once, but not a fork."""
        work = self.work.move(Move.NOTED)
        transition = Transition(trouble=replace(self.trouble, note=note), work=work)
        return transition if note.reason is Reason.FORK else self.rest(until=now, after=transition)

    # The log.

    def learn(self, state: RepositoryState, *, is_carried: bool, deletion: Checkpoint | None) -> Transition:
        """Take a state that the aggregator wrote."""
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
        return Transition(log=log, trouble=replace(self.trouble, is_release_stuck=False))

    def acknowledge(self, ack: Ack | None) -> Transition:
        """Remember an ack that is written; None: the log may have lost the last one."""
        return Transition(log=replace(self.log, sent_ack=ack))

    # Work.

    def run(self, *, is_running: bool) -> Transition:
        return Transition(work=replace(self.work, is_running=is_running))

    def rest(self, *, until: float, after: Transition | None = None) -> Transition:
        """Give the repository no work before this time, after another transition."""
        transition = after or Transition()
        work = replace(transition.work or self.work, is_resting=True, rests_until=until)
        return replace(transition, work=work, todo=(*transition.todo, Deed.SET_ALARM))

    def end_rest(self) -> Transition:
        return Transition(work=replace(self.work, is_resting=False))

    def release_again(self) -> Transition:
        """Try a release that was stuck."""
        return Transition(trouble=replace(self.trouble, is_release_stuck=False), todo=(Deed.QUEUE,))

    def drop_events(self) -> Transition:
        """Give up all events in the queue: they are read again."""
        return Transition(work=replace(self.work, drops=self.work.drops + 1), todo=(Deed.DROP_EVENTS,))

    # What is on disk.

    def adopt(self, outcome: TaskOutcome, *, now: float, has_ended: bool) -> Transition:
        """Take what a task left on the disk.

        With `has_ended` all of it was released long ago.
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
            # A repair also changes what is served, and says no time: it was just now. A time stays with its level.
            served_at=outcome.served_at or (self.disk.served_at if is_same_level else now),
            floor=outcome.floor,
        )
        return Transition(disk=disk, log=log)

    def end_at(self, deletion: Checkpoint, *, now: float) -> Transition:
        """Take a deletion that was carried out."""
        return Transition(disk=replace(self.disk, checkpoint=deletion, serving=deletion.seq, served_at=now))

    def believe(self, *, lower: Checkpoint | None = None, shown: int | None = None) -> Transition:
        """Believe a disk that has, or shows, less than it had or showed."""
        disk = replace(self.disk, checkpoint=lower or self.checkpoint)
        return Transition(disk=disk if shown is None else replace(disk, serving=shown))

    # The outcome of a task.

    def succeed(self, *, is_worked_off: bool, has_room: bool) -> Transition:
        """Go on after a task without trouble.

        `is_worked_off` says that no event of a catch-up is queued.
        """
        trouble = replace(self.trouble, troubled_since=None, tries=0, is_release_stuck=False)
        work, note = replace(self.work, takes_single_events=False), self.note
        todo: tuple[Deed, ...] = ()
        match self.phase:
            case Phase.HEALING:
                if note is not None and note.reason is Reason.EXPIRED:
                    trouble = replace(trouble, note=replace(note, offset=work.repaired_to))
                work, todo = work.read(), (Deed.START_READER,)
            case Phase.WAITING if note is not None and note.reason is Reason.SLOW:
                work, todo = work.read(), (Deed.START_READER,)
            case Phase.CATCHING_UP if has_room:
                todo = (Deed.READ_ON,)
            case Phase.JOINING if is_worked_off:
                todo = (Deed.REJOIN,)
            case Phase.LEAVING:
                todo = (Deed.FINISH_LEAVING,)
        return Transition(trouble=trouble, work=work, todo=todo)

    def suffer(
        self, task: Task, found: Trouble, *, done: int, place: tuple[int, int], moment: Moment, patience: float
    ) -> Transition:
        """Decide about a task with trouble: retry, single events, or a note.

        A repository that was detached while the task ran keeps its reason, its next attempt and the requests that this attempt
        answers; only if it was detached because the task is slow, it waits for the outcome.
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
        if found.passing and self.follows_stream and is_patient:
            until = moment.now + _PASSING.delay(trouble.tries, moment.chance)
            return self.rest(until=until, after=Transition(trouble=trouble))
        is_unrepaired = self.phase is Phase.HEALING and found.passing
        reason = trouble.note.reason if is_unrepaired and trouble.note else found.reason
        return self.plan_note(reason, found.note, place=place, now=moment.time, trouble=trouble)

    # Trouble.

    def plan_note(
        self,
        reason: Reason,
        text: str,
        *,
        place: tuple[int, int],
        now: float,
        attempts: int = 0,
        trouble: InTrouble | None = None,
    ) -> Transition:
        """Ask for a note: why it is detached, and where it resumes without a loss.

        `place` is that partition and offset, and `attempts` says how often healing was tried, unless a note says so already.
        """
        former = self.note
        written = Detached(
            repository=self.id,
            path=self.path,
            partition=place[0],
            offset=former.offset if former else place[1],
            reason=reason,
            note=text.encode("utf-8", "replace").decode()[:NOTE_KEPT],  # it may name a file of any bytes
            since=former.since if former else now,
            attempts=former.attempts if former else attempts,
        )
        return Transition(trouble=replace(trouble or self.trouble, unwritten_note=written), todo=(Deed.WRITE_NOTE,))

    def keep_unwritten(self, problem: str, *, moment: Moment) -> Transition:
        """Keep a note that could not be written: nothing else changes before it is."""
        since = self.trouble.note_problem_since if self.trouble.note_problem else moment.time
        trouble = replace(self.trouble, note_problem=problem[:NOTE_KEPT], note_problem_since=since)
        return self.rest(until=moment.now + NOTE_AGAIN, after=Transition(trouble=trouble))

    def noted(self, *, moment: Moment, retries: Backoff) -> Transition:
        """Wait for the next attempt, because the note is durable.

        A slow repository waits for the end of its task instead, and some reasons for an operator.
        """
        note = self.trouble.unwritten_note
        assert note is not None
        trouble = replace(self.trouble, note=note, unwritten_note=None, note_problem="", troubled_since=None, tries=0)
        work = replace(
            self.work.move(Move.NOTED), drops=self.work.drops + 1, is_resting=False, takes_single_events=False
        )
        transition = Transition(trouble=trouble, work=work, todo=(Deed.STOP_READER,))
        if note.reason not in NEEDS_OPERATOR and not (work.is_running and note.reason is Reason.SLOW):
            transition = self.rest(until=moment.now + retries.delay(note.attempts + 1, moment.chance), after=transition)
        return replace(transition, todo=(*transition.todo, Deed.ACK))

    def hold_requests(self, requests: tuple[int, ...]) -> Transition:
        return Transition(trouble=replace(self.trouble, heal_requests=requests))

    def count_silent_gap(self) -> Transition:
        place = self.log.incarnation, self.level
        count = self.trouble.silent_gaps + 1 if place == self.trouble.silent_gap else 1
        return Transition(trouble=replace(self.trouble, silent_gap=place, silent_gaps=count))

    # The way back to the stream.

    def begin_attempt(self) -> Transition:
        assert self.note is not None
        note = replace(self.note, attempts=self.note.attempts + 1)
        return Transition(
            trouble=replace(self.trouble, note=note, is_release_stuck=False), work=replace(self.work, is_resting=False)
        )

    def heal(self, *, end: int) -> Transition:
        """Begin a repair, or read if that may be enough.

        `end` is the offset behind what was read.

        The master is ahead of everything before it: expired or unreadable records there are not needed.
        """
        assert self.note is not None
        if needed_repair(self.note) is None:
            return Transition(work=self.work.read(), todo=(Deed.START_READER, Deed.QUEUE))
        return Transition(work=replace(self.work.move(Move.REPAIRS), repaired_to=end), todo=(Deed.QUEUE,))

    def read_later(self) -> Transition:
        """Take no record any more that the present reader brings."""
        return Transition(work=replace(self.work, run=self.work.run + 1))

    def catch_up(self, *, is_worked_off: bool) -> Transition:
        """Go on to join the stream, because everything was read."""
        if (self.phase, Move.CAUGHT_UP) in REFUSED:
            return Transition()
        todo = (Deed.STOP_READER, Deed.REJOIN) if is_worked_off else (Deed.STOP_READER,)
        return Transition(work=self.work.move(Move.CAUGHT_UP), todo=todo)

    def rejoin(self) -> Transition:
        """Follow the stream, because the note is removed."""
        return Transition(
            work=self.work.move(Move.REJOINED), trouble=replace(self.trouble, note=None), todo=(Deed.ACK,)
        )

    # The way out.

    def leave(self) -> Transition:
        """Leave: after a kill it is found on the disk, and leaves again."""
        if (self.phase, Move.LEAVES) in REFUSED:
            return Transition()
        work = replace(self.work.move(Move.LEAVES), is_resting=False, drops=self.work.drops + 1)
        return Transition(work=work, todo=(Deed.STOP_READER, Deed.DROP_EVENTS, Deed.QUEUE))

    def set_aside(self) -> Transition:
        """End leaving: the disk no longer has it. Those were no attempts to heal."""
        work, note = self.work.move(Move.SET_ASIDE), self.note
        if note is None:
            return Transition(work=work.move(Move.REJOINED))
        return Transition(work=work, trouble=replace(self.trouble, note=replace(note, attempts=0)))


def follow(repository: str, path: str) -> Following:
    return Following(id=repository, disk=OnDisk(path=path))


def needed_repair(note: Detached) -> Reason | None:
    """Return the reason for a repair by the master; None if reading may be enough."""
    if note.reason not in NEEDS_REPAIR or (note.reason is Reason.GAP and note.attempts <= 1):
        return None
    return note.reason

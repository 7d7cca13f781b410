# SPDX-License-Identifier: GPL-2.0-or-later
"""One repository as the supervisor sees it, and how it heals if detached. Pure."""

import enum
from dataclasses import dataclass, field

from ...words.event import Event, event_names
from ...words.records import Ack, Reason
from ...words.retry import Backoff
from ..checkpoint import Checkpoint
from ..notes import Detached


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


# Reasons for which reading the log again is not enough: the mirror must ask the master.
NEEDS_REPAIR = frozenset(
    {Reason.GAP, Reason.BLOB_MISSING, Reason.CORRUPT, Reason.DIVERGED, Reason.FORK, Reason.EXPIRED, Reason.BOOTSTRAP}
)

# Reasons that wait for a heal request of an operator. After a restart all but a fork are tried once: a newer program may know more.
NEEDS_OPERATOR = frozenset({Reason.FORK, Reason.REFUSED, Reason.UNKNOWN_VERSION})


@dataclass(slots=True, eq=False)
class Following:
    """The supervisor's knowledge of one repository, and its work on it.

    Only the supervisor's thread changes it.
    """

    id: str
    path: str
    # The path on the master.
    master_path: str = ""

    # What is on disk; a release whose trouble only an operator, or another process that ends, can remove is stuck.
    folder: str | None = None
    checkpoint: Checkpoint | None = None
    serving: int = 0
    served_at: float = 0.0
    # See `TaskOutcome`.
    floor: int = 0
    is_release_stuck: bool = False

    # What the aggregator says: the newest event that it saw (sequence, id, digest), its sequence if this mirror carries the
    # repository, the incarnations before that event's, and the checkpoint after that event if it is the repository's deletion.
    released: int = 0
    incarnation: str | None = None
    retired: tuple[str, ...] = ()
    newest_known: tuple[int, str, str] | None = None
    expected: int = 0
    deletion: Checkpoint | None = None

    phase: Phase = Phase.STREAM
    note: Detached | None = None
    # The heal requests that its attempt to heal answers.
    heal_requests: list[int] = field(default_factory=list)
    # A note that could not be written yet, why, and since when.
    unwritten_note: Detached | None = None
    note_problem: str = ""
    note_problem_since: float = 0.0

    # Work: one that rests gets none until a time of the supervisor's clock.
    is_running: bool = False
    is_queued: bool = False
    takes_single_events: bool = False
    is_resting: bool = False
    rests_until: float = 0.0
    # Since when, and in how many tries, passing trouble has not passed.
    troubled_since: float | None = None
    tries: int = 0
    # How often its queue was dropped: a task from an older queue finishes nothing of the present one.
    drops: int = 0

    # The number of this catch-up, and the offset before which unreadable records do not matter: the master was asked later.
    run: int = 0
    repaired_to: int = 0

    # The incarnation and sequence at which events were found to be missing without a trace, and how often.
    silent_gap: tuple[str | None, int] = (None, 0)
    silent_gaps: int = 0

    sent_ack: Ack | None = None

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
            and self.incarnation == self.checkpoint.incarnation
            and not self.checkpoint.contradicts(self.newest_known)
            and not self.is_release_stuck
            and min(self.released, self.checkpoint.seq) >= max(self.floor, self.serving + 1)
        )

    def lacks(self, expected: int) -> bool:
        """Return whether the mirror has not reached this sequence.

        The sequence is that of the aggregator's history, which may be older than the mirror's own.
        """
        if self.checkpoint is None or self.checkpoint.incarnation == self.incarnation:
            return expected > self.level
        return expected > 0 and self.checkpoint.incarnation in self.retired

    def count_silent_gap(self) -> int:
        """Return how often a silent gap was found here before."""
        place = self.incarnation, self.level
        self.silent_gaps = self.silent_gaps + 1 if place == self.silent_gap else 1
        self.silent_gap = place
        return self.silent_gaps - 1

    def is_at(self, event: Event) -> bool:
        """Return whether the event is the last one that was applied."""
        checkpoint = self.checkpoint
        return checkpoint is not None and (checkpoint.id, checkpoint.incarnation) == (event.id, event.incarnation)


def resume_offset(following: Following, note: Detached) -> int:
    """Return the offset to resume at.

    It is behind the checkpoint if that came from the log, else the note's.
    """
    checkpoint = following.checkpoint
    if checkpoint is not None and checkpoint.partition == note.partition and checkpoint.offset >= 0:
        return checkpoint.offset + 1
    return note.offset


def needed_repair(note: Detached) -> Reason | None:
    """Return the reason for a repair by the master; None if reading may be enough."""
    if note.reason not in NEEDS_REPAIR or (note.reason is Reason.GAP and note.attempts <= 1):
        return None
    return note.reason


def retry_delay(note: Detached, backoff: Backoff, chance: float) -> float | None:
    """Return the seconds to the next attempt; None if only an operator can help."""
    if note.reason in NEEDS_OPERATOR:
        return None
    return backoff.delay(note.attempts + 1, chance)

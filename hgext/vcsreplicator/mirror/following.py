# SPDX-License-Identifier: GPL-2.0-or-later
"""One repository as the supervisor sees it, and what heals it when it is followed apart. Pure."""

import enum
from dataclasses import dataclass, field

from ..words.levels import Ack, Reason
from ..words.retry import Backoff
from .checkpoint import Checkpoint
from .notes import Detached


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


NEEDS_REPAIR = frozenset(
    {
        Reason.GAP,
        Reason.BLOB_MISSING,
        Reason.CORRUPT,
        Reason.DIVERGED,
        Reason.FORK,
        Reason.EXPIRED,
        Reason.BOOTSTRAP,
    }
)
"""Reading again is not enough: the master is asked."""

NEEDS_OPERATOR = frozenset({Reason.FORK, Reason.REFUSED, Reason.UNKNOWN_VERSION})
"""Not tried again until an operator wishes so, or the program starts anew: it may know more by then (but of a fork)."""


@dataclass(slots=True)
class Following:
    """What the supervisor knows of one repository and does for it; only its thread changes it.

    `there` is the path on the master. `told` is the newest event that the aggregator saw (sequence, id and digest), `expected` its
    sequence if this mirror carries the repository. If that event is the repository's deletion, `deletion` is the checkpoint after
    it. A repository that is `resting` gets no work `until` a time of the supervisor's clock. `unwritten` is a note that could not
    be written yet. `floor`: see `TaskOutcome`. A release that only an operator can make possible `is_stuck`.
    """

    id: str
    path: str
    there: str = ""
    folder: str | None = None
    checkpoint: Checkpoint | None = None
    serving: int = 0
    floor: int = 0
    is_stuck: bool = False
    served_at: float = 0.0
    released: int = 0
    incarnation: str | None = None
    told: tuple[int, str, str] | None = None
    expected: int = 0
    deletion: Checkpoint | None = None
    phase: Phase = Phase.STREAM
    note: Detached | None = None
    running: bool = False
    queued: bool = False
    single: bool = False
    resting: bool = False
    until: float = 0.0
    unwritten: Detached | None = None
    troubled: float | None = None
    tries: int = 0
    run: int = 0
    behind: int = 0
    dropped: int = 0
    sent: Ack | None = field(default=None)

    @property
    def follows_stream(self) -> bool:
        """Whether events of the stream are queued for it."""
        return self.phase in (Phase.STREAM, Phase.JOINING)

    @property
    def may_release(self) -> bool:
        """Whether more is released and applied than served, and can be shown."""
        return (
            self.checkpoint is not None
            and self.incarnation == self.checkpoint.incarnation
            and not self.checkpoint.contradicts(self.told)
            and not self.is_stuck
            and min(self.released, self.checkpoint.seq) >= max(self.floor, self.serving + 1)
        )


def resume_offset(following: Following, note: Detached) -> int:
    """Return the offset to resume at: behind the checkpoint if that came from the log, else the note's."""
    checkpoint = following.checkpoint
    if checkpoint is not None and checkpoint.partition == note.partition and checkpoint.offset >= 0:
        return checkpoint.offset + 1
    return note.offset


def repair(note: Detached) -> Reason | None:
    """What the next attempt must repair from the master; None: reading (a gap: once more) may be enough."""
    if note.reason not in NEEDS_REPAIR or (note.reason is Reason.GAP and note.attempts <= 1):
        return None
    return note.reason


def wait(note: Detached, backoff: Backoff, chance: float) -> float | None:
    """Seconds to the next attempt; None if only an operator can help."""
    if note.reason in NEEDS_OPERATOR:
        return None
    return backoff.delay(note.attempts + 1, chance)

# SPDX-License-Identifier: GPL-2.0-or-later
"""The state of a repository on this mirror: four values that `life` changes."""

import enum
from dataclasses import dataclass

from ...words.records import Ack
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
    """The aggregator's newest state of the repository, and this mirror's last ack.

    Events are released up to `released`, and have their notice up to `noticed`. `newest_known` is the newest event that the
    aggregator saw (sequence, id, digest), `expected` its sequence if this mirror carries the repository, `deletion` the checkpoint
    after it if it deleted the repository. `retired` are the incarnations before `incarnation`.
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

    `unwritten_note` is not durable yet: `note_problem` says why, `note_problem_since` since when. The present attempt to heal
    answers `heal_requests`. Passing trouble has lasted since `troubled_since`, for `tries` tasks. A release is stuck until an
    operator, or another process that ends, removes its obstacle. `silent_gap` is the incarnation and sequence after which events
    were missing without a trace, `silent_gaps` times.
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

    A resting repository gets no work until `rests_until`, by the supervisor's clock. `drops` counts how often its queue was
    dropped: a task from an older queue finishes nothing of the present queue. `run` is the number of this catch-up. Unreadable
    records before the offset `repaired_to` do not matter, because the master was asked later.
    """

    phase: Phase = Phase.STREAM
    is_running: bool = False
    takes_single_events: bool = False
    is_resting: bool = False
    rests_until: float = 0.0
    drops: int = 0
    run: int = 0
    repaired_to: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The present: both clocks, a random number, the place in the log, the queue.

    Of the repository's `partition` everything before the offset `end` was read; its oldest queued event is at `queued`, if any.
    It `is_worked_off` if no event of a catch-up is queued. `filled` is the queued share of the bytes that may be queued.
    """

    now: float
    time: float
    chance: float
    partition: int
    end: int
    queued: int | None = None
    is_worked_off: bool = True
    filled: float = 0.0

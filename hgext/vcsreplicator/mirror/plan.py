# SPDX-License-Identifier: GPL-2.0-or-later
"""The step that one event requires of a mirror.

The event is applied or skipped, another repository makes room, or there is trouble. Pure; the border performs it.
"""

import enum
from dataclasses import dataclass

from ..words.event import Event, Type
from ..words.records import Reason
from .checkpoint import Checkpoint


class Act(enum.StrEnum):
    """What to do with an event."""

    APPLY = "apply"
    CREATE = "create"
    SKIP = "skip"
    TROUBLE = "trouble"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An act, why in words, and for trouble its reason."""

    act: Act
    why: str = ""
    reason: Reason | None = None


class Claim(enum.StrEnum):
    """The end of a claim to a folder.

    The occupant makes room, the claimant waits without a URL, or an operator must decide.
    """

    DISPLACE = "displace"
    WAIT = "wait"
    REFUSED = "refused"


APPLY = Step(act=Act.APPLY)
CREATE = Step(act=Act.CREATE)


def plan(event: Event, checkpoint: Checkpoint | None) -> Step:
    """Return the step for `event`, given the checkpoint of its repository.

    Repeats and events of former incarnations are skipped. Only the direct successor of the checkpoint's event, by sequence and by
    id, is applied.
    """
    if checkpoint is None:
        return _plan_first(event)
    if event.incarnation != checkpoint.incarnation:
        if event.incarnation in checkpoint.former:
            return skip("belongs to a former incarnation")
        return trouble(Reason.DIVERGED, f"the master continues as incarnation {event.incarnation}")
    if event.seq < checkpoint.seq:
        return skip(f"seq {checkpoint.seq} is applied already")
    if event.seq == checkpoint.seq:
        return skip("applied already") if event.id == checkpoint.id else _report_fork(event, checkpoint)
    if event.seq > checkpoint.seq + 1:
        return trouble(Reason.GAP, f"seq {event.seq} follows, this mirror has {checkpoint.seq}")
    return APPLY if event.previous == (checkpoint.id or None) else _report_fork(event, checkpoint)


def _plan_first(event: Event) -> Step:
    if event.type is Type.DELETED:
        return skip("is not here")
    if event.seq == 1:
        return CREATE
    return trouble(Reason.GAP, f"seq {event.seq} follows, this mirror has nothing of the repository")


def claim(path: str, generation: int, occupant: Checkpoint, *, is_leaving: bool) -> Claim:
    """Decide whether the repository released at `path` or the occupant gets a folder.

    The highest generation wins. An occupant `is_leaving` if an applied event renamed it away or deleted it. If two paths have one
    folder, their generations cannot be compared.
    """
    if is_leaving:
        return Claim.DISPLACE
    if path != occupant.path or generation == occupant.generation:
        return Claim.REFUSED
    return Claim.DISPLACE if generation > occupant.generation else Claim.WAIT


def _report_fork(event: Event, checkpoint: Checkpoint) -> Step:
    found = f"event {event.id} with seq {event.seq} follows {event.previous}, this mirror has {checkpoint.id} with {checkpoint.seq}"
    return trouble(Reason.FORK, found)


def skip(why: str) -> Step:
    return Step(act=Act.SKIP, why=why)


def trouble(reason: Reason, why: str) -> Step:
    return Step(act=Act.TROUBLE, why=why, reason=reason)

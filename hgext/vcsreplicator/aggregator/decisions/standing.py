# SPDX-License-Identifier: GPL-2.0-or-later
"""How a mirror stands to one event of a repository. Pure.

It says which mirrors gate the event, and whether their levels count and reach it.
"""

import enum
from collections.abc import Callable

from ...words.records import Ack, MirrorProof, RepositoryState
from ...words.roster import Mirror
from .held import HeldEvent


class Standing(enum.StrEnum):
    """How a mirror's level relates to the known events of the repository.

    Only the first permits a release or notice. `ahead`: at an event that is not known (yet), so the mirror may have invented it.
    `foreign`: at a known sequence, but of another event or digest. `former`: of a history that was replaced.
    """

    COUNTS = "counts"
    AHEAD = "ahead"
    FOREIGN = "foreign"
    FORMER = "former"


def compare(
    ack: Ack, state: RepositoryState | None, newer: int, find_held: Callable[[int], HeldEvent | None]
) -> Standing:
    """Compare a level with the known events of the repository.

    For the `newer` events, and for events that cannot be read, the mirror's word counts.
    """
    if state is not None and ack.incarnation in state.retired:
        return Standing.FORMER
    if state is None or ack.incarnation != state.incarnation or ack.applied > state.seq + newer:
        return Standing.AHEAD
    if ack.applied == state.seq:
        known: tuple[str, str] | None = (state.event, state.digest)
    else:
        held = find_held(ack.applied)
        known = (held.event.id, held.event.digest) if held is not None and held.is_known() else None
    return Standing.COUNTS if known in (None, (ack.event, ack.digest)) else Standing.FOREIGN


def gating_at(held: HeldEvent, gating: tuple[Mirror, ...]) -> tuple[Mirror, ...]:
    """Return the mirrors that this event waits for.

    It waits for a joining mirror only behind the mirror's joining point.
    """
    if all(mirror.joined is None for mirror in gating):
        return gating
    pending = held.opened()
    return tuple(mirror for mirror in gating if mirror.gates_at(pending.partition, pending.offset))


def is_applied(ack: Ack | None, held: HeldEvent) -> bool:
    """Return whether the mirror is at the event or past it, by a level that counts.

    At the event itself both must have the same id and digest.
    """
    if ack is None or ack.applied < held.seq:
        return False
    return ack.applied > held.seq or (ack.event, ack.digest) == (held.event.id, held.event.digest)


def is_served(ack: Ack, held: HeldEvent) -> bool:
    return ack.serving >= held.seq and is_applied(ack, held)


def make_proof(ack: Ack) -> MirrorProof:
    """Return the part of a notice about this mirror.

    The ack may be of a later level, or of a copy that was made again. What the mirror serves it has applied, so this was not later.
    """
    return MirrorProof(mirror=ack.mirror, applied_at=min(ack.applied_at, ack.served_at), served_at=ack.served_at)

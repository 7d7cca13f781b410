# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether an arriving event continues the known history of its repository. Pure.

Records of `events` may occur twice, a restored master may write a history that forks, and records may be missing after a loss of
the log. Only an event that continues the chain moves a level; every other case has a name here, and the caller records it.
"""

import enum
from collections.abc import Callable
from dataclasses import replace

from ...words.event import Event, Type, replaced_incarnations
from ...words.records import FormerPath, Notice, RepositoryState

# Most paths that a state keeps of those its repository has left.
LEFT = 16


class Arrival(enum.StrEnum):
    """An event's relation to the state of its repository; the first four are taken."""

    FIRST = "first"
    NEXT = "next"
    GAP = "gap"
    ADOPTED = "adopted"
    REPEAT = "repeat"
    FORK = "fork"


TAKEN = frozenset({Arrival.FIRST, Arrival.NEXT, Arrival.GAP, Arrival.ADOPTED})


def judge(
    state: RepositoryState | None,
    event: Event,
    find_id: Callable[[int], str | None],
    *,
    is_forked: bool = False,
    is_again: bool = False,
) -> Arrival:
    """Judge how the event relates to the state of its repository.

    `find_id` returns the id of an earlier event by its sequence, None if it is forgotten. A gap is taken only if neither the state
    nor `is_forked` names a fork: behind a fork it is unknown which history continues. An earlier sequence whose id is forgotten
    counts as a repeat.

    With `is_again` the event lies before the position: an adoption there may be older than the state, which may have forgotten
    it. Then an adoption that names the incarnations it replaces is taken only if the present one is among them.
    """
    if state is None:
        return Arrival.FIRST if event.seq == 1 else Arrival.GAP
    if event.incarnation != state.incarnation:
        return _other_incarnation(state, event, is_again=is_again)
    if event.seq <= state.seq:
        return Arrival.REPEAT if find_id(event.seq) in (event.id, None) else Arrival.FORK
    if event.seq == state.seq + 1:
        return Arrival.NEXT if event.previous == state.event else Arrival.FORK
    return Arrival.FORK if state.fork or is_forked else Arrival.GAP


def adopts(state: RepositoryState | None, event: Event, arrival: Arrival) -> bool:
    """Return whether the event adopts a history, or adopted the present one.

    This settles the events before it that did not fit.
    """
    if state is None or arrival is Arrival.ADOPTED:
        return arrival is Arrival.ADOPTED
    return event.seq == 1 and event.incarnation == state.incarnation and bool(state.retired)


def _other_incarnation(state: RepositoryState, event: Event, *, is_again: bool) -> Arrival:
    if event.incarnation in state.retired:
        return Arrival.REPEAT
    adopted = "adopted" in (event.detail or {}).values() and event.type in (Type.CREATED, Type.SYNC)
    if not adopted or event.seq != 1:
        return Arrival.FORK
    replaced = replaced_incarnations(event)
    return Arrival.FORK if is_again and replaced and state.incarnation not in replaced else Arrival.ADOPTED


def follow(
    state: RepositoryState | None, event: Event, arrival: Arrival, roster: int, source: str | None = None
) -> RepositoryState:
    """Return the state after an event that is taken.

    With an adopted history releases and notices start over. Nothing is known of what is missing before a first event.
    """
    fresh = state is None or arrival is Arrival.ADOPTED
    before, base = 0 if arrival is Arrival.GAP else event.seq - 1, state.base if state else 0
    if state and arrival is Arrival.ADOPTED:
        base += state.seq
    return RepositoryState(
        repository=event.repository,
        incarnation=event.incarnation,
        path=event.path,
        generation=event.generation,
        seq=event.seq,
        event=event.id,
        digest=event.digest,
        released=before if fresh or state is None else state.released,
        noticed=before if fresh or state is None else state.noticed,
        roster=roster if state is None else state.roster,
        deleted=event.type is Type.DELETED,
        streams=state.streams if state else None,
        retired=_follow_retired(state, event, arrival),
        fork=None if fresh or state is None else state.fork,
        base=base,
        stays=_follow_stays(state, event, arrival),
        left=state.left if state else (),
        source=source or (state.source if state else None),
        forked_at=None if fresh or state is None else state.forked_at,
        served_by=None if fresh or state is None else state.served_by,
    )


def is_older(state: RepositoryState | None, notice: Notice) -> bool:
    """Return whether the state is from before this notice.

    One transaction writes a notice and the state that belongs to it.
    """
    event = notice.event
    if state is None or event.incarnation != state.incarnation:
        return state is None or event.incarnation not in state.retired
    return event.seq > state.noticed


def recovered(state: RepositoryState | None, notice: Notice) -> RepositoryState:
    """Return the state after this notice, as far as notices say.

    The given state is the one after the notice before.
    """
    event = notice.event
    if state is not None and state.incarnation == event.incarnation and event.seq <= state.seq:
        found = state
    else:
        is_adopted = state is not None and state.incarnation != event.incarnation
        found = follow(state, event, Arrival.ADOPTED if is_adopted else Arrival.NEXT, notice.roster)
    streams = {**(found.streams or {}), **dict.fromkeys(notice.previous, event.id)}
    return replace(
        leave_paths(found, event.seq),
        released=max(found.released, event.seq),
        noticed=event.seq,
        roster=notice.roster,
        served_by=len(notice.acks),
        base=notice.base or 0,
        streams=streams or None,
    )


def leave_paths(state: RepositoryState, noticed: int) -> RepositoryState:
    """Return the state once the events up to `noticed` are announced.

    The paths that the repository left by these events move from `stays` to `left`. A state keeps the newest of them, so that, even
    after a restart, a successor at such a path does not wait for a repository that has gone.
    """
    gone = [stay for stay in state.stays if stay.until <= noticed]
    if not gone:
        return state
    left = (*state.left, *(stay for stay in gone if stay.path != state.path))
    return replace(state, stays=tuple(stay for stay in state.stays if stay.until > noticed), left=left[-LEFT:])


def forked(state: RepositoryState, event: Event, logged: float) -> RepositoryState:
    """Return the state after an event that does not fit.

    It has the same levels, and the event's id as the mark of the fork. `logged` is when the log took the event: the repository is
    forked since the first such event.
    """
    return replace(state, fork=event.id, forked_at=state.forked_at if state.fork else logged)


def _follow_stays(state: RepositoryState | None, event: Event, arrival: Arrival) -> tuple[FormerPath, ...]:
    if state is None:
        return ()
    before = () if arrival is Arrival.ADOPTED else state.stays
    if event.path == state.path and event.type is not Type.DELETED:
        return before
    return (*before, FormerPath(path=state.path, generation=state.generation, until=event.seq))


def _follow_retired(state: RepositoryState | None, event: Event, arrival: Arrival) -> tuple[str, ...]:
    """Return the incarnations before this one.

    They include incarnations that the aggregator never saw, if the adoption names them as replaced.
    """
    before = () if state is None else state.retired
    present = (state.incarnation,) if state is not None and arrival is Arrival.ADOPTED else ()
    unseen = replaced_incarnations(event) if event.seq == 1 else ()
    return tuple(dict.fromkeys((*before, *present, *unseen)))

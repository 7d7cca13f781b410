# SPDX-License-Identifier: GPL-2.0-or-later
"""Forks: the history of a repository in the log is not that of its outbox.

A master restored from a backup, a copied repository or a second relay would write a second event N. The aggregator keeps the newest
sequence, id and incarnation of every repository (topic `state`), and the relay those that it sent itself; a sender compares the
outbox with both. Standard library only, because a push that sends its own events imports it.
"""

from collections.abc import Iterable

from ..log import STATE, Log
from ..log.table import read_table
from ..words.errors import counted
from ..words.event import replaced_incarnations
from ..words.records import AGGREGATOR, RepositoryState
from ..words.shape import from_json, try_json
from ..words.value import Value
from .entry import NewestEvent
from .file import Fork, Outbox


class SentEvent(Value):
    """The newest event of a repository that this process sent; `event` is its id."""

    incarnation: str
    seq: int
    event: str


def known_state(log: Log, repository: str) -> RepositoryState | None:
    """Read the aggregator's last state of a repository, from the whole topic.

    Raises MalformedEvent if it cannot be read, and Unavailable.
    """
    found = read_table(log, STATE).value(STATE, repository)
    return None if found is None else from_json(RepositoryState, found)


def known_states(log: Log) -> list[RepositoryState]:
    """Read the aggregator's last states of all repositories, without unreadable ones; raises Unavailable.

    For a repository that begins: this parses what the whole host has.
    """
    records = read_table(log, STATE).records
    found = (try_json(RepositoryState, record.value) for (_, key), record in records.items() if key != AGGREGATOR)
    return [state for state in found if state is not None]


def fork_between(known: RepositoryState | SentEvent, newest: NewestEvent, box: Outbox) -> Fork | None:
    """Return why the outbox's events cannot follow the log's; None if they can.

    `known` is the newest event that the log is known to have, `newest` that of the outbox. The function reads around the sent mark,
    where outbox and log should meet: unsent events are not read, however many there are.
    """
    if known.incarnation != newest.incarnation:
        if _is_adopted(known.incarnation, newest.incarnation, box):
            return None
        reason = f"the log has incarnation {known.incarnation} of it, the repository is {newest.incarnation}"
        return Fork(reason=reason, incarnation=known.incarnation, seq=known.seq, event=known.event)
    if known.seq > newest.seq:
        reason = f"the log has its event {known.seq}, the repository is at {newest.seq} (restored from a backup?)"
        return Fork(reason=reason, seq=known.seq, event=known.event)
    found = newest.id if known.seq == newest.seq else _find_event_id(known.incarnation, known.seq, box)
    if found in (known.event, None):
        return None
    reason = f"the log has another event {known.seq} of it (restored from a backup, a copy, or a second relay?)"
    return Fork(reason=reason, seq=known.seq, event=known.event)


def fork_behind(box: Outbox) -> Fork | None:
    """Return a fork if the own sent mark shows more events in the log, or None."""
    sent = box.sent()
    if sent is None or box.fits(sent):
        return None
    reason = f"the log has its event {sent.seq}, which is not in the outbox (restored from a backup?)"
    return Fork(reason=reason, seq=sent.seq, event=sent.id)


def fork_at_path(states: Iterable[RepositoryState], path: str, generation: int, repository: str | None) -> Fork | None:
    """Return a fork if the log has another repository at a path, where this one begins.

    Mirrors would refuse a repository that begins there with this generation or a lower one, so no push to it would be announced.
    `repository` is the id, None before the first event.
    """
    for state in states:
        is_there = state.path == path and not state.deleted and state.generation >= generation
        if is_there and state.repository != repository:
            return Fork(
                reason=f"the log has another repository at {path}, {state.repository} with {counted(state.seq, 'event')}",
                incarnation=state.incarnation,
                repository=state.repository,
                generation=state.generation,
                seq=state.seq,
                event=state.event,
            )
    return None


def is_void(fork: Fork, box: Outbox) -> bool:
    """Return whether the outbox has the event that a fork says it lacks.

    Then the outbox was being copied back when it was compared, or was lost and is restored.
    """
    newest = box.newest()
    if newest is None or fork.seq is None or fork.event is None:
        return False
    return _find_event_id(fork.incarnation or newest.incarnation, fork.seq, box) == fork.event


def _is_adopted(old: str, new: str, box: Outbox) -> bool:
    """Return whether an adoption replaced incarnation `old` by the present `new`."""
    for entry in box.acknowledged():
        if old in replaced_incarnations(entry.event):
            return True
        if entry.event.incarnation == old:
            break
    for place in box.unsent():
        if old in replaced_incarnations(place.entry.event):
            return True
        if place.entry.event.incarnation == new:
            break
    return False


def _find_event_id(incarnation: str, seq: int, box: Outbox) -> str | None:
    """Return the id of this event of the present incarnation; None if not kept."""
    for entry in box.acknowledged():
        if entry.event.incarnation != incarnation or entry.event.seq < seq:
            break
        if entry.event.seq == seq:
            return entry.event.id
    for place in box.unsent():
        if place.entry.event.incarnation == incarnation and place.entry.event.seq >= seq:
            return place.entry.event.id if place.entry.event.seq == seq else None
    return None

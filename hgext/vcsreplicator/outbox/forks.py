# SPDX-License-Identifier: GPL-2.0-or-later
"""Forks: the log tells another history of a repository than its outbox does.

A master restored from a backup, a copied repository or a second relay would write a second event N. The aggregator keeps the newest
sequence, id and incarnation that it saw of every repository (topic `state`), and the relay what it sent itself; who sends an outbox
holds it against that. Standard library only, because a push that sends its own events imports it.
"""

from typing import Protocol

from ..log import STATE, Log
from ..log.table import read_table
from ..words.event import Event
from ..words.levels import RepositoryState
from ..words.shape import from_json
from . import Outbox


class Newest(Protocol):
    """The newest event of a repository that the log is known to have, `event` being its id."""

    @property
    def incarnation(self) -> str: ...

    @property
    def seq(self) -> int: ...

    @property
    def event(self) -> str: ...


def known_state(log: Log, repository: str) -> RepositoryState | None:
    """What the aggregator last said of a repository; reads the whole topic. Raises Unavailable, MalformedEvent."""
    found = read_table(log, STATE).value(STATE, repository)
    return None if found is None else from_json(RepositoryState, found)


def fork_between(known: Newest, box: Outbox) -> str | None:
    """Why the repository's events as the log knows them cannot be followed by what is in the outbox; None if they can.

    Looks around the marker, where outbox and log should meet: what waits is not read, however much it is.
    """
    level = box.level()
    if level is None:
        return None
    if known.incarnation != level.incarnation:
        if _is_adopted(known.incarnation, level.incarnation, box):
            return None
        return f"the log knows incarnation {known.incarnation} of it, the repository is {level.incarnation}"
    if known.seq > level.seq:
        return f"the log has its event {known.seq}, the repository is at {level.seq} (restored from a backup?)"
    if _event_at(known.incarnation, known.seq, box) in (known.event, None):
        return None
    return f"the log has another event {known.seq} of it (restored from a backup, a copy, or a second relay?)"


def fork_behind(box: Outbox) -> str | None:
    """Why the log goes on where the outbox ends, as its own marker tells, whatever others know; None if it does not."""
    sent = box.sent()
    if sent is None or box.level() is None or box.fits(sent):
        return None
    return f"the log has its event {sent.seq}, which is not in the outbox (restored from a backup?)"


def _is_adopted(old: str, new: str, box: Outbox) -> bool:
    """Whether an adoption replaced incarnation `old`; the first event of `new`, the present one, is the last that may be one."""
    for entry in box.acknowledged():
        if _replaced(entry.event) == old:
            return True
        if entry.event.incarnation == old:
            break
    for place in box.unsent():
        if _replaced(place.entry.event) == old:
            return True
        if place.entry.event.incarnation == new:
            break
    return False


def _replaced(event: Event) -> object:
    return (event.detail or {}).get("replaces")


def _event_at(incarnation: str, seq: int, box: Outbox) -> str | None:
    """The id of the event with this number in the present incarnation, None if it is not there any more."""
    for entry in box.acknowledged():
        if entry.event.incarnation != incarnation or entry.event.seq < seq:
            break
        if entry.event.seq == seq:
            return entry.event.id
    for place in box.unsent():
        if place.entry.event.incarnation == incarnation and place.entry.event.seq >= seq:
            return place.entry.event.id if place.entry.event.seq == seq else None
    return None

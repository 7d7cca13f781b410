# SPDX-License-Identifier: GPL-2.0-or-later
"""Forks: the log tells another history of a repository than its outbox does.

A master restored from a backup, a copied repository or a second relay would write a second event N. The aggregator keeps the newest
sequence, id and incarnation that it saw of every repository (topic `state`); who sends an outbox holds it against that. Standard
library only, because a push that sends its own events imports it.
"""

from .levels import State
from .log import STATE, Log
from .outbox import Outbox
from .shape import from_json


def known_state(log: Log, repository: str) -> State | None:
    """What the aggregator last said of a repository; reads the whole topic. Raises Unavailable, MalformedEvent."""
    end, found = log.ends(STATE)[0], None
    reader = log.reader({(STATE, 0): log.beginnings(STATE)[0]})
    try:
        while reader.positions()[STATE, 0] < end:
            for record in reader.poll(0.2):
                if record.key == repository:
                    found = record.value
    finally:
        reader.close()
    return None if found is None else from_json(State, found)


def fork_between(state: State, box: Outbox) -> str | None:
    """Why the repository's events as the log knows them cannot be followed by what is in the outbox; None if they can."""
    event = box.level()
    if event is None:
        return None
    if state.incarnation != event.incarnation:
        for place in box.kept():
            if (place.entry.event.detail or {}).get("replaces") == state.incarnation:
                return None
        return f"the log knows incarnation {state.incarnation} of it, the repository is {event.incarnation}"
    if state.seq > event.seq:
        return f"the log has its event {state.seq}, the repository is at {event.seq} (restored from a backup?)"
    if state.seq == event.seq:
        return None if state.event == event.id else _other(state)
    for place in box.kept():
        if place.entry.event.seq == state.seq:
            return None if place.entry.event.id == state.event else _other(state)
    return None


def _other(state: State) -> str:
    return f"the log has another event {state.seq} of it (a copy or a second relay writes too?)"

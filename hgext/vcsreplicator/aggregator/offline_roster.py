# SPDX-License-Identifier: GPL-2.0-or-later
"""A change of the roster while no aggregator runs: decided here, and written in the aggregator's place.

It takes the aggregator's identity, so one that is hung or cut off is fenced before the roster is read, and can write nothing after.
"""

import time

from ..log import ROSTER, ROSTER_REQUESTS, STATE, Log, NewRecord
from ..words import roster as rosters
from ..words.errors import MalformedEvent, Refused
from ..words.roster import Decision, Refusal, Roster, RosterRequest, Verb
from ..words.shape import from_json, to_json
from .loop import GROUP, IDENTITY, load_roster

VERBS = (Verb.RULES, Verb.ACTIVATE, Verb.DEACTIVATE, Verb.ALLOW_EMPTY)
"""What changes the roster alone; the others need the aggregator's positions, or have it forget levels."""

POLL = 0.5  # seconds of one look


def check_silence(log: Log, patience: float) -> None:
    """Watches for `patience` seconds, by this machine's monotonic clock; raises Refused if an aggregator gives a sign of life."""
    reader, end = log.reader({(STATE, 0): log.ends(STATE)[0]}), time.monotonic() + patience
    try:
        while (left := end - time.monotonic()) > 0:
            if any(record.key == IDENTITY for record in reader.poll(min(left, POLL))):
                raise Refused("an aggregator runs: leave --offline out, and it decides")
    finally:
        reader.close()


def decide_offline(log: Log, request: RosterRequest) -> tuple[Decision, Roster]:
    """Decides the request and writes the roster, in one transaction; raises Refused, Unavailable.

    Requests that wait for the aggregator are refused with it: one that was made before must not come after.
    """
    if request.verb not in VERBS:
        verbs = ", ".join(verb.value for verb in VERBS)
        raise Refused(f"{request.verb.value}: only an aggregator can do that; --offline is for {verbs}")
    transactor = log.transactor(IDENTITY)
    try:
        roster, overtaken = (
            load_roster(log),
            Refusal(reason=f"request {request.id} was decided offline before it; ask again"),
        )
        waiting = [each for each in _waiting(log) if roster.decision(each.id) is None]
        if len(waiting) >= rosters.RECENT:
            raise Refused(f"{len(waiting)} requests wait for the aggregator; start it")
        decided = rosters.decide(roster, request, positions={}, now=request.time)
        if isinstance(decided, Refusal):
            raise Refused(decided.reason)
        for each in waiting:
            decided = rosters.remember(decided, each, now=request.time, refusal=overtaken)
        decided = rosters.remember(decided, request, now=request.time)
        transactor.commit([NewRecord(topic=ROSTER, key=rosters.KEY, value=to_json(decided))])
    finally:
        transactor.close()
    return decided.recent[-1], decided


def _waiting(log: Log) -> list[RosterRequest]:
    """The requests that no aggregator has read; what is none it sets aside itself."""
    end, beginning = log.ends(ROSTER_REQUESTS)[0], log.beginnings(ROSTER_REQUESTS)[0]
    place, found = (ROSTER_REQUESTS, 0), []
    reader = log.reader({place: min(end, max(beginning, log.stored(GROUP, ROSTER_REQUESTS).get(0, 0)))})
    try:
        while reader.positions()[place] < end:
            for record in reader.poll(1.0):
                try:
                    found.append(from_json(RosterRequest, record.value or b""))
                except MalformedEvent:
                    continue
    finally:
        reader.close()
    return found

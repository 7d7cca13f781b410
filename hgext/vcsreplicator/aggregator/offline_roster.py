# SPDX-License-Identifier: GPL-2.0-or-later
"""Changes of the roster while no aggregator runs.

This module decides them, and writes them in the aggregator's place. It takes the aggregator's identity, so an aggregator that is
hung or cut off is fenced before the roster is read, and can write nothing after.
"""

import time

from ..log import ROSTER_REQUESTS, STATE, Log
from ..log.table import read_records
from ..words.errors import Refused, counted
from ..words.records import AGGREGATOR
from ..words.roster import Decision, Roster, RosterRequest, Verb
from ..words.roster.changes import RECENT, decide, remember
from ..words.shape import try_json
from .decisions.membership import list_records
from .loading import GROUP, IDENTITY, load_roster

# Verbs that change the roster alone; the others need the aggregator's positions, or make it forget levels.
VERBS = (Verb.RULES, Verb.ACTIVATE, Verb.DEACTIVATE, Verb.ALLOW_EMPTY)

# Seconds of one wait for a heartbeat.
POLL = 0.5


def check_silence(log: Log, patience: float) -> None:
    """Watch for `patience` seconds; raise Refused if an aggregator sends a heartbeat."""
    reader, end = log.reader({(STATE, 0): log.ends(STATE)[0]}), time.monotonic() + patience
    try:
        while (left := end - time.monotonic()) > 0:
            if any(record.key == AGGREGATOR for record in reader.poll(min(left, POLL))):
                raise Refused("an aggregator runs: leave --offline out, and it decides")
    finally:
        reader.close()


def read_waiting(log: Log, roster: Roster) -> list[RosterRequest]:
    """Read the requests without a decision that no aggregator has read.

    A request that cannot be read is left to the aggregator.
    """
    [end], [beginning] = log.ends(ROSTER_REQUESTS).values(), log.beginnings(ROSTER_REQUESTS).values()
    start = min(end, max(beginning, log.stored(GROUP, ROSTER_REQUESTS).get(0, 0)))
    found = []
    for record in read_records(log, {(ROSTER_REQUESTS, 0): start}):
        request = try_json(RosterRequest, record.value)
        if request is not None and roster.decision(request.id) is None:
            found.append(request)
    return found


def decide_offline(log: Log, request: RosterRequest) -> tuple[Decision, Roster]:
    """Decide the request, and write the roster at once.

    Refuses the requests made before it. Raises Refused, Unavailable.
    """
    if request.verb not in VERBS:
        verbs = ", ".join(verb.value for verb in VERBS)
        raise Refused(f"{request.verb.value}: only an aggregator can do that; --offline is for {verbs}")
    transactor = log.transactor(IDENTITY)
    try:
        roster = load_roster(log)
        overtaken = f"request {request.id} was decided offline before it; ask again"
        waiting = read_waiting(log, roster)
        if len(waiting) >= RECENT:
            raise Refused(f"{counted(len(waiting), 'request')} waiting for the aggregator; start it")
        decided = decide(roster, request, positions={}, now=request.time)
        for each in waiting:
            decided = remember(decided, each, now=request.time, refusal=overtaken)
        decided = remember(decided, request, now=request.time)
        transactor.commit(list_records(decided))
    finally:
        transactor.close()
    return decided.recent[-1], decided

# SPDX-License-Identifier: GPL-2.0-or-later
"""The aggregator's reading at its start.

It reads roster, state and pending, and restores from notices the states that were lost. The session reads the levels in `acks`, and
rereads the events that were never taken.

A partition of `events` that does not answer holds up only what depends on it. Notices of its repositories are true without their
unread events: releases and notices need the stored events, the roster and the levels. One decision needs all partitions: whether
an earlier repository at the same path has left it (`succession`).
"""

import threading
from collections.abc import Iterator, Mapping
from operator import attrgetter

import structlog

from ..log import ACKS, EVENTS, NOTICES, PENDING, ROSTER, ROSTER_REQUESTS, STATE, Log, PartitionKey, Record
from ..log.table import ReadStopped, Table, find_answered_ends, read_records, read_table
from ..words import roster as rosters
from ..words.errors import BadConfig, MalformedEvent, Unavailable
from ..words.records import AGGREGATOR, AGGREGATOR_FORMAT, AggregatorHeartbeat, Notice, RepositoryState
from ..words.roster import Roster
from ..words.shape import from_json
from ..words.wire import names_of
from .decisions.aggregation import Aggregation
from .decisions.poison import Poison

GROUP = IDENTITY = "aggregator"

logger = structlog.get_logger()


def read_state(log: Log, stop: threading.Event) -> Table:
    """Read `state` before this aggregator fences another.

    Raises BadConfig if an aggregator of a newer release wrote it.
    """
    state = read_table(log, STATE, stop=stop)
    newest = read_beat(state)
    if newest is not None and newest.format > AGGREGATOR_FORMAT:
        raise BadConfig(
            f"topic {STATE}: written by an aggregator of a newer release (format {newest.format}, this one knows "
            f"{AGGREGATOR_FORMAT}); upgrade this one"
        )
    return state


def load(
    log: Log,
    *,
    limit: int,
    poison: Poison | None,
    stop: threading.Event,
    state: Table | None = None,
    written: Roster | None = None,
) -> Aggregation:
    """Load everything that the log knows, except the levels.

    If the topic `roster` lost the newest version, which this process has seen in it (`written`) or `pending` has, that one is
    written again.

    The records of `state` that were read before are not read again, and are gone from it afterwards. The caller made or renewed its
    transactor before, so no other aggregator and no earlier session commits any more. This order is needed: positions are read
    after `pending`. A commit between the two would put an event into `pending` and the position behind it, and the event would be
    neither loaded nor read. Partitions of `events` that do not answer have no position in what is returned.
    """
    if state is None:
        state = table = read_table(log, STATE, ROSTER, PENDING, stop=stop)  # together: each reader connects anew
    else:
        state, table = _read_rest(log, state, stop), read_table(log, ROSTER, PENDING, stop=stop)
    known, requests = _find_answers(log, stop), log.ends(ROSTER_REQUESTS)
    beat, copies = read_beat(state), _read_rosters(table)
    roster = max(*copies, written or Roster(), key=attrgetter("version"))
    if roster.version > copies[0].version:
        logger.error("topic roster lost records: the roster is written again", version=roster.version)
    if beat is not None and beat.roster > roster.version:  # its copy is lost, too
        see = "vcsreplicator roster list"
        logger.error("topic roster lost its newest versions", version=roster.version, newest=beat.roster, see=see)
    cut, beginnings = _find_cut(log, beat, known), log.beginnings(EVENTS, known)
    positions = {**_find_start(log, EVENTS, known), **_find_start(log, ROSTER_REQUESTS, requests)}
    # Up to where unreadable levels are recorded; a position is ignored if the log ends before it.
    ends, recorded = log.ends(ACKS), log.stored(GROUP, ACKS)
    positions.update(((ACKS, partition), at) for partition, at in recorded.items() if at <= ends[partition])
    positions.update(((EVENTS, partition), beginnings[partition]) for partition in cut if partition in known)
    aggregation = Aggregation(roster, positions, limit=limit, poison=poison)
    if any(copy.version != roster.version for copy in copies):
        aggregation.membership.write_again()
    aggregation.loaded = {topic: each.positions[topic, 0] for topic, each in ((STATE, state), (ROSTER, table))}
    if beat is not None and beat.notices is not None:
        aggregation.loaded[NOTICES] = beat.notices
    aggregation.events.cut = cut
    aggregation.events.ends = {partition: end for partition, end in known.items() if positions[EVENTS, partition] < end}
    for each, topic in ((state, STATE), (table, PENDING)):
        for place in [place for place in each.records if place[0] == topic and place[1] != AGGREGATOR]:
            _load_record(aggregation, each.records.pop(place))
    _recover_state(aggregation, log, stop, state)
    return aggregation


def load_roster(log: Log) -> Roster:
    """Load the newest roster; raise BadConfig if it cannot be read."""
    table = read_table(log, ROSTER, PENDING, keep=lambda record: record.key == rosters.KEY)
    return max(_read_rosters(table), key=attrgetter("version"))


def _read_rosters(table: Table) -> list[Roster]:
    """Return the roster that a table has of its topic, and the copy in `pending`; raise BadConfig."""
    found = []
    for topic in (ROSTER, PENDING):
        value = table.value(topic, rosters.KEY)
        try:
            found.append(Roster() if value is None else from_json(Roster, value))
        except MalformedEvent as error:
            raise BadConfig(f"topic {topic}: {error}; was it written by a newer version?") from error
    return found


def _read_rest(log: Log, table: Table, stop: threading.Event) -> Table:
    """Read the records written to the table's topics since it was read."""
    newest = table.records
    for record in read_records(log, table.positions, stop=stop):
        if record.key is not None:
            newest[record.topic, record.key] = record
    return Table(records=newest, positions=table.positions)


def read_beat(state: Table) -> AggregatorHeartbeat | None:
    """Return the aggregator's last heartbeat; None if none can be read."""
    value = state.value(STATE, AGGREGATOR)
    if value is None:
        return None
    try:
        return from_json(AggregatorHeartbeat, value)
    except MalformedEvent as error:
        logger.error("stored record cannot be read", topic=STATE, key=AGGREGATOR, reason=str(error))
        return None


def _recover_state(aggregation: Aggregation, log: Log, stop: threading.Event, state: Table) -> None:
    """Restore from notices the states that were lost: all, or the newest."""
    beat = read_beat(state)
    if (STATE, AGGREGATOR) not in state.records:  # an installation begins with no notices either
        lost = _recover(aggregation, _read_notices(log, stop, since=0))
        if lost:
            logger.error("topic state was lost: its repositories are taken from notices", repositories=lost)
    elif beat is not None and beat.notices is not None:
        older = _recover(aggregation, _read_notices(log, stop, since=beat.notices))
        if older:
            logger.error("topic state went back: its repositories are taken from notices", repositories=older)


def _recover(aggregation: Aggregation, notices: Iterator[Notice]) -> int:
    """Take the repositories with a lost or an older state; return their number."""
    return len({notice.event.repository for notice in notices if notice.replay is None and aggregation.recover(notice)})


def _read_notices(log: Log, stop: threading.Event, *, since: int) -> Iterator[Notice]:
    """Yield the notices from this offset on, the oldest first."""
    [beginning], [end] = log.beginnings(NOTICES).values(), log.ends(NOTICES).values()
    start = max(since, beginning)
    if start >= end:
        return
    for record in read_records(log, {(NOTICES, 0): start}, stop=stop):
        try:
            yield from_json(Notice, record.value or b"")
        except MalformedEvent as error:
            names = names_of(record.key, record.headers)
            logger.error("notice cannot be read", **names, offset=record.offset, reason=str(error))


def _find_answers(log: Log, stop: threading.Event) -> dict[int, int]:
    """Find the ends of the partitions of `events` that answer, or raise Unavailable."""
    try:
        return log.ends(EVENTS)
    except Unavailable as error:
        failure, ends = error, dict[int, int]()
    for partition in range(log.partitions(EVENTS)):
        if stop.is_set():
            raise ReadStopped
        ends |= find_answered_ends(log, EVENTS, [partition])
    if not ends:
        raise failure
    return ends


def _find_cut(log: Log, beat: AggregatorHeartbeat | None, ends: Mapping[int, int]) -> dict[int, int]:
    """Find the partitions of `events` that lost records before the stored position.

    Returns where each ended then. Those that the heartbeat names are reread from their beginning, unless the aggregator has
    already reached that end. A partition that does not answer, and has no end, stays named.
    """
    begun = beat.cut if beat is not None and beat.cut is not None else {}
    silent = [partition for partition in range(log.partitions(EVENTS)) if partition not in ends]
    cut = {partition: begun[str(partition)] for partition in silent if str(partition) in begun}
    for partition, at in log.stored(GROUP, EVENTS).items():
        if partition not in ends:
            continue
        before = min(begun.get(str(partition), 0), ends[partition])
        if at > ends[partition]:
            cut[partition] = ends[partition]
        elif at < before:
            cut[partition] = before
    return cut


def _find_start(log: Log, topic: str, ends: Mapping[int, int]) -> dict[PartitionKey, int]:
    """Find the stored position of each partition with an end, or else its beginning.

    The beginning counts where no position is stored, or where the log no longer reaches back to it. A log that lost its newest
    records ends before the stored position. Then events are reread, most of them as repeats; requests are not, because old ones
    would be decided again.
    """
    stored, start = log.stored(GROUP, topic), {}
    for partition, beginning in log.beginnings(topic, ends).items():
        start[topic, partition] = max(stored.get(partition, beginning), beginning)
        if start[topic, partition] > ends[partition]:
            logger.error(
                "log lost records", topic=topic, partition=partition, count=stored[partition] - ends[partition]
            )
            start[topic, partition] = ends[partition] if topic == ROSTER_REQUESTS else beginning
        if partition in stored and stored[partition] < beginning:
            logger.error(
                "records expired unread", topic=topic, partition=partition, count=beginning - stored[partition]
            )
    return start


def _load_record(aggregation: Aggregation, record: Record) -> None:
    if record.value is None or record.key in (None, AGGREGATOR, rosters.KEY):
        return
    try:
        if record.topic == STATE:
            aggregation.load_state(from_json(RepositoryState, record.value))
        else:
            aggregation.load_pending(record.key, record.value, record.headers)
    except (MalformedEvent, ValueError) as error:
        names = names_of(record.key.partition("/")[0], record.headers)
        place = {"topic": record.topic, "partition": record.partition, "offset": record.offset, "key": record.key[:100]}
        logger.error("stored record cannot be read", **names, **place, reason=str(error))

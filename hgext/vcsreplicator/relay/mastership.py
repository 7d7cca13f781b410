# SPDX-License-Identifier: GPL-2.0-or-later
"""The record of the newest promotion, which fences the relays of former masters."""

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import replace

from ..log import EVENTS, SERVICES, Log, NewRecord
from ..log.table import find_beginnings, read_records, read_table
from ..outbox.file import FORMER, LEAVING, Fork
from ..words import wire
from ..words.errors import SHOWN, BadConfig, Expired, Fenced, HeldUp, Refused, visible
from ..words.records import MASTER_KEY, MasterRecord
from ..words.shape import to_json, try_json

# Why a master's repositories refuse pushes before a promotion that was planned.
HANDED_OVER = Fork(reason="its master is being handed over; push again later, to the new master", master=LEAVING)


class Mastership:
    """What a relay's `/health` says: whether it is the relay of the master, as far as it has read.

    A relay that cannot read the log says what it said before: an outage of the log takes no master from its clients.
    """

    def __init__(self) -> None:
        # Returns why it is not.
        self.find_reason: Callable[[], str | None] = lambda: "not started yet"

    def __call__(self) -> Mapping[str, object]:
        reason = self.find_reason()
        return {"ready": True} if reason is None else {"ready": False, "reason": reason}


def read_master(log: Log) -> MasterRecord | None:
    """Read the newest promotion; None if there was none, or the log has no such topic.

    A record that cannot be read is none, so that it stops no push. Raises Unavailable.
    """
    try:
        return try_json(MasterRecord, read_table(log, SERVICES).value(SERVICES, MASTER_KEY))
    except BadConfig:
        return None


def fork_of_former(newest: MasterRecord | None, source: str) -> Fork | None:
    """Return why a promotion makes all repositories of a master refuse pushes.

    None if no promotion replaced it. Pushers read the reason on their terminals, so it has no control characters, and only the
    beginning of a long source.
    """
    if newest is None or source not in newest.replaces:
        return None
    return _fork_from(newest.source)


def has_ended(fork: Fork, newest: MasterRecord | None, source: str) -> bool:
    """Return whether this source's master has replaced the master that a fork names.

    It is not enough that another promotion is the newest: a restored log may have lost the promotion that the fork names.
    """
    return newest is not None and newest.source == source and any(fork == _fork_from(each) for each in newest.replaces)


def _fork_from(source: str) -> Fork:
    return Fork(reason=f"{visible(source[:SHOWN])} is the master now", master=FORMER)


def claim(log: Log, wanted: MasterRecord, expected: MasterRecord | None) -> None:
    """Record a promotion, if the newest one is still the `expected` one.

    Readers see it on return. Of several processes that call this at the same time one succeeds. Raises Refused for the others,
    having written nothing, and Unavailable if it may have failed: call it again.
    """
    try:
        with closing(log.transactor(MASTER_KEY)) as transactor:
            known = read_master(log)
            if known != expected:
                raise Refused(f"{known.source if known else 'another mirror'} was promoted meanwhile")
            transactor.commit([NewRecord(topic=SERVICES, key=MASTER_KEY, value=to_json(wanted))])
            # A broker that was killed after its answer may leave this open, and readers would stop here until the next promotion.
            try:
                log.wait_for_transactions(SERVICES)
            except HeldUp:
                transactor.renew()
    except Fenced as error:
        raise Refused("another promotion runs at the same time: see who is master, then try again") from error


def take_back(log: Log, source: str, sent: Mapping[int, Collection[int]]) -> None:
    """Record that this master continues.

    Its handover, and a promotion that replaced it, are void from now on. `sent` has, by partition, offsets where this
    master is said to have sent events; accounts may have written them, so each counts only if such an event is there. Raises
    Refused if the new master has sent an event after the newest: then only the new master has everything.
    """
    known = read_master(log)
    former = frozenset[str]() if known is None else frozenset({*known.replaces, known.source}) - {source}
    wanted = MasterRecord(
        source=source, mirror="" if known is None else known.mirror, replaces=tuple(sorted(former)), time=time.time()
    )
    new = None if known is None or known.source == source else known.source
    _refuse_sent(log, new, source, sent)
    claim(log, wanted, known)
    try:
        _refuse_sent(log, new, source, sent)  # it sends nothing more
    except Refused:
        assert known is not None
        claim(log, replace(known, time=time.time()), wanted)
        raise


def _refuse_sent(log: Log, source: str | None, own: str, sent: Mapping[int, Collection[int]]) -> None:
    """Raise Refused if a master has sent an event to the log behind the newest of these where `own` sent one."""
    if source is None:
        return
    ends, places = log.ends(EVENTS), find_beginnings(log, EVENTS)
    for (topic, number), beginning in list(places.items()):
        said = sorted((at for at in sent.get(number, ()) if beginning <= at < ends[number]), reverse=True)
        newest = next((at for at in said if _has_event(log, number, at, own)), beginning - 1)
        places[topic, number] = newest + 1
    for record in read_records(log, places):
        if record.headers.get(wire.SOURCE) == source:
            raise Refused(
                f"{source} is the master and has sent events: hand it over (vcsreplicator handover), and promote a mirror of it"
            )


def _has_event(log: Log, partition: int, offset: int, source: str) -> bool:
    """Return whether an event of this source is at the offset, as far as the log shows it within 5 seconds."""
    try:
        with closing(log.reader({(EVENTS, partition): offset})) as reader:
            found = reader.poll(5.0, limit=1)
    except Expired:
        return False
    return any(record.offset == offset and record.headers.get(wire.SOURCE) == source for record in found)

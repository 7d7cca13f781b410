# SPDX-License-Identifier: GPL-2.0-or-later
"""What a webhook destination keeps in the log: subscriptions, and deliveries that it owes.

The database is a copy of it that can be queried. Rules of this file: the log has what is owed before the position of `notices`
passes it; a delivery that is confirmed within `SETTLES_WITHIN` needs no record, as the position waits for it; a record goes after
its delivery is settled. So a kill, or the loss of the database, repeats what was not confirmed or not yet passed, and forgets
nothing. One thread does all of it.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from hgext.vcsreplicator.log import NOTICES, NOTIFIER, Log, NewRecord, TooLarge, measure_message
from hgext.vcsreplicator.log.table import read_table
from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import MalformedEvent
from hgext.vcsreplicator.words.records import DESTINATION_GROUP
from hgext.vcsreplicator.words.shape import extensible, to_json

from ...clients.database import read_storable
from ...delivery.destination import DATABASE_KEY, Write
from .deliveries import Deliveries, OwedDelivery
from .subscriptions import SubscriptionRecord

# Seconds for which the position waits for a delivery to be confirmed.
SETTLES_WITHIN = 1.0
# Deliveries that are read at once, and bytes of one commit: what a log takes before its time-out.
BATCH, BATCH_BYTES = 500, 4 * 1024 * 1024

logger = structlog.get_logger()


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseRecord:
    """The database that the records were last written from. Topic `notifier`, key `database/DESTINATION`."""

    id: str


class WebhookRecords:
    """The records of the destination `name` in the topic `notifier`.

    Subscriptions have the keys `subscription/NAME/SUBSCRIPTION`, deliveries `owed/NAME/SUBSCRIPTION/MESSAGE/REPLAY`. Methods
    raise Unavailable.
    """

    def __init__(self, name: str, log: Log, deliveries: Deliveries, clock: Clock) -> None:
        self._name, self._log, self._deliveries, self._clock = name, log, deliveries, clock
        self._subscriptions: dict[str, bytes] = {}
        self._mark: tuple[object, ...] | None = None
        self._reached = -1

    def restore(self, write: Write) -> None:
        """Bring the database and the log in line, at a start.

        The database that the log names is at least as new as the log. Any other one, even an older copy of it, is emptied and
        filled from the log. Where the log names none, an earlier release made the database: then all of it goes into the log.
        From now on all records go to `write`, whose errors reach the caller. Raises BadConfig if the topic is missing.
        """
        self._write = write
        named, subscriptions, owed = self._read()
        own, reached = self._deliveries.read_identity(), self._deliveries.read_reached()
        stored = self._log.stored(f"{DESTINATION_GROUP}{self._name}", NOTICES).get(0, 0)
        is_current = own is not None and named == own and reached >= stored
        identity = own if own is not None and is_current else uuid.uuid4().hex
        self._deliveries.restore(identity, owed, None if named is None or is_current else subscriptions)
        self._subscriptions = {name: to_json(each) for name, each in subscriptions.items()}
        self.secure(stored)
        if identity != named:
            key = f"{DATABASE_KEY}{self._name}"
            self._append([NewRecord(topic=NOTIFIER, key=key, value=to_json(DatabaseRecord(id=identity)))])
            event = "kept in the log from now on" if named is None else "database filled from the log"
            counts = {"subscriptions": len(self._subscriptions), "queued": self._deliveries.counts().get("queued", 0)}
            logger.info(event, destination=self._name, **counts)

    def record_changes(self) -> None:
        """Bring the log in line with the subscriptions, and with what is owed for longer than a moment."""
        self._record_subscriptions()
        self.record_deliveries()

    def is_overtaken(self) -> bool:
        """Return whether the log was written from another database since: then this one is out of date."""
        own, named = self._deliveries.read_identity(), self._read()[0]
        return own is not None and named is not None and own != named

    def show(self) -> None:
        """Fill an empty database with what the log has, to read in it; write nothing."""
        _, subscriptions, owed = self._read()
        self._deliveries.restore("", owed, subscriptions)

    def secure(self, position: int) -> int:
        """Put into the log what is owed; return the position up to which nothing else is.

        It is `position`, or that of a notice whose deliveries may be confirmed in a moment.
        """
        self.record_changes()
        held = self._deliveries.find_held_notice()
        position = position if held is None else min(position, held)
        if position != self._reached:
            self._deliveries.record_reached(position)
            self._reached = position
        return position

    def record_deliveries(self) -> None:
        """Bring the log in line with what is owed for longer than a moment."""
        now, rows = self._clock.now(), BATCH
        while rows == BATCH:
            changed = self._deliveries.list_unrecorded(now - SETTLES_WITHIN, now, BATCH)
            rows = len(changed)
            if changed:
                self._append([self._to_record(each.key, each.owed) for each in changed])
                gone = self._deliveries.mark_recorded(changed)  # settled and removed meanwhile
                self._append([self._to_record(each.key, None) for each in gone])

    def _record_subscriptions(self) -> None:
        mark = self._deliveries.subscriptions.read_mark()
        if mark == self._mark:
            return
        records = self._deliveries.subscriptions.records()
        known, now = self._subscriptions, {name: to_json(each) for name, each in records.items()}
        changed = {name: now.get(name) for name in known | now if known.get(name) != now.get(name)}
        self._append(
            [
                NewRecord(topic=NOTIFIER, key=f"subscription/{self._name}/{name}", value=value)
                for name, value in changed.items()
            ]
        )
        self._subscriptions, self._mark = now, mark

    def _append(self, records: Sequence[NewRecord]) -> None:
        """Append all of these, BATCH_BYTES at once, but for what the topic refuses as too large."""
        batch, size = list[NewRecord](), 0
        for record in records:
            size += measure_message(record)
            if batch and size > BATCH_BYTES:
                self._commit(batch)
                batch, size = [], measure_message(record)
            batch.append(record)
        self._commit(batch)

    def _commit(self, records: Sequence[NewRecord]) -> None:
        while records:
            try:
                self._write(records)
                return
            except TooLarge as error:
                refused = {each.key for each in error.records}
                logger.error("too large for the log, and in the database alone", keys=sorted(map(str, refused)))
                records = [record for record in records if record.key not in refused]

    def _to_record(self, key: str, owed: OwedDelivery | None) -> NewRecord:
        value = None if owed is None else to_json(owed)
        return NewRecord(topic=NOTIFIER, key=f"owed/{self._name}/{key}", value=value)

    def _read(self) -> tuple[str | None, dict[str, SubscriptionRecord], list[OwedDelivery]]:
        """Return the database that the log names, the subscriptions, and what is owed.

        A record that cannot be read is logged, and stays where it is.
        """
        named, subscriptions, owed = None, dict[str, SubscriptionRecord](), list[OwedDelivery]()
        for (_, key), record in read_table(self._log, NOTIFIER).records.items():
            kind, _, rest = key.partition("/")
            destination, _, item = rest.partition("/")
            if destination != self._name or record.value is None:
                continue
            try:
                item.encode()  # raises for text that SQLite does not take
                if f"{kind}/" == DATABASE_KEY:
                    named = read_storable(DatabaseRecord, record.value).id
                elif kind == "subscription":
                    found = read_storable(SubscriptionRecord, record.value)
                    if found.names_foreign_secret():
                        raise MalformedEvent(
                            "expected each secret in a file: only the configuration may have another one"
                        )
                    subscriptions[item] = found
                elif kind == "owed":
                    owed.append(read_storable(OwedDelivery, record.value))
            except (MalformedEvent, UnicodeEncodeError) as error:
                logger.error("record of the notifier not readable", key=key, reason=str(error))
        return named, subscriptions, owed

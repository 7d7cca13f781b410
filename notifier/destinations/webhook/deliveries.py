# SPDX-License-Identifier: GPL-2.0-or-later
"""The table of webhook deliveries, and the subscriptions that they are for.

A row in `deliveries` is one message to one subscription, from the moment it is accepted until it is too old to be of interest.
Enqueueing a message twice adds nothing, so a repeat after a crash is harmless; an attempt is recorded after it ended, so a crash
repeats it. `records` puts into the log what is owed, and fills the table from there.
"""

import enum
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, NamedTuple

from hgext.vcsreplicator.log import LARGEST
from hgext.vcsreplicator.words.shape import NumberRange, Time, extensible, parse
from hgext.vcsreplicator.words.streams import event_of

from ...clients.database import Database
from ...messages.message import Message, to_text
from . import statements as sql
from .fairness import WaitingDelivery
from .subscriptions import StoredSubscription, SubscriptionRecord, SubscriptionTable

JsonObject = dict[str, Any]


class DeliveryState(enum.StrEnum):
    """State of a delivery.

    queued → delivered | exhausted (kept) | cancelled (subscription removed); redelivery queues again.
    """

    QUEUED = "queued"
    DELIVERED = "delivered"
    EXHAUSTED = "exhausted"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryAttempt:
    """The data of an attempt."""

    attempt: int
    message_id: str
    replay: str
    repository: str
    previous: str | None
    sequence: int
    body: str
    signed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """How an attempt ended.

    `begun` is the delivery as the attempt began. `state` is queued, with the next `attempt` and `mature_at`, or a final one. The
    attempt took `duration` seconds; `answer` is how the body of the answer begins.
    """

    begun: WaitingDelivery
    state: DeliveryState
    attempt: int
    mature_at: float
    status: int | None
    error: str | None
    duration: float = 0.0
    answer: str = ""


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class OwedDelivery:
    """A delivery that waits or was given up. Topic `notifier`, key `owed/DESTINATION/SUBSCRIPTION/MESSAGE/REPLAY`.

    `number` is that of operators, `subscription` a name, `message` an id, `body` the JSON that is sent.
    """

    number: Annotated[int, NumberRange(1, 10**18)]
    subscription: str
    state: DeliveryState
    attempt: Annotated[int, NumberRange(0, 10**9)]
    mature_at: Time
    created_at: Time
    finished_at: Time | None = None
    status: int | None = None
    error: str | None = None
    message: str
    replay: str
    repository: str
    repo_url: str
    type: str
    sequence: int
    previous: str | None = None
    body: str
    signed: str | None = None

    def __post_init__(self) -> None:
        if self.state not in (DeliveryState.QUEUED, DeliveryState.EXHAUSTED):
            raise ValueError(f"state: expected queued or exhausted, got {self.state}")
        if not isinstance(parse(self.body.encode(), "body", limit=LARGEST), dict):
            raise ValueError("body: expected an object")

    @property
    def due(self) -> int:
        """What the database notes of it once the log has it."""
        return -1 if self.state is DeliveryState.EXHAUSTED else self.attempt + 1


class UnrecordedDelivery(NamedTuple):
    """A delivery of which the log has something else; `owed` is None if it is settled."""

    number: int
    key: str
    owed: OwedDelivery | None


class LateDelivery(NamedTuple):
    """A delivery to a `subscription`, a name, that failed, and has waited since `created_at`."""

    subscription: str
    number: int
    created_at: float
    error: str | None


class Deliveries:
    """The database at `path`, made when missing; each thread opens its own.

    Opening it raises BadConfig or Unavailable; once it is open, methods raise Unavailable.
    """

    def __init__(self, path: str) -> None:
        self._db = Database(path, "database", sql.SCHEMA)
        if not self._db.rows(sql.HAS_RECORDED):  # of an earlier release
            with self._db.writing():
                for statement in () if self._db.rows(sql.HAS_RECORDED) else sql.ADD_RECORDED:
                    self._db.run(statement)
        self.subscriptions = SubscriptionTable(self._db)

    def close(self) -> None:
        self._db.close()

    def enqueue(
        self, wanted: Sequence[tuple[Message, Sequence[StoredSubscription]]], now: float
    ) -> list[WaitingDelivery]:
        """Add rows for each message and its subscriptions; return the new rows.

        Only subscriptions that still exist get rows. All rows are added or none; they are durable on return.
        """
        items: list[WaitingDelivery] = []
        with self._db.writing():
            for message, wanting in wanted:
                if wanting:
                    items += self._enqueue(message, wanting, now)
        return items

    def _enqueue(
        self, message: Message, wanting: Iterable[StoredSubscription], now: float
    ) -> Iterator[WaitingDelivery]:
        replay = message.replay or ""
        columns = (message.id, replay, message.repository, message.repo_url, message.type.value)
        self._db.run(sql.ADD_MESSAGE, (*columns, message.sequence, message.previous, to_text(message.envelope)))
        [(number,)] = self._db.rows(sql.NUMBER, (message.id, replay))
        if message.signed is not None:
            self._db.run(sql.ADD_SIGNED, (number, message.signed))
        notice = message.offset if message.replay is None else None
        for each in wanting:
            cursor = self._db.run(sql.ADD_DELIVERY, (number, notice, now, now, each.id))
            if cursor.rowcount:
                assert cursor.lastrowid is not None
                yield WaitingDelivery(now, cursor.lastrowid, each.id, _list_orders(replay, *message.orders), 0)

    def read_reached(self) -> int:
        """Return the position up to which this database was secured; -1 if none is known."""
        rows = self._db.rows(sql.REACHED)
        return int(rows[0][0]) if rows else -1

    def record_reached(self, position: int) -> None:
        """Record that all that is owed of notices before the position is secured.

        A power cut may leave the record before.
        """
        self._db.run_unsynced(sql.RECORD_REACHED, (position,))

    def read_identity(self) -> str | None:
        """Return the name by which the log knows this database; None for one of an earlier release."""
        rows = self._db.rows(sql.IDENTITY)
        return str(rows[0][0]) if rows else None

    def list_unrecorded(self, settling_since: float, now: float, limit: int) -> list[UnrecordedDelivery]:
        """List deliveries of which the log has something else.

        Leaves out new ones since `settling_since`, which may be confirmed in a moment.
        """
        names = [member.name for member in fields(OwedDelivery)]
        found = []
        for due, *columns in self._db.rows(sql.UNRECORDED, (settling_since, now, limit)):
            row = dict(zip(names, columns, strict=True))
            key = f"{row['subscription']}/{row['message']}/{row['replay']}"
            found.append(UnrecordedDelivery(row["number"], key, OwedDelivery(**row) if due else None))
        return found

    def mark_recorded(self, recorded: Sequence[UnrecordedDelivery]) -> list[UnrecordedDelivery]:
        """Record that the log has these; return deliveries that are no longer here."""
        gone = []
        with self._db.writing():
            for each in recorded:
                due = 0 if each.owed is None else each.owed.due
                if not self._db.run(sql.MARK_RECORDED, (due, each.number)).rowcount:
                    gone.append(each)
        return gone

    def find_held_notice(self) -> int | None:
        """Return the first notice that the position may not pass; None if there is none."""
        [(notice,)] = self._db.rows(sql.HELD_NOTICE)
        return None if notice is None else int(notice)

    def restore(
        self,
        identity: str,
        owed: Iterable[OwedDelivery],
        subscriptions: Mapping[str, SubscriptionRecord] | None = None,
    ) -> None:
        """Take over what the log has, all or nothing; rows that are here stay as they are.

        With `subscriptions`, the database is emptied before, and has these.
        """
        with self._db.writing():
            for statement in sql.CLEAR if subscriptions is not None else ():
                self._db.run(statement)
            for name, record in sorted((subscriptions or {}).items(), key=lambda each: each[1].created_at):
                self.subscriptions.restore(name, record)
            self._db.run(sql.FORGET_RECORDED)
            for each in sorted(owed, key=lambda each: each.number):
                self._restore_delivery(each)
            self._db.run(sql.RECORD_IDENTITY, (identity,))

    def _restore_delivery(self, owed: OwedDelivery) -> None:
        """Add a delivery unless it is here, under its number unless another one has that."""
        message = (owed.message, owed.replay, owed.repository, owed.repo_url, owed.type, owed.sequence, owed.previous)
        self._db.run(sql.ADD_MESSAGE, (*message, owed.body))
        [(row,)] = self._db.rows(sql.NUMBER, (owed.message, owed.replay))
        if owed.signed is not None:
            self._db.run(sql.ADD_SIGNED, (row, owed.signed))
        times = (owed.mature_at, owed.created_at, owed.finished_at)
        columns = (
            row,
            owed.state.value,
            owed.attempt,
            *times,
            owed.status,
            owed.error,
            owed.subscription,
            owed.created_at,
        )
        if not self._db.run(sql.RESTORE_DELIVERY, (owed.number, *columns)).rowcount:
            self._db.run(sql.RESTORE_DELIVERY, (None, *columns))
        self._db.run(sql.MARK_RESTORED, (owed.due, row, owed.subscription))

    def queued(self) -> list[WaitingDelivery]:
        """Return what waits, in the order of its arrival, but nothing that is paused."""
        return [
            WaitingDelivery(mature_at, number, subscription, _list_orders(replay, *orders), attempt)
            for mature_at, number, subscription, attempt, replay, *orders in self._db.rows(sql.QUEUED)
        ]

    def count_paused(self) -> tuple[int, int]:
        """Count the deliveries that wait for paused subscriptions; return the newest too.

        It is 0 if there are none.
        """
        [(count, newest)] = self._db.rows(sql.COUNT_PAUSED)
        return int(count), int(newest)

    def outgoing(self, number: int) -> DeliveryAttempt | None:
        """Return what to send; None if that delivery no longer waits."""
        rows = self._db.rows(sql.REQUEST, (number,))
        names = [member.name for member in fields(DeliveryAttempt)]
        return DeliveryAttempt(**dict(zip(names, rows[0], strict=True))) if rows else None

    def find_numbers(self, subscription: str, message: str, replay: str) -> list[int]:
        """Return the deliveries of a message to subscriptions of this name, removed ones included."""
        return [int(number) for (number,) in self._db.rows(sql.NUMBERS, (message, replay, subscription))]

    def names(self, number: int) -> dict[str, str | int]:
        """Return a delivery's names for a log line; none if it was removed meanwhile."""
        for message, repository, sequence in self._db.rows(sql.NAMES, (number,)):
            return {"message": message, "repository": repository, "sequence": sequence, "event_id": event_of(message)}
        return {}

    def record(self, ended: Sequence[AttemptEnd], now: float) -> set[int]:
        """Record how these attempts ended, all or none.

        Returns the deliveries for which that was not recorded: an operator asked for a redelivery during the attempt, which failed.
        They wait as new.
        """
        passed_over = set()
        with self._db.writing():
            for each in ended:
                begun, what = each.begun, (each.status, each.error)
                as_begun = (begun.id, begun.attempt, begun.mature_at)
                final = (each.state.value, each.attempt, now, *what)
                match each.state:
                    case DeliveryState.QUEUED:
                        cursor = self._db.run(sql.LATER, (each.attempt, each.mature_at, *what, *as_begun))
                    case DeliveryState.DELIVERED:
                        cursor = self._db.run(sql.FINISH, (*final, begun.id))
                    case _:
                        cursor = self._db.run(sql.GIVE_UP, (*final, *as_begun))
                if not cursor.rowcount:
                    passed_over.add(begun.id)
                self._db.run(sql.ADD_ATTEMPT, (begun.id, now, each.duration, *what, each.answer))
        return passed_over

    def follow_clock(self, seconds: float, now: float) -> None:
        """Follow a clock that was set forward by so many seconds, or back if negative.

        Endpoints that fail have begun so much later, and deliveries have finished so much later, but not after `now`; if it was set
        back, every repeat begins so much earlier. All or nothing.
        """
        with self._db.writing():
            if seconds < 0:
                self._db.run(sql.SHIFT, (-seconds,))
            self._db.run(sql.SHIFT_FAILING, (seconds,))
            self._db.run(sql.SHIFT_FINISHED, (seconds, now))

    def bound_repeats(self, latest: float) -> None:
        """Let no repeat begin later than this."""
        self._db.run(sql.BOUND, (latest, latest))

    def redeliver(self, numbers: Sequence[int], *, who: str, now: float) -> list[int]:
        """Queue these deliveries again as new; return what was queued.

        Leaves out deliveries whose subscription is removed.
        """
        done = []
        with self._db.writing():
            for number in numbers:
                changed = (
                    self._db.run(sql.REQUEUE, (now, number)).rowcount
                    or self._db.run(sql.HASTEN, (now, number)).rowcount
                )
                if changed:
                    done.append(number)
                    self._db.run(sql.HISTORY, (now, f"delivery {number}", "redelivered", who))
        return done

    def newest(self, *, state: str | None = None, subscription: str | None = None, limit: int = 50) -> list[JsonObject]:
        """Return the newest deliveries, newest first, without bodies."""
        rows = self._db.rows(sql.LIST, (state, state, subscription, subscription, limit))
        return [{name: value for name, value in _as_json(row).items() if name != "body"} for row in rows]

    def show(self, number: int) -> JsonObject | None:
        """Return one delivery with its body and its newest `attempts`; None if there is none."""
        rows = self._db.rows(sql.SHOW, (number,))
        return {**_as_json(rows[0]), "attempts": self.list_attempts(number)} if rows else None

    def list_attempts(self, number: int, limit: int = sql.KEPT_ATTEMPTS) -> list[JsonObject]:
        """List the newest attempts of a delivery, newest first, as far as the database has them.

        `answer` of each is how the body of the answer began: untrusted text.
        """
        rows = self._db.rows(sql.ATTEMPTS, (number, limit))
        return [dict(zip(sql.ATTEMPT_COLUMNS, row, strict=True)) for row in rows]

    def last_error(self, subscription: int) -> str | None:
        """Return the newest error of a subscription's deliveries; None if none failed."""
        rows = self._db.rows(sql.LAST_ERROR, (subscription,))
        return str(rows[0][0]) if rows else None

    def list_late(self, before: float) -> list[LateDelivery]:
        """List of each subscription that is not paused its oldest delivery that failed and waits, if added before this time."""
        return [LateDelivery(*row) for row in self._db.rows(sql.LATE, (before,))]

    def last_given_up(self, subscription: int) -> float | None:
        """Return when a subscription's newest exhausted delivery ended; None if none did."""
        rows = self._db.rows(sql.LAST_GIVEN_UP, (subscription,))
        return float(rows[0][0]) if rows else None

    def count_states(self, messages: Iterable[str]) -> Counter[str]:
        """Count the kept deliveries of these messages by state; replays do not count."""
        found = Counter[str]()
        for message in messages:
            found.update(dict(self._db.rows(sql.STATES_OF, (message,))))
        return found

    def counts(self) -> dict[str, int]:
        return dict(self._db.rows(sql.COUNTS))

    def purge(self, *, delivered_before: float, failed_before: float) -> int:
        """Remove some deliveries that finished before these times; count what is gone.

        Messages without a delivery are removed, too. What the log has stays until the log has removed it.
        """
        with self._db.writing():
            self._db.run(sql.EXPIRE, (failed_before,))
            removed = self._db.run(sql.PURGE, (DeliveryState.DELIVERED.value, delivered_before)).rowcount
            removed += self._db.run(sql.PURGE, (DeliveryState.CANCELLED.value, failed_before)).rowcount
            removed += self._db.run(sql.PURGE_MESSAGES).rowcount
        return removed


def _list_orders(replay: str, *orders: str | None) -> tuple[str, ...]:
    """Return the queues that a delivery stands in; a replay has its own."""
    return tuple(dict.fromkeys(name + replay for name in orders if name is not None))


def _as_json(row: Sequence[Any]) -> JsonObject:
    content = dict(zip(sql.COLUMNS, row, strict=True))
    return {**content, "replay": content["replay"] or None, "body": json.loads(content["body"])}

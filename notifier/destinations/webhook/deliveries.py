# SPDX-License-Identifier: GPL-2.0-or-later
"""The table of webhook deliveries, and the subscriptions that they are for.

A row in `deliveries` is one message to one subscription, from the moment it is accepted until it is too old to be of interest.
Rows are on disk before the notifier's position moves. Enqueueing a message twice adds nothing, so a repeat after a crash is
harmless; an attempt is recorded after it ended, so a crash repeats it.
"""

import enum
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from hgext.vcsreplicator.words.streams import event_of

from ...clients.database import Database
from ...messages.message import Message, to_text
from . import statements as sql
from .fairness import WaitingDelivery
from .subscriptions import StoredSubscription, SubscriptionTable

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

    `begun` is the delivery as the attempt began. `state` is queued, with the next `attempt` and `mature_at`, or a final one.
    """

    begun: WaitingDelivery
    state: DeliveryState
    attempt: int
    mature_at: float
    status: int | None
    error: str | None


class Deliveries:
    """The database at `path`, made when missing; each thread opens its own.

    Opening it raises BadConfig or Unavailable; once it is open, methods raise Unavailable.
    """

    def __init__(self, path: str) -> None:
        self._db = Database(path, "database", sql.SCHEMA)
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
        for each in wanting:
            cursor = self._db.run(sql.ADD_DELIVERY, (number, now, now, each.id))
            if cursor.rowcount:
                assert cursor.lastrowid is not None
                yield WaitingDelivery(now, cursor.lastrowid, each.id, _list_orders(replay, *message.orders), 0)

    def read_reached(self) -> tuple[int, str | None] | None:
        """Return the position of which these rows are, and its mark; None if unknown."""
        rows = self._db.rows(sql.REACHED)
        return (int(rows[0][0]), rows[0][1]) if rows else None

    def record_reached(self, position: int, mark: str | None) -> None:
        """Record that all rows of notices before the position are here.

        A power cut may leave the record before.
        """
        self._db.run_unsynced(sql.RECORD_REACHED, (position, mark))

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
        """Return one delivery with its body; None if there is none."""
        rows = self._db.rows(sql.SHOW, (number,))
        return _as_json(rows[0]) if rows else None

    def last_error(self, subscription: int) -> str | None:
        """Return the newest error of a subscription's deliveries; None if none failed."""
        rows = self._db.rows(sql.LAST_ERROR, (subscription,))
        return str(rows[0][0]) if rows else None

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

        Messages without a delivery are removed, too.
        """
        with self._db.writing():
            removed = self._db.run(sql.PURGE, (DeliveryState.DELIVERED.value, delivered_before)).rowcount
            for state in (DeliveryState.EXHAUSTED, DeliveryState.CANCELLED):
                removed += self._db.run(sql.PURGE, (state.value, failed_before)).rowcount
            removed += self._db.run(sql.PURGE_MESSAGES).rowcount
        return removed


def _list_orders(replay: str, *orders: str | None) -> tuple[str, ...]:
    """Return the queues that a delivery stands in; a replay has its own."""
    return tuple(dict.fromkeys(name + replay for name in orders if name is not None))


def _as_json(row: Sequence[Any]) -> JsonObject:
    content = dict(zip(sql.COLUMNS, row, strict=True))
    return {**content, "replay": content["replay"] or None, "body": json.loads(content["body"])}

# SPDX-License-Identifier: GPL-2.0-or-later
"""The table of webhook deliveries, and the subscriptions that they are for.

A row in `deliveries` is one message to one subscription, from the moment it is accepted until it is too old to be of interest.
Rows are on disk before the notifier's position moves. Enqueueing a message twice adds nothing, so a repeat after a crash is
harmless; an attempt is recorded after it ended, so a crash repeats it.
"""

import enum
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hgext.vcsreplicator.words import shape
from hgext.vcsreplicator.words.errors import BadConfig, MalformedEvent, Unavailable

from ..database import open_database
from ..message import Message, to_text
from . import statements as sql
from .fairness import WaitingDelivery
from .subscription import Subscription

Json = dict[str, Any]


class DeliveryState(enum.StrEnum):
    """queued → delivered | exhausted (kept) | cancelled (subscription removed).

    Redelivery queues again, as long as the subscription exists.
    """

    QUEUED = "queued"
    DELIVERED = "delivered"
    EXHAUSTED = "exhausted"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSubscription:
    """A subscription as it stands in the table.

    `origin` is `file` (configuration) or `command`.
    """

    id: int
    name: str
    origin: str
    subscription: Subscription
    created_at: float
    paused_reason: str | None
    failing_since: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryAttempt:
    """What an attempt needs."""

    id: int
    subscription: int
    attempt: int
    message_id: str
    replay: str
    repository: str
    previous: str | None
    sequence: int
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How an attempt ended.

    `state` is queued, with the next `attempt` and `mature_at`, or a final one.
    """

    id: int
    state: DeliveryState
    attempt: int
    mature_at: float
    status: int | None
    error: str | None


class Deliveries:
    """The database at `path`, created when missing; each thread opens its own.

    Raises BadConfig or Unavailable; once open, Unavailable.
    """

    def __init__(self, path: str) -> None:
        self._db = open_database(path, "database", sql.SCHEMA)

    def close(self) -> None:
        """Free the database."""
        self._db.close()

    # -- subscriptions

    def subscriptions(self) -> list[StoredSubscription]:
        """Those that are not removed, in the order of their making."""
        return [
            StoredSubscription(
                id=number,
                name=name,
                origin=origin,
                subscription=_subscription(name, content),
                created_at=created_at,
                paused_reason=paused,
                failing_since=failing,
            )
            for number, name, origin, content, created_at, paused, failing in self._rows(sql.SUBSCRIPTIONS)
        ]

    def add(self, name: str, subscription: Subscription, *, origin: str, who: str, now: float) -> bool:
        """Add a subscription; False if one of this name exists."""
        if self._named(name) is not None:
            return False
        with self._writing():
            self._run(sql.ADD_SUBSCRIPTION, (name, origin, shape.to_json(subscription).decode(), now))
            self._run(sql.HISTORY, (now, name, "added", who))
        return True

    def remove(self, name: str, *, who: str, now: float) -> bool:
        """Remove a subscription and cancel what waits for it.

        Returns False if there is none of this name.
        """
        number = self._named(name)
        if number is None:
            return False
        with self._writing():
            self._run(sql.REMOVE_SUBSCRIPTION, (now, number))
            self._run(sql.CANCEL, (now, number))
            self._run(sql.HISTORY, (now, name, "removed", who))
        return True

    def follow_file(self, wanted: Mapping[str, Subscription], *, now: float) -> None:
        """Make the subscriptions of origin `file` those of the configuration."""
        known = {each.name: each for each in self.subscriptions()}
        for name, each in known.items():
            if each.origin == "file" and name not in wanted:
                self.remove(name, who="configuration", now=now)
        for name, subscription in wanted.items():
            existing = known.get(name)
            if existing is None:
                self.add(name, subscription, origin="file", who="configuration", now=now)
            elif existing.origin != "file":
                raise BadConfig(f"subscriptions.{name}: exists already, added by a command; remove one of them")
            elif existing.subscription != subscription:
                with self._writing():
                    self._run(sql.CHANGE_SUBSCRIPTION, (shape.to_json(subscription).decode(), existing.id))
                    self._run(sql.HISTORY, (now, name, "changed", "configuration"))

    def pause(self, name: str, reason: str | None, *, who: str, now: float) -> bool:
        """Pause a subscription with a reason, or resume it (None).

        Returns False if there is none of this name.
        """
        number = self._named(name)
        if number is None:
            return False
        with self._writing():
            self._run(sql.PAUSE, (reason, number))
            if reason is None:
                self._run(sql.FAILING, (None, number))
            self._run(sql.HISTORY, (now, name, f"paused: {reason}" if reason else "resumed", who))
        return True

    def failing(self, subscription: int, since: float | None) -> None:
        """Record since when an endpoint fails; None: it does not."""
        self._run(sql.FAILING, (since, subscription))

    def note(self, name: str, what: str, *, now: float) -> None:
        """Add a line of the notifier to the history of a subscription."""
        self._run(sql.HISTORY, (now, name, what, "vcsreplicator"))

    def history(self, limit: int) -> list[tuple[float, str, str, str]]:
        """(time, subscription, what, who), newest first."""
        return self._rows(sql.READ_HISTORY, (limit,))

    def last_change(self) -> int:
        """Return a number that grows with every change by an operator.

        That is, of subscriptions, pauses and redeliveries.
        """
        [(number,)] = self._rows(sql.LAST_HISTORY)
        return int(number)

    # -- deliveries

    def enqueue(
        self, wanted: Sequence[tuple[Message, Sequence[StoredSubscription]]], now: float
    ) -> list[WaitingDelivery]:
        """Add rows for each message and its subscriptions, all or none.

        Subscriptions that were removed meanwhile get none. Returns the new rows, durable on return.
        """
        items: list[WaitingDelivery] = []
        with self._writing():
            for message, wanting in wanted:
                if wanting:
                    items += self._enqueue(message, wanting, now)
        return items

    def _enqueue(
        self, message: Message, wanting: Iterable[StoredSubscription], now: float
    ) -> Iterator[WaitingDelivery]:
        replay = message.replay or ""
        columns = (message.id, replay, message.repository, message.repo_url, message.type.value)
        self._run(sql.ADD_MESSAGE, (*columns, message.sequence, message.previous, to_text(message.envelope)))
        [(number,)] = self._rows(sql.NUMBER, (message.id, replay))
        for each in wanting:
            cursor = self._run(sql.ADD_DELIVERY, (number, now, now, each.id))
            if cursor.rowcount:
                assert cursor.lastrowid is not None
                yield WaitingDelivery(now, cursor.lastrowid, each.id, _orders(replay, *message.orders), 0)

    def queued(self) -> list[WaitingDelivery]:
        """Return everything that waits, in the order of its arrival."""
        return [
            WaitingDelivery(mature_at, number, subscription, _orders(replay, *orders), attempt)
            for mature_at, number, subscription, attempt, replay, *orders in self._rows(sql.QUEUED)
        ]

    def outgoing(self, number: int) -> DeliveryAttempt | None:
        """Return what to send, if that delivery still waits."""
        rows = self._rows(sql.REQUEST, (number,))
        if not rows:
            return None
        number, subscription, attempt, message_id, replay, repository, previous, sequence, body = rows[0]
        return DeliveryAttempt(
            id=number,
            subscription=subscription,
            attempt=attempt,
            message_id=message_id,
            replay=replay,
            repository=repository,
            previous=previous,
            sequence=sequence,
            body=body,
        )

    def record(self, ended: Sequence[Ended], now: float) -> None:
        """Record how these attempts ended, all or none."""
        with self._writing():
            for each in ended:
                if each.state is DeliveryState.QUEUED:
                    self._run(sql.LATER, (each.attempt, each.mature_at, each.status, each.error, each.id))
                else:
                    self._run(sql.FINISH, (each.state.value, each.attempt, now, each.status, each.error, each.id))

    def redeliver(self, numbers: Sequence[int], *, who: str, now: float) -> int:
        """Queue these again as new, whichever state they are in.

        Returns how many there were, less those whose subscription is removed.
        """
        done = 0
        with self._writing():
            for number in numbers:
                changed = (
                    self._run(sql.REQUEUE, (now, number)).rowcount or self._run(sql.HASTEN, (now, number)).rowcount
                )
                done += changed
                if changed:
                    self._run(sql.HISTORY, (now, f"delivery {number}", "redelivered", who))
        return done

    def newest(self, *, state: str | None = None, subscription: str | None = None, limit: int = 50) -> list[Json]:
        """Newest first, without bodies."""
        rows = self._rows(sql.LIST, (state, state, subscription, subscription, limit))
        return [{name: value for name, value in _as_json(row).items() if name != "body"} for row in rows]

    def show(self, number: int) -> Json | None:
        """Return one delivery with its body."""
        rows = self._rows(sql.SHOW, (number,))
        return _as_json(rows[0]) if rows else None

    def counts(self) -> dict[str, int]:
        """Return the number of deliveries by state."""
        return dict(self._rows(sql.COUNTS))

    def purge(self, *, delivered_before: float, failed_before: float) -> int:
        """Remove some of the oldest finished deliveries; return how many."""
        with self._writing():
            removed = self._run(sql.PURGE, (DeliveryState.DELIVERED.value, delivered_before)).rowcount
            for state in (DeliveryState.EXHAUSTED, DeliveryState.CANCELLED):
                removed += self._run(sql.PURGE, (state.value, failed_before)).rowcount
            self._run(sql.PURGE_MESSAGES)
        return removed

    # -- the connection

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._run("BEGIN IMMEDIATE")
        try:
            yield
            self._run("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.rollback()
            raise

    def _named(self, name: str) -> int | None:
        """Return a subscription's number, even if this release cannot read it."""
        rows = self._rows(sql.NAMED, (name,))
        return int(rows[0][0]) if rows else None

    def _rows(self, statement: str, arguments: Sequence[Any] = ()) -> list[Any]:
        try:
            return self._db.execute(statement, arguments).fetchall()
        except sqlite3.Error as error:
            raise Unavailable(f"deliveries: {error}") from error

    def _run(self, statement: str, arguments: Sequence[Any] = ()) -> sqlite3.Cursor:
        try:
            return self._db.execute(statement, arguments)
        except sqlite3.Error as error:
            raise Unavailable(f"deliveries: {error}") from error


def _orders(replay: str, *orders: str | None) -> tuple[str, ...]:
    """Return the queues that a delivery stands in; a replay has its own."""
    return tuple(dict.fromkeys(name + replay for name in orders if name is not None))


def _subscription(name: str, content: str) -> Subscription:
    try:
        return shape.from_json(Subscription, content.encode())
    except MalformedEvent as error:  # of another release; no message is wrong because of it
        raise Unavailable(f"subscription {name}: {error}; remove it and add it again") from error


def _as_json(row: Sequence[Any]) -> Json:
    content = dict(zip(sql.COLUMNS, row, strict=True))
    return {**content, "replay": content["replay"] or None, "body": json.loads(content["body"])}

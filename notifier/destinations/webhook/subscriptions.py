# SPDX-License-Identifier: GPL-2.0-or-later
"""The stored subscriptions of a webhook destination, and their history."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from hgext.vcsreplicator.words import shape
from hgext.vcsreplicator.words.errors import BadConfig, MalformedEvent
from hgext.vcsreplicator.words.shape import Time, extensible

from ...clients.database import Database
from . import statements as sql
from .subscription import Subscription


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSubscription:
    """A stored subscription; `origin` is `file` (configuration) or `command`."""

    id: int
    name: str
    origin: str
    subscription: Subscription
    created_at: float
    paused_reason: str | None
    failing_since: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableSubscription:
    """A stored subscription of another release, or of another writer of the log; nothing is sent for it."""

    id: int
    name: str
    origin: str
    created_at: float
    reason: str


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionRecord:
    """A subscription. Topic `notifier`, key `subscription/DESTINATION/NAME`; `content` is its JSON."""

    origin: str
    content: str
    created_at: Time
    paused_reason: str | None = None
    failing_since: Time | None = None

    def names_foreign_secret(self) -> bool:
        """Return whether the subscription, as the log has it, names a secret as only the configuration may.

        That is a program, or a variable of the notifier's environment, with which requests would be signed. The configuration
        replaces a subscription of its own at each start, before anything is sent.
        """
        found = shape.try_json(Subscription, self.content.encode())
        return self.origin != "file" and found is not None and found.is_from_elsewhere


class SubscriptionTable:
    """The subscriptions in the database of deliveries; methods raise Unavailable."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def all(self) -> list[StoredSubscription]:
        """Return the subscriptions that can be read and are not removed, in the order of their making."""
        return [each for each in self._read() if isinstance(each, StoredSubscription)]

    def list_unreadable(self) -> list[UnreadableSubscription]:
        """Return the subscriptions that cannot be read and are not removed."""
        return [each for each in self._read() if isinstance(each, UnreadableSubscription)]

    def _read(self) -> Iterator[StoredSubscription | UnreadableSubscription]:
        for values in self._db.rows(sql.SUBSCRIPTIONS):
            row = dict(zip(sql.SUBSCRIPTION_COLUMNS, values, strict=True))
            try:
                row["subscription"] = shape.from_json(Subscription, row["subscription"].encode())
            except MalformedEvent as error:
                known = {name: row[name] for name in ("id", "name", "origin", "created_at")}
                yield UnreadableSubscription(**known, reason=str(error))
            else:
                yield StoredSubscription(**row)

    def records(self) -> dict[str, SubscriptionRecord]:
        """Return for the log those that are not removed, by name, also what cannot be read."""
        names = [member.name for member in fields(SubscriptionRecord)]
        return {
            name: SubscriptionRecord(**dict(zip(names, columns, strict=True)))
            for _, name, *columns in self._db.rows(sql.SUBSCRIPTIONS)
        }

    def read_mark(self) -> tuple[object, ...]:
        """Return a value that differs once what `records` returns does; costs what fails, not what exists."""
        return self.last_change(), *self._db.rows(sql.FAILING_ONES)

    def restore(self, name: str, record: SubscriptionRecord) -> None:
        """Add a subscription as the log has it, within `writing`."""
        self._db.run(sql.RESTORE_SUBSCRIPTION, (name, *(getattr(record, each.name) for each in fields(record))))

    def add(self, name: str, subscription: Subscription, *, origin: str, who: str, now: float) -> bool:
        """Add a subscription; return False if one of this name exists."""
        if self._find_number(name) is not None:
            return False
        with self._db.writing():
            self._db.run(sql.ADD_SUBSCRIPTION, (name, origin, shape.to_json(subscription).decode(), now))
            self._db.run(sql.HISTORY, (now, name, "added", who))
        return True

    def remove(self, name: str, *, who: str, now: float) -> bool:
        """Remove a subscription and cancel what waits for it; False if there is none."""
        number = self._find_number(name)
        if number is None:
            return False
        with self._db.writing():
            self._db.run(sql.REMOVE_SUBSCRIPTION, (now, number))
            self._db.run(sql.CANCEL, (now, number))
            self._db.run(sql.HISTORY, (now, name, "removed", who))
        return True

    def follow_file(self, wanted: Mapping[str, Subscription], *, now: float) -> None:
        """Bring the subscriptions of origin `file` in line with the configuration.

        Raises BadConfig if a command added a subscription of the same name.
        """
        known = {each.name: each for each in self._read()}
        for name, each in known.items():
            if each.origin == "file" and name not in wanted:
                self.remove(name, who="configuration", now=now)
        for name, subscription in wanted.items():
            existing = known.get(name)
            if existing is None:
                self.add(name, subscription, origin="file", who="configuration", now=now)
            elif existing.origin != "file":
                wrong = "exists already, added by a command; remove one of them"
                raise BadConfig(f"subscriptions.{name}: {wrong}: vcsreplicator subscription remove {name} --yes")
            elif isinstance(existing, UnreadableSubscription) or existing.subscription != subscription:
                self.change(existing, subscription, "changed", who="configuration", now=now)

    def change(
        self,
        stored: StoredSubscription | UnreadableSubscription,
        wanted: Subscription,
        what: str,
        *,
        who: str,
        now: float,
    ) -> None:
        """Put another subscription in the place of a stored one; what waits for it stays."""
        with self._db.writing():
            self._db.run(sql.CHANGE_SUBSCRIPTION, (shape.to_json(wanted).decode(), stored.id))
            self._db.run(sql.HISTORY, (now, stored.name, what, who))

    def pause(self, name: str, reason: str | None, *, who: str, now: float) -> bool:
        """Pause with a reason, or resume (None); return False if none has this name."""
        number = self._find_number(name)
        if number is None:
            return False
        with self._db.writing():
            self._db.run(sql.PAUSE, (reason, number))
            if reason is None:
                self._db.run(sql.FAILING, (None, number))
            self._db.run(sql.HISTORY, (now, name, f"paused: {reason}" if reason else "resumed", who))
        return True

    def last_pause(self, name: str) -> float | None:
        """Return when a subscription was last paused, None if never."""
        rows = self._db.rows(sql.LAST_PAUSE, (name,))
        return float(rows[0][0]) if rows else None

    def failing(self, subscription: int, since: float | None) -> None:
        """Record since when an endpoint fails; None: it does not."""
        self._db.run(sql.FAILING, (since, subscription))

    def add_history(self, name: str, what: str, *, now: float) -> None:
        """Add a line of the notifier to the history of a subscription."""
        self._db.run(sql.HISTORY, (now, name, what, "vcsreplicator"))

    def history(self, limit: int) -> list[tuple[float, str, str, str]]:
        """Return (time, subscription, what, who), newest first."""
        return self._db.rows(sql.READ_HISTORY, (limit,))

    def last_change(self) -> int:
        """Return a number that grows with every line of the history.

        Every change of subscriptions, pauses and redeliveries adds a line.
        """
        [(number,)] = self._db.rows(sql.LAST_HISTORY)
        return int(number)

    def _find_number(self, name: str) -> int | None:
        """Return a subscription's number, even if this release cannot read it."""
        rows = self._db.rows(sql.NAMED, (name,))
        return int(rows[0][0]) if rows else None

# SPDX-License-Identifier: GPL-2.0-or-later
"""The messages of repositories that fail or are slow, parked in the database.

Parked messages do not fill `prefetch`. The worker first parks a message and then acknowledges it. A worker that is killed between
the two parks it twice, and recording it twice is harmless. All taken messages of a repository are parked together, in order; newer
ones queue behind them.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

from prometheus_client import Gauge
from sqlalchemy import ColumnElement, RowMapping, delete, func, insert, select, update

from hgext.vcsreplicator.words.errors import MalformedEvent

from ...messages.pushes import LARGEST, TYPE, HgPushMessage, from_body
from .backlog import RepositoryName, TakenMessage
from .database import RepositoryKey, WorkDatabase, kept_text
from .schema import PARKED_MESSAGES

MESSAGES = Gauge("vcsreplicator_work_parked_messages", "Messages in the database that wait for the next attempt")
BYTES = Gauge("vcsreplicator_work_parked_bytes", "Bytes of these messages")

_COLUMNS = PARKED_MESSAGES.c


class ParkedMessages:
    """The table of parked messages; used by one thread.

    It holds `limit` bytes at most, if callers ask `has_room` before `add`. Every call may raise Unavailable or BadConfig.
    """

    def __init__(self, database: WorkDatabase, limit: int) -> None:
        self._database, self._limit = database, limit
        self._messages = self._bytes = 0
        self.may_have_dead = True

    def load(self) -> set[RepositoryName]:
        """Return the repositories whose parked messages wait for an attempt.

        The call also counts all parked messages, those for the dead-letter queue too.
        """
        totals = select(func.count(), func.coalesce(func.sum(func.length(_COLUMNS.body)), 0))
        repositories = select(_COLUMNS.source, _COLUMNS.number).where(_COLUMNS.error.is_(None)).distinct()
        with self._database.reading() as connection:
            messages, size = connection.execute(totals).one()
            found = {(row.source, row.number) for row in connection.execute(repositories)}
        self._messages = self._bytes = 0
        self.may_have_dead = True
        self._count(messages, int(size))
        return found

    def has_room(self, messages: Iterable[TakenMessage]) -> bool:
        """Return whether these fit under the limit."""
        return self._bytes + _sum_sizes(messages) <= self._limit

    def add(self, messages: Sequence[TakenMessage], now: int) -> list[TakenMessage]:
        """Park these messages behind those in the table; durable on return.

        Returns the messages as they are parked, with their rows.
        """
        rows = [
            {
                "source": each.repository.source,
                "number": each.repository.number,
                "url": each.repository.url,
                "body": each.body,
                "parked_at": now,
            }
            for each in messages
        ]
        with self._database.writing() as connection:
            ids = [connection.execute(insert(PARKED_MESSAGES), row).inserted_primary_key for row in rows]
        self._count(len(messages), _sum_sizes(messages))
        return [
            dataclasses.replace(each, tag=0, row=key[0] if key else None)
            for each, key in zip(messages, ids, strict=True)
        ]

    def read(self, name: RepositoryName, most: int) -> list[TakenMessage]:
        """Return the first messages of a repository, without dead ones.

        They have `LARGEST` bytes together, unless the first has more.
        """
        source, number = name
        mine = (_COLUMNS.source == source, _COLUMNS.number == number, _COLUMNS.error.is_(None))
        while rows := self._select(self._count_fitting(most, *mine), *mine):
            found = []
            for row in rows:
                try:
                    found.append(_read_row(row, from_body(bytes(row["body"]))))
                except MalformedEvent as error:  # another version parked it
                    self.bury(row["id"], str(error))
            if found:
                return found
        return []

    def bury(self, row: int, reason: str) -> None:
        """Mark a message for the dead-letter queue; durable on return."""
        with self._database.writing() as connection:
            marked = update(PARKED_MESSAGES).where(_COLUMNS.id == row)
            connection.execute(marked.values(error=kept_text(reason)))
        self.may_have_dead = True

    def read_dead(self, most: int) -> list[tuple[TakenMessage, str]]:
        """Return the first messages for the dead-letter queue, and the reasons.

        The messages are without their pushes.
        """
        rows = self._select(most, _COLUMNS.error.is_not(None))
        self.may_have_dead = bool(rows)
        return [
            (_read_row(row, HgPushMessage(type=TYPE, repository_id=row["number"], pushes=())), row["error"])
            for row in rows
        ]

    def remove(self, messages: Sequence[TakenMessage]) -> None:
        with self._database.writing() as connection:
            connection.execute(delete(PARKED_MESSAGES).where(_COLUMNS.id.in_([each.row for each in messages])))
        self._count(-len(messages), -_sum_sizes(messages))

    def _count_fitting(self, most: int, *conditions: ColumnElement[bool]) -> int:
        """Return how many of the first messages fit into memory."""
        question = select(func.length(_COLUMNS.body)).where(*conditions).order_by(_COLUMNS.id).limit(most)
        with self._database.reading() as connection:
            sizes = connection.scalars(question).all()
        fitting = [total for total in itertools.accumulate(sizes) if total <= LARGEST]
        return max(1, len(fitting))

    def _select(self, most: int, *conditions: ColumnElement[bool]) -> Sequence[RowMapping]:
        question = select(PARKED_MESSAGES).where(*conditions).order_by(_COLUMNS.id).limit(most)
        with self._database.reading() as connection:
            return connection.execute(question).mappings().all()

    def _count(self, messages: int, size: int) -> None:
        self._messages += messages
        self._bytes += size
        MESSAGES.set(self._messages)
        BYTES.set(self._bytes)


def _read_row(row: RowMapping, message: HgPushMessage) -> TakenMessage:
    repository = RepositoryKey(source=row["source"], number=row["number"], url=row["url"])
    return TakenMessage(row=row["id"], body=bytes(row["body"]), repository=repository, message=message)


def _sum_sizes(messages: Iterable[TakenMessage]) -> int:
    return sum(len(each.body) for each in messages)

# SPDX-License-Identifier: GPL-2.0-or-later
"""Appends and acknowledges in one transaction of the embedded log."""

from collections.abc import Callable, Mapping, Sequence

from ...words.errors import Fenced, Unavailable
from .. import NewRecord, PartitionKey
from . import statements as sql
from .connection import Connection


class SqliteTransactor:
    """A transactor fenced by its epoch.

    Each commit compares the epoch with the newest of its identity, inside the same transaction. A log that was restored from a
    copy may know only older ones: `renew` writes this epoch again, so of two such transactors the newer one goes on.
    """

    def __init__(self, commit: Callable[..., list[tuple[int, int]]], identity: str, epoch: int) -> None:
        self._commit, self._identity, self._epoch = commit, identity, epoch

    def commit(
        self,
        messages: Sequence[NewRecord],
        *,
        group: str | None = None,
        positions: Mapping[PartitionKey, int] | None = None,
        metadata: Mapping[PartitionKey, str] | None = None,
        newest: Mapping[PartitionKey, int] | None = None,
    ) -> list[tuple[int, int]]:
        return self._commit(messages, group, positions or {}, self._fence, newest=newest or {})

    def expect(self, topics: Sequence[str]) -> None:
        pass

    def renew(self) -> None:
        self._commit((), None, {}, self._become_newest)

    def close(self) -> None:
        pass

    def _become_newest(self, connection: Connection) -> None:
        self._refuse_newer(connection)
        connection.run(sql.SET_EPOCH, self._identity, self._epoch)

    def _fence(self, connection: Connection) -> None:
        newest = self._refuse_newer(connection)
        if newest < self._epoch:
            raise Unavailable(f"{self._identity}: the log was restored from a copy (epoch {newest}); renew it")

    def _refuse_newer(self, connection: Connection) -> int:
        """Return this identity's newest epoch in the log; raise Fenced if ours is older."""
        newest = max((int(epoch) for (epoch,) in connection.rows(sql.EPOCH, self._identity)), default=0)
        if newest > self._epoch:
            raise Fenced(f"{self._identity}: a newer instance took over (epoch {newest}, this one has {self._epoch})")
        return newest

# SPDX-License-Identifier: GPL-2.0-or-later
"""The attribute ``pushlog`` of a local repository, for other extensions.

Programs that were written for hg.mozilla.org's pushlog call it, with these names and shapes. Ours use `pushlog.api`.

Rules of this module:

1. All views of a repository give the answers of the unfiltered one, hidden and secret changesets included.
2. Users and nodes are bytes, as in Mercurial's interfaces: a user as ``{pushuser}`` shows it, a node as 40 hex digits. An
  argument may be text, too; a changeset may be a node of 20 bytes, or any other identifier.
3. Reading creates nothing. Every reader raises Abort with one line if the pushlog cannot be read.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from mercurial import encoding, error, scmutil
from mercurial.context import changectx
from mercurial.localrepo import localrepository
from mercurial.node import hex
from mercurial.transaction import transaction as Transaction

from .limit import web_limit
from .pushed import local
from .store import database, entry
from .store.session import session_of
from .store.storage import Pushlog

# Pushes that are read at once.
_BATCH = 100
# The attribute of an unfiltered repository that has the pushes of `cache_data_for_nodes`.
_CACHED = "_pushlog_of_nodes"

Changeset = bytes | str
# A condition on pushes in SQL, and its values.
_SqlCondition = tuple[str, list[int | str]]


class RecordedPush(NamedTuple):
    """A push: its time in epoch seconds, its nodes in the order of revisions."""

    pushid: int
    user: bytes
    when: int
    nodes: list[bytes]


class _End(NamedTuple):
    """One end of a window of pushes; a number and a time with whether they are out."""

    side: str
    number: tuple[int | None, bool]
    time: tuple[float | None, bool]
    node: Changeset | None


class RepositoryPushlog:
    """The pushes of one repository, as other extensions ask for them.

    Keeps nothing open.
    """

    def __init__(self, repo: localrepository) -> None:
        self._repo = repo.unfiltered()
        self._log = Pushlog(repo)

    def lastpushid(self) -> int:
        """Return the newest id, 0 without a pushlog."""
        with self._log.reading() as connection:
            return database.last_id(connection)

    def last_push_id_replicated(self) -> int:
        """Return the newest id that clients may see; `lastpushid` without a limit."""
        limit = web_limit(self._repo)
        return self.lastpushid() if limit is None else max(0, min(limit, self.lastpushid()))

    def push_count(self) -> int:
        """Return the number of pushes, those that lost their changesets included."""
        with self._log.reading() as connection:
            return database.count(connection)

    def pushfromnode(self, node: bytes) -> RecordedPush | None:
        """Return the push of a changeset, given as 20 bytes; None if it has none."""
        cached = getattr(self._repo, _CACHED, {})
        if node in cached:
            push: RecordedPush | None = cached[node]
            return push
        return self._find_pushes([node])[node]

    def pushfromchangeset(self, ctx: changectx) -> RecordedPush | None:
        """Return the push of a changeset; None if it has none."""
        return self.pushfromnode(ctx.node())

    @contextlib.contextmanager
    def cache_data_for_nodes(self, nodes: Iterable[bytes]) -> Iterator[None]:
        """Have `pushfromnode` answer for these nodes without a query, within the block.

        The answers are as of the block's beginning.
        """
        before = getattr(self._repo, _CACHED, {})
        setattr(self._repo, _CACHED, {**before, **self._find_pushes(nodes)})
        try:
            yield
        finally:
            setattr(self._repo, _CACHED, before)

    def pushes(
        self,
        *,
        start_id: int | None = None,
        start_id_exclusive: bool = False,
        end_id: int | None = None,
        end_id_exclusive: bool = False,
        start_time: float | None = None,
        start_time_exclusive: bool = False,
        end_time: float | None = None,
        end_time_exclusive: bool = False,
        start_node: Changeset | None = None,
        start_node_exclusive: bool = False,
        end_node: Changeset | None = None,
        end_node_exclusive: bool = False,
        reverse: bool = False,
        limit: int | None = None,
        offset: int | None = None,
        users: Iterable[bytes | str] | None = None,
        nodes: Iterable[Changeset] | None = None,
        branch: bytes | str | None = None,
        only_replicated: bool = False,
    ) -> Iterator[RecordedPush]:
        """Return a generator of the pushes that meet every condition, oldest first.

        With ``branch`` a push has only its changesets there, and is left out without any. ``limit`` and ``offset`` count the pushes
        that meet the conditions. Before its first push the generator asks nothing; then it has the ids of that moment, and reads
        each push when its turn comes.

        Raises ValueError for an id and a node as one bound. The generator raises RepoLookupError for an unknown changeset, and for
        an ``end_node`` that was never pushed; a ``start_node`` that was never pushed is before all pushes.
        """
        start = _End(">", (start_id, start_id_exclusive), (start_time, start_time_exclusive), start_node)
        end = _End("<", (end_id, end_id_exclusive), (end_time, end_time_exclusive), end_node)
        for name, one in (("start", start), ("end", end)):
            if one.number[0] is not None and one.node is not None:
                raise ValueError(f"{name}_id and {name}_node are one bound: give one of them")
        conditions = itertools.chain(
            self._find_bounds(start, is_node_exclusive=start_node_exclusive),
            self._find_bounds(end, is_node_exclusive=end_node_exclusive),
            self._find_members(users, nodes, only_replicated=only_replicated),
        )
        part = slice(offset or 0, None if limit is None else (offset or 0) + max(0, limit))
        return self._yield_pushes(conditions, _to_bytes(branch or b""), part, is_reversed=reverse)

    def recordpushes(
        self, pushes: Iterable[tuple[int | None, bytes | str, int, Iterable[Changeset]]], tr: Transaction
    ) -> None:
        """Record pushes (id, user, epoch seconds, changesets) within ``tr``.

        They commit with the transaction or not at all. An id of None is the next one; a push that is recorded already is a no-op.
        Nothing is recorded of a push that raises: Abort with one line if its id or a changeset of it is in another push,
        RepoLookupError if a changeset is not in the repository. Raises ProgrammingError if ``tr`` is not the running transaction.
        """
        if tr is None or tr is not self._repo.currenttransaction():
            raise error.ProgrammingError(b"recordpushes records in the running transaction")
        try:
            session = session_of(self._log, tr)
            for number, user, when, changesets in pushes:
                push = entry.Push(
                    id=database.next_id(session.connection) if number is None else number,
                    user=_to_text(user),
                    date=int(when),
                    nodes=tuple(self._find_node(changeset) for changeset in changesets),
                )
                if session.recorded(push.id) == push:
                    continue
                _refuse_contradiction(session.connection, push)
                session.take(push)
        except (sqlite3.Error, OverflowError) as problem:
            raise error.Abort(b"cannot record pushes: %s" % str(problem).encode()) from problem

    def _find_pushes(self, nodes: Iterable[bytes]) -> dict[bytes, RecordedPush | None]:
        """Return the push of each node, one value for all nodes of a push."""
        with self._log.reading() as connection:
            ids = {node: database.push_id_of(connection, hex(node).decode("ascii")) for node in nodes}
            found = {
                push.id: _to_row(push)
                for batch in _split_batches(sorted({number for number in ids.values() if number is not None}))
                for push in database.pushes_with(connection, batch)
            }
        return {node: None if number is None else found.get(number) for node, number in ids.items()}

    def _find_bounds(self, end: _End, *, is_node_exclusive: bool) -> Iterator[_SqlCondition]:
        yield from _limit_column("id", end.side, *end.number)
        yield from _limit_column("date", end.side, *end.time)
        if end.node is not None:
            number = self._find_bound(end.node, default=0 if end.side == ">" else None)
            yield from _limit_column("id", end.side, number, is_node_exclusive)

    def _find_members(
        self, users: Iterable[bytes | str] | None, nodes: Iterable[Changeset] | None, *, only_replicated: bool
    ) -> Iterator[_SqlCondition]:
        """Yield the conditions that are no bounds of the caller; an empty list is none."""
        if only_replicated:
            yield "id <= ?", [self.last_push_id_replicated()]
        if names := [_to_text(user) for user in users or ()]:
            yield _one_of("user", names)
        if ids := {self._find_bound(node, default=0) for node in nodes or ()}:
            yield _one_of("id", sorted(ids))

    def _yield_pushes(
        self, conditions: Iterable[_SqlCondition], branch: bytes, part: slice, *, is_reversed: bool
    ) -> Iterator[RecordedPush]:
        ids = self._read_ids(conditions, slice(0, None) if branch else part, is_reversed=is_reversed)
        found = self._read_each(ids)
        if branch:
            found = itertools.islice(self._select_on_branch(found, branch), part.start, part.stop)
        yield from map(_to_row, found)

    def _read_ids(self, conditions: Iterable[_SqlCondition], part: slice, *, is_reversed: bool) -> array[int]:
        where, values = ["1"], []
        for condition, its_values in conditions:
            where.append(condition)
            values += its_values
        # The "+" has an index of date or user used, if the conditions have either.
        order = "+id" if any(condition.startswith(("date", "user")) for condition in where) else "id"
        sql = f"SELECT id FROM pushlog WHERE {' AND '.join(where)} ORDER BY {order} {'DESC' if is_reversed else 'ASC'}"
        most = -1 if part.stop is None else part.stop - part.start
        with self._log.reading() as connection:
            rows = connection.execute(f"{sql} LIMIT ? OFFSET ?", (*values, most, part.start))
            return array("q", (number for (number,) in rows))

    def _read_each(self, ids: array[int]) -> Iterator[entry.Push]:
        """Yield the pushes with these ids, but for vanished ones."""
        for batch in _split_batches(ids):
            with self._log.reading() as connection:
                pushes = database.pushes_with(connection, batch)
            yield from pushes

    def _select_on_branch(self, pushes: Iterable[entry.Push], branch: bytes) -> Iterator[entry.Push]:
        branch_of = self._repo.revbranchcache().branchinfo
        for push in pushes:
            revisions = ((node, self._log.revision_of(node)) for node in push.nodes)
            there = [node for node, rev in revisions if rev is not None and branch_of(rev)[0] == branch]
            if there:
                yield push.with_nodes(there)

    def _find_bound(self, changeset: Changeset, *, default: int | None = None) -> int:
        """Return the id of a changeset's push, the default if it was never pushed."""
        node = self._find_node(changeset)
        with self._log.reading() as connection:
            number = database.push_id_of(connection, node)
        if number is None and default is None:
            raise error.RepoLookupError(b"changeset %s was never pushed" % node[:12].encode())
        return (default or 0) if number is None else number

    def _find_node(self, changeset: Changeset) -> str:
        """Return the 40 hex digits of a changeset; raises RepoLookupError."""
        if isinstance(changeset, str) or len(changeset) != 20:
            return str(scmutil.revsymbol(self._repo, _to_bytes(changeset)).hex().decode("ascii"))
        node = str(hex(changeset).decode("ascii"))
        if self._log.revision_of(node) is None:
            raise error.RepoLookupError(b"unknown revision '%s'" % node.encode())
        return node


def _refuse_contradiction(connection: sqlite3.Connection, push: entry.Push) -> None:
    """Abort if the id, or a changeset, of a push is in another one."""
    if push.id < 1:
        raise error.Abort(b"pushlog: not the id of a push: %d" % push.id)
    if database.push(connection, push.id) is not None:
        raise error.Abort(b"pushlog: push %d is recorded as another push already" % push.id)
    for node in push.nodes:
        if (other := database.push_id_of(connection, node)) is not None:
            raise error.Abort(b"pushlog: changeset %s of push %d is in push %d" % (node[:12].encode(), push.id, other))


def _limit_column(column: str, side: str, value: float | None, is_exclusive: bool) -> Iterator[_SqlCondition]:
    """Yield the condition of a bound, if there is one; SQLite takes no larger number."""
    if value is not None:
        within: Any = max(-database.LARGEST, min(value, database.LARGEST))
        yield f"{column} {side}{'' if is_exclusive else '='} ?", [within]


def _one_of(column: str, values: list[Any]) -> _SqlCondition:
    return f"{column} IN ({', '.join('?' * len(values))})", values


def _split_batches(ids: Iterable[int]) -> Iterator[list[int]]:
    rest = iter(ids)
    while batch := list(itertools.islice(rest, _BATCH)):
        yield batch


def _to_bytes(text: bytes | str) -> bytes:
    return local(text) if isinstance(text, str) else text


def _to_text(user: bytes | str) -> str:
    return user if isinstance(user, str) else encoding.fromlocal(user).decode("utf-8", "replace")


def _to_row(push: entry.Push) -> RecordedPush:
    return RecordedPush(push.id, local(push.user), push.date, [node.encode("ascii") for node in push.nodes])

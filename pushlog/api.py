# SPDX-License-Identifier: GPL-2.0-or-later
"""The functions that other extensions may call.

Reach them as ``extensions.find(b'pushlog').api``.

Another extension may limit what web pages and wire commands show, by giving the unfiltered repository attributes that are
functions without arguments:

- ``_pushlog_limit`` returns the last visible push id, or None for no limit, as of when the repository object was opened.
- ``_pushlog_served`` returns the same as of now.
- ``_pushlog_view`` returns the name of the repository view of all changesets that may be shown, hidden ones too. A
  method of the repository's class gets the view of the request.

An extension that syncs what a transaction writes calls `store.disk.request_sync`: then ``pushlog2.db`` is synced, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from mercurial import error
from mercurial.localrepo import localrepository
from mercurial.transaction import transaction as Transaction

from .store import database, entry
from .store.connections import sqlite3
from .store.session import running_session, session_of
from .store.storage import Pushlog


def entry_of_transaction(repo: localrepository) -> tuple[int, bytes, int, list[bytes]] | None:
    """Return the row of the push that the running transaction records.

    It is None if the transaction is not a push.

    The row is (push id, user, date, nodes as 40 hex digits).
    """
    session = running_session(Pushlog(repo))
    return None if session is None or session.push is None else _to_row(session.push)


def has_fetched(repo: localrepository) -> bool:
    """Return whether the running transaction records pushes of another server.

    A pull or a clone brings them; the push that the transaction itself may be does not count.
    """
    session = running_session(Pushlog(repo))
    return session is not None and session.has_fetched


def record_replicated(
    repo: localrepository,
    tr: Transaction,
    pushid: int,
    user: bytes,
    date: int,
    nodes: Sequence[bytes],
    *,
    last: int | None = None,
) -> None:
    """Record a push, within ``tr``, as another repository recorded it.

    ``nodes`` are 40 hex digits each. The same row again is a no-op. Aborts with one line if the id is taken by another
    push, or a changeset by another id, and if the pushlog ends before the push ``last``, which was recorded before.
    """
    push = entry.Push(
        id=pushid,
        user=user.decode("utf-8", "replace"),
        date=date,
        nodes=tuple(node.decode("ascii") for node in nodes),
    )
    try:
        session = session_of(Pushlog(repo), tr)
        present = session.recorded(pushid)
        if present == push:
            return
        if present is not None:
            raise error.Abort(b"pushlog: push %d is recorded as another push already" % pushid)
        if last is not None and (newest := session.last_id()) < last:
            raise error.Abort(b"pushlog: its files are older copies: they end with push %d, not %d" % (newest, last))
        session.insert(push)
    except sqlite3.Error as problem:
        raise error.Abort(b"pushlog: cannot record push %d: %s" % (pushid, str(problem).encode())) from problem


def pushes(repo: localrepository, first_id: int) -> Iterator[tuple[int, bytes, int, list[bytes]]]:
    """Yield the pushes from id ``first_id`` on, ascending, in bounded memory."""
    log = Pushlog(repo)
    while True:
        with log.view() as connection:
            last = database.last_id(connection)
            page = database.page_of_pushes(connection, first_id, last)
        if not page:
            return
        yield from map(_to_row, page)
        first_id = page[-1].id + 1


@contextlib.contextmanager
def reading(repo: localrepository) -> Iterator[Callable[[bytes], tuple[int, bytes, int, list[bytes]] | None]]:
    """Yield a function that returns the row of the push that brought a changeset.

    The changeset is 40 hex digits; the row is None if it was never pushed. All answers are of one moment. Aborts with one line if
    the pushlog cannot be read. Keep the block short, as `Pushlog.view` says.
    """
    with Pushlog(repo).reading() as connection:

        def push_of_node(node: bytes) -> tuple[int, bytes, int, list[bytes]] | None:
            number = database.push_id_of(connection, node.decode("ascii"))
            push = None if number is None else database.push(connection, number)
            return None if push is None else _to_row(push)

        yield push_of_node


def last_push_id(repo: localrepository) -> int:
    """Return the newest id in the pushlog, 0 without one."""
    with Pushlog(repo).view() as connection:
        return database.last_id(connection)


def _to_row(push: entry.Push) -> tuple[int, bytes, int, list[bytes]]:
    return push.id, push.user.encode("utf-8"), push.date, [node.encode("ascii") for node in push.nodes]

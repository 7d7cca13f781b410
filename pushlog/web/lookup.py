# SPDX-License-Identifier: GPL-2.0-or-later
"""The lookup of a request's pushes: parameters, names, limits and pages."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sqlite3
import time
from array import array
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from mercurial import error, scmutil
from mercurial.hgweb import common
from mercurial.node import hex

from ..limit import served_limit, web_limit, with_hidden
from ..pushed import local
from ..store import database
from ..store.entry import Push
from ..store.storage import Pushlog
from . import query
from .answers import Answers
from .query import PushWindow, Query

if TYPE_CHECKING:
    from mercurial.hgweb.hgweb_mod_inner import requestcontext

# Pushes that are read at once.
_BATCH = 200
# Pushes that may come during a request.
_LATE = 100


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FoundPushes:
    """The pushes of a request: ids ascending; more follow after `next_id`."""

    query: Query
    window: PushWindow
    ids: array[int]
    next_id: int | None
    last_push_id: int


class Lookup:
    """The queries of one web request to the pushlog."""

    def __init__(self, web: requestcontext, *, is_form: bool = False):
        """Read the request; with ``is_form`` an empty field is a field not given.

        In a form dates do not limit the search for a changeset either: its push is one, whenever that was.
        """
        self.repo = web.repo
        self.log = Pushlog(web.repo)
        self.answers = Answers(web.repo)
        self._everything = with_hidden(web.repo)
        self.parameters = {
            key.decode("ascii", "replace"): [value.decode("utf-8", "replace") for value in values]
            for key, values in web.req.qsparams.asdictoflists().items()
            if any(values) or not is_form
        }
        if is_form and "changeset" in self.parameters:
            for name in ("startdate", "enddate"):
                self.parameters.pop(name, None)
        self.version = query.parse_version(self.parameters)
        self._limit = web_limit(web.repo)
        self._push_limit = web.configint(b"pushlog", b"maxpushes")

    def find(self) -> FoundPushes:
        """Return the ids asked for; a mistake of the client is answered with 400 or 404."""
        asked = query.parse(self.parameters, int(time.time()))
        if asked.branch and not self._everything.branchmap().hasbranch(local(asked.branch)):
            raise error.RepoLookupError(b"unknown revision '%s'" % local(asked.branch))
        with self._connect() as connection:
            self._limit = self._limit_to_known(connection)
            window = query.window(asked, lambda name, text: self._find_push_id(connection, name, text), self._limit)
            if asked.is_paged:
                ids, next_id = self._read_page(connection, asked, window), None
            else:
                ids, next_id = self._read_all(connection, asked, window)
            return FoundPushes(
                query=asked, window=window, ids=ids, next_id=next_id, last_push_id=self._read_last_push_id(connection)
            )

    def last_shown(self) -> int:
        """Return the last push that this request can show."""
        with self._connect() as connection:
            self._limit = self._limit_to_known(connection)
            return self._read_last_push_id(connection)

    def last_served(self) -> int:
        """Return the last push that a request that begins now could show."""
        limit = served_limit(self.repo)
        with self._connect() as connection:
            last = database.last_id(connection)
        return last if limit is None else min(last, limit)

    @contextlib.contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        """Connect as `Pushlog.view`, or answer with 500 and one line."""
        try:
            with self.log.view() as connection:
                yield connection
        except (sqlite3.Error, OSError) as problem:
            reason = problem.strerror if isinstance(problem, OSError) else problem  # without a path of the server
            raise common.ErrorResponse(
                common.HTTP_SERVER_ERROR, f"the pushlog cannot be read: {reason}".encode()
            ) from problem

    def pushes(self, ids: Iterable[int]) -> Iterator[Push]:
        """Yield the pushes with these ids, in this order, but for vanished ones."""
        for batch in self.batches(ids, _BATCH):
            yield from batch

    def batches(self, ids: Iterable[int], size: int) -> Iterator[list[Push]]:
        """Yield pushes in lists of up to ``size``, shorter for large pushes."""
        rest = iter(ids)
        many = size
        while batch := list(itertools.islice(rest, many)):
            with self._connect() as connection:
                pushes = database.pushes_with(connection, batch)
            changesets = sum(len(push.nodes) for push in pushes)
            many = max(1, size * len(batch) // max(changesets, len(batch)))
            yield pushes

    def _limit_to_known(self, connection: sqlite3.Connection) -> int | None:
        """Return the limit, below pushes whose changesets this request cannot know.

        Such pushes came after the request read the changesets. They would seem empty, and a client that follows `lastpushid` would
        never ask for them again.
        """

        def is_known(node: str) -> bool:
            return self.log.revision_of(node) is not None

        newest = self._read_last_push_id(connection)
        for last in range(newest, max(0, newest - _LATE), -1):
            if database.any_node(connection, last, is_known) is not False:
                return self._limit if last == newest else last
        return self._limit

    def _read_last_push_id(self, connection: sqlite3.Connection) -> int:
        last = database.last_id(connection)
        return last if self._limit is None else min(last, self._limit)

    def _find_push_id(self, connection: sqlite3.Connection, parameter: str, name: str) -> int:
        """Return the push of a changeset, hidden or not, before the limit; 0 for none."""
        if not name:
            raise error.LookupError(b"", b"", b"no changeset named")
        context = scmutil.revsymbol(self._everything, local(name))
        node = context.node()  # None for the working directory, whose id is forty f
        number = None if node is None else database.push_id_of(connection, hex(node).decode("ascii"))
        if node is None or (number is not None and self._limit is not None and number > self._limit):
            raise error.RepoLookupError(b"unknown revision '%s'" % local(name))
        if number is None and parameter == "tochange":
            message = f"changeset {name[:100]!a} was never pushed"
            raise common.ErrorResponse(common.HTTP_NOT_FOUND, message.encode())
        return number or 0

    def _read_page(self, connection: sqlite3.Connection, asked: Query, window: PushWindow) -> array[int]:
        """Return a page of the newest pushes; emptied ones count on it."""
        skipped = (asked.page - 1) * query.PAGE_SIZE
        sql, arguments = query.select_newest_ids(window)
        if not asked.branch:
            rows = connection.execute(f"{sql} LIMIT ? OFFSET ?", (*arguments, query.PAGE_SIZE, skipped))
            return array("q", sorted(number for (number,) in rows))
        ids = self._select_on_branch(connection, asked, (number for (number,) in connection.execute(sql, arguments)))
        return array("q", sorted(itertools.islice(ids, skipped, skipped + query.PAGE_SIZE)))

    def count(self, found: FoundPushes) -> int:
        with self._connect() as connection:
            return int(connection.execute(*query.count(found.window)).fetchone()[0])

    def has_older(self, found: FoundPushes) -> bool:
        """Return whether pushes that were asked for come before this page."""
        if len(found.ids) < query.PAGE_SIZE:
            return False
        sql, arguments = query.select_newest_ids([*found.window, ("id < ?", [found.ids[0]])])
        with self._connect() as connection:
            ids = (number for (number,) in connection.execute(sql, arguments))
            return any(True for _ in self._select_on_branch(connection, found.query, ids))

    def _read_all(
        self, connection: sqlite3.Connection, asked: Query, window: PushWindow
    ) -> tuple[array[int], int | None]:
        """Return every non-empty push of the window, up to the configured number."""
        rows = connection.execute(*query.select_ids(window))
        taken = array("q")
        for number in self._select_on_branch(connection, asked, (number for (number,) in rows)):
            if self._push_limit and len(taken) == self._push_limit:
                return taken, taken[-1]
            taken.append(number)
        return taken, None

    def _select_on_branch(self, connection: sqlite3.Connection, asked: Query, ids: Iterable[int]) -> Iterator[int]:
        if not asked.branch:
            yield from ids
            return
        for number in ids:
            push = Push(id=number, user="", date=0, nodes=database.nodes(connection, number))
            if self.answers.changesets(push, asked):
                yield number

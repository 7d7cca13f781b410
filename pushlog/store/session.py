# SPDX-License-Identifier: GPL-2.0-or-later
"""The pushlog's part of one Mercurial transaction.

It writes to SQLite at once, and to the file when the transaction is finalized.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TypeVar

from mercurial import error
from mercurial.node import hex
from mercurial.transaction import transaction as Transaction

from . import boot, database, derivation, disk, entry
from .connections import sqlite3
from .storage import NOTE, SESSION, Pushlog

_Result = TypeVar("_Result")
# The finalizer that journals the file, before one named "!outbox" has the journal synced.
RESERVING = b"!journal-pushlog"


def session_of(log: Pushlog, tr: Transaction, *, reads_all: bool = False) -> PushlogTransaction:
    """Return the writing session of ``tr``, opened at its first use.

    Raises `sqlite3.Error` if SQLite refuses. With ``reads_all`` all damage in the file is found, otherwise only damage that keeps
    new records from being read.
    """
    session: PushlogTransaction | None = getattr(tr, SESSION, None)
    if session is None:
        session = PushlogTransaction(log, tr, reads_all=reads_all)
        setattr(tr, SESSION, session)
    return session


def running_session(log: Pushlog) -> PushlogTransaction | None:
    """Return the session of the open transaction, None if it recorded nothing."""
    return getattr(log.repo.currenttransaction(), SESSION, None)


class PushlogTransaction:
    """The writes of one Mercurial transaction to the pushlog.

    Rows are inserted in SQLite at once and stay uncommitted until Mercurial's transaction is; the file is appended in the
    finalizer, so a refused transaction never touches it. The store lock is held throughout.
    """

    def __init__(self, log: Pushlog, tr: Transaction, *, reads_all: bool = False):
        self._log = log
        self._reads_all = reads_all
        # Superseded by facts from the beginning.
        self._claims: list[entry.Fact] = []
        # The push that this transaction is, if it is one.
        self.push: entry.Push | None = None
        # Whether it records pushes of another server, which a pull brought.
        self.has_fetched = False
        self._note = log.note()
        self.connection, self.derived = self._open(tr)
        tr.addfinalize(RESERVING, self._log.file.reserve)
        tr.addfinalize(b"pushlog", self._finalize)
        tr.addpostclose(b"!pushlog", self._commit)
        tr.addabort(b"pushlog", self._abort)
        # Mercurial 6.3 calls nothing at the end of a transaction that wrote nothing.
        log.repo._afterlock(lambda _success: self.connection.close())

    def record(self, user: str, date: int, nodes: tuple[str, ...]) -> None:
        """Record a push under the next id, or more changesets of this one."""
        self.push = self._on_sound_database(lambda: self._record(user, date, nodes))

    def list_unrecorded(self, tr: Transaction) -> tuple[str, ...]:
        """List the changesets of the transaction that its push does not have."""
        changelog, first = self._log.repo.changelog, tr.changes[b"origrepolen"]
        if self.push is not None and self.push.nodes:
            first = changelog.rev(bytes.fromhex(self.push.nodes[-1])) + 1
        return tuple(hex(changelog.node(rev)).decode("ascii") for rev in changelog.revs(start=first))

    def _record(self, user: str, date: int, nodes: tuple[str, ...]) -> entry.Push:
        if self.push is None:
            push = entry.Push(id=database.next_id(self.connection), user=user, date=date, nodes=nodes)
        else:
            push = self.push.with_nodes(self.push.nodes + nodes)
        self._take_push(push)
        return push

    def recorded(self, number: int) -> entry.Push | None:
        """Return the push with this id, if there is one."""
        return self._on_sound_database(lambda: database.push(self.connection, number))

    def last_id(self) -> int:
        """Return the newest id, 0 without one."""
        return self._on_sound_database(lambda: database.last_id(self.connection))

    def insert(self, push: entry.Push) -> None:
        """Record another repository's push; IntegrityError if it contradicts those here."""
        self._on_sound_database(lambda: self._insert(push))

    def _insert(self, push: entry.Push) -> None:
        database.insert_new(self.connection, push, self._log.revision_of)
        self.derived.facts[push.id] = push

    def take(self, push: entry.Push) -> None:
        """Record a push of a server; its changesets leave the pushes that had them here."""
        self.has_fetched = True
        self._on_sound_database(lambda: self._take_push(push))

    def _take_push(self, push: entry.Push) -> None:
        for make_room in (self._take_from_others, self._catch_up_with_changelog):
            try:
                self._insert(push)
                return
            except sqlite3.IntegrityError:
                make_room(push)
        self._insert(push)

    def _on_sound_database(self, work: Callable[[], _Result]) -> _Result:
        """Return the result of ``work``, at a second attempt if the database is damaged.

        A damaged database is derived again before the second attempt.
        """
        try:
            return work()
        except sqlite3.DatabaseError as error:
            if not self._can_derive_again(error):
                raise
        facts = list(self.derived.facts.values())
        self.connection.close()
        self._set_aside()
        self.connection, self.derived = self._open(self._log.open_transaction())
        for fact in facts:
            self.put(fact)
        return work()

    def _take_from_others(self, push: entry.Push) -> None:
        for fact in database.restated_without(self.connection, push.nodes):
            if fact.id != push.id:
                self.put(fact)

    def _catch_up_with_changelog(self, push: entry.Push) -> None:
        """Take changesets that are gone out of their pushes; renumber the rest."""
        revision_of = self._log.revision_of
        gone = [node for node in database.all_nodes(self.connection) if revision_of(node) is None]
        for fact in database.restated_without(self.connection, gone):
            self.put(fact)
        database.renumber(self.connection, 0, revision_of)

    def remember(self, push: entry.Push) -> None:
        """Let the file record a push as the server has it, before the push as it is here."""
        self._claims.append(push)

    def put(self, fact: entry.Fact) -> None:
        """Make a push exactly this, in place of its earlier record."""
        database.apply(self.connection, fact, self._log.revision_of)
        self.derived.facts[fact.id] = fact

    def _list_facts(self) -> Iterator[entry.Fact]:
        """Yield the facts to append to the file, in bounded memory."""
        yield from self._claims
        if self.derived.adoption is not None:
            from . import progress

            last, known = self.derived.adoption
            for push in progress.show_pushes(self._log.repo.ui, b"adopting pushlog2.db", self.connection, last):
                if push.id not in known and push.id not in self.derived.facts:
                    yield push
        yield from self.derived.facts.values()

    def _open(self, tr: Transaction) -> tuple[sqlite3.Connection, derivation.Derived]:
        connection = None
        try:
            synchronous = "NORMAL" if disk.is_to_sync(tr) else "OFF"
            connection = self._log.open_for_writing(self._log.path, synchronous=synchronous)
            return connection, derivation.derive(self._log, connection, tr, self._note, reads_all=self._reads_all)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if not self._can_derive_again(error):
                raise
        self._set_aside()
        return self._open(tr)

    def _can_derive_again(self, error: BaseException) -> bool:
        is_no_damage = isinstance(error, sqlite3.OperationalError | sqlite3.IntegrityError)
        return isinstance(error, sqlite3.DatabaseError) and not is_no_damage and self._log.file.tail() > 0

    def _set_aside(self) -> None:
        """Move a damaged database aside; the next one is derived from the file."""
        os.replace(self._log.path, self._log.path + ".damaged")
        self._log.repo.ui.log(b"pushlog", b"damaged pushlog2.db moved aside and derived again\n")

    def _finalize(self, tr: Transaction) -> None:
        """Append the facts to the file, and note in SQLite up to where it is derived.

        Raises Abort if SQLite fails.
        """
        log = self._log
        try:
            # A hook of the site may have added a changeset since: mirrors take it for one of the push.
            if self.push is not None and (nodes := self.list_unrecorded(tr)):
                self.record(self.push.user, self.push.date, nodes)
            size = log.file.append(tr, map(entry.encode, self._list_facts()))
            database.set_state(self.connection, size, log.fingerprint(tr))
            boot.note(self.connection, is_synced=disk.is_to_sync(tr))
        except sqlite3.Error as problem:
            raise error.Abort(b"cannot use pushlog2.db: %s" % str(problem).encode()) from problem

    def _commit(self, tr: Transaction) -> None:
        """Commit SQLite and remove the note, after Mercurial's commit.

        A failure is logged only, and the next writer repairs it: an exception would tell the pusher that a committed push failed.
        """
        try:
            # The store lock is held, so slow readers are not waited for long.
            self.connection.execute("PRAGMA busy_timeout = 1000")
            self.connection.execute("COMMIT")
            if self._note:
                self._log.repo.svfs.tryunlink(NOTE)
        except (sqlite3.Error, OSError) as error:
            self._log.repo.ui.log(
                b"pushlog", b"pushlog2.db lags behind, the next push repairs it: %s\n", str(error).encode()
            )
        finally:
            self.connection.close()

    def _abort(self, tr: Transaction) -> None:
        self._log.repo.ui.warn(b"rolling back pushlog\n")
        self.connection.close()

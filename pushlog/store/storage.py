# SPDX-License-Identifier: GPL-2.0-or-later
"""The pushlog of one repository: an append-only file that is the truth, and SQLite derived from it.

Rules of this module, killed anywhere:

1. The file commits with Mercurial's transaction. SQLite is written in a transaction of its own that is committed after
   Mercurial's: it may lag behind the file, it is never ahead of it (but after ``hg rollback``).
2. A reader takes no lock on the repository and writes nothing. It sees SQLite plus the facts of the file that SQLite lacks.
3. A writer, holding the store lock, first brings SQLite level with the file, and first records in the file what an operator
   changed in SQLite.
4. Before changesets are removed (strip, rollback) their hashes are noted in a file outside any transaction. While the note exists
   those of them that the changelog does not have are not in the pushlog, and the next writer records that for good.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from mercurial.node import bin

from . import database, entry
from .appendfile import AppendFile, TornRecord

if TYPE_CHECKING:
    from mercurial.localrepo import localrepository
    from mercurial.transaction import transaction as Transaction

FILE, MAGIC = b"pushlog.log", b"PLG1"
DATABASE = b"pushlog2.db"
NOTE = b"pushlog-strip.log"
_SESSION = "_pushlog_session"
_Result = TypeVar("_Result")


class Pushlog:
    """Reading and writing the pushlog of ``repo``; cheap to make, keeps nothing open."""

    def __init__(self, repo: localrepository):
        self.repo = repo.unfiltered()
        self.file = AppendFile(self.repo.svfs, FILE, MAGIC)
        self.path = os.fsdecode(os.path.join(self.repo.sharedpath, DATABASE))

    def revision_of(self, node: str) -> int | None:
        try:
            return self.repo.changelog.index.get_rev(bin(node))
        except (ValueError, TypeError):
            return None

    @contextlib.contextmanager
    def view(self) -> Iterator[sqlite3.Connection]:
        """A connection that shows the pushlog as committed; inside the caller's own push, with that push.

        Raises `sqlite3.Error` only if neither SQLite nor the file can tell. Keep it short: it holds off SQLite's next commit.
        """
        session = self.running_session()
        if session is not None:
            yield session.connection
            return
        connection = self._readable()
        try:
            yield connection
        finally:
            connection.close()

    def open_for_writing(self, path: str) -> sqlite3.Connection:
        """As `database.open_for_writing`; a new file gets the mode that Mercurial's own files have in this repository."""
        timeout = self.repo.ui.configint(b"pushlog", b"timeoutrw")
        return database.open_for_writing(path, timeout_ms=timeout, mode=self.repo.svfs.createmode)

    def create(self) -> None:
        """Make the database, if there is none yet and it can be written."""
        if not os.path.exists(self.path) or not os.path.getsize(self.path):
            with contextlib.suppress(sqlite3.Error, OSError):
                connection = self.open_for_writing(self.path)
                with contextlib.closing(connection):
                    connection.execute("COMMIT")

    def open_transaction(self) -> Transaction:
        """The transaction that the caller runs in."""
        tr = self.repo.currenttransaction()
        assert tr is not None
        return tr

    def running_session(self) -> PushlogTransaction | None:
        """The session of the transaction that this process has open, if it has recorded something."""
        tr = self.repo.currenttransaction()
        return None if tr is None else getattr(tr, _SESSION, None)

    def session(self, tr: Transaction, *, reads_all: bool = False) -> PushlogTransaction:
        """The writing session of ``tr``, opened at its first use; raises `sqlite3.Error` if SQLite refuses.

        With ``reads_all`` damage is found wherever it is in the file, without it what keeps new records from being read.
        """
        session = getattr(tr, _SESSION, None)
        if session is None:
            session = PushlogTransaction(self, tr, reads_all=reads_all)
            setattr(tr, _SESSION, session)
        return session

    def fingerprint(self, tr: Transaction | None = None, *, before: int | None = None) -> int:
        """A checksum of the last record (that ends at ``before``), 0 without one."""
        last = self.file.last(tr, before=before)
        return 0 if last is None else zlib.crc32(last.payload)

    def facts(self, start: int = 0, tr: Transaction | None = None) -> Iterator[entry.Fact]:
        for record in self.file.records(start, tr):
            try:
                yield entry.decode(record.payload)
            except ValueError as error:
                raise TornRecord(self.file.name, record.start, str(error)) from error

    def sound_facts(self, start: int = 0) -> Iterator[entry.Fact]:
        """As `facts`, ending where the file is damaged."""
        with contextlib.suppress(TornRecord):
            yield from self.facts(start)

    def removed_nodes(self, tr: Transaction | None = None) -> list[str]:
        """Changesets that a strip or rollback took away without the pushlog having recorded it yet; those that ``tr`` brings
        back were gone, too."""
        length = len(self.repo.changelog) if tr is None else tr.changes[b"origrepolen"]
        revisions = {node: self.revision_of(node) for node in self.note().get("nodes", ())}
        return [node for node, revision in revisions.items() if revision is None or revision >= length]

    def note(self) -> dict[str, Any]:
        """What `write_note` wrote; empty without one."""
        try:
            note = json.loads(self.repo.svfs.read(NOTE))
        except FileNotFoundError:
            return {}
        except ValueError:
            return {}
        return note if isinstance(note, dict) else {}

    def write_note(self, first: int) -> None:
        """Note, durably enough for a kill, that changesets from revision ``first`` on may be about to go."""
        changelog = self.repo.changelog
        nodes = [changelog.node(revision).hex() for revision in changelog.revs(start=first)]
        note = {
            "first": min(first, self.note().get("first", first)),
            "nodes": sorted({*nodes, *self.removed_nodes()}),
        }
        with self.repo.svfs(NOTE, b"wb", atomictemp=True) as file:
            file.write(json.dumps(note).encode("ascii"))

    def exists(self) -> bool:
        """Whether anything was ever recorded here."""
        return os.path.exists(self.path) or self.repo.svfs.exists(FILE)

    def _readable(self) -> sqlite3.Connection:
        timeout = self.repo.ui.configint(b"pushlog", b"timeoutro")
        try:
            connection = database.open_for_reading(self.path, timeout_ms=timeout)
        except sqlite3.DatabaseError:
            if self.file.tail() == 0:
                raise
            connection = None
        if connection is None:
            return self._derived_in_memory()
        try:
            late = self._facts_lacking_in(connection)
            if late is None:
                connection.close()
                return self._derived_in_memory()
            database.overlay(connection, late, self.revision_of)
            self._hide_removed(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _facts_lacking_in(self, connection: sqlite3.Connection) -> list[entry.Fact] | None:
        """Facts that SQLite does not have yet; None if what it has does not come from this file."""
        state = database.state(connection)
        tail = self.file.tail()
        if tail == 0 or self._is_torn():
            return []
        if state is None:
            return list(self.sound_facts())
        position, fingerprint = state
        try:
            if position > tail or self.fingerprint(before=position) != fingerprint:
                return None
        except TornRecord:
            return None
        return list(self.sound_facts(position)) if position < tail else []

    def _is_torn(self) -> bool:
        """Whether the file's end is damaged: what SQLite has was there before, and is believed."""
        try:
            self.file.last()
        except TornRecord:
            return True
        return False

    def _derived_in_memory(self) -> sqlite3.Connection:
        connection = database.in_memory()
        for fact in self.sound_facts():
            database.apply(connection, fact, self.revision_of)
        self._hide_removed(connection)
        return connection

    def _hide_removed(self, connection: sqlite3.Connection) -> None:
        removed = self.removed_nodes()
        if removed:
            database.overlay(connection, restated_without(connection, removed), self.revision_of)


class PushlogTransaction:
    """What one Mercurial transaction writes to the pushlog.

    Rows are inserted in SQLite at once and stay uncommitted until Mercurial's transaction is; the file is appended in the
    finalizer, so a refused transaction never touches it. The store lock is held throughout.
    """

    def __init__(self, log: Pushlog, tr: Transaction, *, reads_all: bool = False):
        self._log = log
        self._reads_all = reads_all
        self._facts: dict[int, entry.Fact] = {}
        self._told: list[entry.Fact] = []  # superseded by facts from the beginning
        self.push: entry.Push | None = None  # the push that this transaction is, if it is one
        self.removed: list[str] = []  # changesets that are gone, by the note
        self.renumbered: list[str] = []  # changesets that have another revision number now
        self._note = log.note()
        self.connection = self._open(tr)
        tr.addfinalize(b"pushlog", self._finalize)
        tr.addpostclose(b"!pushlog", self._commit)
        tr.addabort(b"pushlog", self._abort)

    def record(self, user: str, date: int, nodes: tuple[str, ...]) -> entry.Push:
        """Record a push under the next id; a second changegroup of the same transaction belongs to the same push."""
        return self._on_sound_database(lambda: self._record(user, date, nodes))

    def _record(self, user: str, date: int, nodes: tuple[str, ...]) -> entry.Push:
        if self.push is None:
            push = entry.Push(id=database.next_id(self.connection), user=user, date=date, nodes=nodes)
        else:
            push = self.push._replace(nodes=self.push.nodes + nodes)
        self._take(push)
        self.push = push
        return push

    def recorded(self, number: int) -> entry.Push | None:
        """The push with this id, if there is one."""
        return self._on_sound_database(lambda: database.push(self.connection, number))

    def insert(self, push: entry.Push) -> None:
        """Record a push as another repository recorded it; raises `sqlite3.IntegrityError` if it contradicts what is there."""
        self._on_sound_database(lambda: self._insert(push))

    def _insert(self, push: entry.Push) -> None:
        database.insert_new(self.connection, push, self._log.revision_of)
        self._facts[push.id] = push

    def take(self, push: entry.Push) -> None:
        """Record a push whose changesets leave the pushes that had them here."""
        self._on_sound_database(lambda: self._take(push))

    def _take(self, push: entry.Push) -> None:
        for make_room in (self._take_from_others, self._catch_up_with_changelog):
            try:
                self._insert(push)
                return
            except sqlite3.IntegrityError:
                make_room(push)
        self._insert(push)

    def _on_sound_database(self, work: Callable[[], _Result]) -> _Result:
        """What ``work`` gives; if SQLite shows itself damaged only now, on one that is derived again."""
        try:
            return work()
        except sqlite3.DatabaseError as error:
            if not self._can_derive_again(error):
                raise
        facts = list(self._facts.values())
        self.connection.close()
        self._set_aside()
        self.connection = self._open(self._log.open_transaction())
        for fact in facts:
            self.put(fact)
        return work()

    def _take_from_others(self, push: entry.Push) -> None:
        for fact in restated_without(self.connection, push.nodes):
            if fact.id != push.id:
                self.put(fact)

    def _catch_up_with_changelog(self, push: entry.Push) -> None:
        """Changesets were removed where this extension was not loaded: they leave their pushes, the rest gets its new number."""
        revision_of = self._log.revision_of
        gone = [node for node in database.all_nodes(self.connection) if revision_of(node) is None]
        for fact in restated_without(self.connection, gone):
            self.put(fact)
        database.renumber(self.connection, 0, revision_of)

    def remember(self, push: entry.Push) -> None:
        """Let the file say what a push was told to be, before what it is here."""
        self._told.append(push)

    def put(self, fact: entry.Fact) -> None:
        """Make a push exactly this, whatever was recorded before."""
        database.apply(self.connection, fact, self._log.revision_of)
        self._facts[fact.id] = fact

    def facts(self) -> list[entry.Fact]:
        """What is going to be appended to the file."""
        return list(self._facts.values())

    def _open(self, tr: Transaction) -> sqlite3.Connection:
        connection = None
        try:
            connection = self._log.open_for_writing(self._log.path)
            self._level(connection, tr)
            self._record_removed(connection, tr)
        except sqlite3.DatabaseError as error:
            if connection is not None:
                connection.close()
            if not self._can_derive_again(error):
                raise
            self._set_aside()
            return self._open(tr)
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        return connection

    def _can_derive_again(self, error: sqlite3.DatabaseError) -> bool:
        is_damage = not isinstance(error, sqlite3.OperationalError | sqlite3.IntegrityError)
        return is_damage and self._log.file.tail() > 0

    def _set_aside(self) -> None:
        """Let a damaged database make way for one that is derived from the file."""
        os.replace(self._log.path, self._log.path + ".damaged")
        self._facts.clear()
        self._log.repo.ui.log(b"pushlog", b"damaged pushlog2.db moved aside and derived again\n")

    def _level(self, connection: sqlite3.Connection, tr: Transaction) -> None:
        """Rule 3: bring SQLite level with the file, and take an operator's edits down for the file."""
        late: set[int] = set()  # pushes of which the file knows more than whoever edited SQLite
        edits = [database.fact(connection, number) for number in database.edited_ids(connection)]
        state = database.state(connection)
        try:
            if self._reads_all:
                collections.deque(self._log.facts(0, tr), maxlen=0)
            if state is None or self._log.file.tail(tr) == 0:
                self._adopt(connection, tr)
            else:
                late = self._follow(connection, tr, *state)
        except TornRecord:
            self._salvage(connection, tr, state)
        for fact in edits if state else ():
            if fact.id in late:
                self._log.repo.ui.log(b"pushlog", b"edit of push %d dropped: pushlog2.db was behind\n", fact.id)
                continue
            database.apply(connection, fact, self._log.revision_of)
            self._facts[fact.id] = fact

    def _follow(self, connection: sqlite3.Connection, tr: Transaction, position: int, fingerprint: int) -> set[int]:
        """Apply what was appended since SQLite was level, and say of which pushes; all of it, and of none, if SQLite comes from
        another or a longer file.
        """
        log = self._log
        is_descended = position <= log.file.tail(tr) and log.fingerprint(tr, before=position) == fingerprint
        facts = list(log.facts(position if is_descended else 0, tr))
        if not is_descended:
            database.clear(connection)
        for fact in facts:
            database.apply(connection, fact, log.revision_of)
        return {fact.id for fact in facts} if is_descended else set()

    def _adopt(self, connection: sqlite3.Connection, tr: Transaction) -> None:
        """Take over a database that is not derived from the file: the file keeps its word, what it does not know is added."""
        known = {fact.id: fact for fact in self._log.facts(0, tr)}
        used = database.next_id(connection) - 1
        last = database.last_id(connection)
        for push in database.pushes(connection, 0, last):
            if push.id not in known:
                self._facts[push.id] = push
        if used > max([last, *known]):
            self._facts[used] = entry.Deleted(id=used)
        for fact in known.values():
            database.apply(connection, fact, self._log.revision_of)

    def _salvage(self, connection: sqlite3.Connection, tr: Transaction, state: tuple[int, int] | None) -> None:
        """End the file where it is damaged, the rest kept beside it, and record again what SQLite knows from behind there.

        At once and not with ``tr``, which may be refused yet: SQLite alone would be what knows these pushes.
        """
        log = self._log
        known: dict[int, entry.Fact] = {}
        level, position = 0 if state is None else state[0], 0
        for record in log.file.sound_records(tr):
            try:
                fact = entry.decode(record.payload)
            except ValueError:
                continue
            if record.start == position:
                known[fact.id], position = fact, record.end
            if record.start >= level:
                database.apply(connection, fact, log.revision_of)
        recorded = {push.id: push for push in database.pushes(connection, 0, database.last_id(connection))}
        lost: list[entry.Fact] = [push for number, push in recorded.items() if known.get(number) != push]
        lost += [
            entry.Deleted(id=number)
            for number, fact in known.items()
            if number not in recorded and isinstance(fact, entry.Push)
        ]
        log.repo.svfs.write(b"pushlog-damaged.log", log.repo.svfs.read(FILE)[position:])
        log.file.mend(position, map(entry.encode, lost))
        log.repo.ui.log(b"pushlog", b"pushlog.log is damaged from byte %d on; kept in pushlog-damaged.log\n", position)

    def _record_removed(self, connection: sqlite3.Connection, tr: Transaction) -> None:
        """Rule 4: what the note says is gone and is gone, is gone."""
        if not self._note:
            return
        removed = self._log.removed_nodes(tr)
        self.removed = [node for node in removed if database.push_id_of(connection, node) is not None]
        restated = restated_without(connection, self.removed)
        moved = database.renumber(connection, self._note.get("first", 0), self._log.revision_of)
        self.renumbered = [node for node in moved if self._log.revision_of(node) is not None]
        for fact in restated:
            database.apply(connection, fact, self._log.revision_of)
            self._facts[fact.id] = fact

    def _finalize(self, tr: Transaction) -> None:
        """The file learns the facts, and SQLite up to where it is derived."""
        log = self._log
        size = log.file.append(tr, map(entry.encode, [*self._told, *self._facts.values()]))
        database.set_state(self.connection, size, log.fingerprint(tr))

    def _commit(self, tr: Transaction) -> None:
        """Mercurial has committed: SQLite may follow, and the note may go. A failure is told to the log only, the next writer
        repairs it; raised from here it would tell the pusher that a committed push failed.
        """
        try:
            self.connection.execute(
                "PRAGMA busy_timeout = 1000"
            )  # the store lock is held, do not wait for slow readers long
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


def restated_without(connection: sqlite3.Connection, removed: Iterable[str]) -> list[entry.Fact]:
    """The pushes that contain ``removed`` changesets, without them."""
    gone = set(removed)
    numbers = {database.push_id_of(connection, node) for node in gone} - {None}
    pushes = [database.push(connection, number) for number in sorted(filter(None, numbers))]
    return [
        entry.Push(id=push.id, user=push.user, date=push.date, nodes=tuple(n for n in push.nodes if n not in gone))
        for push in pushes
        if push is not None
    ]

# SPDX-License-Identifier: GPL-2.0-or-later
"""The pushlog of one repository.

An append-only file is the truth, and SQLite is derived from it. Rules of this module, which hold after a kill at any point:

1. The file commits with Mercurial's transaction. SQLite is written in a transaction of its own that is committed after
  Mercurial's: it can lag behind the file, and is never ahead of it, except after ``hg rollback``; if it is, and
  changesets that are still here would lose their push, the writer refuses.
2. A reader takes no lock on the repository and writes nothing, except after a restart of the machine (`restart`). It sees SQLite
  plus the facts of the file that SQLite lacks.
3. A writer (`session`), holding the store lock, first brings SQLite up to date with the file, and records an operator's changes of
  SQLite in the file (`derivation`).
4. Before changesets are removed (strip, rollback) their hashes are noted in a file outside any transaction. While the note exists,
  the pushlog omits those that the changelog lacks, and the next writer records that permanently.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterator
from typing import Any

from mercurial import error
from mercurial.localrepo import localrepository
from mercurial.node import bin
from mercurial.transaction import transaction as Transaction

from .. import seams
from . import boot, connections, database, entry
from .appendfile import AppendFile, FramedPayload, TornRecord, open_regular
from .connections import sqlite3

FILE, MAGIC = b"pushlog.log", b"PLG1"
DATABASE = b"pushlog2.db"
NOTE = b"pushlog-strip.log"
# Loaded once in a boot; it imports this module.
_mend = seams.loading(f"{__package__}.restart", "mend")
_is_sound = seams.loading(f"{__package__}.restart", "is_sound")
# The attribute of a Mercurial transaction that has its `session.PushlogTransaction`.
SESSION = "_pushlog_session"


class Pushlog:
    """The pushlog of ``repo``, read; cheap to make, keeps nothing open."""

    def __init__(self, repo: localrepository):
        self.repo = repo.unfiltered()
        self.file = AppendFile(self.repo.svfs, FILE, MAGIC)
        self.path = os.fsdecode(os.path.join(self.repo.sharedpath, DATABASE))

    def revision_of(self, node: str) -> int | None:
        """Return the revision number of a changeset, None for an unknown one."""
        try:
            return self.repo.changelog.index.get_rev(bin(node))
        except (ValueError, TypeError):
            return None

    @contextlib.contextmanager
    def view(self) -> Iterator[sqlite3.Connection]:
        """Connect to the pushlog as it is committed.

        Inside the caller's own push, the connection shows that push too. Raises `sqlite3.Error` only if neither SQLite nor the
        file can be read. Keep the block short: it holds off SQLite's next commit.
        """
        session = getattr(self.repo.currenttransaction(), SESSION, None)
        if session is not None:
            yield session.connection
            return
        with contextlib.closing(self._open_readable()) as connection:
            yield connection

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Connect as `view`; raise Abort with one line if the pushlog cannot be read."""
        try:
            with self.view() as connection:
                yield connection
        except sqlite3.Error as problem:
            raise error.Abort(b"cannot read the pushlog: %s" % str(problem).encode()) from problem

    def open_for_writing(self, path: str, *, spills: bool = False, synchronous: str = "OFF") -> sqlite3.Connection:
        """Connect for writing, a new file with the mode of Mercurial's own.

        With ``spills`` a large transaction does not stay in memory; readers are held off meanwhile. ``synchronous``: see
        `connections.open_for_writing`.
        """
        timeout = self.repo.ui.configint(b"pushlog", b"timeoutrw")
        mode = self.repo.store.createmode
        return connections.open_for_writing(path, timeout_ms=timeout, mode=mode, spills=spills, synchronous=synchronous)

    def create(self) -> None:
        """Create the database, if there is none yet and it can be written."""
        if not os.path.exists(self.path) or not os.path.getsize(self.path):
            with contextlib.suppress(sqlite3.Error, OSError):
                connection = self.open_for_writing(self.path)
                with contextlib.closing(connection):
                    connection.execute("COMMIT")

    def open_transaction(self) -> Transaction:
        """Return the transaction that the caller runs in."""
        tr = self.repo.currenttransaction()
        assert tr is not None
        return tr

    def fingerprint(self, tr: Transaction | None = None, *, before: int | None = None) -> int:
        """Return a checksum of the last record (that ends at ``before``), 0 without one."""
        last = self.file.last(tr, before=before)
        return 0 if last is None else zlib.crc32(last.payload)

    def is_source_of(self, state: tuple[int, int], tr: Transaction | None = None) -> bool:
        """Return whether a database in this state comes from the present file."""
        position, fingerprint = state
        return position <= self.file.tail(tr) and self.fingerprint(tr, before=position) == fingerprint

    def facts(self, start: int = 0, tr: Transaction | None = None) -> Iterator[entry.Fact]:
        """Yield the facts from byte ``start`` on; raise `TornRecord` at damage."""
        for record in self.file.records(start, tr):
            yield self.fact_of(record)

    def fact_of(self, record: FramedPayload) -> entry.Fact:
        """Return the fact of a record; raise `TornRecord` if it has none."""
        try:
            return entry.decode(record.payload)
        except ValueError as problem:
            raise TornRecord(self.file.name, record.start, str(problem)) from problem

    def sound_facts(self, start: int = 0) -> Iterator[entry.Fact]:
        """Yield the facts before the place where the file is damaged."""
        with contextlib.suppress(TornRecord):
            yield from self.facts(start)

    def removed_nodes(self, tr: Transaction | None = None) -> list[str]:
        """Return changesets removed by a strip or rollback that is not recorded yet."""
        length = len(self.repo.changelog) if tr is None else tr.changes[b"origrepolen"]
        revisions = {node: self.revision_of(node) for node in self.note().get("nodes", ())}
        return [node for node, revision in revisions.items() if revision is None or revision >= length]

    def note(self) -> dict[str, Any]:
        """Return the content of the note, empty if it cannot be read."""
        try:
            with open(self.repo.svfs.join(NOTE), "rb", opener=open_regular) as file:
                note = json.load(file)
        except (FileNotFoundError, ValueError, RecursionError):
            return {}
        nodes = note.get("nodes", []) if isinstance(note, dict) else None
        is_sound = isinstance(nodes, list) and all(isinstance(node, str) for node in nodes)
        return note if is_sound and isinstance(note.get("first", 0), int) else {}

    def write_note(self, first: int, *, size: int | None = None) -> None:
        """Note, surviving a kill, that revisions from ``first`` on may be removed.

        ``size`` is that of the file after a rollback; a strip does not shorten it.
        """
        changelog = self.repo.changelog
        nodes = [changelog.node(revision).hex() for revision in changelog.revs(start=first)]
        note = {
            "first": min(first, self.note().get("first", first)),
            "nodes": sorted({*nodes, *self.removed_nodes()}),
            "size": self.note().get("size") if size is None else size,
        }
        with self.repo.svfs(NOTE, b"wb", atomictemp=True) as file:
            file.write(json.dumps(note).encode("ascii"))

    def exists(self) -> bool:
        """Return whether a push was ever recorded here."""
        return os.path.exists(self.path) or self.repo.svfs.exists(FILE)

    def _open_readable(self) -> sqlite3.Connection:
        timeout = self.repo.ui.configint(b"pushlog", b"timeoutro")
        try:
            connection = connections.open_for_reading(self.path, timeout_ms=timeout)
            if connection is not None and _is_suspect(connection):
                connection.close()
                _mend(self)
                connection = connections.open_for_reading(self.path, timeout_ms=timeout)
        except sqlite3.DatabaseError:
            if self.file.tail() == 0:
                raise
            connection = None
        if connection is None:
            return self._derive_in_memory()
        try:
            late = self._read_lacking_facts(connection)
            if late is None:
                connection.close()
                return self._derive_in_memory()
            database.overlay(connection, late, self.revision_of)
            self._hide_removed(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _read_lacking_facts(self, connection: sqlite3.Connection) -> list[entry.Fact] | None:
        """Return the facts that SQLite lacks.

        None if it derives from another file, or may have lost something.
        """
        state = database.state(connection)
        tail = self.file.tail()
        may_lack = _is_suspect(connection) and not _is_sound(self, connection)
        if tail == 0 or self._is_torn():
            return list(self.sound_facts()) if may_lack else []
        if may_lack:
            return None
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
        """Return whether the file's end is damaged, so that SQLite counts."""
        try:
            self.file.last()
        except TornRecord:
            return True
        return False

    def _derive_in_memory(self) -> sqlite3.Connection:
        connection = connections.in_memory()
        for fact in self.sound_facts():
            database.apply(connection, fact, self.revision_of)
        self._hide_removed(connection)
        return connection

    def _hide_removed(self, connection: sqlite3.Connection) -> None:
        database.overlay(connection, database.restated_without(connection, self.removed_nodes()), self.revision_of)


def _is_suspect(connection: sqlite3.Connection) -> bool:
    """Return whether a reader must not trust the database as it is.

    It trusts one of an older release, which the next writer checks.
    """
    return boot.noted(connection) != boot.UNKNOWN and boot.is_suspect(connection)

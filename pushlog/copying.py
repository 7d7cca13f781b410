# SPDX-License-Identifier: GPL-2.0-or-later
"""The command ``hg copypushlog``, for the way back to another extension.

The extension that wrote ``pushlog2.db`` knows only the database. So the pushes of a server that runs ours are written only into the
database, in the schema that both share, and the database stays the truth of its repository.

Rules of this module:

1. One SQLite transaction: after an error or a kill the database is as before, and the command can be repeated. Existing pushes
  are not written again.
2. An id has one push. Where the repository and the server have different pushes of one id, nothing is copied.
3. Changesets come by a pull, before: a push whose changesets a pull can still bring is refused.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mercurial import error
from mercurial.localrepo import localrepository
from mercurial.ui import ui as Ui
from mercurial.utils import dateutil, stringutil, urlutil

from . import fetching, versions, wire
from .store import database, entry, progress
from .store.storage import Pushlog

if TYPE_CHECKING:
    from mercurial.interfaces.repository import IPeer

OURS = b"pushlog.log is the truth of this repository's pushlog; copypushlog is for a repository without it"


def copypushlog(ui: Ui, repo: localrepository, source: bytes) -> int:
    """Run `hg copypushlog`; return 0 if pushlog2.db has every push of ``source``.

    Raises Abort, with nothing copied, if the repository has a pushlog.log, if both have different pushes of one id, if a changeset
    was not pulled yet, or if the server or SQLite fails.
    """
    log = Pushlog(repo)
    if log.file.tail():
        raise error.Abort(OURS, hint=b"here hg pull brings the pushes of a server")
    name = urlutil.hidepassword(source)
    remote = versions.factory.peer(ui, {}, source)
    try:
        if not remote.capable(b"pushlog-stream"):
            raise error.Abort(b"%s serves no pushlog" % name)
        with log.repo.lock():
            copied = _copy_pushes(log, remote, name)
    except sqlite3.Error as problem:
        is_passing = isinstance(problem, sqlite3.OperationalError)
        step = b"try again" if is_passing else b"hg verifypushlog names what is wrong"
        reason = stringutil.forcebytestr(problem)
        raise error.Abort(b"cannot write pushlog2.db: %s" % reason, hint=b"nothing was copied; " + step) from problem
    finally:
        remote.close()
    ui.status(b"copied %d pushes into pushlog2.db\n" % copied)
    return 0


def _copy_pushes(log: Pushlog, remote: IPeer, name: bytes) -> int:
    """Copy all pushes or none, under the store lock; return how many were written."""
    with contextlib.closing(log.open_for_writing(log.path, spills=True, synchronous="FULL")) as connection:
        copy = Copy(log, connection)
        for push in progress.show_count(log.repo.ui, b"copying pushes", _receive_pushes(remote, name)):
            copy.take(push)
        copy.refuse_contradictions(name)
        copy.refuse_unpulled(remote, name)
        connection.execute("COMMIT")
    copy.report(name)
    return copy.copied


def _receive_pushes(remote: IPeer, name: bytes) -> Iterator[entry.Push]:
    """Yield all pushes of the server; Abort if the answer breaks off or is malformed."""
    try:
        for row in fetching.receive_lines(remote, 1):
            yield wire.parse_row(row)
    except (fetching.BrokenStream, ValueError, OSError, error.PeerTransportError) as problem:
        raise error.Abort(
            b"cannot read the pushlog of %s: %s" % (name, stringutil.forcebytestr(problem)), hint=b"nothing was copied"
        ) from problem


class Copy:
    """Pushes of a server on their way into ``connection``, which the caller commits."""

    def __init__(self, log: Pushlog, connection: sqlite3.Connection) -> None:
        self._log, self._connection = log, connection
        self.copied = 0
        # How many ids have different pushes, and the lines about the first of them.
        self._contradictions = 0
        self._lines: list[bytes] = []
        # Pushes that took the place of one without changesets.
        self._replaced: list[str] = []
        # Changesets that are not in the repository, and their pushes.
        self._unknown: dict[str, int] = {}

    def take(self, push: entry.Push) -> None:
        """Write a push of the server, or note why it cannot be written."""
        here = database.push(self._connection, push.id)
        wanted = unite(here, push)
        if wanted is None:
            assert here is not None
            self._note(_describe(here), push)
            return
        recorded = () if here is None else here.nodes
        unknown = [node for node in wanted.nodes if node not in recorded and self._log.revision_of(node) is None]
        self._unknown.update(dict.fromkeys(unknown, push.id))
        if unknown:
            wanted = wanted.with_nodes(node for node in wanted.nodes if node not in unknown)
        if wanted != here:
            self._write(wanted, push)
            if here is not None and not here.is_same_act(push):
                self._replaced.append(str(push.id))

    def _write(self, wanted: entry.Push, push: entry.Push) -> None:
        for node in wanted.nodes:
            other = database.push_id_of(self._connection, node)
            if other not in (None, push.id):
                self._note(b"changeset %s is in push %d" % (node[:12].encode(), other), push)
                return
        database.insert_new(self._connection, wanted, self._log.revision_of)
        self.copied += 1

    def _note(self, here: bytes, push: entry.Push) -> None:
        self._contradictions += 1
        if len(self._lines) < fetching.SHOWN:
            self._lines.append(b"push %d: here %s; there %s\n" % (push.id, here, _describe(push)))

    def refuse_contradictions(self, name: bytes) -> None:
        """Abort, and show the first, if ids have different pushes here and there."""
        if not self._contradictions:
            return
        for line in self._lines:
            self._log.repo.ui.warn(line)
        raise error.Abort(
            b"%d ids name other pushes here than at %s; nothing was copied" % (self._contradictions, name),
            hint=b"changesets that were pushed here too: push them there, strip them here, and copy again",
        )

    def refuse_unpulled(self, remote: IPeer, name: bytes) -> None:
        """Abort if the server would give a changeset that is not here."""
        node = fetching.find_first_offered(remote, list(self._unknown))
        if node is not None:
            raise error.Abort(
                b"changeset %s of push %d is not here; nothing was copied" % (node.encode(), self._unknown[node]),
                hint=b"first pull from %s" % name,
            )

    def report(self, name: bytes) -> None:
        """Name the pushes that are not as at the server."""
        status = self._log.repo.ui.status
        if self._replaced:
            names = fetching.list_names(self._replaced)
            status(b"pushes that had no changesets here and are now those of %s: %s\n" % (name, names))
        if self._unknown:
            names = fetching.list_names([str(number) for number in sorted(set(self._unknown.values()))])
            status(b"pushes without the changesets that are not given by the server: %s\n" % names)


def unite(here: entry.Push | None, there: entry.Push) -> entry.Push | None:
    """Return the push with the changesets of both; None if they are not one.

    Changesets can be missing on either side: hidden, stripped, or not cloned. A push without any here gives way.
    """
    if here is None or not here.nodes:
        return there
    if not here.is_same_act(there) or (there.nodes and set(here.nodes).isdisjoint(there.nodes)):
        return None
    return here.with_nodes((*here.nodes, *(node for node in there.nodes if node not in here.nodes)))


def _describe(push: entry.Push) -> bytes:
    """Describe a push in a few words, for the operator who must decide."""
    when = dateutil.datestr((push.date, 0), b"%Y-%m-%d %H:%M:%S +0000")
    nodes = fetching.list_names([node[:12] for node in push.nodes]) or b"no changesets"
    return b"%s, %s, %s" % (push.user.encode("utf-8", "replace"), when, nodes)

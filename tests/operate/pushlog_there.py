# SPDX-License-Identifier: GPL-2.0-or-later
"""A Mercurial extension that stands for the pushlog of another host.

It does what is documented of hg.mozilla.org's: its table, the recording of a push, its wire command, and what a strip leaves. It
shares no code with ours.
"""

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from typing import Any

from mercurial import extensions, repair, wireprototypes, wireprotov1server

SCHEMA = """
CREATE TABLE IF NOT EXISTS changesets (pushid INTEGER, rev INTEGER, node text);
CREATE TABLE IF NOT EXISTS pushlog (id INTEGER PRIMARY KEY AUTOINCREMENT, user TEXT, date INTEGER);
CREATE UNIQUE INDEX IF NOT EXISTS changeset_node ON changesets (node);
CREATE UNIQUE INDEX IF NOT EXISTS changeset_rev ON changesets (rev);
CREATE INDEX IF NOT EXISTS changeset_pushid ON changesets (pushid);
CREATE INDEX IF NOT EXISTS pushlog_date ON pushlog (date);
CREATE INDEX IF NOT EXISTS pushlog_user ON pushlog (user);
"""


@contextlib.contextmanager
def database(repo: Any) -> Iterator[sqlite3.Connection]:
    """The database of a repository, committed if the block succeeds."""
    with contextlib.closing(sqlite3.connect(os.path.join(os.fsdecode(repo.path), "pushlog2.db"))) as opened, opened:
        opened.executescript(SCHEMA)
        yield opened


def record(ui: Any, repo: Any, source: bytes | None = None, **_: Any) -> bool:
    if source in (b"push", b"serve"):
        log = repo.unfiltered().changelog
        first = repo.currenttransaction().changes[b"origrepolen"]
        with database(repo) as opened:
            inserted = opened.execute(
                "INSERT INTO pushlog (user, date) VALUES (?, ?)", (os.environ["USER"], int(time.time()))
            )
            rows = [(inserted.lastrowid, revision, log.node(revision).hex()) for revision in log.revs(start=first)]
            opened.executemany("INSERT INTO changesets (pushid, rev, node) VALUES (?, ?, ?)", rows)
    return False


def rows(repo: Any, first: int) -> Iterator[bytes]:
    with database(repo) as opened:
        pushes = opened.execute("SELECT id, user, date FROM pushlog WHERE id >= ? ORDER BY id", (first,)).fetchall()
        for number, user, date in pushes:
            found = opened.execute("SELECT node FROM changesets WHERE pushid = ? ORDER BY rev", (number,))
            yield f"{number} {user} {date} {' '.join(node for (node,) in found)}\n".encode()
    yield b"ok\n"


@wireprotov1server.wireprotocommand(b"pushlog-stream", b"firstpush", permission=b"pull")
def stream(repo: Any, proto: Any, firstpush: bytes) -> Any:
    return wireprototypes.streamreslegacy(gen=rows(repo, int(firstpush)))


def announce(orig: Any, repo: Any, proto: Any) -> list[bytes]:
    return [*orig(repo, proto), b"pushlog-stream"]


def strip(orig: Any, ui: Any, repo: Any, nodelist: Any, *arguments: Any, **options: Any) -> Any:
    result = orig(ui, repo, nodelist, *arguments, **options)
    get_rev = repo.unfiltered().changelog.index.get_rev
    with database(repo) as opened:
        nodes = [node for (node,) in opened.execute("SELECT node FROM changesets")]
        opened.execute("UPDATE changesets SET rev = NULL")
        opened.executemany(
            "UPDATE changesets SET rev = ? WHERE node = ?", [(get_rev(bytes.fromhex(node)), node) for node in nodes]
        )
        opened.execute("DELETE FROM changesets WHERE rev IS NULL")
    return result


def extsetup(ui: Any) -> None:
    extensions.wrapfunction(wireprotov1server, "_capabilities", announce)
    extensions.wrapfunction(repair, "strip", strip)


def reposetup(ui: Any, repo: Any) -> None:
    if repo.local():
        repo.ui.setconfig(b"hooks", b"pretxnchangegroup.pushlog", record, b"pushlog")

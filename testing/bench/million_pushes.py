# SPDX-License-Identifier: GPL-2.0-or-later
"""Builds a synthetic repository with as many pushes as asked for, one changeset each, without pushing.

    python -m testing.bench.million_pushes FOLDER [PUSHES]

Changesets have no files, 500 users push in turn, one push a minute. The changelog is written directly; the pushlog gets its file
and its SQLite as if the pushes had come. About a minute for a million on an idle machine.
"""

import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from mercurial import metadata
from mercurial import ui as ui_module

from pushlog.store import connections, database, entry, statements
from pushlog.store.storage import Pushlog
from pushlog.versions import factory, initialize

initialize()

FIRST_DATE = 1400000000
USERS = 500
_BATCH = 100_000


def build(folder: Path, pushes: int) -> None:
    """A new repository in `folder`."""
    repository = factory.repository(ui_module.ui.load(), os.fsencode(folder), create=True)
    with repository.lock():
        for first in range(0, pushes, _BATCH):
            with repository.transaction(b"build") as transaction:
                facts = _changesets(repository, transaction, first, min(_BATCH, pushes - first))
                Pushlog(repository).file.append(transaction, map(entry.encode, facts))
        _database(repository)
    with repository.lock():
        repository.updatecaches(
            caches=frozenset({b"branchmap-base", b"branchmap-served", b"rev-branch", b"tags-default"})
        )


def _changesets(repository: Any, transaction: Any, first: Any, count: int) -> list[entry.Push]:
    changelog = repository.changelog
    parent = changelog.node(first - 1)
    facts = []
    for number in range(first, first + count):
        date = FIRST_DATE + 60 * number
        parent = changelog.add(
            repository.nullid,
            metadata.ChangingFiles(),
            b"change %d" % number,
            transaction,
            parent,
            repository.nullid,
            b"Ann",
            (date, 0),
        )
        facts.append(
            entry.Push(id=number + 1, user=f"user{number % USERS}@example.com", date=date, nodes=(parent.hex(),))
        )
    return facts


def _database(repository: Any) -> None:
    log = Pushlog(repository)
    with closing(connections.open_for_writing(log.path, timeout_ms=1000)) as connection:
        facts = [fact for fact in log.facts() if isinstance(fact, entry.Push)]
        connection.executemany(statements.INSERT_PUSH, ((fact.id, fact.user, fact.date) for fact in facts))
        connection.executemany(statements.INSERT_CHANGESET, ((fact.id, fact.id - 1, fact.nodes[0]) for fact in facts))
        database.set_state(connection, log.file.tail(), log.fingerprint())
        connection.execute("COMMIT")


def main() -> int:
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    build(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else 1_000_000)
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: GPL-2.0-or-later
"""Another host, from which a site comes and to which it may go back: a repository with the pushlog of `pushlog_there`."""

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from testing.warm_hg import shared_hg
from tests.golden.make_repository import PUSHLOG_SCHEMA

EXTENSION = Path(__file__).with_name("pushlog_there.py")
USER = "erin@example.com"
# Asks one page, and writes its answer.
ASK = "import sys; from testing.bench.pushlog import web; sys.stdout.buffer.write(web(sys.argv[1])(*sys.argv[2:]))"


class Push(NamedTuple):
    """A push, with its changesets in order."""

    id: int
    user: str
    date: int
    nodes: tuple[str, ...]


class There:
    """The host, which serves while the block runs; its extension has the name that ours has."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "hgrc").write_text(
            f"[extensions]\n*:required = yes\npushlog = {EXTENSION}\nvcsreplicator = {folder}/replication.py\nstrip =\n"
            "[web]\nallow-push = *\npush_ssl = no\n"
        )
        (folder / "replication.py").write_text('"""Stands for what replicates there."""\n')
        self.repository = folder / "red"
        # Python is that of the tests, so `hg` finds our extensions by their names, as in an environment of its own.
        self.environment = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HGRCPATH": str(folder / "hgrc"),
            "USER": USER,
            "HGPLAIN": "1",
        }
        self._hg = shared_hg(self.environment)
        subprocess.run([self._hg, "init", str(self.repository)], env=self.environment, check=True)
        self._server: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        words = ["serve", "-R", str(self.repository), "--port", "0", "--address", "127.0.0.1", "--print-url"]
        self._server = subprocess.Popen(
            [self._hg, *words, "--accesslog", "/dev/null"],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._server.stdout is not None
        self.url = self._server.stdout.readline().strip()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.kill()
        self._server.communicate()

    @contextlib.contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.repository / ".hg/pushlog2.db")) as database:
            yield database

    def pushes(self) -> list[Push]:
        """What its pushlog has."""
        with self._database() as database:
            rows = database.execute("SELECT id, user, date FROM pushlog ORDER BY id").fetchall()
            nodes = "SELECT node FROM changesets WHERE pushid = ? ORDER BY rev"
            return [
                Push(number, user, date, tuple(node for (node,) in database.execute(nodes, (number,))))
                for number, user, date in rows
            ]

    def has_its_own_schema(self) -> bool:
        """Whether its database has what its extension made, and nothing else."""
        with self._database() as database:
            found = {sql for (sql,) in database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
        own = {statement.strip() for statement in PUSHLOG_SCHEMA.split(";") if statement.strip()}
        return found - own == {"CREATE TABLE sqlite_sequence(name,seq)"} and own <= found

    def json_pushes(self, query: str) -> dict[str, Any]:
        """What its web server answers: ours answers from such a database in the same bytes (`tests/golden`)."""
        hgrc = self.repository.parent / "reading.hgrc"
        hgrc.write_text("[extensions]\n*:required = yes\npushlog =\n")
        words = [sys.executable, "-c", ASK, str(self.repository), "/json-pushes", query]
        environment = {**os.environ, "HGRCPATH": str(hgrc)}
        answer: dict[str, Any] = json.loads(
            subprocess.run(words, env=environment, capture_output=True, check=True).stdout
        )
        return answer

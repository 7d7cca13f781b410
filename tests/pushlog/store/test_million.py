# SPDX-License-Identifier: GPL-2.0-or-later
"""What a `pushlog2.db` of a million pushes needs, as hg.mozilla.org's extension wrote it."""

import hashlib
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from pushlog.store.statements import TABLES
from tests.pushlog.conftest import HG

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(1800)]

PUSHES, USERS, FIRST_DATE, MINUTE = 1_000_000, 5000, 1_400_000_000, 60
# Mebibytes that a process may take. Mercurial alone takes 40, the pushes of a million as objects several hundred.
ASKING, ADOPTING, CHECKING, REPAIRING = 120, 120, 300, 500
# Asks one page, and writes its answer.
ASK = "import sys; from testing.bench.pushlog import web; sys.stdout.buffer.write(web(sys.argv[1])(*sys.argv[2:]))"


def user_of(number: int) -> str:
    return f"user{number % USERS}@example.com"


def date_of(number: int) -> int:
    return FIRST_DATE + MINUTE * number


def run(folder: Path, limit: int, *words: str | Path, plain: bool = False) -> tuple[int, str]:
    """Exit code and output of a command that can take at most `limit` mebibytes of memory."""
    hgrc, output = folder.parent / "hgrc", folder.parent / "output"
    hgrc.write_text("" if plain else "[extensions]\n*:required = yes\npushlog =\n")
    environment = {**os.environ, "HGRCPATH": str(hgrc), "HGPLAIN": "1"}
    limited = ["sh", "-c", 'ulimit -d "$0" && exec "$@"', str(limit * 1024), *words]
    with output.open("w") as file:
        done = subprocess.run(limited, stdout=file, stderr=subprocess.STDOUT, env=environment, check=False)
    return done.returncode, output.read_text()


def hg(folder: Path, limit: int, *words: str) -> tuple[int, str]:
    return run(folder, limit, HG, "-R", folder, *words)


@pytest.fixture
def theirs(tmp_path: Path) -> tuple[Path, dict[int, str]]:
    """A repository, in which only the first and the last pushes have a changeset; and these changesets by push."""
    folder = tmp_path / "large"
    for words in (["init", str(folder)], ["-R", str(folder), "debugbuilddag", "+5"]):
        assert run(folder, ASKING, HG, *words, plain=True)[0] == 0
    real = run(folder, ASKING, HG, "-R", folder, "log", "-r", "all()", "-T", "{node}\n", plain=True)[1].split()
    numbers = range(1, PUSHES + 1)
    there = dict(zip((*numbers[:2], *numbers[-3:]), real, strict=True))
    revisions = {node: revision for revision, node in enumerate(real)}
    nodes = ((number, there.get(number) or hashlib.sha1(b"%d" % number).hexdigest()) for number in numbers)
    with closing(sqlite3.connect(folder / ".hg" / "pushlog2.db")) as database, database:
        # Only tests/golden/make_repository.py writes them out, to show the format independently of the product.
        database.executescript(TABLES)
        pushes = ((number, user_of(number), date_of(number)) for number in numbers)
        database.executemany("INSERT INTO pushlog VALUES (?, ?, ?)", pushes)
        rows = ((number, revisions.get(node, number + len(real)), node) for number, node in nodes)
        database.executemany("INSERT INTO changesets VALUES (?, ?, ?)", rows)
    return folder, there


def test_a_million_pushes_are_adopted_and_checked_in_bounded_memory(
    theirs: tuple[Path, dict[int, str]],
) -> None:
    folder, there = theirs
    check_answers(folder, there)
    assert hg(folder, ADOPTING, "repairpushlog") == (
        0,
        f"no pushlog.log: {PUSHES} pushes recorded in it from pushlog2.db\n",
    )
    check_answers(folder, there)
    code, output = hg(folder, CHECKING, "verifypushlog")
    lines = output.splitlines()
    assert (code, lines.pop()) == (1, "pushlog has errors")
    assert len(lines) == PUSHES - len(there)
    assert all(line.startswith("changeset in pushlog entry #") for line in lines)
    assert hg(folder, REPAIRING, "repairpushlog") == (
        0,
        f"pushlog2.db rebuilt: nothing changed in {PUSHES} pushes\n",
    )
    check_answers(folder, there)


def check_answers(folder: Path, there: dict[int, str]) -> None:
    """Ask for the first and the last pushes, by id, by user and by date."""
    first, last = list(there)[:2], list(there)[2:]
    every = {number: (user_of(number), date_of(number), [node]) for number, node in there.items()}
    assert ask(folder, "startID=0&endID=2") == {number: every[number] for number in first}
    assert ask(folder, f"startID={PUSHES - 3}") == {number: every[number] for number in last}
    assert ask(folder, f"user={user_of(last[0])}") == {last[0]: every[last[0]]}
    assert ask(folder, f"startdate={date_of(last[0])}") == {number: every[number] for number in last[1:]}
    assert user_of(PUSHES) in page(folder, "/pushloghtml", "")


def ask(folder: Path, query: str) -> dict[int, tuple[str, int, list[str]]]:
    found = json.loads(page(folder, "/json-pushes", query))
    return {int(number): (push["user"], push["date"], push["changesets"]) for number, push in found.items()}


def page(folder: Path, path: str, query: str) -> str:
    code, answer = run(folder, ASKING, sys.executable, "-P", "-c", ASK, folder, path, query)
    assert code == 0, answer
    return answer

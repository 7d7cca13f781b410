# SPDX-License-Identifier: GPL-2.0-or-later
"""A repository on a disk that cannot be written: in every state of SQLite, answers come from the pushlog's own file."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys

import pytest

from pushlog.store import database, entry
from pushlog.store.session import session_of
from pushlog.store.storage import Pushlog
from testing.services.cache import CHECKOUT
from tests.pushlog.conftest import Site

# Mercurial leaves the files of its templates to the garbage collector
pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
ASK = """
import os, sys
from pathlib import Path
from tests.pushlog.conftest import Site
try:
    open(Path(sys.argv[1]) / ".hg" / "pushlog2.db", "r+b")
except (PermissionError, FileNotFoundError):
    print(Site(Path(sys.argv[1])).get("/json-pushes", "startID=0")[2].decode())
else:
    print("the disk can be written")
"""


def lagging(folder, log):
    """Killed between Mercurial's commit and SQLite's."""
    repository = log.repo
    with log.view() as connection:
        newest = database.push(connection, 16)
    with repository.lock(), repository.transaction(b"test") as tr:
        late = entry.Push(id=newest.id, user="late", date=newest.date, nodes=newest.nodes)
        log.file.append(tr, [entry.encode(late)])


def killed_in_a_commit(folder, log):
    """The database holds what was never committed, its journal how to undo it, which takes writing."""
    connection = sqlite3.connect(folder / ".hg" / "pushlog2.db", isolation_level=None)
    connection.execute("PRAGMA cache_size = 1")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE pushlog SET user = 'uncommitted'")
    rows = [(number, "uncommitted", 1500000000) for number in range(100, 5000)]
    connection.executemany("INSERT INTO pushlog VALUES (?, ?, ?)", rows)
    names = ("pushlog2.db", "pushlog2.db-journal")
    for name in names:
        shutil.copy(folder / ".hg" / name, folder / name)
    connection.execute("ROLLBACK")
    connection.close()
    for name in names:
        os.replace(folder / name, folder / ".hg" / name)
    with open(folder / ".hg" / "pushlog2.db-journal", "rb") as journal:
        assert journal.read(8) == bytes.fromhex("d9d505f920a163d7"), "not a hot journal"


def damaged(folder, log):
    (folder / ".hg" / "pushlog2.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 4096)


def lost_in_a_power_cut(folder, log):
    connection = sqlite3.connect(folder / ".hg" / "pushlog2.db", isolation_level=None)
    connection.execute("DELETE FROM pushlog WHERE id = 3")
    connection.execute("DELETE FROM pushlog_edit")
    connection.execute(f"PRAGMA user_version = {1 << 30}")
    connection.close()


def missing(folder, log):
    os.unlink(folder / ".hg" / "pushlog2.db")


@pytest.mark.sample(2)
@pytest.mark.parametrize("state", [lagging, killed_in_a_commit, damaged, lost_in_a_power_cut, missing])
def test_reads_answer_from_the_file(root, tmp_path, state):
    folder = tmp_path / "copy"
    shutil.copytree(root / "golden", folder)
    repository = Site(folder).repository
    log = Pushlog(repository)
    with repository.lock(), repository.transaction(b"test") as tr:
        session_of(log, tr)
    expected = json.loads(Site(folder).get("/json-pushes", "startID=0")[2])
    state(folder, log)
    if state is lagging:
        expected["16"]["user"] = "late"
    assert json.loads(answer_without_writing(folder)) == expected


def answer_without_writing(folder):
    """What a process answers that may not write anything in the repository."""
    places = [folder / ".hg", *(folder / ".hg").rglob("*")]
    for place in places:
        place.chmod(place.stat().st_mode & ~0o222)
    # an administrator may write everywhere, unless this right is given up
    powerless = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    try:
        done = subprocess.run(
            [*powerless, sys.executable, "-c", ASK, str(folder)], cwd=CHECKOUT, check=True, capture_output=True
        )
    finally:
        for place in places:
            place.chmod(place.stat().st_mode | 0o200)
    return done.stdout

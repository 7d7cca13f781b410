# SPDX-License-Identifier: GPL-2.0-or-later
"""The worker's database: migrations that are killed, and data that no database takes as it is."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from notifier.work.database import WorkDatabase

pytestmark = pytest.mark.processes

# Migrates, and ends as at a kill after so many statements that make something.
KILLED = """
import os, sys
from sqlalchemy import Engine, event
from notifier.work.database import WorkDatabase

made = []

@event.listens_for(Engine, "after_cursor_execute")
def count(connection, cursor, statement, *_):
    made.append("CREATE" in statement)
    if sum(made) == int(sys.argv[2]):
        os._exit(9)

WorkDatabase(sys.argv[1]).migrate()
"""


@pytest.mark.parametrize("statements", [1, 2, 5, 11])
def test_migration_that_was_killed_begins_anew(tmp_path: Path, statements: int) -> None:
    url = f"sqlite:///{tmp_path}/work.db"
    assert subprocess.run([sys.executable, "-c", KILLED, url, str(statements)], check=False).returncode == 9
    with closing(WorkDatabase(url)) as database:
        database.migrate()
        database.check()

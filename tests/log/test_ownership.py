# SPDX-License-Identifier: GPL-2.0-or-later
"""What root makes for a service."""

import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import ownership
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.sqlite.copying import copy_database, refuse_open
from hgext.vcsreplicator.mirror.notes import Notes
from hgext.vcsreplicator.words.errors import BadConfig
from notifier.destinations.state import StateDatabase
from testing.faults.permission import under
from testing.faults.system import System
from testing.journals import write_foreign_journal


@pytest.mark.parametrize(("umask", "expected"), [(0, 0o640), (0o022, 0o640), (0o077, 0o600)])
def test_no_other_user_may_use_what_a_service_makes(tmp_path: Path, umask: int, expected: int) -> None:
    with under(umask):
        ownership.make_file(tmp_path / "notes.db")
        ownership.make_folders(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "notes.db").stat().st_mode) == expected
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o777 & ~umask
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o770 & ~umask


def test_each_folder_that_root_makes_belongs_to_its_parents_owner(tmp_path: Path, system: System) -> None:
    system.become(0)
    given = system.note_owners()
    ownership.make_folders(tmp_path / "a" / "b")
    owner = tmp_path.stat()
    assert given == [(f"{tmp_path}/{name}", owner.st_uid, owner.st_gid) for name in ("a", "a/b")]
    ownership.make_folders(tmp_path / "a" / "b")
    assert len(given) == 2


def open_to_copy(file: Path) -> None:
    copy_database(str(file), f"{file}.copy")


def test_a_file_that_a_service_names_by_a_link_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "passwd").touch(0o644)
    (tmp_path / "log.db-wal").symlink_to("passwd")
    ownership.close_to_others(tmp_path / "log.db-wal")
    assert stat.S_IMODE((tmp_path / "passwd").stat().st_mode) == 0o644


@pytest.mark.parametrize("name", ["it.db", "link.db"])
@pytest.mark.parametrize(
    "opens",
    [
        lambda file: open_log(f"sqlite://{file}").close(),
        open_to_copy,
        lambda file: refuse_open(str(file)),
        lambda file: StateDatabase(str(file)).close(),
        Notes,
    ],
    ids=["log", "copy", "restore", "notifier", "notes"],
)
def test_no_process_removes_a_file_that_a_foreign_journal_names(
    tmp_path: Path, opens: Callable[[Path], object], name: str
) -> None:
    with closing(sqlite3.connect(tmp_path / "it.db")) as database:
        database.execute("CREATE TABLE one (a)")
    # SQLite takes an empty file for a missing one.
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "link.db").symlink_to(tmp_path / "it.db")
    write_foreign_journal(tmp_path / "it.db", tmp_path / "precious")
    with pytest.raises(BadConfig, match="-journal: names another file, which SQLite would remove"):
        opens(tmp_path / name)
    assert (tmp_path / "precious").exists()

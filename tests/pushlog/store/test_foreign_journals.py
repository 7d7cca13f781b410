# SPDX-License-Identifier: GPL-2.0-or-later
"""Journals beside `pushlog2.db` that another account wrote, with the name of a file that SQLite is to remove."""

import contextlib
import sqlite3
import subprocess
from pathlib import Path

import pytest

from pushlog.store import connections
from testing.journals import write_foreign_journal
from testing.warm_hg import shared_hg


@pytest.fixture
def database(tmp_path: Path) -> Path:
    with contextlib.closing(connections.open_for_writing(str(tmp_path / "pushlog2.db"), timeout_ms=100)) as connection:
        connection.execute("COMMIT")
    # SQLite takes an empty file for a missing one.
    (tmp_path / "precious").write_text("precious")
    write_foreign_journal(tmp_path / "pushlog2.db", tmp_path / "precious")
    return tmp_path / "pushlog2.db"


def test_a_reader_removes_no_file_that_a_journal_names(database: Path) -> None:
    with pytest.raises(sqlite3.OperationalError):
        connections.open_for_reading(str(database), timeout_ms=100)
    assert (database.parent / "precious").exists()


def test_a_writer_removes_no_file_that_a_journal_names(database: Path) -> None:
    with pytest.raises(sqlite3.OperationalError, match="-journal names another file; remove the journal"):
        connections.open_for_writing(str(database), timeout_ms=100).close()
    assert (database.parent / "precious").exists()


def test_a_writer_follows_no_link_to_a_database_and_its_journal(database: Path) -> None:
    (database.parent / "repository").mkdir()
    link = database.parent / "repository" / "pushlog2.db"
    link.symlink_to(database)
    with pytest.raises(sqlite3.OperationalError, match=r"pushlog2\.db is a link; replace it by its file"):
        connections.open_for_writing(str(link), timeout_ms=100).close()
    assert (database.parent / "precious").exists()


def test_a_reader_follows_no_link_to_the_pushlog_of_another_repository(tmp_path: Path) -> None:
    connections.open_for_writing(str(tmp_path / "private"), timeout_ms=100).close()
    (tmp_path / "pushlog2.db").symlink_to("private")
    with pytest.raises(sqlite3.DatabaseError, match=r"pushlog2\.db is not a file"):
        connections.open_for_reading(str(tmp_path / "pushlog2.db"), timeout_ms=100)


def test_a_link_that_comes_once_the_database_is_made_changes_no_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, key = tmp_path / "pushlog2.db", tmp_path / "key"
    key.touch(0o600)

    def exchange(*_: object) -> bool:
        database.unlink()
        database.symlink_to(key)
        return False

    # Between the making of the file and all that follows.
    monkeypatch.setattr(connections, "has_table", exchange)
    with contextlib.suppress(sqlite3.Error, FileExistsError):
        connections.open_for_writing(str(database), timeout_ms=100, mode=0o664).close()
    assert database.is_symlink()
    assert key.stat().st_mode & 0o777 == 0o600


def test_a_new_database_has_the_mode_of_the_store(tmp_path: Path) -> None:
    connections.open_for_writing(str(tmp_path / "pushlog2.db"), timeout_ms=100, mode=0o2644).close()
    assert (tmp_path / "pushlog2.db").stat().st_mode & 0o7777 == 0o664


@pytest.mark.processes
def test_evolve_removes_no_file_that_a_journal_of_its_caches_names(tmp_path: Path) -> None:
    def run(*arguments: str) -> None:
        loaded = [f"--config=extensions.{name}=" for name in ("pushlog", "evolve")]
        subprocess.run([shared_hg(), *loaded, *arguments], cwd=tmp_path, check=True)

    run("init")
    (tmp_path / "file").touch()
    for command in ("commit --addremove -m first", "amend -m second", "debugupdatecache"):
        run(*command.split(), "--config=ui.username=dana")
    caches = sorted((tmp_path / ".hg/cache").glob("*.sqlite"))
    for cache in caches:
        (tmp_path / cache.name).write_text("precious")
        write_foreign_journal(cache, tmp_path / cache.name)
    run("amend", "-m", "third", "--config=ui.username=dana")
    run("debugupdatecache")
    assert len(caches) == 2
    assert all((tmp_path / cache.name).exists() for cache in caches)


def test_the_journal_that_a_kill_left_is_rolled_back_by_a_writer(database: Path) -> None:
    """A journal that undoes a commit is distinguished from a journal that removes a file."""
    journal = database.with_name("pushlog2.db-journal")
    journal.write_bytes(journal.read_bytes()[:512])
    connections.open_for_writing(str(database), timeout_ms=100).close()
    assert not journal.exists()

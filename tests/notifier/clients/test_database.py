# SPDX-License-Identifier: GPL-2.0-or-later
"""The notifier's databases: passing errors are waited for, those that only an operator can solve end the start with one line."""

import contextlib
import errno
import os
import resource
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hgext.vcsreplicator.log import NOTICES
from hgext.vcsreplicator.words.errors import BadConfig, ReplicationError, Unavailable
from notifier.clients import database
from notifier.clients.database import Database, trouble
from notifier.destinations import state
from notifier.destinations.state import StateDatabase
from notifier.destinations.webhook.deliveries import Deliveries
from notifier.publishing import publisher
from notifier.publishing.settings import NotifierSettings, read
from testing.builders.log.memorylog import MemoryLog
from testing.builders.notifier.notices import publish_pushes, with_topics
from testing.builders.notifier.notifying import PUBLIC, Notifier, Scripted
from testing.faults.system import System

pytestmark = pytest.mark.processes

OPENERS = pytest.mark.parametrize("opened", [StateDatabase, Deliveries])


def sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("no")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (sqlite_error(sqlite3.SQLITE_FULL), Unavailable),
        (sqlite_error(sqlite3.SQLITE_IOERR_WRITE), Unavailable),
        (sqlite_error(sqlite3.SQLITE_BUSY), Unavailable),
        (sqlite_error(sqlite3.SQLITE_NOMEM), Unavailable),
        (sqlite_error(sqlite3.SQLITE_READONLY_DIRECTORY), BadConfig),
        (sqlite_error(sqlite3.SQLITE_CANTOPEN_ISDIR), BadConfig),
        (sqlite_error(sqlite3.SQLITE_ERROR), BadConfig),
        (sqlite_error(sqlite3.SQLITE_PERM), BadConfig),
        (OSError(errno.ENOSPC, "No space left on device"), Unavailable),
        (OSError(errno.EIO, "Input/output error"), Unavailable),
        (OSError(errno.EMFILE, "Too many open files"), Unavailable),
        (PermissionError(errno.EACCES, "Permission denied"), BadConfig),
        (OSError(errno.EROFS, "Read-only file system"), BadConfig),
    ],
    ids=str,
)
def test_error_of_a_database_says_whose_turn_it_is(
    error: OSError | sqlite3.Error, kind: type[ReplicationError]
) -> None:
    found = trouble(error, "notifier.state", "/s.db")
    assert type(found) is kind
    assert str(found).startswith("notifier.state: /s.db: cannot be used: ")


def test_what_another_user_may_not_use_names_the_owner(tmp_path: Path, system: System) -> None:
    path = tmp_path / "s.db"
    path.touch()
    if os.geteuid() == 0:  # root owns what may belong to no service
        for named in (path, tmp_path):
            os.chown(named, 1, -1)
    error = PermissionError(errno.EACCES, "Permission denied")
    system.become(path.stat().st_uid)
    assert str(trouble(error, "notifier.state", str(path))).endswith("cannot be used: Permission denied")
    system.become(4711)
    remedy = f"; run it as its owner: sudo -u {path.owner()} ..."
    for named in (path, tmp_path / "not-yet" / "s.db"):
        assert str(trouble(error, "notifier.state", str(named))).endswith(f"Permission denied{remedy}")
    assert remedy not in str(trouble(OSError(errno.EROFS, "Read-only file system"), "notifier.state", str(path)))


def modes(folder: Path) -> dict[str, str]:
    return {file.name: oct(file.stat().st_mode & 0o777) for file in folder.iterdir()}


@OPENERS
def test_database_and_its_journals_are_not_for_all_users(tmp_path: Path, opened: Callable[[str], Any]) -> None:
    file = tmp_path / "d.db"
    with closing(opened(str(file))):
        assert modes(tmp_path) == {"d.db": "0o640", "d.db-wal": "0o640", "d.db-shm": "0o640"}
        for each in tmp_path.iterdir():
            each.chmod(0o664)  # of an earlier release
        with closing(opened(str(file))):
            assert modes(tmp_path) == {"d.db": "0o660", "d.db-wal": "0o660", "d.db-shm": "0o660"}


def test_database_of_another_owner_is_opened_as_it_is(tmp_path: Path, system: System) -> None:
    StateDatabase(str(tmp_path / "d.db")).close()
    (tmp_path / "d.db").chmod(0o644)
    system.refuse(errno.EPERM, "os.chmod")
    StateDatabase(str(tmp_path / "d.db")).close()


@OPENERS
def test_file_that_is_no_database_is_for_the_operator(tmp_path: Path, opened: Callable[[str], Any]) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("no database at all, but long enough to be looked at as one" * 10)
    with pytest.raises(BadConfig, match=r"notes\.txt: cannot be used: file is not a database"):
        opened(str(file))


@OPENERS
def test_folder_in_the_place_of_the_database_is_for_the_operator(tmp_path: Path, opened: Callable[[str], Any]) -> None:
    with pytest.raises(BadConfig, match="unable to open database file"):
        opened(str(tmp_path))


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """This process can open `count` files more."""
    before, held = resource.getrlimit(resource.RLIMIT_NOFILE), []
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 200, before[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(count):
            os.close(held.pop())
        yield
    finally:
        for one in held:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@OPENERS
@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("count", range(5))
def test_a_process_without_file_descriptors_is_waited_for(
    tmp_path: Path, opened: Callable[[str], Any], is_there: bool, count: int
) -> None:
    file = str(tmp_path / "it.db")
    if is_there:
        opened(file).close()
    found: ReplicationError | None = None
    with descriptors_left(count):
        try:
            opened(file).close()
        except ReplicationError as error:
            found = error
    assert isinstance(found, Unavailable) or (found is None and count > 2)


def test_looking_for_what_is_in_the_way_gives_up_no_lock_of_ours(tmp_path: Path) -> None:
    file = tmp_path / "it.db"
    other = f"""import sqlite3; sqlite3.connect({str(file)!r}, timeout=0).execute("INSERT INTO t VALUES (2)")"""
    with closing(sqlite3.connect(file, isolation_level=None)) as writing:
        writing.execute("PRAGMA journal_mode=WAL")
        writing.execute("CREATE TABLE t (x)")
        writing.execute("BEGIN IMMEDIATE")
        trouble(sqlite_error(sqlite3.SQLITE_CANTOPEN), "notifier.state", str(file))
        found = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, check=False)
    assert "database is locked" in found.stderr


@OPENERS
def test_what_stands_in_the_way_of_a_database_is_for_the_operator(tmp_path: Path, opened: Callable[[str], Any]) -> None:
    (tmp_path / "it.db-journal").mkdir()
    with pytest.raises(BadConfig, match=r"it\.db: cannot be used: "):
        opened(str(tmp_path / "it.db"))


@OPENERS
def test_database_locked_at_start_is_waited_for(
    tmp_path: Path, opened: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "PATIENCE", 0.01)
    file = tmp_path / "it.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("CREATE TABLE t (x)")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(Unavailable, match="database is locked"):
            opened(str(file))


def test_full_disk_at_start_is_waited_out(tmp_path: Path, system: System) -> None:
    notifier = Notifier(with_topics(MemoryLog()), tmp_path)
    fault = system.refuse(errno.ENOSPC, "os.open", at=f"{tmp_path}/notifier.db", times=2)
    destination = Scripted()
    notifier.start(it=destination)
    publish_pushes(notifier.log, "x", 1, 1)
    notifier.settled("it")
    notifier.stop()
    notifier.state.close()
    assert (destination.told("x"), len(fault.paths)) == ([1], 2)


def test_notifier_that_waits_for_its_state_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()

    def full(path: str) -> StateDatabase:
        stop.set()
        raise Unavailable("notifier.state: full")

    monkeypatch.setattr(publisher, "StateDatabase", full)
    settings = NotifierSettings(public=PUBLIC, destinations={"it": Scripted()}, state=str(tmp_path / "s.db"))
    publisher.run(settings, MemoryLog(), stop=stop, ready=lambda: pytest.fail("it is not ready"))


def test_lock_that_cannot_be_made_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "s.db.lock").mkdir()
    settings = NotifierSettings(public=PUBLIC, destinations={"it": Scripted()}, state=str(tmp_path / "s.db"))
    with pytest.raises(BadConfig, match=r"^notifier\.state: .*s\.db\.lock: cannot be used: Is a directory$"):
        publisher.run(settings, MemoryLog(), stop=threading.Event(), ready=lambda: None)


def test_lock_made_by_root_belongs_to_the_owner_of_its_folder(tmp_path: Path, system: System) -> None:
    system.become(0)
    given, owner = system.note_owners(), tmp_path.stat()
    with database.alone(str(tmp_path / "s.db"), "notifier.state", "notifier"):
        assert given == [(f"{tmp_path}/s.db.lock", owner.st_uid, owner.st_gid)]


def test_destination_whose_own_disk_is_full_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state cannot be opened again after a restart of its own; the others have theirs open."""
    log = with_topics(MemoryLog())
    notifier, real = Notifier(log, tmp_path), state.Database
    full = threading.Event()

    def open_database(path: str, key: str, schema: str) -> Database:
        if full.is_set() and threading.current_thread().name == "notifier-sick":
            raise BadConfig(f"{key}: {path}: cannot be used: readonly")
        return real(path, key, schema)

    monkeypatch.setattr(state, "Database", open_database)
    crash = [ZeroDivisionError("bug")]

    def answer(message: object) -> None:
        if crash:
            full.set()
            raise crash.pop()

    sick, other = Scripted(answer=answer), Scripted()
    notifier.start(sick=sick, other=other)
    publish_pushes(log, "x", 1, 2)
    notifier.settled("other")
    assert full.wait(60)
    publish_pushes(log, "x", 3, 3)
    notifier.settled("other")
    full.clear()
    notifier.settled("sick")
    notifier.stop()
    notifier.state.close()
    assert notifier.error is None
    assert sick.told("x") == other.told("x") == [1, 2, 3]
    assert log.ends(NOTICES)[0] == 3


@pytest.mark.parametrize(
    ("sections", "complaint"),
    [
        (
            {"a": {"type": "jsonlines", "file": "/f"}, "b": {"type": "jsonlines", "file": "/x/../f"}},
            r"^f\.toml: notifier\.b\.file: expected a file of its own, notifier\.a\.file has /x/\.\./f too$",
        ),
        (
            {"a": {"type": "webhook", "database": "/d.db"}, "b": {"type": "webhook", "database": "/d.db"}},
            r"notifier\.b\.database: expected a file of its own, notifier\.a\.database has /d\.db too$",
        ),
        (
            {"state": "/d.db", "a": {"type": "webhook", "database": "/d.db"}},
            r"notifier\.a\.database: expected a file of its own, notifier\.state has /d\.db too$",
        ),
    ],
)
def test_two_destinations_never_share_a_file(sections: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadConfig, match=complaint):
        read({"public": {"urls": {}}, "notifier": sections}, "f.toml")


def test_databases_are_synced_at_every_commit(tmp_path: Path) -> None:
    deliveries, state = Deliveries(str(tmp_path / "d.db")), StateDatabase(str(tmp_path / "s.db"))
    with closing(deliveries), closing(state):
        for opened in (deliveries._db, state):
            assert opened.rows("PRAGMA synchronous") == [(2,)]  # FULL

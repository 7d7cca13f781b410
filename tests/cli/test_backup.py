# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator backup` copies what no machine can make again, and `restore` puts it in place, whole or not at all."""

import errno
import fcntl
import json
import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from mercurial import lock as mercurial_lock
from mercurial import ui

from hgext.vcsreplicator.cli import backup_copy, restore
from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.hg.replica.place import hold_still
from hgext.vcsreplicator.log import EVENTS, NewRecord, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words.errors import BadConfig
from pushlog.versions import factory, initialize
from testing.faults.forks import await_fork, begin_fork
from testing.faults.system import System

initialize()

BLOB = f"ab/{'ab' * 32}.hg"


@dataclass
class Host:
    """The files of a machine without services."""

    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "services.toml"

    @property
    def url(self) -> str:
        return f"sqlite://{self.folder}/data/log.db"

    def set_up(self) -> "Host":
        """Writes the services' file and makes the folders that `setup` would."""
        (self.folder / "data").mkdir(parents=True)
        self.file.write_text(
            f'log = "{self.url}"\nblobs = "file://{self.folder}/blobs"\n'
            f'[relay]\nsocket = "{self.folder}/relay.sock"\nsource = "hg://master"\nroots = {{ "{self.folder}/repos" = "" }}\n'
            f'[aggregator]\nkey = "{self.folder}/aggregator.key"\n'
            f'[dashboard]\nlisten = "127.0.0.1:1"\nacts = "{self.folder}/data/acts.db"\n'
        )
        return self

    def fill(self) -> "Host":
        """Makes a log, a repository with its lock of a dead process, a blob and a key."""
        with open_log(self.url, creates=True) as log:
            log.create(topics())
            log.append([NewRecord(topic=EVENTS, key="a", value=b"1")])
        with closing(sqlite3.connect(self.folder / "data/acts.db")) as acts:
            acts.execute("CREATE TABLE acts (what TEXT)")
        repository = self.folder / "repos/group/first"
        factory.repository(ui.ui(), os.fsencode(repository), create=True)
        (repository / ".hg/store/data").mkdir()
        (repository / ".hg/store/data/~2ehgtags.i").write_bytes(b"revlog")
        (repository / ".hg/store/lock").symlink_to("elsewhere:1")
        (self.folder / "repos/.vcsreplicator").mkdir()
        (self.folder / "repos/.vcsreplicator/generations").write_text("1")
        (self.folder / "blobs/ab").mkdir(parents=True)
        (self.folder / "blobs" / BLOB).write_bytes(b"bundle")
        (self.folder / "aggregator.key").write_text("private")
        (self.folder / "aggregator.key").chmod(0o600)
        return self

    def type(self, verb: str, *words: object) -> Result:
        return CliRunner().invoke(program, [verb, *map(str, words), "-c", str(self.file)])

    def do(self, verb: str, *words: object) -> str:
        done = self.type(verb, *words)
        assert done.exit_code == 0, done.output + repr(done.exception)
        return done.output

    def refuse(self, verb: str, *words: object) -> str:
        done = self.type(verb, *words)
        assert done.exit_code != 0, done.output
        assert isinstance(done.exception, Exception)
        return f"{done.output}{done.exception}"

    def count_events(self) -> int:
        with open_log(self.url) as log:
            return sum(log.ends(EVENTS).values())


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "host").set_up().fill()


@pytest.fixture
def copy(host: Host, tmp_path: Path) -> Path:
    (host.folder / "repos/group/first/.hg/store/lock").unlink()
    host.do("backup", tmp_path / "copy", "--repositories", "copy", "--secrets")
    return tmp_path / "copy"


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def test_a_copy_is_restored_on_another_machine_with_all_that_it_has(host: Host, copy: Path, tmp_path: Path) -> None:
    other = Host(tmp_path / "other").set_up()
    said = other.do("restore", copy)
    assert "next: start all services" in said
    for part in ("repos", "blobs", "aggregator.key"):
        old, new = host.folder / part, other.folder / part
        assert old.stat().st_mode == new.stat().st_mode
        assert files_of(old) == files_of(new) if old.is_dir() else old.read_bytes() == new.read_bytes()
    assert other.count_events() == 1
    with closing(sqlite3.connect(other.folder / "data/acts.db")) as acts:
        assert acts.execute("SELECT count(*) FROM acts").fetchall() == [(0,)]
    assert other.file.read_text() == Host(other.folder).file.read_text()


def test_without_a_services_file_the_copied_one_comes_back_too(host: Host, copy: Path) -> None:
    written = host.file.read_text()
    shutil.rmtree(host.folder)
    host.folder.mkdir()
    host.do("restore", copy)
    assert host.file.read_text() == written
    assert host.count_events() == 1


def test_a_copy_is_closed_to_others_and_has_secrets_on_request(host: Host, tmp_path: Path) -> None:
    said = host.do("backup", tmp_path / "copy", "--repositories", "none")
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o700
    assert not [name for name in files_of(tmp_path / "copy") if "key" in name or "repos" in name]
    assert "not in it: keys and files of secrets" in said
    assert "not in it: the repositories" in said
    assert not (tmp_path / "copy.lock").exists()


def test_what_is_missing_is_named(host: Host, tmp_path: Path) -> None:
    (host.folder / "data/acts.db").unlink()
    said = host.do("backup", tmp_path / "copy", "--repositories", "none")
    assert f"not in it: dashboard.acts: {host.folder}/data/acts.db is missing" in said
    (host.folder / "data/log.db").unlink()
    assert "log.db: is missing, so nothing was copied" in host.refuse(
        "backup", tmp_path / "second", "--repositories", "none"
    )


def test_a_master_is_not_copied_before_it_is_said_how(host: Host, tmp_path: Path) -> None:
    assert "expected copy, print or none" in host.refuse("backup", tmp_path / "copy")
    said = host.do("backup", tmp_path / "copy", "--repositories", "print")
    assert f"\ncp -aT {host.folder}/repos {tmp_path}/copy-repositories-0\n" in said


def test_the_log_is_copied_before_any_repository(host: Host, copy: Path) -> None:
    names = [json.loads(line)["name"] for line in (copy / "files.jsonl").read_text().splitlines()]
    assert names[0] == "log"
    assert names[-1].startswith("aggregator.key")
    roots = [name for name in names if name.startswith("relay.roots.")]
    assert [name.split("/")[1] for name in roots if name.count("/") == 1] == ["group", ".vcsreplicator"]


def test_locks_of_mercurial_are_not_copied_and_a_dead_one_does_not_stop_it(host: Host, tmp_path: Path) -> None:
    lock = host.folder / "repos/group/first/.hg/store/lock"
    lock.unlink()
    dead = begin_fork(lambda: None)
    await_fork(dead)
    lock.symlink_to(f"{os.fsdecode(mercurial_lock._getlockprefix())}:{dead}")
    host.do("backup", tmp_path / "copy", "--repositories", "copy")
    assert not [each for each in (tmp_path / "copy").rglob("*lock") if each.is_symlink()]


def leave_locked(repository: Path) -> None:
    (repository / ".hg/wlock").symlink_to("elsewhere:1")


def put_a_pipe_in_place_of_a_lock(repository: Path) -> None:
    os.mkfifo(repository / ".hg/wlock")


def put_an_endless_file_in_place_of_a_lock(repository: Path) -> None:
    (repository / ".hg/store/lock").touch()
    os.truncate(repository / ".hg/store/lock", 15 << 40)


def link_store_elsewhere(repository: Path) -> None:
    """A lock would be made where the link leads."""
    shutil.rmtree(repository / ".hg/store")
    (repository / ".hg/store").symlink_to(repository.parent)


def damage_pushlog(repository: Path) -> None:
    (repository / ".hg/pushlog2.db").write_bytes(b"SQLite format 3" + b"x" * 5000)


def forge_journal(repository: Path) -> None:
    (repository / ".hg/pushlog2.db").touch()
    (repository / ".hg/pushlog2.db-journal").mkdir()


def nest_folders(repository: Path) -> None:
    (repository / ".hg/store").joinpath(*["d"] * (backup_copy._DEEPEST + 10)).mkdir(parents=True)


def make_long_path(repository: Path) -> None:
    place = os.open(repository / ".hg/store", os.O_RDONLY)
    for _ in range(17):
        os.mkdir("d" * 250, dir_fd=place)
        place, above = os.open("d" * 250, os.O_RDONLY, dir_fd=place), place
        os.close(above)
    os.close(place)


@pytest.mark.parametrize(
    "sabotage",
    [
        leave_locked,
        put_a_pipe_in_place_of_a_lock,
        put_an_endless_file_in_place_of_a_lock,
        link_store_elsewhere,
        damage_pushlog,
        forge_journal,
        nest_folders,
        make_long_path,
    ],
)
def test_a_repository_that_cannot_be_copied_is_named_and_left_out_alone(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sabotage: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(backup_copy, "_PATIENCE", 0)
    bad = host.folder / "repos/group/first"
    (bad / ".hg/store/lock").unlink()
    for name in ("group/first/inner", "group/second"):
        factory.repository(ui.ui(), os.fsencode(host.folder / "repos" / name), create=True)
    sabotage(bad)
    said = host.refuse("backup", tmp_path / "copy", "--repositories", "copy", "--secrets")
    assert f"not in it: {bad}: " in said or f"not in it: {bad}/" in said
    assert str(tmp_path / "copy/") not in said.replace(f"{tmp_path}/copy: ", "")
    assert f"not in it: {bad}" in host.do("backup", tmp_path / "copy", "--check")
    other = Host(tmp_path / "other").set_up()
    assert f"not in the copy: {bad}" in other.do("restore", tmp_path / "copy")
    there = {each.parent.name for each in (other.folder / "repos").rglob(".hg")}
    assert there == {"inner", "second"}
    assert (other.folder / "aggregator.key").exists()


def test_what_is_left_out_is_named_a_hundred_times(host: Host, tmp_path: Path) -> None:
    (host.folder / "repos/group/first/.hg/store/lock").unlink()
    for number in range(110):
        (host.folder / f"repos/bad{number}/.hg").mkdir(parents=True)
        (host.folder / f"repos/bad{number}/.hg/pushlog2.db").write_bytes(b"SQLite format 3" + b"x" * 5000)
    said = host.refuse("backup", tmp_path / "copy", "--repositories", "copy")
    assert said.count("not in it: ") == 102  # with secrets
    assert "and more" in said


def test_a_full_disk_ends_a_backup(host: Host, tmp_path: Path, system: System) -> None:
    (host.folder / "repos/group/first/.hg/store/lock").unlink()
    with system.refuse(errno.ENOSPC, "os.pwrite", at="*"):
        assert "No space left" in host.refuse("backup", tmp_path / "copy", "--repositories", "copy")
    assert [*tmp_path.glob("copy*")] == [tmp_path / "copy.lock"]


def test_a_repository_is_copied_under_both_of_its_locks(host: Host, tmp_path: Path) -> None:
    folder = host.folder / "repos/group/first"
    (folder / ".hg/store/lock").unlink()
    with hold_still(str(folder), 0):
        assert (folder / ".hg/store/lock").is_symlink()
        assert (folder / ".hg/wlock").is_symlink()
    assert not (folder / ".hg/wlock").is_symlink()


def test_what_a_killed_backup_left_is_removed_by_the_next(host: Host, tmp_path: Path) -> None:
    (tmp_path / "copy.partial/parts").mkdir(parents=True)
    (tmp_path / "copy.partial/parts/log").write_bytes(b"half")
    host.do("backup", tmp_path / "copy", "--repositories", "none")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["copy", "host"]
    assert "already exists" in host.refuse("backup", tmp_path / "copy", "--repositories", "none")


def test_a_copy_that_another_run_is_writing_is_left_alone(host: Host, tmp_path: Path) -> None:
    with (tmp_path / "copy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (tmp_path / "copy.partial").mkdir()
        assert "another backup is writing it" in host.refuse("backup", tmp_path / "copy", "--repositories", "none")
    assert (tmp_path / "copy.partial").exists()


def test_a_copy_below_what_is_copied_is_refused(host: Host) -> None:
    said = host.refuse("backup", host.folder / "repos/copy", "--repositories", "copy")
    assert "which is copied; expected a folder elsewhere" in said


def test_check_counts_what_the_log_had_after_the_copy(host: Host, copy: Path) -> None:
    before = files_of(copy)
    assert "would remove from the log: no record" in (said := host.do("backup", copy, "--check"))
    assert re.search(r"complete, begun \S+ \S+ UTC, \d+ s ago, ", said)
    with open_log(host.url) as log:
        log.append([NewRecord(topic=EVENTS, key="a", value=b"2")])
    assert "would remove from the log: 1 of events;" in host.do("backup", copy, "--check")
    assert json.loads(host.do("backup", copy, "--check", "--json"))["lost"] == {"events": 1}
    assert files_of(copy) == before


@pytest.mark.parametrize("part", ["blobs/" + BLOB, "log", "../files.jsonl", "../manifest.json"])
def test_a_damaged_copy_is_named_and_is_not_restored(host: Host, copy: Path, tmp_path: Path, part: str) -> None:
    damaged = copy / "parts" / part
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.unlink()
    damaged.write_bytes(content)
    other = Host(tmp_path / "other").set_up()
    for verb, *words in (("backup", "--check"), ("restore",)):
        said = other.refuse(verb, copy, *words)
        assert damaged.name in said or "manifest.json" in said
        assert "use another copy" in said
    assert not (other.folder / "repos").exists()


def test_a_name_that_leaves_the_copy_is_refused(host: Host, copy: Path, tmp_path: Path) -> None:
    manifest = backup_copy.read_manifest(str(copy))
    files = copy / "files.jsonl"
    files.write_text(files.read_text().replace(BLOB, "../../../../escaped"))
    with pytest.raises(Exception, match="expected a name below a part"):
        list(backup_copy.read_entries(str(copy), manifest))


def test_a_manifest_of_lists_within_lists_is_damaged(copy: Path) -> None:
    (copy / "manifest.json").write_text("[" * 3000)
    with pytest.raises(BadConfig, match="use another copy"):
        backup_copy.read_manifest(str(copy))


def test_a_restore_is_refused_while_a_service_has_the_log_open(host: Host, copy: Path) -> None:
    shutil.rmtree(host.folder / "repos")
    with open_log(host.url) as log:
        log.append([NewRecord(topic=EVENTS, key="a", value=b"2")])
        assert "log.db: a service has it open" in host.refuse("restore", copy, "--replace")
    assert host.count_events() == 2


def test_a_restore_is_refused_while_the_relay_runs(host: Host, copy: Path) -> None:
    shutil.rmtree(host.folder / "repos")
    with (host.folder / "relay.sock.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "a service holds it" in host.refuse("restore", copy, "--replace")
    assert not (host.folder / "repos").exists()


def test_what_is_there_and_differs_is_replaced_only_on_request(host: Host, copy: Path) -> None:
    shutil.rmtree(host.folder / "repos")
    with open_log(host.url) as log:
        log.append([NewRecord(topic=EVENTS, key="a", value=b"2")])
    assert "log.db: exists, and differs from the copy" in host.refuse("restore", copy)
    assert host.count_events() == 2
    host.do("restore", copy, "--replace")
    assert host.count_events() == 1


def test_a_journal_of_the_old_log_is_not_applied_to_the_copy(host: Host, copy: Path) -> None:
    shutil.rmtree(host.folder / "repos")
    database = host.folder / "data/log.db"
    with open_log(host.url) as log:
        log.append([NewRecord(topic=EVENTS, key="a", value=b"2")])
        left = {name: Path(f"{database}{name}").read_bytes() for name in ("-wal", "-shm")}
    database.unlink()
    for name, content in left.items():
        Path(f"{database}{name}").write_bytes(content)
    host.do("restore", copy)
    assert host.count_events() == 1


def test_a_restore_replaces_no_repositories(host: Host, copy: Path) -> None:
    (host.folder / "repos/group/first/.hg/newer").write_text("push")
    assert "restore replaces no repositories" in host.refuse("restore", copy, "--replace")
    assert (host.folder / "repos/group/first/.hg/newer").exists()


def test_a_restore_that_was_killed_anywhere_is_run_again(
    host: Host, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, left = Host(tmp_path / "other").set_up(), [0]

    def die(_path: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt

    for lives in range(1000):
        left[0] = lives
        with monkeypatch.context() as patched:
            System(patched).watch(die, "os.mkdir", "os.fchmod", "os.replace")
            if not other.type("restore", copy).exit_code:
                break
    assert lives > 10
    assert files_of(host.folder / "repos") == files_of(other.folder / "repos")
    assert other.count_events() == 1


def test_the_longest_names_that_accounts_can_give_are_restored(host: Host, copy: Path, tmp_path: Path) -> None:
    folder, restored = host.folder / "repos/group/first", tmp_path / "other/repos/group/first"
    (folder / ("f" * 255)).write_text("long")
    (folder / ("l" * 255)).symlink_to("long")
    host.do("backup", tmp_path / "long", "--repositories", "copy")
    Host(tmp_path / "other").set_up().do("restore", tmp_path / "long")
    assert (restored / ("f" * 255)).read_text() == "long"
    assert (restored / ("l" * 255)).readlink() == Path("long")


def test_a_restore_that_was_killed_within_a_file_leaves_nothing(
    host: Host, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Host(tmp_path / "other").set_up()
    with monkeypatch.context() as patched:
        patched.setattr(restore, "_give", lambda path, entry: 1 / 0 if entry.sha256 else None)
        assert isinstance(other.type("restore", copy).exception, ZeroDivisionError)
    assert [*other.folder.rglob("*restoring*")]
    other.do("restore", copy)
    assert not [*other.folder.rglob("*restoring*")]


def test_holes_of_a_file_take_no_room_in_a_copy_or_a_restore(host: Host, tmp_path: Path) -> None:
    (host.folder / "repos/group/first/.hg/store/lock").unlink()
    name = "repos/group/first/.hg/store/data/x.i"
    with (host.folder / name).open("wb") as file:
        for at in (5 << 20, 20 << 20):
            file.seek(at)
            file.write(b"revlog")
        file.truncate(40 << 20)
    host.do("backup", tmp_path / "copy", "--repositories", "copy")
    [copied] = (tmp_path / "copy").rglob("x.i")
    Host(tmp_path / "other").set_up().do("restore", tmp_path / "copy")
    for made in (copied, tmp_path / "other" / name):
        assert made.read_bytes() == (host.folder / name).read_bytes()
        assert made.stat().st_blocks * 512 < 1 << 20


def test_a_file_larger_than_what_is_free_is_not_copied(host: Host, tmp_path: Path) -> None:
    (host.folder / "repos/group/first/.hg/store/lock").unlink()
    name = "repos/group/first/.hg/store/data/x.i"
    (host.folder / name).touch()
    os.truncate(host.folder / name, 15 << 40)
    assert f"{15 << 40} bytes are more than what is free" in host.refuse(
        "backup", tmp_path / "copy", "--repositories", "copy"
    )


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that is no part of an installation."""
    (tmp_path / "outside").mkdir(mode=0o700)
    return tmp_path / "outside"


@pytest.mark.parametrize("name", ["store/data/x.i", "store/data/x", "pushlog2.db", "pushlog2.db-journal"])
def test_a_link_that_comes_during_a_backup_is_not_followed(
    host: Host, tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    control = host.folder / "repos/group/first/.hg"
    (control / "store/lock").unlink()
    with closing(sqlite3.connect(control / "pushlog2.db")) as pushlog:
        pushlog.execute("CREATE TABLE pushlog (id)")
    (control / "store/data/x").mkdir()
    for own in ("a.i", "x.i"):
        (control / "store/data" / own).write_text("own")
    shutil.copy(control / "pushlog2.db", outside / "secret")
    note = backup_copy.CopyWriter._note

    def note_and_exchange(self: backup_copy.CopyWriter, noted: str, *about: Any, **more: Any) -> None:
        note(self, noted, *about, **more)
        if noted.endswith("/data/a.i" if "data" in name else "/.hg/00changelog.i"):
            if (control / name).exists():
                (control / name).rename(tmp_path / "own")
            (control / name).symlink_to(outside if name.endswith("x") else outside / "secret")

    monkeypatch.setattr(backup_copy.CopyWriter, "_note", note_and_exchange)
    refused = host.refuse("backup", tmp_path / "copy", "--repositories", "copy")
    assert f"{name.rpartition('/')[2]} in it became a link" in refused
    assert not [*(tmp_path / "copy").rglob(".hg")]


def test_folders_too_deep_for_a_backup_are_named(host: Host, tmp_path: Path) -> None:
    (host.folder / "repos/group/first/.hg/store/lock").unlink()
    (host.folder / "repos/group").joinpath(*["d"] * (backup_copy._DEEPEST + 10)).mkdir(parents=True)
    refused = host.refuse("backup", tmp_path / "copy", "--repositories", "copy")
    assert "repos/group/d/d/d" in refused
    assert "lies within more than" in refused
    assert (tmp_path / "copy/manifest.json").exists()


def test_a_push_that_was_killed_is_not_in_the_copy_of_the_pushlog(host: Host, tmp_path: Path) -> None:
    control = host.folder / "repos/group/first/.hg"
    (control / "store/lock").unlink()
    with closing(sqlite3.connect(control / "pushlog2.db", isolation_level=None)) as pushlog:
        pushlog.execute("CREATE TABLE pushlog (id)")
        pushlog.execute("PRAGMA cache_size = 1")
        pushlog.execute("BEGIN")
        pushlog.executemany("INSERT INTO pushlog VALUES (?)", [("x" * 1000,)] * 100)
        for ending in ("", "-journal"):
            shutil.copy(control / f"pushlog2.db{ending}", tmp_path / f"killed{ending}")
    for ending in ("", "-journal"):
        shutil.copy(tmp_path / f"killed{ending}", control / f"pushlog2.db{ending}")
    before = files_of(control)
    host.do("backup", tmp_path / "copy", "--repositories", "copy")
    assert files_of(control) == before
    [copied] = (tmp_path / "copy").rglob("pushlog2.db*")
    with closing(sqlite3.connect(copied)) as pushlog:
        assert pushlog.execute("SELECT count(*) FROM pushlog").fetchall() == [(0,)]


def mark_of(copy: Path) -> str:
    """What a restore of this copy writes into its mark."""
    return str(json.loads((copy / "manifest.json").read_text())["sha256"])


@pytest.mark.parametrize("place", ["repos", "repos/group", "repos/group/first/.hg", "blobs", "blobs/ab"])
def test_a_restore_writes_nothing_through_a_link(copy: Path, tmp_path: Path, outside: Path, place: str) -> None:
    other = Host(tmp_path / "other").set_up()
    (other.folder / place).parent.mkdir(parents=True, exist_ok=True)
    if place.startswith("repos/"):
        (other.folder / "repos/.vcsreplicator-restoring").write_text(mark_of(copy))
    (other.folder / place).symlink_to(outside)
    refused = other.refuse("restore", copy)
    assert "then restore again" in refused
    assert str(other.folder / place) in refused
    assert sorted(outside.rglob("*")) in ([], [outside / ".vcsreplicator-restoring"])
    assert outside.stat().st_mode & 0o777 == 0o700


def test_a_restore_changes_no_mode_of_a_file_that_a_link_names(copy: Path, tmp_path: Path, outside: Path) -> None:
    other = Host(tmp_path / "other").set_up()
    (outside / "secret").write_text("private")
    (outside / "secret").chmod(0o400)
    (other.folder / "aggregator.key").symlink_to(outside / "secret")
    assert "then restore again" in other.refuse("restore", copy)
    assert (outside / "secret").stat().st_mode & 0o777 == 0o400


def test_accounts_begin_no_restore_over_what_they_made(host: Host, copy: Path, outside: Path, system: System) -> None:
    mark = host.folder / "repos/.vcsreplicator-restoring"
    mark.symlink_to(outside / "made")
    assert "restore replaces no repositories" in host.refuse("restore", copy)
    assert not (outside / "made").exists()
    mark.unlink()
    mark.write_text(mark_of(copy))
    system.become(mark.stat().st_uid + 1)
    assert "restore replaces no repositories" in host.refuse("restore", copy)


def test_accounts_begin_no_restore_by_another_file_of_the_user(host: Host, copy: Path) -> None:
    (host.folder / "aggregator.key").rename(host.folder / "repos/.vcsreplicator-restoring")
    assert "restore replaces no repositories" in host.refuse("restore", copy)


def test_a_restore_that_was_killed_before_its_mark_was_whole_begins_anew(copy: Path, tmp_path: Path) -> None:
    other = Host(tmp_path / "other").set_up()
    (other.folder / "repos").mkdir()
    (other.folder / "repos/.vcsreplicator-restoring").touch()
    other.do("restore", copy)
    assert not (other.folder / "repos/.vcsreplicator-restoring").exists()
    assert (other.folder / "repos/group/first/.hg/requires").exists()


def test_a_copy_does_not_say_which_hgrc_is_written(host: Host, tmp_path: Path) -> None:
    hgrc = tmp_path / "hgrc"
    hgrc.write_text("[ui]\n")
    host.do("backup", tmp_path / "copy", "--repositories", "none", "--hgrc", hgrc)
    hgrc.unlink()
    other = Host(tmp_path / "other").set_up()
    assert f"to restore it, add --hgrc {hgrc}" in other.do("restore", tmp_path / "copy")
    assert not hgrc.exists()
    other.do("restore", tmp_path / "copy", "--hgrc", hgrc)
    assert hgrc.exists()


def test_a_restored_file_runs_with_the_rights_of_its_user(host: Host, tmp_path: Path) -> None:
    (host.folder / "blobs" / BLOB).chmod(0o4755)
    host.do("backup", tmp_path / "copy", "--repositories", "none")
    other = Host(tmp_path / "other").set_up()
    other.do("restore", tmp_path / "copy")
    assert (other.folder / "blobs" / BLOB).stat().st_mode & 0o7777 == 0o755


def test_a_link_that_comes_during_a_restore_is_not_followed(
    copy: Path, tmp_path: Path, outside: Path, system: System
) -> None:
    other = Host(tmp_path / "other").set_up()
    folder = other.folder / "blobs/ab"

    def lose(_path: str) -> None:
        folder.rmdir()
        folder.symlink_to(outside)

    system.watch(lose, "os.fchmod", at=str(folder))  # accounts have their rights on it then
    assert "then restore again" in other.refuse("restore", copy)
    assert list(outside.iterdir()) == []

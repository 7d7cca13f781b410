# SPDX-License-Identifier: GPL-2.0-or-later
"""A mirror reads its repositories through while pushes arrive: damage is found, and what a push does is never taken for it."""

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mercurial import context
from mercurial.node import nullid

from hgext.vcsreplicator.hg.replica import checking, replicated
from hgext.vcsreplicator.hg.replica.checking import check
from hgext.vcsreplicator.hg.replica.repository import OpenRepositories, locked, prepare
from hgext.vcsreplicator.hg.replica.work import TaskRunner
from hgext.vcsreplicator.mirror.pool import CONFIGURATION
from hgext.vcsreplicator.mirror.task import Check, Checked, ReadEvent, Task
from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.wire import decode
from testing.builders.mirror.mirroring import Bench
from testing.waiting import eventually

pytestmark = pytest.mark.processes

FILES = 20


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, partitions=1) as bench:
        yield bench


def files(number: int) -> dict[str, bytes]:
    return {f"folder{each % 9}/file{each}": b"%d %d\n" % (each, number) for each in range(FILES)}


class One:
    """A repository of three pushes on the mirror, two of them applied, with runner that apply and runner that check."""

    def __init__(self, bench: Bench, settings: Any) -> None:
        self.author = bench.author("repo")
        for number in range(3):
            self.author.push(files(number))
        self.folder = bench.home(self.author)
        self.runner = TaskRunner(settings, OpenRepositories(prepare(), 4), SystemClock())
        self.repositories = OpenRepositories(self.runner.repositories.ui, 4)  # the check's own, as in its process
        for number in range(3):
            self.apply(number)

    def apply(self, number: int) -> None:
        frame = self.author.frames[number][1]
        item = ReadEvent(frame=decode(frame), partition=0, offset=number, size=len(frame))
        task = Task(
            repository=self.author.repository,
            path="repo",
            folder=str(self.folder),
            items=(item,),
            released=number + 1,
            incarnation=self.author.incarnation,
        )
        assert self.runner.perform(task).trouble is None

    def abort(self) -> None:
        """A transaction that adds a changeset and is rolled back, as one that does not lead where its event says."""
        repo = self.runner.repositories.open(str(self.folder))
        with locked(repo):
            tr = repo.transaction(b"aborted")
            commit(repo, files(9))
            tr.abort()

    def check(self) -> Checked:
        return check(
            self.repositories,
            self.runner.settings,
            Check(repository=self.author.repository, folder=str(self.folder), seq=3, serving=3),
        )


def commit(repo: Any, content: dict[str, bytes]) -> None:
    def file(_: Any, memory: Any, path: bytes) -> Any:
        return context.memfilectx(repo, memory, path, content[path.decode()])

    names = [name.encode() for name in content]
    repo.commitctx(context.memctx(repo, (repo.changelog.tip(), nullid), b"change", names, file, user=b"author"))


@pytest.fixture
def one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> One:
    hgrc = bench.folder / "worker.hgrc"
    hgrc.write_text(CONFIGURATION)
    monkeypatch.setenv("HGRCPATH", str(hgrc))
    monkeypatch.setenv("HGRCSKIPREPO", "1")
    return One(bench, bench.settings())


MOMENTS = ["_verifychangelog", "_verifymanifest", "_verifyfiles", "_verify_dirstate"]


def meanwhile(monkeypatch: pytest.MonkeyPatch, moment: str, act: Callable[[], None]) -> list[str]:
    """Has `act` done when the check comes to the moment; the result says that it was."""
    done: list[str] = []
    before = getattr(checking._Verifier, moment)

    def step(self: Any, *arguments: Any, **more: Any) -> Any:
        if not done:
            done.append(moment)
            act()
        return before(self, *arguments, **more)

    monkeypatch.setattr(checking._Verifier, moment, step)
    return done


def test_a_sound_repository_that_nothing_changes_is_sound(one: One) -> None:
    found = one.check()
    assert (found.problem, found.lower, found.is_undecided) == (None, None, False)


def test_a_repository_with_a_censored_revision_is_sound(one: One) -> None:
    one.author.censor("folder0/file0")
    for number in (3, 4):
        one.apply(number)
    found = one.check()
    assert (found.problem, found.lower, found.is_undecided) == (None, None, False)


@pytest.mark.sample(2)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_push_during_a_reading_through_leaves_the_check_undecided(
    one: One, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    done = meanwhile(monkeypatch, moment, lambda: one.apply(3))
    found = one.check()
    assert done
    assert (found.problem, found.lower, found.is_undecided) == (None, None, True)
    assert not one.check().is_undecided


@pytest.mark.sample(2)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_transaction_rolled_back_meanwhile_leaves_the_check_undecided(
    one: One, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    done = meanwhile(monkeypatch, moment, one.abort)
    found = one.check()
    assert done
    assert (found.problem, found.lower, found.is_undecided) == (None, None, True)


@pytest.mark.parametrize("what", ["lost", "of another history"])
def test_what_clients_no_longer_see_is_found_in_one_check(one: One, what: str) -> None:
    """The next one comes after all other repositories had theirs: of ten thousand, after a week."""
    file = one.folder / ".hg" / "replicated-watermark"
    if what == "lost":
        file.unlink()
    else:
        file.write_text(file.read_text().replace(one.author.frames[2][0].after.node, "1" * 40))
    found = one.check()
    assert (found.shown, found.is_undecided) == ((3, 0), False)
    assert not file.exists()


def test_another_historys_watermark_stays_while_the_lock_is_held(one: One) -> None:
    file = one.folder / ".hg" / "replicated-watermark"
    file.write_text(file.read_text().replace(one.author.frames[2][0].after.node, "1" * 40))
    with locked(one.runner.repositories.open(str(one.folder))):
        assert one.check().shown is None
    assert file.exists()


def test_a_check_that_a_release_overtakes_takes_no_lock(one: One, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker that applies the next push would find it."""
    taken: list[Any] = []

    def take(repo: Any) -> Any:
        taken.append(repo)
        return locked(repo)

    monkeypatch.setattr(checking, "locked", take)
    meanwhile(monkeypatch, "_verify_dirstate", lambda: one.apply(3))
    assert one.check().is_undecided
    assert taken == []


def test_a_repository_that_leaves_during_a_reading_is_not_damaged(one: One, monkeypatch: pytest.MonkeyPatch) -> None:
    meanwhile(monkeypatch, "_verifymanifest", lambda: os.rename(one.folder, f"{one.folder}-renamed"))
    found = one.check()
    assert (found.problem, found.is_undecided) == (None, True)


def test_a_transaction_that_lasts_all_the_time_leaves_the_check_undecided(one: One) -> None:
    repo = one.runner.repositories.open(str(one.folder))
    with locked(repo), repo.transaction(b"long"):
        found = one.check()
    assert (found.problem, found.is_undecided) == (None, True)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # a strip's
def test_a_push_that_was_stripped_or_rolled_back_is_not_missed(bench: Bench, one: One) -> None:
    one.apply(3)
    one.author.strip(one.author.tip)
    one.apply(4)
    assert one.check().problem is None
    one.author.push(files(3))
    one.apply(5)
    bench.hg(one.author, "rollback", "--config", "extensions.pushlog=", "--config", "ui.rollback=yes")
    found = bench.found()[one.author.repository].checkpoint
    assert (found and found.seq, found and found.push) == (5, 3)
    assert one.check().problem is None
    one.apply(5)


@pytest.mark.parametrize("found_by", ["check", "event"])
def test_a_push_that_a_power_cut_took_from_the_database_is_back(one: One, found_by: str) -> None:
    one.author.push(files(3))
    database = one.folder / ".hg" / "pushlog2.db"
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as connection:
        before = connection.execute("SELECT id, user, date FROM pushlog").fetchall()
        for statement in (
            "DELETE FROM pushlog WHERE id = 1",
            "DELETE FROM pushlog_edit",
            f"PRAGMA user_version = {1 << 30}",
        ):
            connection.execute(statement)
    if found_by == "check":
        assert one.check().problem is None
    else:
        one.apply(3)
    with contextlib.closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT id, user, date FROM pushlog").fetchall()[:2] == before[:2]


def test_a_pushlog_in_use_and_a_checkpoint_without_a_push_are_no_loss(one: One) -> None:
    pushlog = one.folder / ".hg" / "store" / "pushlog.log"
    pushlog.rename(pushlog.with_suffix(".away"))
    with contextlib.closing(sqlite3.connect(one.folder / ".hg" / "pushlog2.db")) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        one.repositories.ui.setconfig(b"pushlog", b"timeoutro", b"1")
        assert one.check().problem is None
    (one.folder / ".hg" / "pushlog2.db").unlink()
    assert one.check().problem == "its pushlog ends with push 0, not 2"
    repo = one.runner.repositories.open(str(one.folder))
    found = replicated.read(repo)
    assert found is not None
    with locked(repo):
        replicated.record(repo, replace(found, push=None))
    assert one.check().problem is None


def damage(folder: Path, what: str) -> None:
    store = folder / ".hg/store"
    match what:
        case "file":
            file = next(file for file in (store / "data").rglob("*.i"))
            data = bytearray(file.read_bytes())
            data[-3] ^= 4
            file.write_bytes(data)
        case "file lost":
            next(file for file in (store / "data").rglob("*.i")).unlink()
        case "manifest":
            file = store / "00manifest.i"
            file.write_bytes(file.read_bytes()[:-7])
        case "revision of no changeset":
            shutil.copy(store / "data/folder1/file1.i", store / "data/folder2/file2.i")
        case "changelog":
            file = store / "00changelog.i"
            data = bytearray(file.read_bytes())
            data[100] ^= 4
            file.write_bytes(data)
        case "store":
            shutil.rmtree(store)
        case "level":
            file = store / "replicated.log"
            file.write_bytes(file.read_bytes()[:-5] + b"xxxxx")


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "what", ["file", "file lost", "revision of no changeset", "manifest", "changelog", "store", "level"]
)
def test_damage_is_found(one: One, what: str) -> None:
    damage(one.folder, what)
    found = one.check()
    assert found.problem
    assert "TypeError" not in found.problem
    assert not found.is_undecided


def test_a_repository_pushed_to_during_a_reading_is_not_copied_anew(bench: Bench) -> None:
    bench.serve_master()
    author = bench.author("repo")
    author.push({f"file{number}": b"%d\n" % number for number in range(800)})
    bench.send(author)
    with bench.mirror(check_interval=0.01, slow_after=60.0):
        bench.wait_applied(author)
        store = (bench.where(author) / ".hg/store").stat().st_ino
        for number in range(12):
            author.push({f"file{each}": b"%d %d\n" % (each, number) for each in range(number, 800, 100)})
            bench.send(author)
            bench.wait(lambda acks: acks[author.repository].applied == author.seq, "the push is applied")
        assert (bench.where(author) / ".hg/store").stat().st_ino == store
        damage(bench.where(author), "file")
        bench.wait_detached(author, "corrupt")
        bench.wait_applied(author)
        eventually(lambda: (bench.where(author) / ".hg/store").stat().st_ino != store, "a new copy")

# SPDX-License-Identifier: GPL-2.0-or-later
"""Repositories make room for each other while workers are at work in them: none is written into, or moved for, another."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mercurial import error

from hgext.vcsreplicator.hg.replica import (
    checking,
    healing,
    place,
    releasing,
    replicated,
    repository,
    scan,
    snapshot,
    work,
)
from hgext.vcsreplicator.hg.replica.checking import check
from hgext.vcsreplicator.hg.replica.local import LocalRepository
from hgext.vcsreplicator.hg.replica.repository import OpenRepositories, locked, prepare
from hgext.vcsreplicator.hg.replica.work import TaskRunner
from hgext.vcsreplicator.hg.serving import watermark
from hgext.vcsreplicator.mirror.checkpoint import Checkpoint, before_first
from hgext.vcsreplicator.mirror.plan import APPLY
from hgext.vcsreplicator.mirror.settings import MirrorSettings
from hgext.vcsreplicator.mirror.task import Check, Checked, Task, TaskOutcome
from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.event import Type
from hgext.vcsreplicator.words.records import Reason
from testing.faults.system import Fault, System

OLD, NEW = "a" * 32, "b" * 32


class Mirror:
    """A mirror's disk: `OLD` lives at `p`, where `NEW` is released; each task has a worker of its own."""

    def __init__(self, folder: Path) -> None:
        self.settings = MirrorSettings(name="alpha", root=str(folder / "root"), master="http://127.0.0.1:9/")
        self.ui = prepare()
        self.url = self.settings.root + "/p"
        self.old = self.checkpoint(OLD, 1, seq=2)
        self.new = self.checkpoint(NEW, 2, seq=1)
        self.make(self.url, self.old, serving=1)
        self.make(self.waiting(NEW), self.new)

    def checkpoint(self, repository: str, generation: int, *, seq: int) -> Checkpoint:
        first = before_first(repository, repository, "p", generation)
        return replace(first, seq=seq, id=repository[0] * 64, digest=repository[0] * 64)

    def make(self, folder: str, checkpoint: Checkpoint, *, serving: int = 0) -> None:
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        repo = OpenRepositories(self.ui, 1).create(folder)
        with locked(repo):
            replicated.record(repo, checkpoint)
        if serving:
            watermark.write_watermark(
                repo, watermark.Watermark(seq=serving, length=0, tip=checkpoint.tip, push_id=None)
            )

    def waiting(self, repository: str) -> str:
        return place.waiting_of(self.settings.folder, repository)

    def perform(self, repository: str, folder: str | None, **members: Any) -> TaskOutcome:
        runner = TaskRunner(self.settings, OpenRepositories(self.ui, 4), SystemClock())
        given = {"repository": repository, "path": "p", "folder": folder, "incarnation": repository, **members}
        return runner.perform(Task(**given))

    def release_new(self) -> TaskOutcome:
        return self.perform(NEW, self.waiting(NEW), released=1)

    def at(self, folder: str) -> tuple[str, int, int] | None:
        """Repository, sequence and what is served; the locks of it are free."""
        found = scan.inspect(folder)
        if found is None or found.checkpoint is None:
            return None
        with locked(OpenRepositories(self.ui, 1).open(folder)):
            pass
        return found.checkpoint.repository, found.checkpoint.seq, found.serving


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    monkeypatch.setenv("HGRCPATH", os.devnull)
    monkeypatch.setenv("HGRCSKIPREPO", "1")
    return Mirror(tmp_path)


CopyBy = Callable[[Callable[[OpenRepositories], Checkpoint]], None]


def before(monkeypatch: pytest.MonkeyPatch, module: object, name: str, act: Callable[[], None]) -> None:
    """Has `act` happen once, when the function is called next."""
    real, acts = getattr(module, name), [act]

    def wrapper(*arguments: Any, **keywords: Any) -> Any:
        while acts:
            acts.pop()()
        return real(*arguments, **keywords)

    monkeypatch.setattr(module, name, wrapper)


def test_a_repository_whose_new_path_waits_for_release_is_in_its_place(mirror: Mirror) -> None:
    repo = OpenRepositories(mirror.ui, 1).open(mirror.url)
    with locked(repo):
        replicated.record(repo, replace(mirror.old, seq=3, path="q"))
    watermark.write_watermark(repo, watermark.Watermark(seq=2, length=0, tip=mirror.old.tip, push_id=None))
    mirror.make(mirror.settings.root + "/older", replace(mirror.old, seq=1, path="older"), serving=1)
    found = scan.find(mirror.settings, OLD)
    assert found is not None
    assert (found.folder, found.served_path) == (mirror.url, "p")


def test_no_worker_writes_into_a_repository_while_it_is_moved_away(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = OpenRepositories(mirror.ui, 1).open(mirror.url)  # its own worker is about to apply the next event
    refused = []

    def write() -> None:
        try:
            with locked(theirs), theirs.transaction(b"replicated") as tr:
                replicated.append(theirs, tr, [replace(mirror.old, seq=3)])
        except error.LockHeld:
            refused.append(True)

    before(monkeypatch, os, "rename", write)
    assert mirror.release_new().trouble is None
    assert refused == [True]
    assert mirror.at(mirror.url) == (NEW, 1, 1)
    assert mirror.at(mirror.waiting(OLD)) == (OLD, 2, 1)


@pytest.mark.parametrize("lock", [locked, lambda repo: repo.lock(), lambda repo: repo.wlock()])
def test_what_another_process_has_locked_is_not_moved(mirror: Mirror, lock: Callable[[Any], Any]) -> None:
    with lock(OpenRepositories(mirror.ui, 1).open(mirror.url)):
        trouble = mirror.release_new().trouble
    assert trouble is not None
    assert (trouble.reason, trouble.passing) == (Reason.LOCKED, True)
    assert mirror.at(mirror.url) == (OLD, 2, 1)
    assert mirror.release_new().trouble is None


@pytest.mark.parametrize("step", ["put", "write_watermark"])
def test_a_release_is_not_written_into_what_took_its_place(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    hgrc = {"web": {"description": "of the old one"}}
    repo = OpenRepositories(mirror.ui, 1).open(mirror.url)
    with locked(repo):
        replicated.record(repo, replace(mirror.old, seq=3, hgrc=hgrc))
    outcomes: list[TaskOutcome] = []
    module = releasing if step == "put" else watermark
    before(monkeypatch, module, step, lambda: outcomes.append(mirror.release_new()))
    mirror.perform(OLD, mirror.url, released=3)
    assert outcomes
    while outcomes[-1].trouble is not None:
        assert outcomes[-1].trouble.passing
        outcomes.append(mirror.release_new())
    assert mirror.at(mirror.url) == (NEW, 1, 1)
    assert not os.path.exists(mirror.url + "/.hg/hgrc")
    mirror.perform(OLD, mirror.url, released=3)
    assert mirror.at(mirror.waiting(OLD)) == (OLD, 3, 3)


def test_a_release_looks_again_what_is_there_once_it_has_the_lock(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    before(monkeypatch, place, "hold", lambda: print(mirror.release_new()))
    trouble = mirror.perform(OLD, mirror.url, released=2).trouble
    assert trouble is not None
    assert (trouble.reason, trouble.passing) == (Reason.LOCKED, True)
    assert mirror.at(mirror.url) == (NEW, 1, 1)
    assert mirror.at(mirror.waiting(OLD)) == (OLD, 2, 1)
    assert mirror.perform(OLD, mirror.url, released=2).serving == 2


@pytest.fixture
def _always_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each event follows the level that its repository has."""
    monkeypatch.setattr(work, "plan", lambda *_: APPLY)


@pytest.mark.usefixtures("_always_applied")
def test_an_event_is_not_applied_to_what_took_the_place_of_its_repository(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied = []

    def apply(runner: TaskRunner, repo: Any, checkpoint: Checkpoint, items: Any) -> tuple[int, Checkpoint]:
        applied.append(os.fsdecode(repo.root))
        return len(items), checkpoint

    monkeypatch.setattr(work, "_check_unchanged", lambda *_: None)
    monkeypatch.setattr(TaskRunner, "_apply", apply)
    before(monkeypatch, work, "locked", lambda: print(mirror.release_new()))
    event = SimpleNamespace(repository=OLD, path="p", type=Type.CHANGED)
    outcome = mirror.perform(OLD, mirror.url, items=(SimpleNamespace(event=event),))
    assert (outcome.done, outcome.trouble) == (1, None)
    assert applied == [mirror.waiting(OLD)]


@pytest.mark.usefixtures("_always_applied")
@pytest.mark.parametrize("step", ["locked", "_read_identity"])
def test_an_event_for_what_is_moved_away_is_tried_again(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The new one has not come yet."""

    def hide() -> None:
        with place.hold(mirror.url) as held:
            place.hide(mirror.settings.folder, mirror.settings.root, held, OLD)

    before(monkeypatch, work if step == "locked" else repository, step, hide)
    event = SimpleNamespace(repository=OLD, path="p", type=Type.CHANGED)
    trouble = mirror.perform(OLD, mirror.url, items=(SimpleNamespace(event=event),)).trouble
    assert trouble is not None
    assert (trouble.reason, trouble.passing) == (Reason.LOCKED, True)
    assert mirror.at(mirror.waiting(OLD)) == (OLD, 2, 1)


def test_a_rename_does_not_take_along_what_took_its_place(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = OpenRepositories(mirror.ui, 1).open(mirror.url)
    with locked(repo):
        replicated.record(repo, replace(mirror.old, seq=3, path="q"))
    outcomes: list[TaskOutcome] = []
    before(monkeypatch, releasing, "_make_room", lambda: outcomes.append(mirror.release_new()))
    mirror.perform(OLD, mirror.url, released=3)
    outcomes.append(mirror.release_new())
    assert outcomes[-1].trouble is None
    assert mirror.at(mirror.url) == (NEW, 1, 1)
    assert mirror.at(mirror.settings.root + "/q") == (OLD, 3, 3)


def test_what_leaves_does_not_take_along_what_took_its_place(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    def displace() -> None:
        assert mirror.release_new().trouble is None

    before(monkeypatch, place, "hold", displace)
    trouble = mirror.perform(OLD, mirror.url, leave=True).trouble
    assert trouble is not None
    assert trouble.passing
    assert mirror.perform(OLD, mirror.url, leave=True).trouble is None
    assert mirror.at(mirror.url) == (NEW, 1, 1)
    assert mirror.at(mirror.waiting(OLD)) is None
    assert os.listdir(mirror.settings.folder + "/aside") == [f"{OLD}-left"]


@pytest.fixture
def copy_by(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> CopyBy:
    """Has a repair's copy of a repository be made by what it is given, at the place for it."""

    def choose(copy: Callable[[OpenRepositories], Checkpoint]) -> None:
        made = place.staging_of(mirror.settings.folder, OLD)
        monkeypatch.setattr(healing, "copy_beside", lambda repositories, *_: (made, copy(repositories)))

    return choose


def test_a_copy_takes_the_place_where_its_repository_is_by_then(mirror: Mirror, copy_by: CopyBy) -> None:
    made, checkpoint = place.staging_of(mirror.settings.folder, OLD), replace(mirror.old, seq=5)

    def copy(_: OpenRepositories) -> Checkpoint:
        mirror.make(made, checkpoint)
        assert mirror.release_new().trouble is None  # a copy takes minutes
        return checkpoint

    copy_by(copy)
    assert mirror.perform(OLD, mirror.url, heal=Reason.CORRUPT).trouble is None
    assert mirror.at(mirror.url) == (NEW, 1, 1)
    assert mirror.at(mirror.waiting(OLD)) == (OLD, 5, 1)


@pytest.mark.parametrize("how", ["swap", "bring_up"])
def test_a_repair_never_replaces_what_took_its_place_at_the_last_moment(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch, copy_by: CopyBy, how: str
) -> None:
    made, checkpoint = place.staging_of(mirror.settings.folder, OLD), replace(mirror.old, seq=5)

    def displace() -> None:
        assert mirror.release_new().trouble is None

    def copy(_: OpenRepositories) -> Checkpoint:
        mirror.make(made, checkpoint)
        return checkpoint

    copy_by(copy)
    monkeypatch.setattr(snapshot, "master_newest_event", lambda *_: SimpleNamespace(repository=OLD))
    if how == "swap":
        before(monkeypatch, healing, "_hold_if_present", displace)
    else:
        before(monkeypatch, healing, "locked", displace)
    trouble = mirror.perform(OLD, mirror.url, heal=Reason.CORRUPT if how == "swap" else Reason.GAP).trouble
    assert trouble is not None
    assert (trouble.reason, trouble.passing) == (Reason.LOCKED, True)
    assert mirror.at(mirror.url) == (NEW, 1, 1)
    assert mirror.at(mirror.waiting(OLD)) == (OLD, 2, 1)


def test_two_that_are_released_at_a_free_path_at_once_both_find_a_place(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    third = "c" * 32
    mirror.make(mirror.waiting(third), mirror.checkpoint(third, 3, seq=1))

    def come_first() -> None:
        assert mirror.perform(third, mirror.waiting(third), released=1).trouble is None

    before(monkeypatch, place, "move", come_first)
    trouble = mirror.release_new().trouble
    assert trouble is not None
    assert (trouble.reason, trouble.passing) == (Reason.LOCKED, True)
    assert mirror.release_new().trouble is None
    assert mirror.at(mirror.url) == (third, 1, 1)
    assert mirror.at(mirror.waiting(NEW)) == (NEW, 1, 1)
    assert mirror.at(mirror.waiting(OLD)) == (OLD, 2, 1)


def test_what_came_into_the_way_at_the_last_moment_is_asked_too(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    third, real, looks = "c" * 32, releasing._may_displace, []
    mirror.make(mirror.waiting(third), mirror.checkpoint(third, 3, seq=1))

    def may_displace(*arguments: Any) -> bool:
        looks.append(real(*arguments))
        if len(looks) == 1:
            assert mirror.perform(third, mirror.waiting(third), released=1).trouble is None
        return looks[-1]

    monkeypatch.setattr(releasing, "_may_displace", may_displace)
    assert mirror.release_new().trouble is None
    assert mirror.at(mirror.url) == (third, 1, 1)
    assert mirror.at(mirror.waiting(NEW)) == (NEW, 1, 1)


def test_the_oldest_and_newest_former_copies_of_many_repairs_stay(mirror: Mirror, copy_by: CopyBy) -> None:
    made, copies = place.staging_of(mirror.settings.folder, OLD), [replace(mirror.old, seq=seq) for seq in range(3, 8)]

    def copy(_: OpenRepositories) -> Checkpoint:
        copied = copies.pop(0)
        mirror.make(made, copied)
        return copied

    copy_by(copy)
    aside = Path(mirror.settings.folder, "aside")
    while copies:
        assert mirror.perform(OLD, mirror.url, heal=Reason.CORRUPT).trouble is None
        for age, folder in enumerate(sorted(aside.iterdir(), key=lambda each: each.stat().st_mtime_ns)):
            os.utime(folder, (age, age))
    kept = [scan.inspect(str(folder), "hg") for folder in aside.iterdir()]
    assert sorted(each.checkpoint.seq for each in kept if each and each.checkpoint) == [2, 5, 6]


def put_on_another_file_system(system: System, folder: str) -> Fault:
    """Have everything that is moved into the folder, or exchanged with it, come from another file system."""
    return system.refuse(errno.EXDEV, "os.rename", f"{place.__name__}._exchange_names", at=f"{folder}/*")


@pytest.mark.parametrize("why", ["another file system", "leads out of"])
def test_a_repository_that_cannot_move_to_its_path_stays_as_it_is(
    mirror: Mirror, system: System, tmp_path: Path, why: str
) -> None:
    shutil.rmtree(mirror.url)
    if why == "leads out of":
        os.symlink(tmp_path, mirror.url)
    else:
        put_on_another_file_system(system, mirror.url)
    trouble = mirror.release_new().trouble
    assert trouble is not None
    assert (trouble.reason, trouble.passing) == (Reason.REFUSED, False)
    assert why in trouble.note
    assert mirror.url in trouble.note
    assert mirror.at(mirror.waiting(NEW)) == (NEW, 1, 0)


def test_a_copy_that_cannot_take_its_place_goes_on_where_it_is(mirror: Mirror, copy_by: CopyBy, system: System) -> None:
    made, copies = place.staging_of(mirror.settings.folder, OLD), list[bool]()

    def copy(repositories: OpenRepositories) -> Checkpoint:
        healing.keep_aside(repositories, made, mirror.settings, OLD)
        copies.append(not os.path.exists(made))
        if copies[-1]:
            mirror.make(made, replace(mirror.old, seq=5))
        return replace(mirror.old, seq=5)

    copy_by(copy)
    with put_on_another_file_system(system, mirror.url):
        for _ in range(2):
            trouble = mirror.perform(OLD, mirror.url, heal=Reason.CORRUPT).trouble
            assert trouble is not None
            assert trouble.reason is Reason.REFUSED
    assert mirror.at(mirror.url) == (OLD, 2, 1)
    assert mirror.perform(OLD, mirror.url, heal=Reason.CORRUPT).trouble is None
    assert copies == [True, False, False]
    assert mirror.at(mirror.url) == (OLD, 5, 1)
    assert os.listdir(mirror.settings.folder + "/aside") == [f"{OLD}-healed"]


def test_a_repository_behind_a_link_inside_the_root_is_released_there(mirror: Mirror) -> None:
    root = mirror.settings.root
    os.mkdir(root + "/b")
    os.symlink("b", root + "/a")
    os.rename(mirror.url, root + "/b/p")
    with locked(repo := OpenRepositories(mirror.ui, 1).open(root + "/b/p")):
        replicated.record(repo, replace(mirror.old, path="a/p"))
    [found] = [each for each in scan.scan(root, mirror.settings.folder) if each.is_of(OLD)]
    outcome = mirror.perform(OLD, found.folder, path="a/p", released=2)
    assert outcome.trouble is None
    assert mirror.at(root + "/a/p") == (OLD, 2, 2)


@pytest.mark.parametrize("copied", ["before its rename", "behind its rename"])
def test_a_copy_of_a_repository_at_its_path_is_named_as_what_it_is(mirror: Mirror, copied: str) -> None:
    copy = mirror.settings.root + "/q"
    renamed = replace(mirror.old, seq=3, path="q")
    mirror.make(copy, renamed if copied == "behind its rename" else mirror.old)
    with locked(repo := OpenRepositories(mirror.ui, 1).open(mirror.url)):
        replicated.record(repo, renamed)
    trouble = mirror.perform(OLD, mirror.url, released=3).trouble
    assert trouble is not None
    assert trouble.reason is Reason.REFUSED
    assert (
        trouble.note == f"{copy} is another copy of the repository in {mirror.url}: move either of them out of the root"
    )
    assert (mirror.at(copy), mirror.at(mirror.url)) == (
        (OLD, renamed.seq if copied == "behind its rename" else 2, 0),
        (OLD, 3, 1),
    )


def test_a_repository_is_found_where_it_belongs_and_not_in_a_copy(mirror: Mirror) -> None:
    for name in ("a", "q"):
        shutil.copytree(mirror.url, f"{mirror.settings.root}/{name}")
    local = LocalRepository(folder=mirror.settings.root + "/gone")
    local.find(mirror.settings, OLD)
    assert local.folder == mirror.url


@pytest.mark.parametrize("form", ["{}/", "{}/../.state", "{}"])
def test_what_is_made_in_the_state_folder_is_no_repository(mirror: Mirror, form: str) -> None:
    root = mirror.settings.root
    state = form.format(root + "/.state")
    mirror.make(place.staging_of(state, OLD), mirror.old)
    assert OLD not in [
        each.checkpoint.repository for each in scan.scan(root, state) if "staging" in each.folder and each.checkpoint
    ]


def test_folders_that_another_worker_removes_as_empty_are_made_again(mirror: Mirror, system: System) -> None:
    repo = OpenRepositories(mirror.ui, 1).open(mirror.url)
    with locked(repo):
        replicated.record(repo, replace(mirror.old, seq=3, path="group/q"))
    removed = list[str]()

    def remove_parent(path: str) -> None:
        if not removed:
            removed.append(path)
            os.rmdir(os.path.dirname(path))

    system.watch(remove_parent, "os.mkdir", at="*/q")
    assert mirror.perform(OLD, mirror.url, released=3).trouble is None
    assert len(removed) == 1
    assert mirror.at(mirror.settings.root + "/group/q") == (OLD, 3, 3)


@pytest.mark.parametrize("keep", [False, True])
def test_a_deletion_takes_the_repository_at_its_release_but_on_a_backup(mirror: Mirror, keep: bool) -> None:
    with locked(repo := OpenRepositories(mirror.ui, 1).open(mirror.url)):
        replicated.record(repo, replace(mirror.old, seq=3, deleted=True))
    assert mirror.perform(OLD, mirror.url, released=2, keep=keep).serving == 2
    outcome = mirror.perform(OLD, mirror.url, released=3, keep=keep)
    assert (outcome.gone is None, outcome.trouble) == (keep, None)
    assert mirror.at(mirror.url) == ((OLD, 3, 3) if keep else None)
    assert os.path.exists(mirror.settings.folder + f"/aside/{OLD}-deleted/hg/store") is not keep


def test_the_mirrors_own_folders_stay_when_they_are_empty(mirror: Mirror) -> None:
    shutil.rmtree(mirror.url)
    assert mirror.release_new().trouble is None
    assert os.listdir(mirror.settings.folder + "/waiting") == []  # another worker may be about to make one there


def test_what_is_renamed_to_a_newer_ones_place_leaves_its_former_place(mirror: Mirror) -> None:
    third = "c" * 32
    mirror.make(mirror.settings.root + "/q", replace(mirror.checkpoint(third, 5, seq=1), path="q"), serving=1)
    with locked(repo := OpenRepositories(mirror.ui, 1).open(mirror.url)):
        replicated.record(repo, replace(mirror.old, seq=3, path="q"))
    assert mirror.perform(OLD, mirror.url, released=3).trouble is None
    assert mirror.at(mirror.settings.root + "/q") == (third, 1, 1)
    assert mirror.at(mirror.waiting(OLD)) == (OLD, 3, 3)
    assert not os.path.exists(mirror.url)


@pytest.mark.parametrize(
    ("members", "serving"),
    [
        ({"incarnation": NEW}, 1),
        ({"incarnation": OLD}, 0),
        ({"incarnation": None}, 0),
        ({"incarnation": NEW, "newest_known": (1, NEW[0] * 64, NEW[0] * 64)}, 1),
        ({"incarnation": NEW, "newest_known": (1, NEW[0] * 64, "f" * 64)}, 0),
        ({"incarnation": NEW, "newest_known": (1, "f" * 64, NEW[0] * 64)}, 0),
    ],
)
def test_what_is_released_of_another_history_shows_nothing_of_this_one(
    mirror: Mirror, members: dict[str, Any], serving: int
) -> None:
    outcome = mirror.perform(NEW, mirror.waiting(NEW), **{"released": 1, **members})
    assert (outcome.serving, outcome.trouble) == (serving, None)
    assert mirror.at(mirror.url) == ((NEW, 1, 1) if serving else (OLD, 2, 1))


def read_through(mirror: Mirror, repository: str, folder: str) -> Checked:
    wanted = Check(repository=repository, folder=folder, seq=2, serving=1)
    return check(OpenRepositories(mirror.ui, 1), mirror.settings, wanted)


@pytest.mark.parametrize("damage", ["changelog", "checkpoint"])
def test_a_check_says_nothing_of_a_repository_from_what_took_its_place(mirror: Mirror, damage: str) -> None:
    assert mirror.release_new().trouble is None
    file = "00changelog.i" if damage == "changelog" else "replicated.log"
    Path(mirror.url, ".hg/store", file).write_bytes(b"torn, and long enough for a frame")
    for folder in (mirror.url, mirror.settings.root + "/nothing", mirror.waiting(OLD)):
        found = read_through(mirror, OLD, folder)
        assert (found.problem, found.lower, found.is_undecided) == (None, None, False)
    assert read_through(mirror, NEW, mirror.url).problem is not None


def test_a_check_of_what_is_moved_away_at_its_beginning_is_undecided(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    before(monkeypatch, checking, "_observe_store", lambda: print(mirror.release_new()))
    found = read_through(mirror, OLD, mirror.url)
    assert (found.problem, found.lower, found.is_undecided) == (None, None, True)
    assert mirror.at(mirror.url) == (NEW, 1, 1)


@pytest.mark.parametrize("step", ["_observe_store", "_read_shown"])
def test_a_check_of_what_is_renamed_meanwhile_is_undecided(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with locked(repo := OpenRepositories(mirror.ui, 1).open(mirror.url)):
        replicated.record(repo, replace(mirror.old, seq=3, path="q"))
    before(monkeypatch, checking, step, lambda: print(mirror.perform(OLD, mirror.url, released=3)))
    found = read_through(mirror, OLD, mirror.url)
    assert (found.problem, found.lower, found.shown, found.is_undecided) == (None, None, None, True)
    assert mirror.at(mirror.settings.root + "/q") == (OLD, 3, 3)


def test_a_check_finds_a_repository_that_is_gone_and_a_restored_one(mirror: Mirror) -> None:
    shutil.rmtree(mirror.url)
    found = read_through(mirror, OLD, mirror.url)
    assert (found.problem, found.sought) == ("it is not here any more", mirror.url)
    restored = mirror.checkpoint(OLD, 1, seq=1)
    mirror.make(mirror.url, restored)
    assert read_through(mirror, OLD, mirror.url).lower == restored


def test_damage_that_took_the_place_of_a_repository_is_not_its_own(mirror: Mirror) -> None:
    assert mirror.release_new().trouble is None
    Path(mirror.url, ".hg/store/replicated.log").write_bytes(b"torn, and long enough for a frame")
    local = LocalRepository(folder=mirror.url)
    local.find(mirror.settings, OLD, mirror.url)
    assert (local.folder, local.checkpoint) == (mirror.waiting(OLD), mirror.old)


KILLED = """
import os, signal, sys
sys.path.insert(0, {checkout!r})
from pathlib import Path
from hgext.vcsreplicator.hg.replica import place
from tests.mirror.test_places import Mirror, NEW
from testing.faults.system import System
Mirror.make = lambda *_, **__: None
real = os.rename
left = [{count}]
def rename(*arguments):
    real(*arguments)
    left[0] -= str(arguments[0]).endswith("/.hg")
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
os.rename = rename
Mirror(Path({folder!r})).release_new()
"""


@pytest.mark.sample(1)
@pytest.mark.processes
@pytest.mark.parametrize("count", [1, 2])
def test_a_worker_killed_behind_a_move_leaves_no_lock_that_holds(mirror: Mirror, tmp_path: Path, count: int) -> None:
    program = KILLED.format(checkout=os.getcwd(), folder=str(tmp_path), count=count)
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == -signal.SIGKILL
    assert mirror.at(mirror.waiting(OLD)) == (OLD, 2, 1)
    folder = mirror.waiting(NEW) if count == 1 else mirror.url
    assert mirror.at(folder) == (NEW, 1, 0)
    assert mirror.perform(NEW, folder, released=1).trouble is None
    assert mirror.at(mirror.url) == (NEW, 1, 1)

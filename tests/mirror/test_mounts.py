# SPDX-License-Identifier: GPL-2.0-or-later
"""The root of a mirror is empty or another folder, as when its file system is not mounted: the mirror ends and copies nothing."""

import errno
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hgext.vcsreplicator.mirror import service
from hgext.vcsreplicator.mirror.jobs.bootstrap import BootstrapSettings, bootstrap
from hgext.vcsreplicator.mirror.mounts import MountedRoot
from hgext.vcsreplicator.mirror.settings import MirrorSettings
from hgext.vcsreplicator.mirror.supervision import boot
from hgext.vcsreplicator.words.errors import BadConfig, Refused, Unavailable
from hgext.vcsreplicator.words.passing import is_passing
from hgext.vcsreplicator.words.roster import Verb
from hgext.vcsreplicator.words.rules import Rules
from testing.builders.mirror.author import Author
from testing.builders.mirror.mirroring import Bench
from testing.faults.system import System
from testing.waiting import eventually

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def numbers(bench: Bench, system: System) -> dict[int, int]:
    """Numbers of file systems by the inodes of the folders that count as roots of one."""
    numbers: dict[int, int] = {}

    def measure(path: str) -> object | None:
        number = numbers.get(os.stat(path).st_ino)
        return None if number is None else SimpleNamespace(f_fsid=number)

    system.measure_disks(measure)
    numbers[bench.root.stat().st_ino] = 7
    return numbers


@pytest.fixture
def served(bench: Bench) -> Author:
    """A repository that the mirror served before it stopped."""
    author = bench.author("served")
    push(bench, author)
    with bench.mirror():
        bench.wait_served(author)
    return author


def push(bench: Bench, author: Author) -> None:
    author.push()
    bench.send(author)
    bench.release(author)


def unmount(bench: Bench) -> Path:
    """Put an empty folder in the place of the root, as an unmount does; where the root is now."""
    away = bench.folder / "away"
    bench.root.rename(away)
    bench.root.mkdir()
    return away


def run_until_unmounted(bench: Bench) -> None:
    with bench.mirror() as failed:
        unmount(bench)
        eventually(lambda: failed, "the mirror ends")


def refuse(_verb: Verb, _rules: Rules | None) -> None:
    raise Refused("the bootstrap ends before it copies anything")


def mount(bench: Bench, away: Path) -> None:
    bench.root.rename(bench.folder / "mount-point")
    away.rename(bench.root)


def content(folder: Path) -> set[str]:
    return {each for each in os.listdir(folder) if not each.startswith("~vcsreplicator") and each != "lost+found"}


def test_a_mirror_on_an_empty_root_ends_until_its_root_is_mounted(bench: Bench, served: Author) -> None:
    away = unmount(bench)
    (bench.root / "lost+found").mkdir()
    expected = (
        f"mirror.alpha.root: {bench.root} is empty, but according to the log this mirror has 1 repository: mount its file system; "
        "if its disk is lost, run: vcsreplicator bootstrap alpha"
    )
    for _ in range(2):  # the second start finds what the first one made
        with pytest.raises(Unavailable) as ended, bench.mirror():
            pass
        assert str(ended.value) == expected
    assert content(bench.root) == set()
    mount(bench, away)
    push(bench, served)
    with bench.mirror():
        bench.wait_served(served)


@pytest.mark.sample(1)
@pytest.mark.parametrize("number", [7, 8, 0])
def test_an_emptied_root_heals_where_the_last_heartbeat_came_from(
    bench: Bench, served: Author, numbers: dict[int, int], number: int
) -> None:
    shutil.rmtree(bench.root)
    bench.root.mkdir()
    numbers[bench.root.stat().st_ino] = number
    if number != 7:
        with pytest.raises(Unavailable, match="is empty, but according to the log"), bench.mirror():
            pass
        assert content(bench.root) == set()
        return
    with bench.mirror():
        eventually(lambda: content(bench.root) == {"served"}, "the copy")


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("left", "state"),
    [("not-mounted", None), (None, "~state/"), (None, "~states/alpha")],
    ids=["file", "state with a slash", "state below a folder"],
)
def test_an_empty_mount_point_may_have_files_and_the_state_folder(
    bench: Bench, served: Author, left: str | None, state: str | None
) -> None:
    unmount(bench)
    if left:
        (bench.root / left).touch()
    with (
        pytest.raises(Unavailable, match="is empty, but according to the log this mirror has 1 repository: "),
        bench.mirror(state=state and f"{bench.root}/{state}"),
    ):
        pass


def test_a_root_with_repositories_beside_a_new_state_folder_is_not_empty(bench: Bench, numbers: dict[int, int]) -> None:
    author = bench.author("group/served")
    push(bench, author)
    with bench.mirror():
        bench.wait_served(author)
    numbers[bench.root.stat().st_ino] = 8
    shutil.rmtree(bench.root / "~vcsreplicator")
    with bench.mirror(state=f"{bench.root}/group/~state"):
        bench.wait_served(author)


def test_a_mirror_fills_an_empty_root_once_an_operator_began_a_bootstrap(bench: Bench, served: Author) -> None:
    unmount(bench)
    stop, settings = threading.Event(), replace(bench.settings(), master="http://127.0.0.1:1/")
    assert not bootstrap(
        settings, bench.log, BootstrapSettings(), ask=lambda *_: None, report=lambda _: stop.set(), stop=stop
    )
    assert content(bench.root) == set()
    with bench.mirror():
        bench.wait(lambda acks: acks[served.repository].applied == served.seq, "the copy")
        eventually(lambda: content(bench.root) == {"served"}, "it is in its place")


def test_a_refused_bootstrap_allows_no_mirror_to_fill_an_empty_root(bench: Bench, served: Author) -> None:
    unmount(bench)
    with pytest.raises(Refused):
        bootstrap(bench.settings(), bench.log, BootstrapSettings(), ask=refuse, report=print, stop=threading.Event())
    with pytest.raises(Unavailable, match="is empty, but according to the log"), bench.mirror():
        pass
    assert content(bench.root) == set()


def test_a_mirror_with_all_repositories_deleted_starts_on_an_empty_root(bench: Bench, served: Author) -> None:
    bench.release(served, deleted=True)
    unmount(bench)
    with bench.mirror():
        pass


def test_a_mirror_whose_root_becomes_another_folder_ends(bench: Bench, served: Author) -> None:
    expected = f"mirror.alpha.root: {bench.root} is another folder than at the start: was its file system mounted or unmounted?"
    with pytest.raises(Unavailable) as ended:
        run_until_unmounted(bench)
    assert str(ended.value).startswith(expected)
    assert content(bench.root) == set()
    mount(bench, bench.folder / "away")
    push(bench, served)
    with bench.mirror():
        bench.wait_served(served)


def test_a_root_unmounted_before_an_orderly_stop_is_no_failure(
    bench: Bench, served: Author, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MountedRoot, "watch", lambda *_: None)  # the stop comes before its next look
    with bench.mirror():
        away = unmount(bench)
    assert os.listdir(bench.root) == []
    assert boot.read(str(away)).boot == boot.read_boot()


@pytest.mark.sample(1)
@pytest.mark.parametrize("call", ["stat", "statvfs", "scandir"])
def test_a_root_that_fails_at_the_start_is_named_in_one_line(
    bench: Bench, served: Author, monkeypatch: pytest.MonkeyPatch, system: System, call: str
) -> None:
    unmount(bench)
    (bench.root / "~vcsreplicator").mkdir()

    def fail_and_look(settings: MirrorSettings) -> MountedRoot:
        system.refuse(errno.ESTALE, f"os.{call}", at=str(bench.root))
        return MountedRoot(settings)

    monkeypatch.setattr(service, "MountedRoot", fail_and_look)
    expected = (
        f"mirror.alpha.root: {bench.root} cannot be used: {os.strerror(errno.ESTALE)}; expected a folder that user"
    )
    with pytest.raises(BadConfig) as ended, bench.mirror():
        pass
    assert str(ended.value).startswith(expected)
    assert is_passing(ended.value)


def test_a_root_that_does_not_answer_holds_up_nothing_but_the_look_at_it(
    bench: Bench, served: Author, system: System
) -> None:
    asked, answers = threading.Event(), threading.Event()

    with bench.mirror():
        system.watch(lambda _: (asked.set(), answers.wait()), "os.stat", at=str(bench.root))
        try:
            assert asked.wait(60)
            push(bench, served)
            bench.wait_served(served)
        finally:
            answers.set()

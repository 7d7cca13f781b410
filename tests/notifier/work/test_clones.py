# SPDX-License-Identifier: GPL-2.0-or-later
"""Local clones: trouble of the installation uses no retry, and a clone that is damaged is made anew.

Mounting a small disk needs root.
"""

import contextlib
import fcntl
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path

import pytest

from hgext.vcsreplicator.words.errors import Unavailable
from notifier.work import clones
from notifier.work.clones import Clones
from notifier.work.commandserver import CommandServer, HgFailed
from notifier.work.database import ChangesetRecord, RepositoryKey
from testing.builders.working import HgHost, hg

pytestmark = pytest.mark.processes

A_KEY = RepositoryKey(source="poll", number=1, url="http://127.0.0.1:1/x")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HgHost]:
    with HgHost(tmp_path_factory.mktemp("host")) as running:
        yield running


def key_of(host: HgHost, name: str) -> RepositoryKey:
    return RepositoryKey(source="poll", number=1, url=host.url(name))


def read(kept: Clones, server: CommandServer, key: RepositoryKey, nodes: list[str]) -> set[str]:
    """Read changesets; return those that came."""
    found: list[ChangesetRecord] = []
    kept.read(server, key, nodes, found.extend)
    return {each.node for each in found}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def server() -> Iterator[CommandServer]:
    with closing(CommandServer(timeout=60.0, memory=4 * 1024**3)) as server:
        yield server


@pytest.mark.parametrize(
    "folder",
    ["/proc", "/proc/missing", "{}/a file", "{}/a file/clones"],  # no user, not even root, can make a file in any
    ids=["nothing can be written", "missing", "a file", "below a file"],
)
def test_a_folder_that_cannot_be_written_uses_no_retry(
    server: CommandServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    (tmp_path / "a file").write_text("")
    monkeypatch.setattr(clones, "LEAST_FREE", 0)
    with pytest.raises(Unavailable, match=f"^work.clones: {folder.format(tmp_path)}: "):
        read(Clones(folder.format(tmp_path)), server, A_KEY, ["a" * 40])


def test_a_host_that_is_away_uses_a_retry(server: CommandServer, tmp_path: Path) -> None:
    with pytest.raises(HgFailed):
        read(Clones(str(tmp_path)), server, A_KEY, ["a" * 40])
    assert sorted(each.name for each in tmp_path.iterdir()) == [".poll-1.lock", "poll-1"]


@pytest.mark.slow
def test_disk_that_a_pull_fills_uses_no_retry(
    server: CommandServer, host: HgHost, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clones, "LEAST_FREE", 0)  # what is free once Mercurial has undone its work
    host.add("large", 1)
    (host.folder / "large" / "file").write_bytes(os.urandom(4_000_000))
    nodes = host.extend("large", 1)
    with pytest.raises(Unavailable, match="No space left on device"):
        read(Clones(str(small_disk)), server, key_of(host, "large"), nodes)


def test_host_that_says_its_own_disk_is_full_uses_a_retry(server: CommandServer, host: HgHost, tmp_path: Path) -> None:
    host.add("full", 1)
    hook = host.folder / "full" / "hook.py"
    hook.write_text("from mercurial.error import Abort\n\ndef say(**_): raise Abort(b'No space left on device')\n")
    (host.folder / "full" / ".hg" / "hgrc").write_text(f"[hooks]\npreoutgoing = python:{hook}:say\n")
    with pytest.raises(HgFailed, match="No space left on device"):
        read(Clones(str(tmp_path)), server, key_of(host, "full"), ["e" * 40])


# -- locks


def this_machine() -> str:
    """Return how Mercurial names this machine in a lock."""
    return f"{socket.gethostname()}/{os.stat('/proc/self/ns/pid').st_ino:x}"


def test_lock_that_a_container_left_is_removed(server: CommandServer, host: HgHost, tmp_path: Path) -> None:
    nodes = host.add("locked", 1)
    kept = Clones(str(tmp_path))
    read(kept, server, key_of(host, "locked"), nodes)
    for name in ("store/lock", "wlock"):
        (tmp_path / "poll-1" / ".hg" / name).symlink_to("6f2c1b/f0000001:17")
    nodes = host.extend("locked", 1)
    assert read(kept, server, key_of(host, "locked"), nodes) == set(nodes)


def test_lock_from_before_the_machine_started_is_removed(server: CommandServer, host: HgHost, tmp_path: Path) -> None:
    nodes = host.add("old", 1)
    kept = Clones(str(tmp_path))
    read(kept, server, key_of(host, "old"), nodes)
    lock = tmp_path / "poll-1" / ".hg" / "store" / "lock"
    lock.symlink_to(f"{this_machine()}:{os.getpid()}")  # a process has that number again
    os.utime(lock, (0, 0), follow_symlinks=False)
    nodes = host.extend("old", 1)
    assert read(kept, server, key_of(host, "old"), nodes) == set(nodes)


def test_lock_of_a_process_that_lives_uses_no_retry(server: CommandServer, host: HgHost, tmp_path: Path) -> None:
    nodes = host.add("busy", 1)
    kept = Clones(str(tmp_path))
    read(kept, server, key_of(host, "busy"), nodes)
    lock = tmp_path / "poll-1" / ".hg" / "store" / "lock"
    lock.symlink_to(f"{this_machine()}:{os.getpid()}")
    with pytest.raises(Unavailable, match="timed out waiting for lock"):
        read(kept, server, key_of(host, "busy"), host.extend("busy", 1))
    assert lock.is_symlink()


def test_clone_that_another_process_reads_is_waited_for(server: CommandServer, host: HgHost, tmp_path: Path) -> None:
    nodes = host.add("shared", 1)
    with (tmp_path / ".poll-1.lock").open("w") as lock, ThreadPoolExecutor(1) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        reading = pool.submit(read, Clones(str(tmp_path)), server, key_of(host, "shared"), nodes)
        wait([reading], 0.5)
        assert not (tmp_path / "poll-1").exists()
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert reading.result() == set(nodes)


def test_wait_for_another_process_ends_with_the_worker(server: CommandServer, host: HgHost, tmp_path: Path) -> None:
    with (tmp_path / ".poll-1.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        server.end()
        with pytest.raises(Unavailable, match="stopping"):
            read(Clones(str(tmp_path)), server, A_KEY, ["a" * 40])


# -- damage


def put_zeros(path: Path) -> None:
    path.write_bytes(bytes(max(path.stat().st_size, 50)))


def make_unrelated(clone: Path) -> None:
    shutil.rmtree(clone)
    hg("init", str(clone))
    hg("-R", str(clone), "debugbuilddag", "--new-file", "@other+1")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "requires": lambda clone: put_zeros(clone / ".hg/requires"),
    "phases": lambda clone: put_zeros(clone / ".hg/store/phaseroots"),
    "changelog": lambda clone: put_zeros(clone / ".hg/store/00changelog.i"),
    "names": lambda clone: put_zeros(clone / ".hg/store/fncache"),
    "another repository": make_unrelated,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_clone_is_made_anew_before_the_last_attempt(
    server: CommandServer, host: HgHost, tmp_path: Path, damage: str
) -> None:
    name = f"damaged{list(DAMAGES).index(damage)}"
    nodes = host.add(name, 3)
    kept = Clones(str(tmp_path))
    read(kept, server, key_of(host, name), nodes)
    for _ in range(2):  # also a second time
        DAMAGES[damage](tmp_path / "poll-1")
        nodes = host.extend(name, 1)
        with contextlib.suppress(HgFailed):
            read(kept, server, key_of(host, name), nodes)
        assert read(kept, server, key_of(host, name), nodes) == set(nodes)
    assert sorted(each.name for each in tmp_path.iterdir()) == [".poll-1.lock", "poll-1"]


def fail_often(kept: Clones, server: CommandServer, key: RepositoryKey, nodes: list[str]) -> None:
    for _ in range(4):
        with pytest.raises(HgFailed):
            read(kept, server, key, nodes)


def test_clone_stays_while_its_host_has_no_such_changeset(server: CommandServer, host: HgHost, tmp_path: Path) -> None:
    nodes = host.add("behind", 1)
    kept = Clones(str(tmp_path))
    read(kept, server, key_of(host, "behind"), nodes)
    before = (tmp_path / "poll-1").stat().st_ino
    fail_often(kept, server, key_of(host, "behind"), ["e" * 40])
    assert (tmp_path / "poll-1").stat().st_ino == before


def test_clone_stays_while_its_host_is_away(server: CommandServer, host: HgHost, tmp_path: Path) -> None:
    nodes = host.add("away", 1)
    kept = Clones(str(tmp_path))
    read(kept, server, key_of(host, "away"), nodes)
    before = (tmp_path / "poll-1").stat().st_ino
    fail_often(kept, server, A_KEY, ["e" * 40])
    assert (tmp_path / "poll-1").stat().st_ino == before


def test_damaged_clone_whose_host_is_broken_is_replaced_by_no_other(
    server: CommandServer, host: HgHost, tmp_path: Path
) -> None:
    nodes = host.add("broken", 3)
    kept = Clones(str(tmp_path))
    read(kept, server, key_of(host, "broken"), nodes)
    before = (tmp_path / "poll-1").stat().st_ino
    put_zeros(tmp_path / "poll-1/.hg/store/phaseroots")
    nodes = host.extend("broken", 1)
    manifest = host.folder / "broken/.hg/store/00manifest.i"
    good = manifest.read_bytes()
    put_zeros(manifest)
    fail_often(kept, server, key_of(host, "broken"), nodes)
    assert (tmp_path / "poll-1").stat().st_ino == before
    manifest.write_bytes(good)
